"""Histories of a few steps, written as a run writes them."""

from __future__ import annotations

from pathlib import Path

from gradscope.history.history_rows import Alarm, StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter

KEYS = ("param/w", "param_grad/w", "update/w", "activation/layer", "activation_grad/layer", "slot/mu/w")
STEPS = (0, 10, 20, 29)


def row(key: str) -> TensorRow:
    family, name = key.rsplit("/", 1)
    return TensorRow(family=family, name=name, shape=(2, 3), dtype="float32", layer="layer", source="net.py:3")


def record(step: int, keys: tuple[str, ...] = KEYS) -> StepRecord:
    stats = {key: {"l2": 2.0 ** (step / 10), "rms": 1.0, "zeros": 3, "nan": 0, "inf": 0} for key in keys}
    numbers = {"step": step, "loss": float("nan") if step == 20 else 4.0 - step / 10, "examples": 8 * step}
    return StepRecord(numbers=numbers, stats=stats)


def write(folder: Path, steps: tuple[int, ...] = STEPS, keys: tuple[str, ...] = KEYS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with HistoryWriter(folder, from_step=0, facts={"model": "net"}) as history:
        history.describe({}, map(row, keys))
        for step in steps:
            history.write(lambda step=step: record(step, keys))
        history.alarm(Alarm(step=20, rule="nonfinite", why="has 2 NaN", key="param_grad/w", folder="alarm-000020"))
    return folder
