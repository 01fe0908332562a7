"""What the shards of a mesh have is put together as NumPy cuts a value: slices, copies and terms, along each axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gradscope.arrays.digest import Digest
from gradscope.comparison import compare
from gradscope.comparison.pairing.loops.by_shards import shard_matches
from gradscope.comparison.pairing.loops.shard_layouts import Way, shard_layouts
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of

_draw = np.random.default_rng(0).normal
_NONE: Mapping[str, int] = {}
VALUE = _draw(size=(4, 6)).astype(np.float32)


def _hash(array: np.ndarray) -> str:
    digest = Digest()
    digest.add(np.ascontiguousarray(array).ravel())
    return digest.hexadecimal()


def dump(tensors: Mapping[str, np.ndarray], mesh: Mapping[str, int] = _NONE, *, kept: bool = True) -> MemoryDump:
    """A dump with the statistics by which shards are told apart; of a mesh where its axes are named."""
    made = dump_of(tensors)
    stats = {
        key: {"hash": _hash(each), "rms": float(np.sqrt(np.mean(np.square(each))))} for key, each in tensors.items()
    }
    entries = [replace(each, stats=stats[f"{each.family}/{each.name}"]) for each in made.manifest.entries]
    return MemoryDump(
        replace(made.manifest, entries=tuple(entries), mesh=mesh, shard_axes=tuple(mesh)), tensors if kept else {}
    )


def cut(value: np.ndarray, sizes: Sequence[int], ways: Sequence[Way], *, share: bool = False) -> list[np.ndarray]:
    """What each shard has, the last axis of the mesh fastest; with `share`, terms of a sum are equal."""
    parts = [value]
    for size, way in zip(sizes, ways, strict=True):
        parts = [piece for part in parts for piece in _pieces(part, size, way, share=share)]
    return parts


def _pieces(part: np.ndarray, size: int, way: Way, *, share: bool) -> list[np.ndarray]:
    if isinstance(way, int):
        return np.split(part, size, way)
    if way == "copies":
        return [part] * size
    terms = [part / size] * size if share else [_draw(size=part.shape).astype(np.float32) for _ in range(size - 1)]
    if way == "mean":
        return terms if share else [*terms, (size * part - np.sum(terms, axis=0)).astype(np.float32)]
    return terms if share else [*terms, (part - np.sum(terms, axis=0)).astype(np.float32)]


@pytest.mark.parametrize("whole", ["fc", "fc[0]"])
@pytest.mark.parametrize(
    ("sizes", "ways"),
    [
        ((2,), (0,)),
        ((3,), (1,)),
        ((2,), ("copies",)),
        ((2,), ("sum",)),
        ((3,), ("mean",)),
        ((2, 3), (0, 1)),
        ((2, 3), (0, "copies")),
        ((3, 2), ("sum", 0)),
        ((2, 2), (0, 0)),
        ((2, 3, 2), (0, 1, "sum")),
    ],
)
def test_a_value_is_made_of_what_shards_have(whole: str, sizes: tuple[int, ...], ways: tuple[Way, ...]) -> None:
    parts = cut(VALUE, sizes, ways)
    several = dump({f"activation/fc[{n}]": each for n, each in enumerate(parts)}, dict(zip("abc", sizes, strict=False)))
    (match,) = shard_matches(dump({f"activation/{whole}": VALUE}), several, several.keys())
    assert match.ref == f"activation/{whole}"
    np.testing.assert_allclose(match.recipe.array(several), VALUE, atol=1e-6)


def test_gradients_of_copies_are_their_sum_where_they_are_shares_of_it() -> None:
    """A value that each device has gets a share of its gradient on each: equal ones are no copies then."""
    gradient = _draw(size=VALUE.shape).astype(np.float32)
    tensors = {f"activation/fc[{n}]": VALUE for n in range(2)}
    tensors |= {f"activation_grad/fc[{n}]": each for n, each in enumerate(cut(gradient, (2,), ("sum",), share=True))}
    one, several = dump({"activation/fc": VALUE, "activation_grad/fc": gradient}), dump(tensors, {"model": 2})
    _, match = shard_matches(one, several, several.keys())
    np.testing.assert_allclose(match.recipe.array(several), gradient, rtol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_a_mesh_is_the_same_as_one_device_whichever_is_the_reference(turned: bool) -> None:
    parts = cut(VALUE, (2, 3), (0, "sum"))
    one = dump({"activation/fc": VALUE, "activation_grad/fc": 2 * VALUE})
    tensors = {f"activation/fc[{n}]": each for n, each in enumerate(parts)}
    tensors |= {f"activation_grad/fc[{n}]": 2 * each for n, each in enumerate(cut(VALUE, (2, 3), (0, "copies")))}
    several = dump(tensors, {"data": 2, "model": 3})
    found = compare(several, one) if turned else compare(one, several)
    assert found.verdict == "same", found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("few", "more", "ways"),
    [
        ((2,), (4,), (0,)),
        ((2,), (6,), ("copies",)),
        ((1, 2), (2, 2), (0, "sum")),
        ((2, 2), (4, 2), (0, "sum")),
        ((2, 1), (2, 3), (0, 1)),
        ((2, 2), (4, 6), (0, 1)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_what_a_few_devices_have_is_divided_further(
    few: tuple[int, ...], more: tuple[int, ...], ways: tuple[Way, ...], turned: bool
) -> None:
    """Along each axis of the mesh, one of the fewer has what several of the more have: slices, copies or terms."""
    value = _draw(size=(4, 6)).astype(np.float32)
    # The parts of each of the fewer have the numbers that all of the more have.
    wholes = np.stack(cut(value, few, ways)).reshape(*few, -1)
    shapes = [each.shape for each in cut(value, few, ways)]
    axes, tensors = "ab"[: len(few)], ({}, {})
    for number, place in enumerate(np.ndindex(few)):
        whole = wholes[place].reshape(shapes[0])
        tensors[0][f"activation/fc[{number}]"] = whole
        further = [size // own for size, own in zip(more, few, strict=True)]
        for part, inner in zip(cut(whole, further, ways), np.ndindex(*further), strict=True):
            at = [out * size + own for out, size, own in zip(place, further, inner, strict=True)]
            tensors[1][f"activation/fc[{np.ravel_multi_index(at, more)}]"] = part
    fewer, others = (
        dump(each, dict(zip(axes, sizes, strict=True))) for each, sizes in zip(tensors, (few, more), strict=True)
    )
    found = compare(others, fewer) if turned else compare(fewer, others)
    assert found.verdict == "same", found.sentence
    assert {match.matched_by for match in found.matches if not turned} <= {"shards"}


def test_of_copies_that_differ_the_furthest_is_compared() -> None:
    """A shard by itself that is wrong is not hidden behind those that are right."""
    parts = [VALUE, VALUE, VALUE + 1]
    several = dump({f"activation/fc[{n}]": each for n, each in enumerate(parts)}, {"data": 3})
    (match,) = shard_matches(dump({"activation/fc": VALUE}), several, several.keys())
    np.testing.assert_array_equal(match.recipe.array(several), VALUE + 1)


def test_shapes_alone_decide_where_there_are_no_tensors() -> None:
    several = dump(
        {f"activation/fc[{n}]": each for n, each in enumerate(cut(VALUE, (2,), (1,)))}, {"data": 2}, kept=False
    )
    (match,) = shard_matches(dump({"activation/fc": VALUE}, kept=False), several, several.keys())
    assert match.recipe.description() == "concatenate 1"


def test_iterations_of_a_loop_are_no_shards() -> None:
    """Without a mesh, and where their number is not that of its devices."""
    tensors = {f"activation/fc[{n}]": each for n, each in enumerate(np.split(VALUE, 2))}
    for mesh in ({}, {"data": 4}):
        several = dump(tensors, mesh)
        assert not [*shard_matches(dump({"activation/fc": VALUE}), several, several.keys())]


def test_layouts_are_those_whose_sizes_multiply_to_the_whole() -> None:
    found = [each.ways for each in shard_layouts((4, 6), (2, 6), (2, 2))]
    assert found == [(0, "copies"), ("copies", 0)]
    assert not [*shard_layouts((4, 6), (3, 6), (2,)), *shard_layouts((4, 6), (24,), (1,))]
    assert [math.prod(each.sizes) for each in shard_layouts((8,), (1,), (2, 4))] == [8, 8]
