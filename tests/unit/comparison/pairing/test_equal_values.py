"""Very many tensors of equal values: which is which, and how much is read for it."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gradscope.comparison.pairing.matching import Dumps, pair
from gradscope.comparison.pairing.values import equal_classes as module
from gradscope.comparison.pairing.values.by_values import by_fingerprint
from gradscope.comparison.pairing.values.equal_classes import equal_classes
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of

#: More tensors than those of which all pairs are rated.
MANY = 70


class CountingDump(MemoryDump):
    """A dump that counts how often each tensor is read."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__(dump_of(tensors).manifest, tensors)
        self.reads: Counter[str] = Counter()

    def array(self, key: str) -> Any:
        self.reads[key] += 1
        return super().array(key)


def shuffled(count: int) -> list[int]:
    return [int(each) for each in np.random.default_rng(1).permutation(count)]


def test_tensors_of_equal_values_are_read_once() -> None:
    ref, cand = (CountingDump({f"param/{name}{n}x": np.zeros(8) for n in range(MANY)}) for name in ("a", "b"))
    found = pair(Dumps(ref=ref, cand=cand), [by_fingerprint])
    assert [(each.ref, each.cand) for each in found.matched] == [(f"param/a{n}x", f"param/b{n}x") for n in range(MANY)]
    assert set(ref.reads.values()) == set(cand.reads.values()) == {1}


def test_what_a_pass_knows_of_values_is_gone_with_it() -> None:
    dumps = Dumps(ref=dump_of({"param/a": np.arange(4.0)}), cand=dump_of({"param/b": np.arange(4.0)}))
    gc.disable()  # a command of many tensors ends before the first search for cycles
    try:
        equality = Equality(dumps)
        assert equality.recipe("param/a", "param/b") is not None
        left = weakref.ref(equality)
        del equality
        assert left() is None
    finally:
        gc.enable()


def test_of_very_many_equal_tensors_each_is_paired_in_the_scope_of_its_known_neighbour() -> None:
    random, others = np.random.default_rng(0), shuffled(MANY)
    kernels = [random.standard_normal((3, 5)) for _ in range(MANY)]
    ref = {f"param/block{n}/{name}": array for n in range(MANY) for name, array in
           (("kernel", kernels[n]), ("bias", np.zeros(5)))}  # fmt: skip
    cand = {f"param/h.{n}.{name}": array for n in range(MANY) for name, array in
            (("weight", kernels[others[n]].T), ("shift", np.zeros(5)))}  # fmt: skip
    found = pair(Dumps(ref=dump_of(ref), cand=dump_of(cand)), [by_fingerprint])
    counterparts = {each.ref: each.cand for each in found.matched}
    assert len(counterparts) == 2 * MANY
    for n, other in enumerate(others):
        assert counterparts[f"param/block{other}/kernel"] == f"param/h.{n}.weight"
        assert counterparts[f"param/block{other}/bias"] == f"param/h.{n}.shift"


@pytest.mark.slow
@pytest.mark.parametrize("tried", [1 << 18, 3, 1])
def test_classes_that_are_found_are_those_that_every_pair_shows(tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TRIED", tried)
    random = np.random.default_rng(2)
    kinds = [np.float32, np.float64, np.int32, np.bool_]
    values = [(random.standard_normal((2, 3)) * 3).astype(kinds[n % 4]) for n in range(24)]
    values += [np.zeros((2, 3), np.float32), np.full((3, 2), np.nan, np.float32), np.full(6, np.inf, np.float32)]
    near = [each * np.asarray(1 + 1e-6, each.dtype) if each.dtype.kind == "f" else each for each in values]
    ref = dump_of({f"activation/a{n}": each for n, each in enumerate(values)})
    cand = dump_of({f"activation/b{n}": each for n, each in enumerate([*near, *(each.T for each in values), *values])})
    dumps = Dumps(ref=ref, cand=cand)
    equality = Equality(dumps)
    with np.errstate(invalid="ignore"):
        expected = {
            (one, other) for one in ref.keys() for other in cand.keys()  # noqa: SIM118 - no mapping
            if ref.entry(one).shape and np.prod(ref.entry(one).shape) == np.prod(cand.entry(other).shape)
            and equality.recipe(one, other) is not None
        }  # fmt: skip
        found = pair(dumps, [])
        classes = list(equal_classes(dumps, found, Equality(dumps)))
    assert {(one, other) for each in classes for one in each.refs for other in each.cands} == expected
    assert len(expected) > len(values)


@pytest.mark.parametrize("stats", [{}, {"l2": 1.0}], ids=["no norm", "one norm"])
def test_of_a_manifest_of_one_norm_so_many_classes_are_near_at_most(
    monkeypatch: pytest.MonkeyPatch, stats: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "_MOST_NEAR", 5)
    group = module._Group([[f"param/{n}"] for n in range(30)], lambda _: stats)
    assert [len(each) for each in group.near([(stats, 1e-6)] * 30)] == [5] * 30
