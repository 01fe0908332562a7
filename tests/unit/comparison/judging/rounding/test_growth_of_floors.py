"""Floors of the tensors of a layer: what has one, and work that grows with the tensors, and not with their square."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.comparison.judging.rounding.rounding_floors import RoundingFloors
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.work import steps


def entry(key: str, rms: float = 1.0, shape: tuple[int, ...] = (4, 4)) -> Entry:
    family, _, name = key.partition("/")
    return Entry(family=family, name=name, shape=shape, dtype="float32", stats={"rms": rms}, site=SiteFacts(index=0))


def one_layer(count: int) -> MemoryDump:
    read, made, used = ([f"{letter}{n}" for n in range(count)] for letter in "rmu")
    keys = [f"{family}/{name}" for name in (*read, *made) for family in ("activation", "activation_grad")]
    keys += [f"{family}/{name}" for name in used for family in ("param", "param_grad")]
    layer = Layer(path="all", index=0, inputs=tuple(read), outputs=tuple(made), params=tuple(used))
    return MemoryDump(Manifest(entries=tuple(map(entry, keys)), layers=(layer,)), {})


@pytest.mark.slow
def test_work_grows_with_the_tensors() -> None:
    def find_all(count: int) -> None:
        dump = one_layer(count)
        floors = RoundingFloors(dump)
        for each in dump.manifest.entries:
            floors.floor(f"{each.family}/{each.name}", "float32")

    assert steps(lambda: find_all(120)) < 5 * steps(lambda: find_all(30))


def test_a_floor_is_that_of_the_largest_of_several_kernels() -> None:
    layer = Layer(path="l", index=0, inputs=("x",), outputs=("y",), params=("small", "large", "broken", "wide"))
    kernels = (entry("param/small", 1.0), entry("param/large", 3.0), entry("param/broken", float("inf")))
    entries = (entry("activation/x"), entry("activation/y"), *kernels, entry("param/wide", 2.0, (64, 4)))
    floor = RoundingFloors(MemoryDump(Manifest(entries=entries, layers=(layer,)), {})).floor("activation/y", "float32")
    assert floor is not None
    assert floor.terms == 64
    assert floor.cancelled == pytest.approx(0.1 * 8 * 2.0 * 4)


def test_a_block_is_no_sum_whatever_kernels_are_inside_it() -> None:
    inner = Layer(path="block/dense", index=1, parent="block", inputs=("x",), outputs=("block/dense",), params=("w",))
    block = Layer(path="block", index=0, inputs=("x",), outputs=("block",), params=("w",))
    entries = [entry(f"activation/{name}") for name in ("x", "block", "block/dense")]
    floors = RoundingFloors(MemoryDump(Manifest(entries=(*entries, entry("param/w")), layers=(block, inner)), {}))
    assert floors.floor("activation/block/dense", "float32") is not None
    assert floors.floor("activation/block", "float32") is None


@pytest.mark.parametrize("inputs", [("x",), ("table",)])
def test_an_empty_parameter_has_a_floor(inputs: tuple[str, ...]) -> None:
    """One with no features, and none at all behind indices, as a list of layers is where its length is 0."""
    layer = Layer(path="l", index=0, inputs=inputs, outputs=("y",), params=("w",))
    indices = replace(entry("activation/table"), dtype="int32", stats={})
    empty = [entry(f"{family}/w", 0.0, (4, 0)) for family in ("param", "param_grad")]
    made = [entry(f"{family}/y", 0.0, (8, 0)) for family in ("activation", "activation_grad")]
    dump = MemoryDump(Manifest(entries=(entry("activation/x"), indices, *made, *empty), layers=(layer,)), {})
    for each in dump.manifest.entries:
        assert (RoundingFloors(dump).floor(f"{each.family}/{each.name}", "float32") or 0) >= 0
