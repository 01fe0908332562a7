"""Parameters of a short dtype whose updates are lost are told, by statistics that prove it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.updates.rounded_updates import rounded_parameters


def statistics(array: np.ndarray) -> dict[str, float | int | None]:
    wide = array.astype(np.float64)
    return {"rms": float(np.sqrt((wide**2).mean())), "amax": float(np.abs(wide).max())}


def trained(
    folder: Path, dtype: str, update: float, *, steps: int = 80, stochastic: bool = False, wide: bool = False
) -> History:
    """A run that adds signs times a size to a parameter of deviation 1, or a float32 copy, and records every step."""
    noise = np.random.default_rng(0)
    of = np.dtype(getattr(ml_dtypes, dtype, dtype))
    param = noise.normal(size=400).astype(np.float32).astype(of)
    with HistoryWriter(folder, from_step=0, facts={}) as history:
        added_as = "float32" if wide else dtype
        history.describe({}, [TensorRow(family=each, name="w", dtype=of) for each, of in
                              (("param", dtype), ("update", added_as))])  # fmt: skip
        for step in range(steps):
            added = (update * noise.choice([-1.0, 1.0], 400)).astype(of)
            stats = {"param/w": statistics(param), "update/w": statistics(added)}
            history.write(lambda step=step, stats=stats: StepRecord(numbers={"step": step}, stats=stats))
            up = np.float32(2.0**-7) if stochastic and step % 2 else np.float32(0)
            param = (param.astype(np.float32) * (1 + up) + added.astype(np.float32)).astype(of)
    return History(folder)


@pytest.mark.parametrize(
    ("dtype", "update", "options", "told"),
    [
        ("bfloat16", 5e-4, {}, True),
        ("bfloat16", 2e-3, {}, False),
        ("bfloat16", 5e-4, {"steps": 8}, False),
        ("bfloat16", 5e-4, {"steps": 30}, False),  # a compensated sum moves the largest element later
        ("bfloat16", 5e-4, {"stochastic": True}, False),
        ("bfloat16", 5e-4, {"wide": True}, False),
        ("bfloat16", 0.0, {}, False),
        ("float16", 5e-5, {}, True),
        ("float16", 5e-4, {}, False),
        ("float32", 5e-5, {}, False),
    ],
)
def test_updates_that_no_large_element_follows_are_told(
    dtype: str, update: float, options: dict[str, bool], told: bool, tmp_path: Path
) -> None:
    with trained(tmp_path, dtype, update, **options) as history:
        assert rounded_parameters(history) == (("w",) if told else ())


@pytest.mark.parametrize(("dtype", "half"), [("bfloat16", 2.0**-9), ("float16", 2.0**-12)])
def test_half_the_distance_of_values_is_what_numpy_loses(dtype: str, half: float) -> None:
    of = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for value in np.linspace(0.5, 2, 50).astype(of).astype(np.float64):
        assert of.type(value + 0.99 * half * value) == of.type(value)
    below_two = np.nextafter(of.type(2), of.type(0))
    assert of.type(float(below_two) * (1 + 1.05 * half)) != below_two
