"""Queries request more than a traced loss computes and its own gradients.

A query may differentiate other values in place of the loss (*of*), treat values as constant (*stops*), and inject
values, or the gradients that arrive at them, instead of computing them (*feeds*). It may also request only a few values
(*fetches*), so that the rest of the program is not run. TensorFlow's names for these are `ys`, `stop_gradients`,
`feed_dict` and `fetches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gradscope.dump.record import Json
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.tracing.tracer import Trace

#: The prefix of a value's name that means the gradient that arrives at it.
GRADIENT: Final = "gradient/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """A `TraceQuery` is a query by the names of values (see `tracing.lookup.named_values`).

    Attributes:
        of: The values that are differentiated in place of the loss; empty for the loss.
        cotangents: The initial gradient of each of them, None for ones; empty for ones throughout.
        stops: The values that count as constant.
        feeds: Values injected and not computed; under `gradient/NAME`, the gradient that arrives at a value.
        fetches: The only values requested; a dump's key or `gradient/NAME` requests a gradient. Empty for all.
    """

    of: tuple[str, ...] = ()
    cotangents: tuple[Any, ...] = ()
    stops: tuple[str, ...] = ()
    feeds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fetches: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.of or self.stops or self.feeds or self.fetches)


class PrunedProgram(NamedTuple):
    """A `PrunedProgram` states which part of a program a query needs.

    Attributes:
        needed: The number of operations that are run.
        total: The number of all operations.
        arguments: For each argument, whether anything requested depends on it.
        inputs: The names of those that are leaves of the batch.
    """

    needed: int
    total: int
    arguments: tuple[bool, ...]
    inputs: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """Returns the numbers of operations and the inputs' names."""
        return {"needed": self.needed, "total": self.total, "inputs": list(self.inputs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuery:
    """A `ResolvedQuery` states what is run and observed for a query.

    Attributes:
        trace: The trace, with the reachability from the values that the query differentiates.
        plan: The plan, with everything that is observed, fed, stopped and run.
        spec: The selection that is shown.
        feeds: The values fed, by site.
        arguments: The arguments fed, by number.
        cotangents: The initial gradient of each seed.
        fragment: The part that is run; None for all of it.
    """

    trace: Trace
    plan: Plan
    spec: CaptureSpec
    feeds: Mapping[int, Any] = field(default_factory=dict[int, Any])
    arguments: Mapping[int, Any] = field(default_factory=dict[int, Any])
    cotangents: tuple[Any, ...] = ()
    fragment: PrunedProgram | None = None
