"""The dtype in which a float32 tensor was computed that nothing of the graph of layers leads to directly."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from gradscope.comparison import compare
from gradscope.dump.manifest.manifest import Layer, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.unit.comparison.judging.test_verdicts import NUMBERS, Array, dump, entry

#: A layer that computes in float32, as a module of Flax with `dtype=float32` does, whatever its parameters are.
HEAD = Layer(path="head", index=0, params=("w",), inputs=("x",), outputs=("head",))


def program(dtype: type, error: float) -> MemoryDump:
    """A network of one layer whose output is its own, too; the loss, its gradients and `ce` are made of it."""
    computed: dict[str, Array] = {
        key: (NUMBERS * (1 + error)).astype(np.float32) for key in ("activation/head", "activation_grad/head", "aux/ce")
    }
    tensors: dict[str, Array] = {"param/w": NUMBERS.astype(dtype), "input/x": NUMBERS.astype(dtype), **computed}
    aliases = [
        replace(entry(f"{family}/net", NUMBERS), alias_of=f"{family}/head")
        for family in ("activation", "activation_grad")
    ]
    entries = (*(entry(key, array) for key, array in tensors.items()), *aliases)
    return MemoryDump(Manifest(entries=entries, layers=(HEAD,), loss=1 + error), tensors)


def test_what_is_made_of_bfloat16_parameters_has_the_tolerance_of_bfloat16_in_every_family() -> None:
    found = compare(program(np.float32, 0.0), program(ml_dtypes.bfloat16, 6e-3))
    tolerances = {f"{row.family}/{row.name}": row.tolerance for row in found.rows if row.family != "param"}
    assert tolerances["activation/head"] == tolerances["activation/net"] == tolerances["aux/ce"] == 2e-2
    assert tolerances["activation_grad/head"] == tolerances["activation_grad/net"] == 1e-1
    assert found.verdict == "same"
    assert "losses" not in found.sentence


def test_what_is_made_of_float32_keeps_the_tolerance_of_float32() -> None:
    found = compare(program(np.float32, 0.0), program(np.float32, 6e-3))
    assert found.verdict == "different"
    assert compare(dump(), dump()).verdict == "same"
