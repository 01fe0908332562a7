"""What a program is given is paired in any form: numbers, edges of a graph, stacked kernels of several features."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison.pairing.matching import Dumps, pair
from gradscope.comparison.pairing.values.by_values import by_number
from gradscope.dump.manifest.manifest import Layer
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of

_draw = np.random.default_rng(17).normal
KERNELS = [_draw(size=(4, 4)).astype(np.float32) for _ in range(2)]
NODES = _draw(size=(5, 4)).astype(np.float32)
SENDERS, RECEIVERS = np.array([0, 1, 2, 4, 4, 3]), np.array([1, 2, 0, 3, 1, 0])
EPSILON = (0.3, 1.7)


@cache
def _graph_network(*, ported: bool, epsilon: tuple[float, float] = EPSILON, frozen: bool = False) -> Dump:
    """Two layers that add a multiple of each node to what arrives at it; a port packs edges, and uses numbers first."""

    def loss(weights: Any, batch: Any) -> Any:
        x = batch["x" if ported else "nodes"]
        senders, receivers = batch["edges"] if ported else (batch["senders"], batch["receivers"])
        for n in range(2):
            name = f"convs.{n}" if ported else f"Graph_{n}"
            own = weights[name]
            number = own["eps"].reshape(1, 1)
            number = jax.lax.stop_gradient(number) if frozen and n else number
            with jax.named_scope(name):
                scaled = (1 + number) * x if ported else None
                arriving = jnp.zeros_like(x).at[receivers].add(x[senders])
                x = arriving + ((1 + number) * x if scaled is None else scaled)
                x = jnp.tanh(x @ (own["weight"].T if ported else own["kernel"]))
        return jnp.square(x).mean()

    weights: dict[str, dict[str, Any]] = {}
    for n, (kernel, number) in enumerate(zip(KERNELS, epsilon, strict=True)):
        if ported:
            weights[f"convs.{n}"] = {"eps": np.full(1, number, np.float32), "weight": np.ascontiguousarray(kernel.T)}
        else:
            weights[f"Graph_{n}"] = {"eps": np.float32(number), "kernel": kernel}
    edges: dict[str, Any] = {"edges": np.stack([SENDERS, RECEIVERS])}
    apart: dict[str, Any] = {"senders": SENDERS, "receivers": RECEIVERS}
    batch = {"x": NODES, **edges} if ported else {"nodes": NODES, **apart}
    return gs.capture(loss, weights, batch, origins=False)


@pytest.mark.slow
def test_numbers_and_packed_inputs_are_paired_by_their_values() -> None:
    found = gs.compare(_graph_network(ported=False), _graph_network(ported=True))
    assert found.verdict == "same", found.sentence
    matched = {each.ref: each for each in found.matches}
    for n in range(2):
        assert matched[f"param/Graph_{n}/eps"].recipe.keys == (f"param/convs.{n}/eps",)
        assert matched[f"param_grad/Graph_{n}/eps"].recipe.keys == (f"param_grad/convs.{n}/eps",)
    assert [matched[f"input/{name}"].recipe.part for name in ("senders", "receivers")] == [0, 1]
    back = gs.compare(_graph_network(ported=True), _graph_network(ported=False))
    assert back.verdict == "same", back.sentence


@pytest.mark.slow
def test_another_number_is_a_difference() -> None:
    found = gs.compare(_graph_network(ported=False), _graph_network(ported=True, epsilon=(0.3, 1.9)))
    assert found.first_divergence.forward is not None, found.sentence
    assert found.first_divergence.forward.name == "Graph_1"


def test_a_number_may_have_any_number_of_axes() -> None:
    one, other = (dump_of({f"param/{name}": np.full(shape, 0.3)}) for name, shape in (("a", (1,) * 6), ("b", (1,))))
    for ref, cand in ((one, other), (other, one)):
        (match,) = pair(Dumps(ref=ref, cand=cand), [by_number]).matched
        assert match.recipe.array(cand).shape == ref.entry(match.ref).shape


def _slopes(*names: str, used: tuple[str, ...]) -> MemoryDump:
    """A dump of slopes of one value, which layers of the same names use in an order."""
    dump = dump_of({f"param/{name}": np.full(1, 0.25) for name in names})
    layers = tuple(Layer(path=name, index=index, params=(name,)) for index, name in enumerate(used))
    return MemoryDump(replace(dump.manifest, layers=layers), {key: dump.array(key) for key in dump.keys()})  # noqa: SIM118 - no mapping


def test_equal_numbers_are_paired_in_the_order_of_their_use() -> None:
    ref, cand = _slopes("a", "b", "c", used=("c", "a", "b")), _slopes("x", "y", "z", used=("x", "y", "z"))
    found = pair(Dumps(ref=ref, cand=cand), [by_number]).matched
    assert {each.ref: each.cand for each in found} == {"param/c": "param/x", "param/a": "param/y", "param/b": "param/z"}


def _gates(*order: int, names: tuple[str, str]) -> Dump:
    """Two gated layers beside each other, computed in an order."""

    def loss(weights: Any, x: Any) -> Any:
        found: dict[int, Any] = {}
        for n in order:
            own = weights[names[n]]
            with jax.named_scope(names[n]):
                found[n] = jnp.tanh(x @ own["kernel"]) * own["gate"].reshape(1, 1)
        return jnp.square(found[0] - 2 * found[1]).mean()

    weights = {name: {"kernel": kernel, "gate": np.float32(0.5)} for name, kernel in zip(names, KERNELS, strict=True)}
    return gs.capture(loss, weights, NODES, origins=False)


@pytest.mark.slow
def test_equal_numbers_are_paired_by_what_uses_them() -> None:
    found = gs.compare(_gates(0, 1, names=("left", "right")), _gates(1, 0, names=("Gate_1", "Gate_0")))
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
def test_a_gradient_that_does_not_arrive_in_one_program_is_named() -> None:
    found = gs.compare(_graph_network(ported=False), _graph_network(ported=True, frozen=True))
    assert found.verdict == "different"
    assert "1 parameter gradient differs, of `Graph_1/eps`" in found.sentence, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_stacked_kernels_of_several_features_are_those_of_layers(wrong: bool) -> None:
    kernels = [_draw(size=(6, 2, 3)).astype(np.float32) / 2 for _ in range(2)]
    x = _draw(size=(4, 6)).astype(np.float32)

    def written_out(weights: Any, x: Any) -> Any:
        for n in range(2):
            with jax.named_scope(f"layer_{n}"):
                x = jnp.tanh(jnp.einsum("bi,ihd->bhd", x, weights[f"layer_{n}"]).reshape(x.shape))
        return jnp.square(x).mean()

    def scanned(weights: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            with jax.named_scope("block"):
                return jnp.tanh(x @ w.T), None

        return jnp.square(jax.lax.scan(body, x, weights["blocks"])[0]).mean()

    stacked = np.stack([kernel.reshape(6, 6).T for kernel in (kernels[::-1] if wrong else kernels)])
    ref = gs.capture(written_out, {f"layer_{n}": kernel for n, kernel in enumerate(kernels)}, x, origins=False)
    found = gs.compare(ref, gs.capture(scanned, {"blocks": stacked}, x, origins=False))
    assert found.verdict == ("different" if wrong else "same"), found.sentence
