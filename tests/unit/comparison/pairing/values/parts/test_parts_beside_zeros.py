"""Biases are matched with a joined one that has zeros where the other program has no bias."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.structure.packed.stacked_parts import by_stacked_parts
from gradscope.comparison.pairing.values.parts.by_parts import by_parts
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump

Arrays = dict[str, np.ndarray]


def dump_of(params: Arrays, gradients: Arrays, *, narrowest: str | None = None) -> MemoryDump:
    named = [("param", name, each) for name, each in params.items()]
    named += [("param_grad", name, each) for name, each in gradients.items()]
    entries = tuple(
        Entry(family=family, name=name, shape=each.shape, dtype=str(each.dtype), stats={}, site=SiteFacts(index=n))
        for n, (family, name, each) in enumerate(named)
    )
    layers = (Layer(path="attention", index=0, params=tuple(params), narrowest=narrowest),)
    return MemoryDump(Manifest(entries=entries, layers=layers), {f"{kind}/{name}": each for kind, name, each in named})


def biases() -> tuple[Arrays, Arrays]:
    """Biases of queries and values, and their gradients."""
    random = np.random.default_rng(0)
    params, gradients = (
        {name: random.normal(size=8).astype(np.float32) for name in ("query", "value")} for _ in range(2)
    )
    return params, gradients


def joined(arrays: Arrays, *, keys: float = 0.0) -> np.ndarray:
    return np.concatenate([arrays["query"], np.full(8, keys, np.float32), arrays["value"]])


def found(ref: MemoryDump, cand: MemoryDump) -> dict[str, np.ndarray]:
    """What the matches make of the candidate, by the reference's names."""
    dumps, pairing = Dumps(ref=ref, cand=cand), Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    matches = pairing.with_matches(by_parts(dumps, pairing)).matched
    return {each.ref.removeprefix("param/"): each.recipe.array(cand) for each in matches}


def as_is(array: np.ndarray) -> np.ndarray:
    return array


def by_heads(array: np.ndarray) -> np.ndarray:
    return array.reshape(3, 2, 4).swapaxes(0, 1)


@pytest.mark.parametrize("packed", [as_is, by_heads], ids=["flat", "heads"])
@pytest.mark.parametrize("shape", [(8,), (2, 4)], ids=["flat", "heads"])
def test_biases_beside_zeros_are_found_in_a_joined_one(
    packed: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]
) -> None:
    params, gradients = biases()
    apart = dump_of(*({name: each.reshape(shape) for name, each in some.items()} for some in (params, gradients)))
    one = dump_of({"qkv": packed(joined(params))}, {"qkv": packed(joined(gradients, keys=1e-9))})
    made = found(apart, one)
    assert made.keys() == {"query", "value"}
    assert all(np.array_equal(made[name], params[name].reshape(shape)) for name in made)


def test_biases_beside_zeros_may_have_shapes_of_their_own() -> None:
    params, gradients = biases()
    shapes = {"query": (2, 4), "value": (8,)}
    apart = ({name: each.reshape(shapes[name]) for name, each in some.items()} for some in (params, gradients))
    made = found(dump_of(*apart), dump_of({"qkv": joined(params)}, {"qkv": joined(gradients)}))
    assert {name: each.shape for name, each in made.items()} == shapes


def test_the_bias_of_values_is_found_beside_zeros_alone() -> None:
    params, gradients = biases()
    one = dump_of({"kv": joined(params)[8:]}, {"kv": joined(gradients)[8:]})
    made = found(dump_of(params, gradients), one)
    assert made.keys() == {"value"}


@pytest.mark.parametrize(
    ("narrowest", "arrives", "is_found"), [(None, 1e-2, False), ("bfloat16", 1e-2, True), ("bfloat16", 1.0, False)]
)
def test_zeros_at_which_a_gradient_arrives_are_a_bias_that_the_reference_lacks(
    narrowest: str | None, arrives: float, *, is_found: bool
) -> None:
    params, gradients = biases()
    gradient = joined(gradients, keys=arrives)
    one = dump_of({"qkv": joined(params)}, {"qkv": gradient}, narrowest=narrowest)
    assert bool(found(dump_of(params, gradients), one)) is is_found


def test_a_bias_that_has_more_than_parts_and_zeros_is_not_taken_apart() -> None:
    params, gradients = biases()
    other = joined(params)
    other[8:10] = 1.0
    assert not found(dump_of(params, gradients), dump_of({"qkv": other}, {}))


def test_biases_beside_zeros_are_found_in_a_stack_of_layers() -> None:
    random = np.random.default_rng(1)
    params = {f"{n}/{name}": random.normal(size=8) for n in range(3) for name in ("query", "value")}
    stack = np.stack([np.concatenate([params[f"{n}/query"], np.zeros(8), params[f"{n}/value"]]) for n in range(3)])
    ref, cand = dump_of(params, {}), dump_of({"layers/qkv": stack}, {})
    pairing = Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    matches = by_stacked_parts(Dumps(ref=ref, cand=cand), pairing)
    made = {each.ref.removeprefix("param/"): each.recipe.array(cand) for each in matches}
    assert made.keys() == params.keys()
    assert all(np.array_equal(made[name], params[name]) for name in made)
