"""Laws of the observing program, on random small programs of layers in every kind of frame.

A program is a tree of nodes over an activation of fixed shape. Run *rolled* it uses JAX's constructs; run *unrolled*,
the oracle, it is plain operations one after another, with a probe at every layer. Layers have names of their own, so a
layer in an iteration is known by its name and the iterations around it.

The laws share a pool of programs, each traced once. Laws about traces also see small programs that hypothesis draws
anew for each of them, and shrinks; laws that run a program take the first few of the pool, which have every construct.
"""

from __future__ import annotations

import functools
import gc
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope import capture
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import EMPTY_PLAN
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.rewriting.frame_rules import RULES
from gradscope.instrument.rewriting.interpreter import Context, interpret
from gradscope.tracing.jaxpr.frames import Frame, iterations
from gradscope.tracing.tracer import Trace, trace_loss
from tests.oracle.engine import Observation, Seen, assert_close, bits, check_stepwise, expected, observe
from tests.oracle.terms import assert_sums
from tests.support.data import evenly

WEIGHTS = evenly(-1.0, 1.0, 2, 2, 2)
INPUTS = evenly(-1.0, 2.0, 3, 2)

Probe = Callable[[str, Any], Any]


@jax.custom_vjp
def skewed(x: Any) -> Any:
    return jnp.sin(x)


skewed.defvjp(lambda x: (skewed(x), x), lambda x, cotangent: (cotangent * 2 + x,))

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "dense": lambda weights, x: jnp.tanh(x @ weights[0]),
    "scale": lambda weights, x: x * weights[1, :1],
    "sine": lambda weights, x: jnp.sin(x),
    "softmax": lambda weights, x: jax.nn.softmax(x),
    "stop": lambda weights, x: jax.lax.stop_gradient(x) + weights[1, 1:],
    "skewed": lambda weights, x: skewed(x),
}


@dataclass(frozen=True)
class Node:
    """One node: its kind, its name, what it does, and the programs inside it."""

    kind: str
    name: str
    operation: str
    inside: tuple[tuple[Node, ...], ...]
    iterations: int

    def __repr__(self) -> str:
        return f"{self.kind}({self.name}:{self.operation}, {self.iterations}, {self.inside})"


def rolled(program: tuple[Node, ...], weights: Any, x: Any) -> Any:
    """The program with JAX's own constructs."""
    for node in program:
        run = [partial(rolled, part, weights) for part in node.inside]
        if node.kind == "layer":
            with jax.named_scope(node.name):
                x = OPERATIONS[node.operation](weights, x)
        elif node.kind == "scope":
            with jax.named_scope(node.name):
                x = run[0](x)
        elif node.kind == "jit":
            x = jax.jit(run[0])(x)
        elif node.kind == "checkpoint":
            x = jax.checkpoint(partial(rolled, node.inside[0]))(weights, x)
        elif node.kind == "vmap":
            x = jax.vmap(lambda row, run=run[0]: run(row[None])[0])(x)
        elif node.kind == "residual":
            x = x + run[0](x)
        elif node.kind == "cond":
            x = jax.lax.cond(x.sum() > 0, run[0], run[1], x)
        elif node.kind == "scan":
            step = lambda carry, _, run=run[0]: (run(carry), carry)  # noqa: E731
            x, stacked = jax.lax.scan(step, x, None, length=node.iterations, reverse=node.operation == "sine")
            x = x + stacked.mean(axis=0)
        elif node.kind == "while":
            body = lambda state, run=run[0]: (state[0] + 1, run(state[1]))  # noqa: E731
            start = (jnp.int32(0), jax.lax.stop_gradient(x))
            made = jax.lax.while_loop(lambda state, iterations=node.iterations: state[0] < iterations, body, start)[1]
            x = x * jax.lax.stop_gradient(made)
    return x


def unrolled(program: tuple[Node, ...], weights: Any, x: Any, probe: Probe, iterations: tuple[int, ...] = ()) -> Any:
    """The program with loops and branches resolved; a layer is probed under its name and the iterations around it."""
    for node in program:
        run = [partial(unrolled, part, weights, probe=probe, iterations=iterations) for part in node.inside]
        if node.kind == "layer":
            x = probe(str((node.name, iterations)), OPERATIONS[node.operation](weights, x))
        elif node.kind == "residual":
            x = x + run[0](x)
        elif node.kind == "cond":
            x = run[0](x) if bool(jax.lax.stop_gradient(x).sum() > 0) else run[1](x)
        elif node.kind == "scan":
            order = range(node.iterations)
            stacked = {}
            for iteration in reversed(order) if node.operation == "sine" else order:
                stacked[iteration], x = x, unrolled(node.inside[0], weights, x, probe, (*iterations, iteration))
            x = x + jnp.stack([stacked[iteration] for iteration in order]).mean(axis=0)
        elif node.kind == "while":
            made = jax.lax.stop_gradient(x)
            for iteration in range(node.iterations):
                last = probe if iteration == node.iterations - 1 else lambda _, value: value
                made = unrolled(node.inside[0], weights, made, last, (*iterations, iteration))
            x = x * jax.lax.stop_gradient(made)
        else:
            x = run[0](x)
    return x


#: Those that a rule of their own interprets come first.
CONSTRUCTS = ("scan", "cond", "checkpoint", "while", "vmap", "residual", "jit", "scope")
KINDS = ("layer", "layer", *CONSTRUCTS)

#: Chooses one of several things.
Choose = Callable[[Sequence[Any]], Any]


def chosen(choose: Choose, depth: int, *, first: str | None = None, mapped: bool = False) -> tuple[Node, ...]:
    """One or two nodes, the parts of each one level less deep; `first` is the kind of the first one."""
    nodes = []
    for construct in (first, None)[: choose((1, 2))]:
        # A branch under `vmap` is a selection, row by row: another program than its unrolled twin.
        kinds = [each for each in KINDS if not (mapped and each == "cond")]
        kind = construct or choose(kinds if depth else ["layer"])
        parts = {"layer": 0, "cond": 2}.get(kind, 1)
        inside = tuple(chosen(choose, depth - 1, mapped=mapped or kind == "vmap") for _ in range(parts))
        nodes.append(Node(kind, "", choose(sorted(OPERATIONS)), inside, choose((1, 2))))
    return tuple(nodes)


def _numbered(program: tuple[Node, ...]) -> tuple[Node, ...]:
    numbers = iter(range(10_000))

    def named(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            Node(
                node.kind,
                f"{node.kind}{next(numbers)}",
                node.operation,
                tuple(map(named, node.inside)),
                node.iterations,
            )
            for node in nodes
        )

    return named(program)


def pooled(number: int) -> tuple[Node, ...]:
    """The program of a number in the pool; each construct comes first in one of eight."""
    return _numbered(chosen(random.Random(number).choice, 2, first=CONSTRUCTS[number % len(CONSTRUCTS)]))


POOL = tuple(map(pooled, range(40)))


@st.composite
def small_programs(draw: st.DrawFn) -> tuple[Node, ...]:
    """Programs of one construct around layers, or of layers alone."""
    return _numbered(chosen(lambda things: draw(st.sampled_from(things)), 1))


PROGRAMS = st.sampled_from(POOL) | small_programs()


def first(count: int) -> pytest.MarkDecorator:
    """The first programs of the pool."""
    return pytest.mark.parametrize("program", POOL[:count], ids=[str(number) for number in range(count)])


def loss_of(program: tuple[Node, ...]) -> Callable[[Any, Any], Any]:
    return lambda weights, x: (rolled(program, weights, x) ** 2).sum()


@functools.cache
def traced(program: tuple[Node, ...]) -> Trace:
    return trace_loss(loss_of(program), WEIGHTS, INPUTS)


@functools.cache
def retraced(program: tuple[Node, ...]) -> Trace:
    """The program as the interpreter runs it under the empty plan."""
    return trace_loss(interpreted(traced(program)), WEIGHTS, INPUTS)


@functools.cache
def expected_of(program: tuple[Node, ...]) -> dict[str, Seen]:
    """What the layers make unrolled, and gradients of something added there."""
    return expected(twin_of(program), WEIGHTS, INPUTS)


def twin_of(program: tuple[Node, ...]) -> Callable[[Any, Any, Probe], Any]:
    return lambda weights, x, probe: (unrolled(program, weights, x, probe) ** 2).sum()


def by_layer(observation: Observation) -> dict[str, Any]:
    """What was seen of the leaf layers, by their own name and the iterations around them."""
    found = {}
    for name, seen in observation.seen.items():
        leaf = re.sub(r"\[\d+\]", "", name).rpartition("/")[2]
        if leaf.startswith("layer") and seen.activation is not None:
            found[str((leaf, tuple(map(int, re.findall(r"\[(\d+)\]", name)))))] = seen
    return found


def check_layers(observation: Observation, program: tuple[Node, ...]) -> None:
    """Hold what was seen of the layers to what they make unrolled, and to gradients of something added there."""
    seen, reference = by_layer(observation), expected_of(program)
    assert seen.keys() == reference.keys()
    for name, tensor in reference.items():
        shape = tensor.activation.shape  # `vmap` adds axes of length 1
        assert_close(seen[name].activation.reshape(shape), tensor.activation, what=name)
        if seen[name].gradient is None:
            assert not np.asarray(tensor.gradient).any(), name
        else:
            assert_close(seen[name].gradient.reshape(shape), tensor.gradient, what=name)


def equations(frame: Frame) -> Iterator[str]:
    """Primitives of a frame and of all inside it, calls taken as what they run."""
    for number, equation in enumerate(frame.jaxpr.eqns):
        inside = frame.children.get(number, [])
        if not inside or inside[0].kind != "call":
            yield equation.primitive.name
        for child in inside:
            yield from equations(child)


def interpreted(trace: Trace) -> Callable[..., Any]:
    """The traced loss, run again under the empty plan."""

    def run(*values: Any) -> Any:
        outputs, captured = interpret(Context(plan=EMPTY_PLAN, rules=RULES), trace.jaxpr, trace.constants, values)
        assert not any(captured)
        return outputs[0]

    return run


def named_sites(trace: Trace) -> list[Any]:
    """What is known of each site that a layer hands on."""
    return [(site.names, site.shape, site.dtype, site.reach) for site in trace.sites if site.names]


# --- laws --------------------------------------------------------------------------------------------------------


@given(PROGRAMS)
@settings(max_examples=20)
def test_the_empty_plan_is_the_identity(program: tuple[Node, ...]) -> None:
    trace, again = traced(program), retraced(program)
    before, after = Counter(equations(trace.root)), Counter(equations(again.root))
    after["clamp"] -= before["cond"]  # `switch` clamps an index that is clamped already
    assert +after == before


@given(PROGRAMS)
@settings(max_examples=20)
def test_instrumenting_twice_is_instrumenting_once(program: tuple[Node, ...]) -> None:
    assert named_sites(retraced(program)) == named_sites(traced(program))


@given(PROGRAMS)
@settings(max_examples=20)
def test_names_are_unique_and_every_output_of_a_layer_has_one(program: tuple[Node, ...]) -> None:
    trace = traced(program)
    names = [
        str(name.at(iteration)) for site in trace.sites for iteration in iterations(site.loops) for name in site.names
    ]
    assert len(names) == len(set(names))
    assert all(layer.outputs for layer in trace.layers)
    assert {value for layer in trace.layers for value in layer.outputs} <= {site.value for site in trace.sites}


@given(PROGRAMS)
@settings(max_examples=20)
def test_sites_are_in_program_order(program: tuple[Node, ...]) -> None:
    trace = traced(program)
    orders = [site.order for site in trace.sites]
    assert orders == sorted(orders)
    assert all(layer.order <= later.order for layer, later in zip(trace.layers, trace.layers[1:], strict=False))


@first(8)
def test_stepwise_everything_is_bit_for_bit_what_jax_computes(program: tuple[Node, ...]) -> None:
    observation = check_stepwise(loss_of(program), WEIGHTS, INPUTS)
    check_layers(observation, program)


@first(4)
def test_terms_sum_to_the_whole_and_observing_them_changes_no_bit(program: tuple[Node, ...]) -> None:
    loss = loss_of(program)
    assert_sums(capture(loss, WEIGHTS, INPUTS, ops="inputs", terms=True))
    operands = CaptureSpec(operations=True, operands=True, terms=True)
    stepwise, plain = (observe(loss, WEIGHTS, INPUTS, spec=each, jit=False) for each in (operands, CaptureSpec()))
    assert bits(stepwise.loss) == bits(plain.loss)
    assert bits(stepwise.observed.gradients[0]) == bits(plain.observed.gradients[0])


@first(4)
def test_compiled_everything_is_what_jax_computes(program: tuple[Node, ...]) -> None:
    value, gradient = jax.jit(jax.value_and_grad(loss_of(program)))(WEIGHTS, INPUTS)
    observation = observe(loss_of(program), WEIGHTS, INPUTS)
    assert_close(observation.loss, value)
    assert_close(observation.observed.gradients[0], gradient)
    check_layers(observation, program)


@first(4)
def test_observing_programs_type_check_and_leak_nothing(program: tuple[Node, ...]) -> None:
    trace = traced(program)
    plan = make_plan(trace, CaptureSpec())
    observing, _ = observing_program(trace, plan)
    # What refers to a tracer that leaks was made by now: the collector need not search what other tests left.
    gc.freeze()
    with jax.checking_leaks(), jax.enable_checks(True):
        shapes = jax.eval_shape(observing, [WEIGHTS, INPUTS])
    gc.unfreeze()
    for number, site in enumerate(plan.sites):
        iterations = tuple(loop.length for loop in site.loops if loop.length is not None)
        assert shapes.captured.values[number].shape == (*iterations, *site.shape)
        if number in plan.gradients:
            assert shapes.cotangents[number].shape == (*iterations, *site.shape)


@given(small_programs(), st.integers(2, 4))
@settings(max_examples=5)
def test_a_scan_of_n_iterations_yields_n_records(program: tuple[Node, ...], length: int) -> None:
    scan = _numbered((Node("scan", "", "dense", (program,), length),))
    trace = trace_loss(loss_of(scan), WEIGHTS, INPUTS)
    for site in trace.sites:
        if site.value.frame:
            assert sum(1 for _ in iterations(site.loops)) % length == 0


@first(5)
def test_minus_zero_comes_back_as_minus_zero(program: tuple[Node, ...]) -> None:
    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("made"):
            made = rolled(program, weights, x)
        return (made * -0.0).sum()

    observation = observe(loss, WEIGHTS, INPUTS, jit=False)
    made = [seen for name, seen in observation.seen.items() if name == "made"]
    assert all(bits(seen.gradient) == bits(jnp.full((3, 2), -0.0)) for seen in made if seen.gradient is not None)
