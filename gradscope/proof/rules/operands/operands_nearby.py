"""`OperandsNearby` are operands of rules near a point that hides what some of them do.

A bias of zeros, a scale of ones and a kernel that is the identity hide what a rule computes with them: a product with
zero is zero, a power of one is one, and equal numbers are the same in every order. The first step of training leaves
them. So arguments of the loss that are such are moved, and the loss computes the operands anew, which keeps what they
have to be: the product of a matrix and its transpose stays symmetric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capturing.explain.zeros.neighbourhood import Neighbourhood
from gradscope.proof.directions import Directions
from gradscope.proof.rules.operands.rule_operands import CallsToCheck, RuleOperands
from gradscope.tracing.jaxpr.derivatives.custom_rules import argument_name
from gradscope.tracing.tracer import Trace

#: How far arguments are moved, relative to their size: far enough for the error of a rule to be seen, and not so far
#: that a scale of ones changes its sign.
_FAR: Final = 0.1
#: Numbers that some of their powers are equal to.
_HIDING: Final = (-1, 0, 1)


class Nearby(NamedTuple):
    """`Nearby` are operands of a rule nearby, and the names of those that are zero there and wherever it is called."""

    operands: Sequence[RuleOperands]
    zero: Sequence[str]


class OperandsNearby:
    """`OperandsNearby` returns the operands that rules have where the arguments that hide something are moved.

    Args:
        trace: The traced loss.
        arguments: Its flat arguments.
        directions: The source of random directions.
        observe: Returns what is observed of the calls at other arguments.
    """

    def __init__(
        self,
        trace: Trace,
        arguments: Sequence[Any],
        directions: Directions,
        observe: Callable[[Sequence[Any]], Neighbourhood],
    ) -> None:
        self._trace, self._arguments = trace, arguments
        self._directions, self._observe = directions, observe
        self._observed: list[Neighbourhood | None] = []

    def of(self, calls: CallsToCheck, here: Sequence[RuleOperands]) -> Nearby:
        """Returns the operands nearby at which a rule is checked, too; none where none of its operands hides anything.

        Args:
            calls: The calls of the rule.
            here: The operands at which it is checked.
        """
        hiding = _hiding(here)
        neighbourhood = self._neighbourhood() if hiding else None
        found: list[RuleOperands] = []
        for operands in () if neighbourhood is None else calls.operands(neighbourhood):
            told = {at: value for at, value in hiding.items() if not _hides(operands.values[at])}
            if told:
                names = {at: argument_name(operands.call.equation, at) for at in told}
                words = (f"{names[at]} is {_other(value)}" for at, value in told.items())
                found.append(replace(operands, chosen=", ".join(filter(None, [operands.chosen, *words]))))
            hiding = {at: value for at, value in hiding.items() if at not in told}
        zero = (at for at, value in hiding.items() if not np.any(value))
        return Nearby(found, [argument_name(here[0].call.equation, at) for at in zero])

    def _neighbourhood(self) -> Neighbourhood | None:
        if not self._observed:
            self._observed.append(self._at_moved())
        return self._observed[0]

    def _at_moved(self) -> Neighbourhood | None:
        leaves = self._trace.arguments
        moving = [
            at for at, value in enumerate(self._arguments)
            if leaves[at].differentiated and (_hides(value) if leaves[at].family == naming.PARAM else _is_equal(value))
        ]  # fmt: skip
        moved = list(self._arguments)
        ways = self._directions.along([moved[at] for at in moving])
        for at, way in zip(moving, ways, strict=True):
            moved[at] = jnp.asarray(np.asarray(moved[at]) + (_FAR * way).astype(way.dtype))
        try:
            return self._observe(moved) if moving else None
        except RuntimeError:  # the program refuses other values, or has no memory for them
            return None


def _hiding(here: Iterable[RuleOperands]) -> dict[int, np.ndarray]:
    """Returns the operands that hide something wherever a rule is checked, by position, of those with a gradient."""
    found: dict[int, np.ndarray] = {}
    for number, each in enumerate(here):
        moving = (positions[0] for at, positions in enumerate(each.call.variables) if at not in each.call.constant)
        values = {at: np.asarray(each.values[at]) for at in moving if _hides(each.values[at])}
        found = values if number == 0 else {at: value for at, value in found.items() if at in values}
    return found


def _hides(value: Any) -> bool:
    array = np.asarray(value)
    return array.size > 0 and (_is_equal(array) or all(number in _HIDING for number in np.unique(array).tolist()))


def _is_equal(value: Any) -> bool:
    array = np.asarray(value)
    return array.size > 1 and bool(np.all(array == array.flat[0]))


def _other(value: np.ndarray) -> str:
    return f"not {' or '.join(f'{number:.4g}' for number in np.unique(value).tolist())}"
