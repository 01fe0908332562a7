"""Frame rules state how the interpreter runs the equations that have sub-jaxprs, one rule per kind of frame.

Every rule calls JAX's public function for its construct again, on a body that interprets the sub-jaxpr. The body
returns its observations in addition to its outputs. Sinks are passed into the body:

    ============  ================================  ============================  =============================
    kind          sinks and feeds                   observations                  gradients
    ============  ================================  ============================  =============================
    call          in the closure                    returned as they are          yes
    remat         arguments                         outputs                       yes
    scan          sequences, one per iteration      stacked outputs               yes, per iteration
    cond          in every branch's closure         outputs, zeros where not run  yes, zeros where not run
    while         none                              carried, of the last          no: JAX cannot reverse a while
                                                    iteration
    shard_map     split over the mesh               stacked, one per shard        yes, per shard
    linear_solve  none                              auxiliary data of the solver  no: JAX solves the transpose
    custom_rule   none                              of the function, run beside   no: the rule makes its own
                                                    the equation
    ============  ================================  ============================  =============================

`call` frames (`jit`) are run in place, so that one program is compiled and, under `jax.disable_jit`, every operation
runs by itself. Where a `jit` names shardings for its operands or results, they stay as constraints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from gradscope.instrument.plan import EMPTY_PLAN, iterations
from gradscope.instrument.rewriting.interpreter import Context, Rule, interpret
from gradscope.instrument.rewriting.observed_values import Captured, InjectedValues
from gradscope.instrument.rewriting.own_rules import custom_rule_rule, linear_solve_rule
from gradscope.tracing.jaxpr.jaxcompat import (
    Equation,
    FrameKind,
    SubJaxpr,
    bind,
    manual_axes,
    opened,
    sub_jaxprs,
    traced_as,
)
from gradscope.tracing.jaxpr.sharding import dealt, varying
from gradscope.tracing.jaxpr.transfers import loop_operands


def call_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a function call in place."""
    with traced_as(equation):
        constrained = _constrained(values, equation.params.get("in_shardings", ()))
        outputs, captured = _run(context.enter(number, in_place=True), sub_jaxprs(equation)[0], constrained)
        return _constrained(outputs, equation.params.get("out_shardings", ())), captured


def _constrained(values: Sequence[Any], shardings: Sequence[Any]) -> Sequence[Any]:
    """Returns the values under the shardings that a `jit` requested; most request none."""
    if not any(isinstance(sharding, jax.sharding.Sharding) for sharding in shardings):
        return values
    return [
        jax.lax.with_sharding_constraint(value, sharding) if isinstance(sharding, jax.sharding.Sharding) else value
        for value, sharding in zip(values, shardings, strict=True)
    ]


def remat_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a checkpointed function under the same policy."""
    inside = context.enter(number)
    sub = sub_jaxprs(equation)[0]

    def body(values: Sequence[Any], injected: InjectedValues) -> tuple[Sequence[Any], Captured]:
        return _run(inside.with_injected(injected), sub, values)

    params = equation.params
    checkpointed = jax.checkpoint(body, prevent_cse=params["prevent_cse"], policy=params["policy"])
    with traced_as(equation):
        return checkpointed(values, inside.own_injected())


def scan_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a scan; sinks are its sequences, and observations are stacked outputs."""
    inside = context.enter(number)
    sub = sub_jaxprs(equation)[0]
    operands = loop_operands(equation, values)
    carried = len(operands.carries)

    def body(carries: Sequence[Any], iteration: tuple[Sequence[Any], InjectedValues]) -> Any:
        slices, injected = iteration
        outputs, captured = _run(inside.iteration(injected), sub, [*operands.constants, *carries, *slices])
        return outputs[:carried], (outputs[carried:], captured)

    params = equation.params
    with traced_as(equation):
        carries, (stacked, captured) = jax.lax.scan(
            body,
            list(operands.carries),
            (list(operands.sequences), inside.own_injected()),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
    return [*carries, *stacked], captured


def cond_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a conditional; every branch returns the observations of all branches, zeros for those of the others."""
    index, *operands = values
    subs = sub_jaxprs(equation)

    def branch(sub: SubJaxpr) -> Any:
        def run(*operands: Any) -> tuple[Sequence[Any], Captured]:
            captured = Captured.nothing()
            for other in subs:
                captured.take(_not_executed(context.enter(number, other.branch)))
            outputs, observed = _run(context.enter(number, sub.branch), sub, operands)
            captured.take(_executed(context.enter(number, sub.branch)))
            captured.take(observed)
            return outputs, captured

        return run

    branches = [branch(sub) for sub in subs]
    platforms = equation.params.get("branches_platforms")
    with traced_as(equation):
        if platforms is None:
            return jax.lax.switch(index, branches, *operands)
        return jax.lax.platform_dependent(*operands, **_by_platform(platforms, branches))


def _by_platform(platforms: Sequence[Sequence[str] | None], branches: Sequence[Any]) -> dict[str, Any]:
    """Returns branches by the platforms they are for; None represents all others."""
    return {name: branch for names, branch in zip(platforms, branches, strict=True) for name in names or ("default",)}


def _executed(inside: Context) -> Captured:
    return Captured({}, {n: _full(inside, _iterations_inside(inside, n), bool, True) for n in inside.inside}, {}, {})


def _not_executed(inside: Context) -> Captured:
    sites = filter(inside.plan.is_site, inside.inside)
    shapes = {number: inside.plan.observed(number, below=inside.depth) for number in sites}
    values = {n: _full(inside, shape.shape, shape.dtype, 0, shape.sharding) for n, shape in shapes.items()}
    executed = {number: _full(inside, _iterations_inside(inside, number), bool, False) for number in inside.inside}
    counts = {number: _no_iterations(inside, number) for number in inside.inside}
    seeds = [number for number in inside.inside if inside.plan.is_seed(number)]
    kinds = {number: inside.plan.value(number, below=inside.depth) for number in seeds}
    nothing = {n: _full(inside, kind.shape, kind.dtype, 0, kind.sharding) for n, kind in kinds.items()}
    return Captured(values, executed, {n: count for n, count in counts.items() if count.shape[-1]}, nothing)


def _iterations_inside(inside: Context, number: int) -> tuple[int, ...]:
    return iterations(inside.plan.tap_point(number).loops[inside.depth :])


def _no_iterations(inside: Context, number: int) -> Any:
    loops = inside.plan.tap_point(number).loops[inside.depth :]
    return _full(inside, (*iterations(loops), sum(loop.length is None for loop in loops)), jnp.int32, 0)


def _full(inside: Context, shape: tuple[int, ...], dtype: Any, value: Any, sharding: Any = None) -> Any:
    """Returns an array of one value, of the type that an observation in this context has."""
    return varying(jnp.full(shape, value, dtype, device=sharding), inside.axes)


def while_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a while loop; the last iteration's observations are part of its carry."""
    inside = context.enter(number)
    body_context = inside.iteration(InjectedValues.nothing())
    condition, condition_constants = opened(equation.params["cond_jaxpr"])
    operands = loop_operands(equation, values)
    has_rows = bool(condition.outvars[0].aval.shape)  # `vmap` made it: its rows end at different iterations
    if has_rows and not inside.inside:
        return bind(equation, values), Captured.nothing()

    def going_on(carries: Sequence[Any]) -> Any:
        outputs, _ = interpret(unplanned, condition, condition_constants, [*operands.condition, *carries])
        return outputs[0]

    def goes_on(state: tuple[Sequence[Any], Captured, Sequence[Any]]) -> Any:
        return jnp.any(going_on(state[0])) if has_rows else going_on(state[0])

    def body(state: tuple[Sequence[Any], Captured, Sequence[Any]]) -> Any:
        carries, seen, counts = state
        outputs, captured = _run(body_context, sub_jaxprs(equation)[0], [*operands.constants, *carries])
        seen.take(_executed(body_context))
        seen.take(captured)
        if has_rows:
            outputs = _where_going_on(going_on(carries), outputs, carries)
        return outputs, seen, [count + 1 for count in counts]

    unplanned = Context(plan=EMPTY_PLAN, rules=context.rules)
    counts = [_full(inside, (), jnp.int32, 0)] if inside.inside else []
    start = (list(operands.carries), _not_executed(body_context), counts)
    with traced_as(equation):
        outputs, captured, counts = jax.lax.while_loop(goes_on, body, start)
    for site in inside.inside:
        deeper = captured.iterations.get(site, _no_iterations(body_context, site))
        here = jnp.broadcast_to(counts[0], (*deeper.shape[:-1], 1))
        captured.iterations[site] = jnp.concatenate([here, deeper], axis=-1)
    return outputs, captured


def _where_going_on(going: Any, made: Sequence[Any], carries: Sequence[Any]) -> list[Any]:
    """Returns what an iteration made in the rows that go on, and what it received in those that have ended."""
    rows = (jax.lax.broadcast_in_dim(going, carry.shape, range(going.ndim)) for carry in carries)
    return [jax.lax.select(*each) for each in zip(rows, made, carries, strict=True)]


def shard_map_rule(
    context: Context, number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    """Runs a sharded map; each shard has its own sinks and returns its own observations."""
    inside = context.enter(number)
    sub = sub_jaxprs(equation)[0]
    params = equation.params
    axes = manual_axes(equation)
    per_shard = PartitionSpec(axes)

    def body(values: Sequence[Any], injected: InjectedValues) -> tuple[Sequence[Any], Captured]:
        one = jax.tree_util.tree_map(lambda shard: shard[0], injected)
        outputs, captured = _run(inside.iteration(one, axes), sub, values)
        return outputs, jax.tree_util.tree_map(lambda seen: seen[None], captured)

    with traced_as(equation):
        injected = jax.tree_util.tree_map(lambda shards: dealt(shards, params["mesh"], axes), inside.own_injected())
        return jax.shard_map(
            body,
            mesh=params["mesh"],
            in_specs=(list(params["in_specs"]), per_shard),
            out_specs=(list(params["out_specs"]), per_shard),
            axis_names=frozenset(axes),
            check_vma=params["check_vma"],
        )(list(values), injected)


def _run(context: Context, sub: SubJaxpr, values: Sequence[Any]) -> tuple[list[Any], Captured]:
    return interpret(context, sub.jaxpr, sub.constants, values)


RULES: Final[Mapping[FrameKind, Rule]] = {
    "call": call_rule,
    "remat": remat_rule,
    "scan": scan_rule,
    "cond": cond_rule,
    "while": while_rule,
    "shard_map": shard_map_rule,
    "linear_solve": linear_solve_rule,
    "custom_rule": custom_rule_rule,
}
