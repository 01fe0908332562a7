"""The table of transfers, compared with JAX: every equation evaluated by what the table states gives what JAX computes.

The evaluation here knows nothing of any primitive: it runs a frame's jaxpr as often as the transfer states, on what the
transfer states to enter, and returns what it states to leave. Only the two things that the table leaves to JAX are read
from the equation: when a `while` stops, and along which axes a `shard_map` splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal, jaxpr_as_fun
from jax.sharding import AxisType, PartitionSpec

from gradscope.instrument.rewriting.frame_rules import RULES
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Equation, FrameKind, bind, sub_jaxprs
from gradscope.tracing.jaxpr.transfers import TRANSFERS, Transfer
from gradscope.tracing.tracer import Trace, trace_loss
from tests.oracle.engine import assert_close
from tests.property.test_instrument_laws import INPUTS, WEIGHTS, Node, first, loss_of
from tests.property.test_instrument_laws import traced as traced_program
from tests.support.data import evenly

# --- evaluation by the table --------------------------------------------------------------------------------------


def evaluated(
    frame: Frame, constants: Sequence[Any], values: Sequence[Any], check: Callable[..., None] | None = None
) -> list[Any]:
    """A frame's outputs, of the values of the variables that it receives."""
    known = dict(zip((*frame.jaxpr.constvars, *frame.jaxpr.invars), (*constants, *values), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for number, equation in enumerate(frame.jaxpr.eqns):
        operands = [read(atom) for atom in equation.invars]
        inside = frame.children.get(number, [])
        by_rule = not inside or inside[0].transfer.opaque or inside[0].transfer.beside
        made = bind(equation, operands) if by_rule else by_transfer(inside, equation, operands, check)
        if inside and check is not None:
            check(inside, equation, operands, made)
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in frame.jaxpr.outvars]


def by_transfer(
    inside: Sequence[Frame], equation: Equation, operands: Sequence[Any], check: Callable[..., None] | None
) -> list[Any]:
    """An equation's outputs, by its frames and their transfers."""
    chosen = int(operands[inside[0].transfer.predicates[0]]) if inside[0].transfer.exclusive else 0
    body, transfer = inside[chosen], inside[chosen].transfer
    constants = sub_jaxprs(equation)[chosen].constants
    carried = {
        at: operands[entry.operand]
        for at, entry in enumerate(transfer.inputs)
        if entry is not None and entry.how == "carry"
    }
    made: dict[int, list[Any]] = {}
    for iteration in order(transfer, equation, operands, carried):
        received = [
            carried[at] if at in carried else entering(equation, transfer, entry, operands, iteration)
            for at, entry in enumerate(transfer.inputs)
        ]
        made[iteration] = evaluated(body, constants, received, check)
        following = ((transfer.next_variable(at), value) for at, value in enumerate(made[iteration]))
        carried.update((at, value) for at, value in following if at is not None)
    return [leaving(equation, transfer, at, made, carried) for at in range(len(equation.outvars))]


def order(transfer: Transfer, equation: Equation, operands: Sequence[Any], carried: dict[int, Any]) -> Iterator[int]:
    """The iterations, in the order in which they run."""
    if transfer.loop is None:
        yield 0
    elif transfer.loop.length is not None:
        yield from reversed(range(transfer.loop.length)) if transfer.loop.reverse else range(transfer.loop.length)
    else:
        condition = jaxpr_as_fun(equation.params["cond_jaxpr"])
        predicates = [operands[at] for at in transfer.predicates]
        iteration = 0
        while condition(*predicates, *carried.values())[0]:
            yield iteration
            iteration += 1


def entering(equation: Equation, transfer: Transfer, entry: Any, operands: Sequence[Any], iteration: int) -> Any:
    value = operands[entry.operand]
    if entry.how == "same":
        return value
    assert transfer.loop is not None
    assert transfer.loop.length is not None
    if not transfer.loop.parallel:
        return value[iteration]
    return (
        jnp.split(value, transfer.loop.length)[iteration] if any(equation.params["in_specs"][entry.operand]) else value
    )


def leaving(
    equation: Equation, transfer: Transfer, at: int, made: dict[int, list[Any]], carried: dict[int, Any]
) -> Any:
    following = transfer.next_variable(at)
    if following is not None:
        return carried[following]
    outputs = [made[iteration][at] for iteration in sorted(made)]
    if transfer.outputs[at] == "same":
        (output,) = outputs
        return output
    if transfer.loop is not None and transfer.loop.parallel:
        return jnp.concatenate(outputs) if any(equation.params["out_specs"][at]) else outputs[0]
    return jnp.stack(outputs)


def check_values(inside: Sequence[Frame], equation: Equation, operands: Sequence[Any], made: Sequence[Any]) -> None:
    """What the table gives is what JAX gives; what it states about frames is consistent."""
    for one, other in zip(made, bind(equation, operands), strict=True):
        assert_close(one, other, what=equation.primitive.name)
    for frame in inside:
        transfer = frame.transfer
        plain = all(entry is not None and entry.how == "same" for entry in transfer.inputs)
        unchanged = plain and set(transfer.outputs) <= {"same"} and transfer.gradients == "through"
        assert transfer.in_place == (unchanged and transfer.loop is None and len(inside) == 1)
        assert transfer.exclusive == (len(inside) > 1) or transfer.opaque
        if transfer.beside:
            received = [operands[entry.operand] for entry in transfer.inputs if entry is not None]
            (sub,) = sub_jaxprs(equation)
            for one, other in zip(evaluated(frame, sub.constants, received), made, strict=True):
                assert_close(one, other, what=equation.primitive.name)


def check_gradients(inside: Sequence[Frame], equation: Equation, operands: Sequence[Any], _made: Sequence[Any]) -> None:
    """Reverse mode passes an equation as the table states."""
    transfer = inside[0].transfer
    wrt = [at for at, atom in enumerate(equation.invars) if is_inexact(atom)]
    outputs = [at for at, atom in enumerate(equation.outvars) if is_inexact(atom)]

    def pulled(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Sequence[Any]:
        def function(*chosen: Any) -> list[Any]:
            replaced = dict(zip(wrt, chosen, strict=True))
            made = run([replaced.get(at, value) for at, value in enumerate(operands)])
            return [made[at] for at in outputs]

        made, pull_back = jax.vjp(function, *(operands[at] for at in wrt))
        return pull_back([jnp.cos(jnp.arange(each.size, dtype=each.dtype)).reshape(each.shape) for each in made])

    if transfer.gradients == "barred":
        with pytest.raises(ValueError, match="Reverse-mode"):
            pulled(lambda values: bind(equation, values))
        return
    found = dict(zip(wrt, pulled(lambda values: bind(equation, values)), strict=True))
    if transfer.gradients == "around":
        assert all(at in transfer.differentiated or not np.any(gradient) for at, gradient in found.items())
        return
    by_table = pulled(lambda values: by_transfer(inside, equation, values, None))
    for one, other in zip(by_table, found.values(), strict=True):
        assert_close(one, other, what=equation.primitive.name)


# --- constructs ---------------------------------------------------------------------------------------------------

Body = Callable[[Any, Any], tuple[Any, Any]]


def twice(weight: Any, x: Any) -> tuple[Any, Any]:
    """The body of every construct: two outputs that differ, of two operands that differ."""
    return jnp.tanh(x * weight) + x, jnp.sin(x) - weight


def call(body: Body, weight: Any, x: Any) -> Any:
    return jax.jit(body)(weight, x)


def remat(body: Body, weight: Any, x: Any) -> Any:
    return jax.checkpoint(body)(weight, x)


def scan(body: Body, weight: Any, x: Any) -> Any:
    """A constant, two carries that change places, two sequences; from the last iteration to the first."""

    def step(carry: Any, row: Any) -> Any:
        (first, second), (left, right) = carry, row
        made, stacked = body(weight + left, first)
        return (second * right, made), (stacked, second)

    rows = jnp.stack([weight, x, x + weight])
    (first, second), (stacked, _) = jax.lax.scan(step, (x, weight), (rows, rows[::-1] * 0.5), reverse=True)
    return first + second, stacked.sum(axis=0)


def loop(body: Body, weight: Any, x: Any) -> Any:
    """Constants of the condition and of the body, and carries."""
    limit = jnp.abs(x).sum() + 2.0

    def step(carry: Any) -> Any:
        iteration, first, second = carry
        return (iteration + 1.0, *body(weight * second, first))

    return jax.lax.while_loop(lambda carry: carry[0] < limit, step, (jnp.float32(0.0), x, weight + x))[1:]


def cond(body: Body, weight: Any, x: Any) -> Any:
    return jax.lax.switch(1, [lambda w, y: (w, y), body, lambda w, y: (y, w)], weight, x)


def shard_map(body: Body, weight: Any, x: Any) -> Any:
    shards = min(2, jax.device_count())
    mesh = jax.make_mesh((shards,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:shards])
    split = PartitionSpec("data")
    run = jax.shard_map(body, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=(split, split), check_vma=False)
    first, second = run(weight[:1], x)
    return first, second


def linear_solve(body: Body, weight: Any, x: Any) -> Any:
    """A diagonal system whose solver takes a guess and returns auxiliary data."""
    guess = jnp.cos(weight)

    def solve(_matvec: Any, right: Any) -> Any:
        tail = body(guess, right)[0]
        return right / (2.0 + weight**2) + 0.0 * tail, tail

    return jax.lax.custom_linear_solve(
        lambda vector: (2.0 + weight**2) * vector, x, solve, solve, symmetric=True, has_aux=True
    )


@jax.custom_vjp
def ruled(weight: Any, x: Any) -> tuple[Any, Any]:
    return twice(weight, x)


ruled.defvjp(lambda w, x: (twice(w, x), x), lambda x, cotangents: (cotangents[0] * x, cotangents[1]))


@jax.custom_vjp
def ruled_with_layers(weight: Any, x: Any) -> tuple[Any, Any]:
    with jax.named_scope("within"):
        return twice(weight, x)


ruled_with_layers.defvjp(lambda w, x: (twice(w, x), x), lambda x, cotangents: (cotangents[0] * x, cotangents[1]))


def custom_rule(_body: Body, weight: Any, x: Any) -> Any:
    return ruled_with_layers(weight, x)


def opaque(_body: Body, weight: Any, x: Any) -> Any:
    return ruled(weight, x)


#: A program with each kind of frame that there is.
CONSTRUCTS: dict[str, Callable[[Body, Any, Any], Any]] = {
    "call": call,
    "remat": remat,
    "scan": scan,
    "while": loop,
    "cond": cond,
    "shard_map": shard_map,
    "linear_solve": linear_solve,
    "custom_rule": custom_rule,
    "opaque": opaque,
}

VECTOR, OTHER = evenly(0.5, 1.5, 4), jax.device_put(np.linspace(-1.0, 1.0, 4, dtype=np.float32) ** 2)


def traced(kind: str, body: Body = twice) -> tuple[Trace, Sequence[Frame], int]:
    """A construct's trace, its frames, and the number of the equation that runs them."""

    def loss(weight: Any, x: Any) -> Any:
        first, second = CONSTRUCTS[kind](body, weight, x)
        return (first * 2.0).sum() + second.sum()

    trace = trace_loss(loss, VECTOR, OTHER)
    (found,) = [(each, at) for at, each in trace.root.children.items() if each[0].kind == kind]
    return trace, *found


# --- laws ---------------------------------------------------------------------------------------------------------


def test_every_kind_of_frame_has_a_transfer_an_interpreter_rule_and_a_program_here() -> None:
    kinds = set(get_args(FrameKind)) - {"root"}
    assert set(TRANSFERS) == kinds
    assert set(RULES) == kinds - {"opaque"}  # an opaque equation is bound as it is
    assert set(CONSTRUCTS) == kinds


@pytest.mark.parametrize("check", [check_values, check_gradients])
@pytest.mark.parametrize("kind", CONSTRUCTS)
def test_a_construct_is_what_its_transfer_states(kind: str, check: Callable[..., None]) -> None:
    trace, _, _ = traced(kind)
    checked: list[str] = []

    def noted(inside: Sequence[Frame], *rest: Any) -> None:
        checked.append(inside[0].kind)
        check(inside, *rest)

    evaluated(trace.root, trace.constants, [VECTOR, OTHER], noted)
    assert kind in checked


@first(8)
def test_random_programs_are_what_their_transfers_state(program: tuple[Node, ...]) -> None:
    trace = traced_program(program)
    (loss,) = evaluated(trace.root, trace.constants, [WEIGHTS, INPUTS], check_values)
    assert_close(loss, loss_of(program)(WEIGHTS, INPUTS))


@first(8)
def test_gradients_pass_random_programs_as_their_transfers_state(program: tuple[Node, ...]) -> None:
    trace = traced_program(program)
    evaluated(trace.root, trace.constants, [WEIGHTS, INPUTS], check_gradients)


@pytest.mark.parametrize("kind", sorted(set(CONSTRUCTS) - {"while", "linear_solve", "custom_rule", "opaque"}))
def test_what_the_table_states_to_be_recomputed_runs_once_more_in_the_backward_pass(kind: str) -> None:
    _, inside, _ = traced(kind)
    backward = jax.make_jaxpr(jax.grad(lambda weight: CONSTRUCTS[kind](twice, weight, OTHER)[0].sum()))(VECTOR)
    assert str(backward).count(" tanh ") == (2 if inside[0].transfer.recomputed else 1)
