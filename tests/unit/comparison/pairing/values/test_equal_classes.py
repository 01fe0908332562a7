"""Of parameters that are nearly equal, those that were copied are found first, and few of the others are read."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.arrays.blocks import Array
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.equal_classes import equal_classes
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.stats import tensor_stats
from tests.support.dumps import dump_of, record


def _scales(count: int, *, seed: int) -> list[Array]:
    """Returns scales of layers that have hardly left 1."""
    draw = np.random.default_rng(seed).normal
    return [(1 + 1e-6 * draw(size=(16,))).astype(np.float32) for _ in range(count)]


def _found(ref: MemoryDump, cand: MemoryDump) -> tuple[list[tuple[str, str]], int]:
    """Returns the pairs of equal classes, and how many pairs were read."""
    dumps = Dumps(ref=ref, cand=cand)
    equality = Equality(dumps)
    pairing = Pairing(only_ref=ref.keys(), only_cand=cand.keys())
    found = [(each.refs[0], each.cands[0]) for each in equal_classes(dumps, pairing, equality)]
    return found, len(equality._steps)


def test_a_copied_parameter_has_no_counterpart_among_those_that_are_near() -> None:
    scales = _scales(40, seed=0)
    ref = {f"param/a{number}": each for number, each in enumerate(scales)}
    cand = {f"param/b{number}": each for number, each in enumerate(scales[::-1])}
    found, read = _found(dump_of(ref), dump_of(cand))
    assert found == [(f"param/a{number}", f"param/b{39 - number}") for number in range(40)]
    assert not read


def test_a_value_that_is_computed_may_be_that_of_any_that_is_near() -> None:
    scales = _scales(3, seed=0)
    ref = {f"activation/a{number}": each for number, each in enumerate(scales)}
    cand = {f"activation/b{number}": each for number, each in enumerate(scales)}
    assert len(_found(dump_of(ref), dump_of(cand))[0]) == 9


@pytest.mark.slow
def test_of_very_many_near_parameters_the_number_that_is_read_grows_as_their_own() -> None:
    counts = [100, 400]
    reads = []
    for count in counts:
        ref = {f"param/a{number}": each for number, each in enumerate(_scales(count, seed=0))}
        cand = {f"param/b{number}": each for number, each in enumerate(_scales(count, seed=1))}
        found, read = _found(dump_of(ref), dump_of(cand))
        reads.append(read)
        # Each has a counterpart, and they are not the same few.
        assert len({one for one, _ in found}) == count
        assert len({other for _, other in found}) > 0.9 * count
    assert reads[1] <= 5 * reads[0]


@pytest.mark.parametrize("same", [True, False])
def test_a_name_is_no_hash(same: bool) -> None:
    values = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)

    def without_hash(array: Array) -> MemoryDump:
        stats = tensor_stats(array, tier="core").to_json()
        entry = Entry.of(record("w", array, family="param", stats=stats))
        return MemoryDump(Manifest(entries=(entry,)), {"param/w": array})

    found, _ = _found(without_hash(values[0]), without_hash(values[0] if same else values[1]))
    assert found == ([("param/w", "param/w")] if same else [])
