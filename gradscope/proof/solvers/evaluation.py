"""`evaluated_inside` evaluates what an equation runs by another evaluator than JAX's.

It serves evaluators that compute something else than the jaxpr's values, or change some of its equations: what they
have in common is how calls, loops and branches hand values on. Values may be pytrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp

from gradscope.tracing.jaxpr.jaxcompat import (
    CUSTOM_RULES,
    Equation,
    Jaxpr,
    SubJaxpr,
    bind,
    kind_of,
    manual_axes,
    opened,
    sub_jaxprs,
    traced_as,
)
from gradscope.tracing.jaxpr.transfers import Repetition, loop_operands, solve_operands, transfer_of

#: Returns the outputs of a jaxpr, given the values of its constants and of its variables.
Evaluator: TypeAlias = Callable[[Jaxpr, Sequence[Any], Sequence[Any]], list[Any]]

#: How many times a loop ran, once for each of its conditions, and what it carries.
LoopState: TypeAlias = tuple[Any, list[Any]]

#: Primitives whose derivatives are a function's own; the last is an object (`custom_root`, from JAX 0.12).
_WITH_RULES: Final = CUSTOM_RULES | {"call_hi_primitive"}
#: Primitives that read some elements of their first operand.
_READS: Final = frozenset({"dynamic_slice", "gather"})


def evaluated_inside(
    equation: Equation,
    values: Sequence[Any],
    evaluate: Evaluator,
    *,
    index: Callable[[Any], Any] = lambda value: value,
    repetitions: int = 1,
) -> list[Any] | None:
    """Returns the outputs of a call, a checkpoint, a `scan`, a `cond` or a `shard_map`; None for any other equation.

    A checkpoint is one, too, of which JAX has made the backward pass, and the values that it computes again.

    Args:
        equation: The equation.
        values: Its operands.
        evaluate: The evaluator of the jaxprs inside.
        index: Returns the number of the branch of a `cond`'s first operand.
        repetitions: What the number of iterations of a `scan` that `only_repeats` is multiplied by.
    """
    subs = sub_jaxprs(equation)
    if not subs:
        return None
    transfer = transfer_of(equation, subs[0])
    if transfer.in_place or equation.params.get("differentiated"):
        return evaluate(subs[0].jaxpr, subs[0].constants, values)
    if transfer.exclusive:
        chosen, *operands = values
        return list(jax.lax.switch(index(chosen), [_branch(sub, evaluate) for sub in subs], operands))
    loop = transfer.loop
    if loop is not None and loop.parallel:
        return _on_devices(equation, values, evaluate)
    return None if loop is None else _in_turn(equation, values, evaluate, loop, repetitions)


def has_rule(equation: Equation) -> bool:
    """Returns whether JAX takes an equation's derivatives from a rule, and not from what it runs."""
    return equation.primitive.name in _WITH_RULES or kind_of(equation) == "linear_solve"


def evaluated_without_rule(equation: Equation, values: Sequence[Any], evaluate: Evaluator) -> list[Any]:
    """Returns the outputs of an equation that has a rule, by what it runs."""
    (inside,) = sub_jaxprs(equation)
    if equation.primitive.name not in _WITH_RULES:
        operands = solve_operands(equation, values)
        values = [*operands.solve, *operands.right]
    return evaluate(inside.jaxpr, inside.constants, values)


def is_while(equation: Equation) -> bool:
    """Returns whether an equation is a `while`, also one that `vmap` batched."""
    return equation.primitive.name == "while"


def evaluated_while(equation: Equation, values: Sequence[Any], evaluate: Evaluator) -> list[Any]:
    """Returns the outputs of a `while`, which stays one that `vmap` batched if it is one.

    Args:
        equation: The equation.
        values: Its operands.
        evaluate: The evaluator of its condition and its body.
    """
    first, constants, carries, _ = loop_operands(equation, values)
    (condition, in_condition), (body, in_body) = (
        opened(equation.params[each]) for each in ("cond_jaxpr", "body_jaxpr")
    )
    if condition.outvars[0].aval.shape:  # a condition for each example, which `jax.lax.while_loop` does not take
        decide = jax.make_jaxpr(partial(_in_order, evaluate, condition, in_condition))(*first, *carries)
        take = jax.make_jaxpr(partial(_in_order, evaluate, body, in_body))(*constants, *carries)
        return bind(equation, values, {**equation.params, "cond_jaxpr": decide, "body_jaxpr": take})

    def goes_on(state: LoopState) -> Any:
        return evaluate(condition, in_condition, [*first, *state[1]])[0]

    def step(state: LoopState) -> LoopState:
        return state[0], evaluate(body, in_body, [*constants, *state[1]])

    return repeated(goes_on, step, (jnp.zeros(condition.outvars[0].aval.shape, jnp.int32), list(carries)))[1]


def _in_order(evaluate: Evaluator, jaxpr: Jaxpr, constants: Sequence[Any], *values: Any) -> list[Any]:
    return evaluate(jaxpr, constants, values)


def repeated(
    goes_on: Callable[[LoopState], Any], step: Callable[[LoopState], LoopState], start: LoopState
) -> LoopState:
    """Returns the state after a loop, each lane's as it was when that lane's condition became false.

    Args:
        goes_on: Its condition. Where `vmap` batched the loop, it has one for each example; they lead the shapes of all
            that it carries.
        step: Its body.
        start: The state before it.
    """

    def lanes_step(state: LoopState) -> LoopState:
        going = goes_on(state)
        return jax.tree_util.tree_map(
            lambda new, old: jnp.where(jnp.reshape(going, going.shape + (1,) * (jnp.ndim(new) - going.ndim)), new, old),
            step(state),
            state,
        )

    alone = start[0].ndim == 0
    return jax.lax.while_loop(lambda state: jnp.any(goes_on(state)), step if alone else lanes_step, start)


def only_repeats(equation: Equation) -> bool:
    """Returns whether an equation is a `scan` that applies one function some number of times, as a `fori_loop`.

    It may number the iterations, and hand out something of each.
    """
    if kind_of(equation) != "scan" or reads_rows(equation):
        return False
    sequences = loop_operands(equation, equation.invars).sequences
    return all(jnp.issubdtype(each.aval.dtype, jnp.integer) and each.aval.ndim == 1 for each in sequences)


def reads_rows(equation: Equation) -> bool:
    """Returns whether a loop reads other elements of an array in each iteration, so that it has no more of them."""
    constants = loop_operands(equation, equation.invars).constants
    body, _ = opened(equation.params["body_jaxpr" if is_while(equation) else "jaxpr"])
    arrays = set(body.invars[: len(constants)])
    return any(each.primitive.name in _READS and each.invars[0] in arrays for each in body.eqns)


def _branch(sub: SubJaxpr, evaluate: Evaluator) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda values: evaluate(sub.jaxpr, sub.constants, values)


def _on_devices(equation: Equation, values: Sequence[Any], evaluate: Evaluator) -> list[Any]:
    (body,), params = sub_jaxprs(equation), equation.params
    with traced_as(equation):
        return jax.shard_map(
            lambda parts: evaluate(body.jaxpr, body.constants, parts),
            mesh=params["mesh"],
            in_specs=(list(params["in_specs"]),),
            out_specs=list(params["out_specs"]),
            axis_names=frozenset(manual_axes(equation)),
            check_vma=params["check_vma"],
        )(list(values))


def _in_turn(
    equation: Equation, values: Sequence[Any], evaluate: Evaluator, loop: Repetition, repetitions: int
) -> list[Any] | None:
    if loop.length is None:
        return None
    made = _scanned(equation, values, evaluate, length=loop.length, reverse=loop.reverse)
    if repetitions == 1 or not only_repeats(equation):
        return made
    operands, length, reverse = loop_operands(equation, values), loop.length, loop.reverse

    def again(_: Any, made: list[Any]) -> list[Any]:
        received = [*operands.constants, *made[: len(operands.carries)], *operands.sequences]
        return _scanned(equation, received, evaluate, length=length, reverse=reverse)

    return jax.lax.fori_loop(0, repetitions - 1, again, made)


def _scanned(
    equation: Equation, values: Sequence[Any], evaluate: Evaluator, *, length: int, reverse: bool
) -> list[Any]:
    operands, (body,) = loop_operands(equation, values), sub_jaxprs(equation)
    carried = len(operands.carries)

    def step(carries: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        made = evaluate(body.jaxpr, body.constants, [*operands.constants, *carries, *slices])
        return made[:carried], made[carried:]

    start, sequences = list(operands.carries), list(operands.sequences)
    carries, stacked = jax.lax.scan(step, start, sequences, length=length, reverse=reverse)
    return [*carries, *stacked]
