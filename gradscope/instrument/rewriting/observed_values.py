"""Observed values enter and leave a run of the interpreter beside the function's own, by number in the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Captured(NamedTuple):
    """A `Captured` is a pytree of what a run observed, by number in the plan.

    Attributes:
        values: The observations, with a leading axis for each loop around the site.
        executed: For sites and terms in branches and `while` loops: whether that ran, likewise per iteration.
        iterations: For sites in `while` loops: how many iterations each loop ran, outermost first along the last axis.
        seeds: Values to be differentiated, as they are, by site number.
    """

    values: dict[int, Any]
    executed: dict[int, Any]
    iterations: dict[int, Any]
    seeds: dict[int, Any]

    @classmethod
    def nothing(cls) -> Captured:
        """Returns an instance without observations."""
        return cls({}, {}, {}, {})

    def take(self, other: Captured) -> None:
        """Adds the observations of a frame inside."""
        for mine, theirs in zip(self, other, strict=True):
            mine.update(theirs)


class InjectedValues(NamedTuple):
    """An `InjectedValues` is a pytree of the values that a run receives, by number in the plan.

    Each has a leading axis for each loop around the site.

    Attributes:
        sinks: The sinks through which observations of gradients and terms leave.
        feeds: Values in place of those that would be computed.
        fed: Whether this is an iteration in which there is one.
        stopped: Whether this is an iteration in which the value counts as constant.
        gradient_fed: Whether this is an iteration in which no cotangent arrives from where the value is used.
    """

    sinks: Mapping[int, Any]
    feeds: Mapping[int, Any]
    fed: Mapping[int, Any]
    stopped: Mapping[int, Any]
    gradient_fed: Mapping[int, Any]

    @classmethod
    def nothing(cls) -> InjectedValues:
        """Returns an instance without values."""
        return cls({}, {}, {}, {}, {})
