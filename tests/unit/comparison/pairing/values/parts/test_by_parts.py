"""Packed tensors are matched with their parts in time linear in their number, by values and by names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.parts.by_parts import by_parts
from gradscope.comparison.pairing.values.parts.part_candidates import PartCandidates
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump


class Counting(MemoryDump):
    """A dump that counts how often a tensor is read."""

    reads = 0

    def array(self, key: str) -> np.ndarray:
        self.reads += 1
        return super().array(key)


def dump_of(arrays: Mapping[str, np.ndarray], *, family: str = "param") -> Counting:
    entries = tuple(
        Entry(family=family, name=name, shape=each.shape, dtype=str(each.dtype), stats={}, site=SiteFacts(index=n))
        for n, (name, each) in enumerate(arrays.items())
    )
    return Counting(Manifest(entries=entries), {f"{family}/{name}": each for name, each in arrays.items()})


def zeros_with(gradients: Mapping[str, np.ndarray]) -> Counting:
    """A dump of parameters that are zero, with gradients."""
    zeros = {name: np.zeros_like(each) for name, each in gradients.items()}
    dumps = dump_of(zeros), dump_of(gradients, family="param_grad")
    entries = [each for dump in dumps for each in dump.manifest.entries]
    tensors = {f"param/{name}": each for name, each in zeros.items()}
    tensors |= {f"param_grad/{name}": each for name, each in gradients.items()}
    return Counting(Manifest(entries=tuple(entries)), tensors)


def matched(ref: MemoryDump, cand: MemoryDump) -> dict[str, tuple[tuple[str, ...], int]]:
    found = by_parts(*both(ref, cand))
    return {each.ref: (each.recipe.keys, each.recipe.part) for each in found}


def both(ref: MemoryDump, cand: MemoryDump) -> tuple[Dumps, Pairing]:
    return Dumps(ref=ref, cand=cand), Pairing(only_ref=ref.keys(), only_cand=cand.keys())


def layers(count: int, *, seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    apart, packed = {}, {}
    for n in range(count):
        q, k, v = (random.standard_normal((6, 4), np.float32) for _ in range(3))
        # Names without a common rule, so that values alone tell which parts belong to which tensor.
        apart |= {f"a{n}/{7 * n % 11}q": q, f"a{n}/{5 * n % 13}k": k, f"a{n}/v{n}": v}
        packed[f"b{n * 31 % 97}/in{n}"] = np.concatenate([q, k, v], axis=1)
    return apart, packed


def test_parts_are_found_in_both_directions() -> None:
    apart, packed = layers(5)
    found = matched(dump_of(apart), dump_of(packed))
    holders = [f"param/{name}" for name in packed for _ in range(3)]
    assert [found[f"param/{name}"] for name in apart] == [
        ((holder,), part) for holder, part in zip(holders, (0, 1, 2) * 5, strict=True)
    ]
    found = matched(dump_of(packed), dump_of(apart))
    parts = [f"param/{name}" for name in apart]
    assert found == {f"param/{name}": (tuple(parts[3 * n : 3 * n + 3]), 0) for n, name in enumerate(packed)}


@pytest.mark.parametrize("experts_first", [False, True])
@pytest.mark.parametrize("made", ["different", "zero", "zero without gradients", "one wrong"])
def test_parts_that_are_stacked_in_two_axes_are_found_in_both_directions(experts_first: bool, made: str) -> None:
    number, expert = (3, 2) if experts_first else (2, 3)
    stack = np.random.default_rng(0).standard_normal((number, expert, 4, 4), np.float32)
    outer, inner = ("{1}", "{0}") if experts_first else ("{0}", "{1}")
    names = [f"blocks/{outer}/experts/{inner}/w".format(a, b) for a in range(number) for b in range(expert)]
    apart = dict(zip(names, stack.reshape(-1, 4, 4).copy(), strict=True))
    if made == "one wrong":
        apart[names[4]] *= 2
    if made == "zero without gradients":
        # Nothing but the numbers is left, which are those of the layers first.
        names.sort()
        separate, stacked = dump_of(dict.fromkeys(names, np.zeros((4, 4)))), dump_of({"blocks": np.zeros(stack.shape)})
    else:
        kind = zeros_with if made == "zero" else dump_of
        separate, stacked = kind(apart), kind({"blocks": stack})
    keys = [f"param/{name}" for name in names]
    found = matched(separate, stacked)
    assert [found.get(key) for key in keys] == [(("param/blocks",), part) for part in range(len(keys))]
    assert matched(stacked, separate)["param/blocks"] == (tuple(keys), 0)
    (match,) = (each for each in by_parts(*both(stacked, separate)) if each.ref == "param/blocks")
    made_of = match.recipe.array(separate)
    assert made_of.shape == stack.shape
    if made == "different":
        assert (made_of == stack).all()
        parts = [each.recipe.array(stacked) for each in by_parts(*both(separate, stacked))]
        assert all((part == apart[name]).all() for part, name in zip(parts, names, strict=True))


@pytest.mark.parametrize(
    "halves", [False, True], ids=["gate and up in each layer", "heads whose halves are interleaved"]
)
def test_parts_of_each_layer_of_a_stack_are_found_in_both_directions(halves: bool) -> None:
    kernels = np.random.default_rng(0).standard_normal((3, 2, 12, 5), np.float32)  # layers, parts, out, in
    if halves:  # two heads of three pairs each
        kernels = kernels[:, 0].reshape(3, 12, 5)
        apart = {f"block{n}/q": kernel for n, kernel in enumerate(kernels)}
        stack = kernels.reshape(3, 2, 2, 3, 5).transpose(0, 4, 1, 3, 2).reshape(3, 5, 2, 6)
    else:
        apart = {f"block{n}/{name}": kernel for n, pair in enumerate(kernels)
                 for name, kernel in zip(("gate", "up"), pair, strict=True)}  # fmt: skip
        stack = kernels.transpose(0, 3, 1, 2).reshape(3, 5, 24)
    separate, stacked = dump_of(apart), dump_of({"body": stack})
    (match,) = by_parts(*both(stacked, separate))
    assert (match.recipe.array(separate) == stack).all()
    parts = {each.ref: each.recipe.array(stacked) for each in by_parts(*both(separate, stacked))}
    assert all((parts[f"param/{name}"] == kernel).all() for name, kernel in apart.items())


@pytest.mark.slow
@pytest.mark.parametrize("matching", [True, False])
def test_reads_grow_with_the_number_of_tensors_and_not_with_its_square(matching: bool) -> None:
    reads = {}
    for count in (40, 160):
        apart, packed = layers(count)
        ref, cand = dump_of(apart), dump_of(packed if matching else layers(count, seed=1)[1])
        assert len(matched(ref, cand)) == (3 * count if matching else 0)
        reads[count] = ref.reads + cand.reads
    assert reads[160] <= 4.5 * reads[40]


def test_zeros_among_the_parts_are_found_by_their_norm() -> None:
    random = np.random.default_rng(0)
    one, zeros = random.standard_normal((4, 4), np.float32), np.zeros((4, 4), np.float32)
    found = matched(dump_of({"x": one, "y": zeros}), dump_of({"z": np.concatenate([one, zeros])}))
    assert found == {"param/x": (("param/z",), 0), "param/y": (("param/z",), 1)}


def numbered(*, wrong: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Three blocks whose names differ by a number; the second one's first part has the values of the first block's."""
    random = np.random.default_rng(2)
    apart = {f"Block_{n}/{part}": random.standard_normal((6, 4), np.float32) for n in range(3) for part in ("q", "k")}
    used = apart | ({"Block_1/q": apart["Block_0/q"]} if wrong else {})
    joined = {f"h.{n + 1}.in": np.concatenate([used[f"Block_{n}/q"].T, used[f"Block_{n}/k"].T]) for n in range(3)}
    return apart, joined


@pytest.mark.parametrize("wrong", [False, True])
def test_a_packed_tensor_with_a_wrong_part_is_reported_by_the_names_of_others(wrong: bool) -> None:
    apart, packed = numbered(wrong=wrong)
    found = matched(dump_of(apart), dump_of(packed))
    assert found == {
        f"param/Block_{n}/{part}": ((f"param/h.{n + 1}.in",), at) for n in range(3) for at, part in enumerate("qk")
    }
    back = matched(dump_of(packed), dump_of(apart))
    assert back == {f"param/h.{n + 1}.in": ((f"param/Block_{n}/q", f"param/Block_{n}/k"), 0) for n in range(3)}


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_packed_weight_of_attention_with_a_wrong_part_is_reported_by_its_bias_or_by_the_other_parts(
    part: int, biases: bool
) -> None:
    random = np.random.default_rng(4)
    names = ("query", "key", "value")
    kernels = [random.standard_normal((6, 6), np.float32) for _ in names]
    own = [random.standard_normal(6, np.float32) * biases for _ in names]
    apart = {f"attn/{name}/kernel": kernel for name, kernel in zip(names, kernels, strict=True)}
    apart |= {f"attn/{name}/bias": bias for name, bias in zip(names, own, strict=True)}
    used = [kernel if number == part else kernel.T for number, kernel in enumerate(kernels)]  # one is not transposed
    packed = {"self_attn.in_proj_weight": np.concatenate(used), "self_attn.in_proj_bias": np.concatenate(own)}
    found = matched(dump_of(apart), dump_of(packed))
    weight, bias = ("param/self_attn.in_proj_weight",), ("param/self_attn.in_proj_bias",)
    expected = {f"param/attn/{name}/kernel": (weight, number) for number, name in enumerate(names)}
    expected |= {f"param/attn/{name}/bias": (bias, number) for number, name in enumerate(names)} if biases else {}
    assert {key: each for key, each in found.items() if key in expected} == expected
    back = matched(dump_of(packed), dump_of(apart))
    assert back[weight[0]] == (tuple(f"param/attn/{name}/kernel" for name in names), 0)


@pytest.mark.parametrize("wrong", [False, True])
def test_parts_of_several_sizes_with_a_wrong_one_are_reported_by_those_of_another_block(wrong: bool) -> None:
    random = np.random.default_rng(6)
    sizes = {"q": 8, "k": 4, "v": 4}
    apart = {
        f"layers.{n}.{name}": random.standard_normal((size, 6), np.float32)
        for n in range(2)
        for name, size in sizes.items()
    }
    used = apart | ({"layers.1.v": apart["layers.0.v"]} if wrong else {})
    packed = {f"block{n}/qkv": np.concatenate([used[f"layers.{n}.{name}"] for name in sizes]).T for n in range(2)}
    found = matched(dump_of(apart), dump_of(packed))
    assert found == {
        f"param/layers.{n}.{name}": ((f"param/block{n}/qkv",), part)
        for n in range(2)
        for part, name in enumerate(sizes)
    }
    back = matched(dump_of(packed), dump_of(apart))
    assert back == {f"param/block{n}/qkv": (tuple(f"param/layers.{n}.{name}" for name in sizes), 0) for n in range(2)}


@pytest.mark.slow
def test_names_are_requested_in_proportion_to_the_number_of_tensors_where_they_show_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the packed tensors are found, which names all of the others; the parts of the others are missing."""
    lookups: dict[int, int] = {}
    named = PartCandidates.named

    def counted(self: PartCandidates, *arguments: Any) -> list[str]:
        lookups[count] += 1
        return named(self, *arguments)

    monkeypatch.setattr(PartCandidates, "named", counted)
    for count in (40, 160):
        lookups[count] = 0
        random = np.random.default_rng(4)
        apart, packed = {}, {}
        for n in range(count):
            parts = {f"layers/{n}/{part}/kernel": random.standard_normal((6, 4), np.float32) for part in "qkv"}
            packed[f"h/{n}/attn/in/weight"] = np.concatenate([*parts.values()], axis=1) + n % 2
            apart |= {(f"other/{name}" if n % 2 else name): each for name, each in parts.items()}
        assert len(matched(dump_of(apart), dump_of(packed))) == 3 * count // 2
    assert lookups[160] <= 4.5 * lookups[40]


def test_gradients_of_equal_biases_are_read_in_proportion_to_their_number() -> None:
    """The biases are all zero, and their names say nothing: gradients tell the parts."""
    reads: dict[int, int] = {}
    for count in (20, 80):
        random = np.random.default_rng(5)
        apart, packed, expected = {}, {}, {}
        for n in range(count):
            names = [f"a{(7 * n + k) % (3 * count)}x{n}{part}" for k, part in enumerate("qkv")]
            found = [random.standard_normal(4, np.float32) for _ in names]
            apart |= dict(zip(names, found, strict=True))
            packed[f"b{n * 31 % 97}in{n}"] = np.concatenate(found)
            expected |= {f"param/{name}": ((f"param/b{n * 31 % 97}in{n}",), k) for k, name in enumerate(names)}
        ref, cand = (zeros_with(each) for each in (apart, packed))
        assert matched(ref, cand) == expected
        reads[count] = ref.reads + cand.reads
    assert reads[80] <= 4.5 * reads[20]


@pytest.mark.parametrize("shape", [(8192,), (64, 128)])
def test_a_tensor_that_nothing_is_large_enough_to_be_a_part_of_is_not_read(shape: tuple[int, ...]) -> None:
    """A file of half a megabyte may state half a gigabyte of zeros, which are read block by block alone."""
    large = dump_of({"w": np.ones(shape, np.float32)})
    small = dump_of({f"b{n}": np.arange(n, n + np.prod(each), dtype=np.float32).reshape(each) for n, each in
                     enumerate([(3,), (5,), (64, 1), (64, 2), (2, 3, 4)])})  # fmt: skip
    assert matched(large, small) == matched(small, large) == {}
    assert large.reads == 0


@pytest.mark.parametrize("whole_first", [False, True])
def test_constants_are_read_in_chunks_and_not_as_a_whole(*, whole_first: bool) -> None:
    class Chunked(MemoryDump):
        """A dump none of whose tensors may be in memory as a whole."""

        def array(self, key: str) -> np.ndarray:
            raise AssertionError(key)

        def chunks(self, key: str, chunk_bytes: int = 0, *, reused: bool = False) -> Iterator[np.ndarray]:
            yield from np.split(self._arrays[key].ravel(), 4)

    def chunked(names: Mapping[str, tuple[int, ...]]) -> MemoryDump:
        arrays = {name: np.zeros(shape, np.float32) for name, shape in names.items()}
        return Chunked(dump_of(arrays).manifest, {f"param/{name}": each for name, each in arrays.items()})

    sides = chunked({"x": (16,)}), chunked({"x[0]": (8,), "x[1]": (8,)})
    assert matched(*(sides if whole_first else sides[::-1])) == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("short", ["apart", "packed"])
def test_parts_are_found_between_precisions(dtype: str, short: str) -> None:
    own, packed = layers(5)
    sides = {"apart": own, "packed": packed}
    sides[short] = {name: each.astype(as_numpy_dtype(dtype)) for name, each in sides[short].items()}
    dumps = {name: dump_of(each) for name, each in sides.items()}
    assert matched(dumps["apart"], dumps["packed"]) == matched(dump_of(own), dump_of(packed))
    assert matched(dumps["packed"], dumps["apart"]) == matched(dump_of(packed), dump_of(own))


def test_parts_of_a_rank_that_the_rows_of_a_packed_tensor_have_not_are_none_of_it() -> None:
    random = np.random.default_rng(0)
    rows = {f"bias{n}": random.normal(size=8) for n in range(8)}
    heads = {f"keys{n}": random.normal(size=(2, 2, 4)) for n in range(8)}
    packed = dump_of({"packed": random.normal(size=(24, 8))})
    apart = dump_of({**rows, **heads})
    assert not matched(packed, apart)
    assert not matched(apart, packed)
