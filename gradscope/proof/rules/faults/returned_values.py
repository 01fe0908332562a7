"""`wrong_value` tells that a function returns another value where its custom rule differentiates it.

The value of a differentiated program is what the rule returns: the first result of a `custom_vjp`'s forward function,
or the primal output of a `custom_jvp`'s rule. Finite differences are of the function, so that a rule with another value
makes the gradients of all that is computed from it wrong, though it may return the right derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.proof.rules.faults.wrong_factors import rounded_factor

#: Values may differ by this many times what a relative change of the operands, by the tolerance, makes of them.
_SAFETY: Final = 16.0


class RulePrograms:
    """RulePrograms are a function of a list of arrays and its vector-Jacobian product, compiled.

    Args:
        run: The function.
        compiled: What compiles it.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Any]], list[Any]],
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        def pulled_back(here: list[Any], weights: list[Any]) -> list[Any]:
            return jax.vjp(run, here)[1](weights)[0]

        def differentiated(here: list[Any]) -> list[Any]:
            return jax.vjp(run, here)[0]

        self.outputs = compiled(run)
        self.gradients = compiled(pulled_back)
        self.values = compiled(differentiated)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongValue:
    """WrongValue is a value that a rule returns for that of its function.

    Attributes:
        error: The relative distance of the two, of the output that is the farthest from its function's.
        expected: The largest such distance that rounding explains.
        factor: The rule's value as a multiple of the function's; NaN where it is no multiple.
    """

    error: float
    expected: float
    factor: float

    def __str__(self) -> str:
        if math.isnan(self.factor):
            return "returns another value than the function"
        return f"returns {rounded_factor(self.factor):.12g} times the function's value"


def wrong_value(programs: Iterable[RulePrograms], here: Sequence[Any], tolerance: float) -> WrongValue | None:
    """Returns how a rule's value differs from that of its function; None where it agrees in any of some programs.

    Args:
        programs: The function and its rule as they are, and likewise with solvers that run longer.
        here: The operands.
        tolerance: The relative error that counts for nothing.
    """
    first: WrongValue | None = None
    for each in programs:
        found = _apart(each, here, tolerance)
        if found is None:
            return None
        first = first or found
    return first


class _Values(NamedTuple):
    """_Values are the elements of an output, where they are finite: the function's, the rule's, and what is allowed."""

    of_function: np.ndarray
    of_rule: np.ndarray
    expected: float

    def error(self, factor: float = 1.0) -> float:
        """Returns the relative distance of the rule's value from a multiple of the function's."""
        size = max(_norm(self.of_function), _norm(self.of_rule))
        return _norm(self.of_rule - factor * self.of_function) / size if size else 0.0


def _apart(programs: RulePrograms, here: Sequence[Any], tolerance: float) -> WrongValue | None:
    """Returns how the rule's value is not the function's, with the numbers of the worst output; None where it is."""
    outputs = [*_values(programs, here, tolerance)]
    worst = max(outputs, key=lambda each: each.error() / each.expected, default=None)
    if worst is None or worst.error() <= worst.expected:
        return None
    squares = sum(_norm(each.of_function) ** 2 for each in outputs)
    products = sum(float(np.vdot(each.of_function, each.of_rule).real) for each in outputs)
    factor = products / squares if squares else math.nan
    # Of one number, whatever a rule returns is a multiple.
    several = sum(each.of_function.size for each in outputs) > 1
    is_multiple = several and all(each.error(factor) <= each.expected for each in outputs)
    return WrongValue(error=worst.error(), expected=worst.expected, factor=factor if is_multiple else math.nan)


def _values(programs: RulePrograms, here: Sequence[Any], tolerance: float) -> Iterator[_Values]:
    """Yields what the function and its rule return, by output."""
    nearby = [_moved(each, tolerance) for each in here]
    largest = max(map(_norm, here))
    made = (programs.outputs(list(here)), programs.values(list(here)), programs.outputs(nearby))
    for one in zip(*made, strict=True):
        of_function, of_rule, there = (np.asarray(each).astype(np.complex128).ravel() for each in one)
        finite = np.isfinite(of_function) & np.isfinite(of_rule) & np.isfinite(there)
        of_function, of_rule, there = of_function[finite], of_rule[finite], there[finite]
        size = max(_norm(of_function), _norm(of_rule))
        # An output that is far smaller than the operands may be what rounding leaves of terms that cancel.
        rounded = _norm(there - of_function) + float(jnp.finfo(one[0].dtype).eps) * largest
        if size:
            yield _Values(of_function, of_rule, tolerance + _SAFETY * rounded / size)


def _moved(array: Any, tolerance: float) -> Any:
    """Returns an array whose numbers are changed by a part of themselves, up and down in turn."""
    signs = np.where(np.arange(array.size) % 2, -1.0, 1.0).reshape(array.shape)
    return array + (tolerance * signs * np.asarray(array)).astype(array.dtype)


def _norm(values: Any) -> float:
    elements = np.asarray(values).astype(np.complex128)
    return float(np.linalg.norm(elements[np.isfinite(elements)]))
