"""Parameters that one program stacks for a loop over layers, and the other has packed in other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.structure.packed.stacked_parts import by_stacked_parts
from tests.support.dumps import of_params
from tests.support.sampled import sampled

#: More layers than are all tried at once.
LAYERS, WIDTH = 6, 8

Arrays = Mapping[str, np.ndarray]


def kernels(*sizes: int) -> list[list[np.ndarray]]:
    """Kernels `[in, out]` of each layer, of these numbers of outputs."""
    random = np.random.default_rng(0)
    return [[random.standard_normal((WIDTH, size), np.float32) for size in sizes] for _ in range(LAYERS)]


def packed_in_layers(of_layers: list[list[np.ndarray]]) -> Arrays:
    """A packed weight `[out, in]` for each layer, as in PyTorch."""
    return {f"{n}.in_proj": np.concatenate([each.T for each in own]) for n, own in enumerate(of_layers)}


def stacked(of_layers: list[list[np.ndarray]]) -> Arrays:
    """A stack for each of a layer's kernels, as a scan has them."""
    return {name: np.stack(each) for name, each in zip("qkv", zip(*of_layers, strict=True), strict=True)}


def apart(of_layers: list[list[np.ndarray]]) -> Arrays:
    """A weight `[out, in]` for each, as in PyTorch."""
    return {
        f"{n}.{name}_proj": np.ascontiguousarray(each.T)
        for n, own in enumerate(of_layers)
        for name, each in zip("qkv", own, strict=True)
    }


def stacked_and_packed(of_layers: list[list[np.ndarray]]) -> Arrays:
    """One stack of packed kernels."""
    return {"qkv": np.stack([np.concatenate(own, axis=1) for own in of_layers])}


@pytest.mark.parametrize("sizes", [(8, 8, 8), (8, 4, 4), (8, 4, 2)])
@pytest.mark.parametrize(("one", "other"), [(packed_in_layers, stacked), (apart, stacked_and_packed)])
@pytest.mark.parametrize("turned", [False, True])
def test_stacks_are_matched_with_what_is_packed_otherwise(one: Any, other: Any, sizes: Any, *, turned: bool) -> None:
    arrays = [make(kernels(*sizes)) for make in ((other, one) if turned else (one, other))]
    ref, cand = map(of_params, arrays)
    unmatched = Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    pairing = unmatched.with_matches(by_stacked_parts(Dumps(ref=ref, cand=cand), unmatched))
    assert (pairing.only_ref, pairing.only_cand) == ((), ())
    for match in pairing.matched:
        np.testing.assert_array_equal(match.recipe.array(cand), ref.array(match.ref))


def test_stacks_of_experts_that_are_packed_are_matched_with_those_that_are_apart() -> None:
    of_layers, experts = kernels(*(4,) * 4), 2
    gates = {f"{n}.{e}.{name}": own[2 * e + at].T for n, own in enumerate(of_layers) for e in range(experts)
             for at, name in enumerate(("w1", "w3"))}  # fmt: skip
    joined = [np.stack([np.concatenate(own[2 * e : 2 * e + 2], axis=1) for e in range(experts)]) for own in of_layers]
    for ref, cand in ((gates, {"wi": np.stack(joined)}), ({"wi": np.stack(joined)}, gates)):
        one, other = of_params(ref), of_params(cand)
        unmatched = Pairing(only_ref=one.keys(), only_cand=other.keys())
        pairing = unmatched.with_matches(by_stacked_parts(Dumps(ref=one, cand=other), unmatched))
        assert (pairing.only_ref, pairing.only_cand) == ((), ())
        for match in pairing.matched:
            np.testing.assert_array_equal(match.recipe.array(other), one.array(match.ref))


@pytest.mark.parametrize("wrong", [0, 1, LAYERS - 1])
def test_a_packed_tensor_of_wrong_values_is_matched_as_the_others_are(wrong: int) -> None:
    arrays = packed_in_layers(kernels(8, 8, 8))
    ref = of_params({name: each + (name == f"{wrong}.in_proj") for name, each in arrays.items()})
    cand = of_params(stacked(kernels(8, 8, 8)))
    unmatched = Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    found = {match.ref: match for match in by_stacked_parts(Dumps(ref=ref, cand=cand), unmatched)}
    assert {key: match.matched_by for key, match in found.items()} == {
        f"param/{n}.in_proj": "order" if n == wrong else "fingerprint" for n in range(LAYERS)
    }
    for name, each in arrays.items():
        np.testing.assert_array_equal(found[f"param/{name}"].recipe.array(cand), each)


def test_stacks_of_other_values_are_no_match() -> None:
    ref = of_params({name: each + 1 for name, each in packed_in_layers(kernels(8, 8, 8)).items()})
    cand = of_params(stacked(kernels(8, 8, 8)))
    unmatched = Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    assert not list(by_stacked_parts(Dumps(ref=ref, cand=cand), unmatched))


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T) @ v


def scanned(params: Any, x: Any) -> Any:
    def layer(x: Any, own: Any) -> Any:
        return x + attention(*(x @ own[name] for name in "qkv")), None

    return jnp.square(jax.lax.scan(layer, x, params)[0]).mean()


def unrolled(params: Any, x: Any) -> Any:
    for n in range(LAYERS):
        with jax.named_scope(f"{n}"):
            x = x + attention(*jnp.split(x @ params[f"{n}.in_proj"].T, 3, axis=-1))
    return jnp.square(x).mean()


@pytest.mark.slow
@sampled("turned", [False, True])
def test_a_scan_over_separate_projections_is_the_same_as_packed_ones_written_out(*, turned: bool) -> None:
    x = np.random.default_rng(1).standard_normal((5, WIDTH), np.float32)
    own = [[each / 4 for each in layer] for layer in kernels(8, 8, 8)]
    dumps = [gs.capture(unrolled, packed_in_layers(own), x), gs.capture(scanned, stacked(own), x)]
    found = gs.compare(*(dumps[::-1] if turned else dumps))
    assert found.verdict == "same", found.sentence
    assert {f"{row.family}/{row.name}" for row in found.rows} >= {
        *(f"param_grad/{name}" for name in ("qkv" if turned else packed_in_layers(own)))
    }
