"""`tightened` returns a function whose iterative solvers run to a smaller tolerance.

A rule that differentiates a solution by the implicit function theorem is exact for the exact solution only. The solver
that it is used with stops early, so the derivative of what the solver returns and the rule differ by as much as the
solver's tolerance. A wrong rule differs from it however long the solver runs. So a claim that seems wrong is checked
again with solvers that run longer; nothing is known of them but their loops, so there are several ways to do that.

Only the solver's loops change. The function is traced, and its jaxpr is evaluated equation by equation, without the
rules of the functions inside: a gradient is traced after differentiation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.proof.solvers.evaluation import (
    LoopState,
    evaluated_inside,
    evaluated_without_rule,
    has_rule,
    is_while,
    only_repeats,
    reads_rows,
    repeated,
)
from gradscope.proof.solvers.unrolled_steps import taken_again, unrolled_steps
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import (
    Equation,
    Jaxpr,
    bind,
    is_literal,
    opened,
    trace,
)
from gradscope.tracing.jaxpr.transfers import loop_operands

#: How a solver runs longer: numbers that a loop's condition compares its state with are smaller, as a residual's
#: tolerance, or are smaller still; small numbers anywhere in a loop are, as the tolerance of the error of a step; or a
#: loop, or a step that Python repeats, has more repetitions than its condition asks for, as where it ended at its
#: largest number of them; many more for a solver that is far from its solution then, and the most for one that is slow.
Tightening: TypeAlias = Literal["condition", "further", "step", "repetitions", "many repetitions", "most repetitions"]

#: What a tolerance is multiplied by: enough for an error to shrink tenfold where it goes with the tolerance's root
#: (conjugate gradients compare squares). The derivative of a solver's result may get better later than the result, or
#: the result jump with the number of iterations (bisection), so that a condition is tightened further, too.
_FACTORS: Final[Mapping[Tightening, float]] = {"condition": 1e-4, "further": 1e-12, "step": 1e-4}
#: Numbers up to this one may be the tolerance of a step.
_LARGEST_TOLERANCE: Final = 1e-2
#: A solver that cannot reach its smaller tolerance ends after this many times its iterations, and some more.
_TIMES: Final = 16
_MORE: Final = 64
#: What a number of repetitions is multiplied by.
_REPETITIONS: Final[Mapping[Tightening, int]] = {"repetitions": 4, "many repetitions": 64, "most repetitions": 512}
_COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge"})


def tightenings(frames: Iterable[Frame]) -> tuple[Tightening, ...]:
    """Returns the ways in which the solvers among some frames may run longer; none where there is no solver.

    Args:
        frames: The frames. Only those inside functions with a derivative rule of their own and inside linear solvers
            count.
    """
    found: dict[Tightening, None] = {}
    for frame in (each for each in frames if each.bypassed):
        for equation in frame.jaxpr.eqns:
            if is_while(equation):
                found |= {"condition": None, "further": None, "step": None}
                found |= {} if reads_rows(equation) else dict.fromkeys(_REPETITIONS)
            elif only_repeats(equation):
                found |= dict.fromkeys(_REPETITIONS)
        if unrolled_steps(frame.jaxpr) is not None:
            found |= dict.fromkeys(_REPETITIONS)
    return tuple(found)


def tightened(function: Callable[..., Any], tightening: Tightening) -> Callable[..., Any]:
    """Returns a compiled function that does as another does, with solvers that run longer.

    Args:
        function: A function of pytrees of arrays. It cannot be differentiated afterwards.
        tightening: How.
    """

    def run(*arguments: Any) -> Any:
        jaxpr, constants, shape = trace(function, *arguments)
        made = _Evaluation(tightening).of(jaxpr, constants, jax.tree_util.tree_leaves(arguments))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), made)

    return jax.jit(run)


class _Evaluation:
    """An `_Evaluation` evaluates jaxprs with tightened loops.

    Args:
        tightening: How loops are tightened.
        in_solver: Whether small numbers are tolerances here.
    """

    def __init__(self, tightening: Tightening, *, in_solver: bool = False) -> None:
        self._tightening: Tightening = tightening
        self._in_solver = in_solver
        self._times = _REPETITIONS.get(tightening, 1)

    def of(self, jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Returns the outputs of a jaxpr."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))
        unrolled = unrolled_steps(jaxpr) if self._times > 1 else None
        for number, equation in enumerate(jaxpr.eqns):
            made = self._through(equation, [self._value(known, atom) for atom in equation.invars])
            known.update(zip(equation.outvars, made, strict=True))
            if unrolled is not None and number == unrolled.end - 1:
                last = jaxpr.eqns[number + 1 - 2 * unrolled.length : number + 1]
                times = unrolled.times * (self._times - 1)
                known |= taken_again(unrolled, last, partial(self._value, known), self._through, times)
        return [self._value(known, atom) for atom in jaxpr.outvars]

    def _value(self, known: dict[Any, Any], atom: Any) -> Any:
        if not is_literal(atom):
            return known[atom]
        value = np.asarray(atom.val, atom.aval.dtype)
        floating = self._in_solver and jnp.issubdtype(value.dtype, jnp.floating)
        return self._smaller(value) if floating and 0 < abs(float(atom.val)) <= _LARGEST_TOLERANCE else value

    def _through(self, equation: Equation, values: list[Any]) -> list[Any]:
        if has_rule(equation):
            return evaluated_without_rule(equation, values, self.of)
        if is_while(equation):
            return self._while(equation, values)
        made = evaluated_inside(equation, values, self.of, repetitions=self._times)
        return bind(equation, values) if made is None else made

    def _while(self, equation: Equation, values: list[Any]) -> list[Any]:
        first, constants, carries, _ = loop_operands(equation, values)
        params = equation.params
        (condition, in_condition), (body, in_body) = opened(params["cond_jaxpr"]), opened(params["body_jaxpr"])
        tight = _Evaluation(self._tightening, in_solver=self._tightening == "step")

        def goes_on(state: LoopState) -> Any:
            return self.of(condition, in_condition, [*first, *state[1]])[0]

        def step(state: LoopState) -> LoopState:
            return state[0] + 1, self.of(body, in_body, [*constants, *state[1]])

        def goes_on_longer(state: LoopState) -> Any:
            if self._times > 1:
                return state[0] < most
            residual = tight.condition(condition, in_condition, first, state[1])
            return residual & (state[0] < most)

        def tight_step(state: LoopState) -> LoopState:
            return state[0] + 1, tight.of(body, in_body, [*constants, *state[1]])

        start = (jnp.zeros(condition.outvars[0].aval.shape, jnp.int32), list(carries))
        usual = repeated(goes_on, step, start)
        times = 1 if reads_rows(equation) else self._times
        most = usual[0] * times if self._times > 1 else _TIMES * usual[0] + _MORE
        # A solver goes on from where it stopped, but for a smaller tolerance of its steps, with which it starts anew.
        return repeated(goes_on_longer, tight_step, start if self._tightening == "step" else usual)[1]

    def condition(self, jaxpr: Jaxpr, constants: Sequence[Any], fixed: Sequence[Any], state: Sequence[Any]) -> Any:
        """Returns the value of a loop's condition, in which what the state is compared with is smaller.

        Args:
            jaxpr: The condition.
            constants: Its constants.
            fixed: The operands that stay the same in all iterations.
            state: Those that change.
        """
        if self._tightening not in ("condition", "further"):
            return self.of(jaxpr, constants, [*fixed, *state])[0]
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *fixed, *state), strict=True))
        changing = set(jaxpr.invars[len(fixed) :])
        for equation in jaxpr.eqns:
            values = [self._value(known, atom) for atom in equation.invars]
            changes = [not is_literal(atom) and atom in changing for atom in equation.invars]
            if equation.primitive.name in _COMPARISONS and sum(changes) == 1:
                values = [each if moves else self._smaller(each) for each, moves in zip(values, changes, strict=True)]
            known.update(zip(equation.outvars, self._through(equation, values), strict=True))
            changing.update(equation.outvars if any(changes) else ())
        return self._value(known, jaxpr.outvars[0])

    def _smaller(self, tolerance: Any) -> Any:
        floating = jnp.issubdtype(tolerance.dtype, jnp.floating)
        return tolerance * jnp.asarray(_FACTORS[self._tightening], tolerance.dtype) if floating else tolerance
