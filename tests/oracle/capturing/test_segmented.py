"""Bounded memory: captured in several runs, a model's tensors are those of one run; in float64, to the last digits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.preparation import Bounds
from gradscope.capturing.execution.segmented import SegmentedProgram
from gradscope.capturing.execution.shared_programs import SharedPrograms
from gradscope.capturing.timings import Timings
from gradscope.dump.sources.memory_dump import MemoryDump, MemoryWriter
from gradscope.errors import MachineError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.query.trace_query import ResolvedQuery
from gradscope.instrument.segments.cutting import segments_of
from gradscope.naming.sizes import parse_size, shown_size
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import trace_loss
from tests.oracle.zoo import ZOO
from tests.support.sampled import sampled


@pytest.fixture(autouse=True)
def _in_float64(x64: None) -> None:
    """Where nothing but mistakes makes a difference to be seen."""


def captured(
    loss: Callable[..., Any], arguments: tuple[Any, Any], max_memory: int | None, *, operations: bool = True
) -> tuple[MemoryDump, str]:
    """A loss's layers, or operations and terms that are checked, and what was told before they were captured."""
    model, inputs = Model.of_values("model", loss, *arguments), Arguments.of(*arguments)
    messages: list[str] = []
    bounds = None if max_memory is None else Bounds(memory=max_memory)
    request = DumpRequest(
        spec=CaptureSpec(operations=operations, terms=operations),
        self_check=operations,
        bounds=bounds,
        notify=messages.append,
    )
    writer = MemoryWriter()
    return writer.dump(dump_model(model, inputs, request, writer, Timings())), " ".join(messages)


def check_against_one_run(
    loss: Callable[..., Any], arguments: tuple[Any, Any], max_memory: int, *, operations: bool = True
) -> int:
    """Hold what is captured in segments to one run's; returns the number of runs."""
    full, nothing = captured(loss, arguments, None, operations=operations)
    assert nothing == ""
    parts, messages = captured(loss, arguments, max_memory, operations=operations)
    assert set(parts.keys()) == set(full.keys())
    for key in full.keys():  # noqa: SIM118 - it is no mapping
        assert (parts.entry(key).absent, parts.entry(key).alias_of) == (
            full.entry(key).absent,
            full.entry(key).alias_of,
        )
        if full.entry(full.entry(key).alias_of or key).absent is None:
            one, other = (np.asarray(dump.array(key), np.float64) for dump in (full, parts))
            assert np.abs(one - other).max(initial=0) <= 1e-11 * max(np.abs(one).max(initial=0), 1), key
    assert _paths(parts) == _paths(full)
    assert parts.manifest.loss == pytest.approx(full.manifest.loss, rel=1e-12)
    assert parts.manifest.ledger.counts() == full.manifest.ledger.counts()
    if operations:
        assert parts.manifest.self_check is not None
        assert parts.manifest.self_check["beyond_rounding"] == []
    found = re.fullmatch(r"[0-9.]+ [KMG]?i?B of tensors are captured in ([0-9]+) runs", messages)
    assert found is not None, messages
    return int(found[1])


@pytest.mark.slow
def test_in_segments_everything_is_what_it_is_in_one_run() -> None:
    case = ZOO["mlp"]
    assert check_against_one_run(case.loss, case.arguments(), 60_000) >= 5


def awkward(variables: Any, batch: Any) -> Any:
    """Everything that may lie on the border of two segments."""
    key, flag, x = batch
    with jax.named_scope("early"):
        skip = jnp.sin(x * variables["shared"])
        counts = jnp.argsort(skip[:, 0])  # integers
        drawn = jax.random.split(key)  # keys
    with jax.named_scope("aside"):
        frozen = jax.lax.stop_gradient(skip) * variables["frozen"]
        turned = jax.lax.fori_loop(0, counts[0] + 1, lambda _, y: y * 1.5, jax.lax.stop_gradient(skip))
    with jax.named_scope("middle"):
        y = jax.lax.cond(flag, jnp.sin, jnp.cos, skip) + turned
        y = jax.nn.relu(y)[counts] * variables["shared"]
        y = y + 0.1 * jax.random.normal(drawn[0], y.shape, y.dtype)
    with jax.named_scope("late"):
        z, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c * variables["shared"]), None), y + skip, None, length=3)
    loss = (z * skip).sum()
    after = jnp.square(loss) + x.sum()
    return loss, {"after": after, "frozen": frozen, "counts": counts, "given": x, "constant": 1.0}


def test_all_values_between_two_segments_are_passed_on() -> None:
    variables = {"shared": jnp.linspace(0.5, 1.5, 3)[None], "frozen": jnp.ones((1, 3)), "idle": jnp.ones(2)}
    batch = (jax.random.key(0), jnp.bool_(True), jnp.linspace(-1.0, 2.0, 12).reshape(4, 3))
    assert check_against_one_run(awkward, (variables, batch), 8_000) >= 8


@pytest.mark.slow
def test_segments_take_less_memory_than_one_run() -> None:
    def deep(w: Any, x: Any) -> Any:
        for _ in range(40):
            x = jnp.tanh(x @ w)
        return x.sum()

    trace = trace_loss(deep, jnp.eye(64), jnp.ones((256, 64)))
    resolved = ResolvedQuery(trace=trace, plan=make_plan(trace, CaptureSpec()), spec=CaptureSpec())
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in trace.arguments]
    segments = segments_of(trace, resolved.plan, 1_000_000)
    pieces = SegmentedProgram("deep", resolved, segments, shapes, Timings(), scratch=None)
    pieces.compile()
    made = 40 * 2 * 256 * 64 * 8
    assert 2 * pieces.scratch_bytes < made
    assert 2 * pieces.size_bytes < made


def test_a_loss_that_is_a_parameter_has_no_segments() -> None:
    dump, messages = captured(lambda w, _: w, (jnp.float64(2.0), jnp.ones(3)), 100_000)
    assert dump.manifest.loss == 2.0
    assert "runs" not in messages


def test_arguments_that_exceed_the_bound_with_their_gradients_are_told() -> None:
    case = ZOO["mlp"]
    with pytest.raises(MachineError, match=r"the arguments of the model and their gradients take .* above the 1.0 KiB"):
        captured(case.loss, case.arguments(), 1024)


def layers_as_a_scan(weights: Any, x: Any) -> Any:
    """A network whose layers keep much more than they hand on, as a transformer's do."""

    def layer(h: Any, w: Any) -> tuple[Any, Any]:
        with jax.named_scope("layer"):
            wide = jnp.tanh(jnp.sin(h @ w["up"]) * jnp.cos(h @ w["up"]))

            def inner(c: Any, _: Any) -> tuple[Any, None]:
                return jnp.tanh(c * w["scale"]), None

            c, _ = jax.lax.scan(inner, h, None, length=2)
            return c + wide @ w["down"], h.sum()

    with jax.named_scope("layers"):
        x, sums = jax.lax.scan(layer, x, weights)
    return (x**2).mean() + 1e-3 * sums.sum()


def scanned_arguments(layers: int) -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    weights = {
        "up": jax.random.normal(keys[0], (layers, 8, 64)) / 3,
        "down": jax.random.normal(keys[1], (layers, 64, 8)) / 8,
        "scale": jnp.linspace(0.5, 1.5, layers),
    }
    return weights, jax.random.normal(keys[2], (64, 8))


def cuts(loss: Callable[..., Any], arguments: tuple[Any, Any], budget: int) -> list[range | None]:
    """The iterations that each segment of a loss runs."""
    trace = trace_loss(loss, *arguments)
    return [segment.iterations for segment in segments_of(trace, make_plan(trace, CaptureSpec()), budget)]


@pytest.mark.slow
def test_a_loop_that_does_not_fit_is_run_in_parts() -> None:
    arguments = scanned_arguments(12)
    assert cuts(layers_as_a_scan, arguments, 3_000_000) == [range(6), range(6, 12), None]
    assert len(cuts(layers_as_a_scan, arguments, 1_500_000)) > 3
    assert check_against_one_run(layers_as_a_scan, arguments, 8 << 20, operations=False) >= 3


@sampled("reverse", [False, True])
def test_parts_of_a_loop_take_and_give_what_its_iterations_do(reverse: bool) -> None:
    """Slices, stacked outputs, a carry that nothing reads, a branch in some iterations, and a number that is odd."""

    def loss(w: Any, x: Any) -> Any:
        def step(carry: tuple[Any, Any], slices: tuple[Any, Any]) -> Any:
            (h, count), (own, scale) = carry, slices
            with jax.named_scope("cell"):
                h = jnp.tanh(h @ own) * scale
            h = jax.lax.cond(count % 2 == 0, jnp.sin, lambda h: h, h)
            return (h, count + 1), (h.sum(), count)

        with jax.named_scope("before"):
            x = jnp.sin(x)
        (h, _), (sums, counts) = jax.lax.scan(step, (x, 0), (w, jnp.arange(1.0, 8.0)), reverse=reverse)
        return (h**2).mean() + (sums * counts).sum()

    arguments = (jnp.stack([jnp.eye(16) * (n + 1) / 4 for n in range(7)]), jnp.linspace(-1, 1, 512).reshape(32, 16))
    assert sum(span is not None for span in cuts(loss, arguments, 30_000)) == 7
    assert sum(span is not None for span in cuts(loss, arguments, 100_000)) == 3
    assert check_against_one_run(loss, arguments, 140_000, operations=False) > 14


@pytest.mark.slow
def test_functions_under_jit_are_cut_where_their_equations_are() -> None:
    @jax.jit
    def layer(h: Any, w: Any) -> Any:
        return jnp.tanh(h @ w) + h, h.sum()

    @jax.jit
    def loss(w: Any, x: Any) -> Any:
        sums = []
        for own in w:
            x, total = layer(x, own)
            sums.append(total)
        return (x**2).mean() + jax.jit(sum)(sums)

    arguments = ([jnp.eye(16) * (n + 1) / 4 for n in range(4)], jnp.linspace(-1, 1, 1024).reshape(64, 16))
    assert len(cuts(loss, arguments, 40_000)) > 3
    assert check_against_one_run(loss, arguments, 160_000, operations=False) > 2


def test_a_softmax_may_be_in_another_segment_than_its_noise() -> None:
    def loss(w: Any, x: Any) -> Any:
        h = x @ (30 * w)
        z = h + jax.random.gumbel(jax.random.key(0), h.shape)
        for _ in range(4):
            h = jnp.tanh(h @ w)
        return (jax.nn.softmax(z) @ w + h).mean()

    arguments = (jnp.eye(16), jnp.linspace(-1, 1, 1024).reshape(64, 16))
    assert check_against_one_run(loss, arguments, 160_000, operations=False) > 2


def test_equal_segments_share_their_programs() -> None:
    programs = SharedPrograms()
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    first = programs.compiled(lambda inputs: {"a": jnp.sin(inputs["x"])}, {"x": shape})
    second = programs.compiled(lambda inputs: {"b": jnp.sin(inputs["y"])}, {"y": shape})
    third = programs.compiled(lambda inputs: {"b": jnp.cos(inputs["y"])}, {"y": shape})
    assert first.stage is second.stage
    assert second.stage is not third.stage
    values = jnp.arange(3.0, dtype=jnp.float32)
    np.testing.assert_array_equal(second({"y": values})["b"], jnp.sin(values))


def test_a_refusal_names_the_operation_that_needs_the_most() -> None:
    def loss(w: Any, x: Any) -> Any:
        x = jnp.tanh(x @ w)
        x, _ = jax.lax.scan(lambda h, _: (jnp.sin(h @ w), None), x, None, length=9)
        return jnp.cos(x @ w).sum()

    above = "a run of the model needs .* above the 29.3 KiB of --max-memory"
    with pytest.raises(MachineError, match=above) as refused:
        captured(loss, (jnp.eye(16), jnp.ones((64, 16))), 30_000)
    line = loss.__code__.co_firstlineno + 2
    assert refused.value.message.endswith(
        f"of --max-memory; the most is for scan at test_segmented.py:{line}, all 9 iterations at a time"
    )
    assert "an iteration of a loop" in str(refused.value.hint)


def _paths(dump: MemoryDump) -> Any:
    return [(layer.path, layer.inputs, layer.outputs) for layer in dump.manifest.layers]


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 4 << 30), ("500MB", 500_000_000), ("1.5k", 1500), ("7", 7), (" 2 mib ", 2 << 20)]
)
def test_sizes_are_written_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_sizes_are_shown_short() -> None:
    assert [shown_size(size) for size in (7, 1536, 31 << 30, 5 << 40)] == ["7 B", "1.5 KiB", "31.0 GiB", "5.0 TiB"]
