"""Where a tensor's largest element is, and the first that is not finite, is where NumPy finds them in the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Manifest
from gradscope.presentation import tensor_report, to_json
from gradscope.stats import ExtremePlaces, extreme_places
from tests.support.report_samples import entry


class Source:
    """A dump of one tensor, which is read in chunks of seven elements."""

    def __init__(self, array: Any, *, has_elements: bool = True) -> None:
        kept: Any = "w" if has_elements else None
        own = replace(entry("param", "w", shape=array.shape), stored=kept)
        self.manifest = Manifest(entries=(own, replace(own, name="v", stored=None, alias_of="param/w")))
        self._flat = array.reshape(-1)

    def chunks(self, key: str, *, reused: bool = False) -> Iterator[np.ndarray[Any, Any]]:
        assert (key, reused) == ("param/w", True)
        yield from (self._flat[at : at + 7] for at in range(0, self._flat.size, 7))


def places(array: Any, name: str = "param/w", *, has_elements: bool = True) -> ExtremePlaces:
    source: Any = Source(array, has_elements=has_elements)
    return extreme_places(source, name)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64, jnp.bfloat16])
@pytest.mark.parametrize("name", ["param/w", "w", "v"])
def test_the_largest_element_is_found_across_chunks(dtype: Any, name: str) -> None:
    array = np.random.default_rng(0).normal(0, 30, (4, 5, 3)).astype(dtype)
    found = places(array, name)
    expected = np.unravel_index(np.abs(array.astype(np.complex128)).argmax(), array.shape)
    assert found.largest is not None
    assert (found.largest.index, found.largest.value) == (tuple(expected), array[expected])
    assert found.nonfinite is None


def test_the_first_element_that_is_not_finite_is_found_beside_it() -> None:
    array = np.zeros((5, 5), np.float32)
    array[1, 4], array[2, 0], array[4, 4] = -np.inf, np.nan, -3
    report = tensor_report("run.npz", Source(array).manifest, "param/w", (), places(array))
    (row,) = json.loads(to_json(report))["rows"]
    assert (row["largest_at"], row["nonfinite_at"]) == ([4, 4], [1, 4])


def test_without_elements_nothing_is_known() -> None:
    nothing = ExtremePlaces()
    assert places(np.full(3, np.nan)).largest is None
    assert places(np.ones(3), has_elements=False) == places(np.ones(3), "other") == nothing
    assert places(np.empty((0, 3))) == nothing
    assert places(np.array(2.0)).largest is not None
