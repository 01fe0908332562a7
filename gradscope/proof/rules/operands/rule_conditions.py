"""`RuleConditions` are the conditions in a function and its rule, of which the operands decide a side.

A rule that takes one branch at the operands of one call may take another at those of the next, be it by a mask, by the
sign of a sum or by a size beyond a limit. What was checked on one side of a condition is not checked on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.proof.rules.rule_calls import CustomRuleCall
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import case_count, run_in_place
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Jaxpr, bind, is_literal, trace
from gradscope.tracing.jaxpr.source_lines import source_of

#: The operations that have a kink or a jump where the values that they compare are equal, or their one value is zero.
_COMPARING: Final = frozenset({"abs", "ge", "gt", "le", "lt", "max", "min", "sign"})


class Side(NamedTuple):
    """A `Side` is one side of a condition: the number of the condition, and that of the case it chooses."""

    condition: int
    case: int


@dataclass(frozen=True, slots=True)
class _Condition:
    """A `_Condition` is an equation that chooses among cases, with the line that it is on.

    Where two values that it compares are equal is a condition of one case, in which a function may have a kink.
    """

    source: str | None
    cases: int
    of_elements: bool
    compares: str = ""


class RuleConditions:
    """`RuleConditions` tell which sides of the conditions of a function and its rule some operands take.

    Conditions inside loops and branches of the rule are not among them.

    Args:
        call: A call of the function.
        equal: Whether that two compared values are equal is a side of its own.
    """

    def __init__(self, call: CustomRuleCall, *, equal: bool = False) -> None:
        self._call = call
        self._found: list[_Condition] = []
        shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in call.equation.invars]
        weights = [call.equation.outvars[at].aval for at in call.outputs]

        def pulled_back(operands: Sequence[Any]) -> Any:
            here = [operands[positions[0]] for positions in call.variables]
            outputs, pull_back = jax.vjp(lambda moved: call.outputs_at(operands, moved), here)
            return call.outputs_at(operands, here), outputs, pull_back([jnp.ones(w.shape, w.dtype) for w in weights])

        try:
            jaxpr, constants, _ = trace(pulled_back, shapes)
        except (TypeError, IndexError):  # what JAX raises where Python needs a value
            return

        def counts(operands: Sequence[Any]) -> list[Any]:
            walk = _Walk(equal)
            walk.run(jaxpr, constants, operands, None)
            self._found = walk.conditions
            return walk.counts

        self._counts = jax.jit(counts)
        jax.eval_shape(self._counts, shapes)

    def all(self) -> frozenset[Side]:
        """Returns every side of every condition."""
        return frozenset(Side(at, case) for at, each in enumerate(self._found) for case in range(each.cases))

    def equalities(self) -> frozenset[Side]:
        """Returns the sides on which two compared values are equal."""
        return frozenset(side for side in self.all() if self._found[side.condition].compares)

    def taken(self, operands: Iterable[Any]) -> frozenset[Side]:
        """Returns the sides that are taken at some operands; of a condition on each element, perhaps several."""
        if not self._found:
            return frozenset()
        counts = jax.device_get(self._counts([jnp.asarray(each) for each in operands]))
        return frozenset(Side(at, int(case)) for at, each in enumerate(counts) for case in np.flatnonzero(each))

    def words(self, sides: Iterable[Side], others: Iterable[Side]) -> str:
        """Returns a condition by which some operands differ from others: `the condition at net.py:12 is true`.

        Args:
            sides: The sides that these operands take.
            others: Those that the others take.

        Returns:
            The words; "" where they differ by no condition.
        """
        numbers = {side.condition for side in {*sides} ^ {*others}}
        # Those of the rule itself have the line of the call, which tells less than a line inside the function.
        number = min(numbers, key=lambda at: (self._found[at].source == self._call.source, at), default=None)
        return "" if number is None else self._words(number, [each.case for each in sides if each.condition == number])

    def _words(self, condition: int, cases: Sequence[int]) -> str:
        found = self._found[condition]
        where = "" if found.source is None else f" at {found.source}"
        if found.compares:
            return f"two values in {found.compares}{where} are equal"
        if found.cases > 2:
            return f"the branch{where} is {', '.join(map(str, sorted(cases)))}"
        if len(cases) > 1:
            return f"the condition{where} is true of some elements"
        of_all = " of all elements" if found.of_elements else ""
        return f"the condition{where} is {'true' if 1 in cases else 'false'}{of_all}"


class _Walk:
    """A `_Walk` runs a jaxpr, and counts for each condition the elements that choose each case.

    Args:
        equal: Whether elements that are equal where two values are compared count, too.
    """

    def __init__(self, equal: bool) -> None:
        self._equal = equal
        self.conditions: list[_Condition] = []
        self.counts: list[Any] = []

    def run(self, jaxpr: Jaxpr, constants: Sequence[Any], operands: Sequence[Any], source: str | None) -> list[Any]:
        """Returns the outputs; `source` is the line of the equation that runs the jaxpr."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True))
        for equation in jaxpr.eqns:
            values = [atom.val if is_literal(atom) else known[atom] for atom in equation.invars]
            line = source or source_of(equation)
            inside, cases = run_in_place(equation), case_count(equation)
            if cases is not None:
                self._count(cases, values[0], line)
            elif self._equal and equation.primitive.name in _COMPARING and is_inexact(equation.invars[0]):
                one, other = values if len(values) == 2 else (values[0], 0)
                name = equation.primitive.name
                self.conditions.append(_Condition(line, cases=1, of_elements=True, compares=name))
                self.counts.append(jnp.sum(jnp.asarray(one) == other)[None])
            if inside is None:
                made = bind(equation, values)
            else:
                # A library function with a `jit` of its own may have been traced for another caller.
                own = equation.primitive.name in CUSTOM_RULES
                made = self.run(inside.jaxpr, inside.constants, values, None if own else line)
            known.update(zip(equation.outvars, made, strict=True))
        return [atom.val if is_literal(atom) else known[atom] for atom in jaxpr.outvars]

    def _count(self, cases: int, which: Any, source: str | None) -> None:
        chosen = jnp.clip(jnp.asarray(which).astype(jnp.int32), 0, cases - 1)
        self.conditions.append(_Condition(source, cases, of_elements=chosen.size > 1))
        self.counts.append(jnp.stack([(chosen == case).sum() for case in range(cases)]))
