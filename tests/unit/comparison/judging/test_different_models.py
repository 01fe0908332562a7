"""Dumps of different models are said to be such; one model in other parts, widths or values is not."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.comparison.compare_dumps import compare
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.naming import Selection, key_of
from gradscope.stats import tensor_stats

Arrays = dict[str, np.ndarray]


def _dump(arrays: Arrays) -> MemoryDump:
    entries = tuple(
        Entry(
            family=key.partition("/")[0], name=key.partition("/")[2], shape=array.shape, dtype="float32",
            stats=tensor_stats(array).to_json(), site=SiteFacts(index=at),
        )
        for at, (key, array) in enumerate(arrays.items())
    )  # fmt: skip
    return MemoryDump(
        Manifest(entries=entries),
        {key_of(each.family, each.name): arrays[f"{each.family}/{each.name}"] for each in entries},
    )


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _stack(prefix: str, seed: int, *, width: int, layers: int = 3) -> Arrays:
    kernels = {f"param/{prefix}{at}.w": _normal(seed + at, width, width) for at in range(layers)}
    return {**kernels, f"param/{prefix}.bias": np.zeros(8, np.float32)}


REFERENCE = _stack("layer", 0, width=12)


def test_a_bias_of_zeros_does_not_make_two_models_one() -> None:
    found = compare(_dump(REFERENCE), _dump(_stack("block", 9, width=20)))
    assert found.models == (
        "These seem to be dumps of different models: the parameters of the reference have 440 elements, those "
        "of the candidate 1,208, and only 1 small parameter has a counterpart"
    )
    assert found.sentence.startswith(f"{found.models}. ")


def _joined() -> Arrays:
    kernels = [array for array in REFERENCE.values() if array.ndim == 2]
    return {"param/joined": np.concatenate(kernels), "param/layer.bias": REFERENCE["param/layer.bias"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate",
    [
        REFERENCE,
        _stack("block", 9, width=12),
        _joined(),
        {"param/other": _normal(7, 3, 12, 12), "param/b": np.zeros(8, np.float32)},
        _stack("layer", 9, width=20),
        {**_stack("block", 9, width=12), "param/table": _normal(5, 100, 7)},
        {"param/layer.w": _normal(9, 5, 12, 12)},
    ],
    ids=[
        "itself",
        "other values",
        "joined",
        "joined, of other values",
        "names of one model",
        "a part that it lacks",
        "more in a stack",
    ],
)
def test_what_may_be_one_model_is_not_said_to_be_two(candidate: Arrays) -> None:
    for pair in ((REFERENCE, candidate), (candidate, REFERENCE)):
        assert not compare(*map(_dump, pair)).models


def test_values_of_layers_that_are_alike_are_of_one_model() -> None:
    near = _normal(3, 6, 5)
    ref = {**REFERENCE, "activation/hidden": near}
    cand = {**_stack("block", 9, width=20), "activation/hidden": near * np.float32(1.1)}
    assert not compare(_dump(ref), _dump(cand)).models


def test_nothing_is_said_of_a_selection() -> None:
    options = CompareOptions(selection=Selection.parse("param/*"))
    assert not compare(_dump(REFERENCE), _dump(_stack("block", 9, width=20)), options=options).models
