"""Recording turns what a step observed into rows of the run's history."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gradscope import naming
from gradscope.capturing.records.measure import CoreReading
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.instrument.rewriting.core_statistics import core_numbers
from gradscope.instrument.rewriting.histogram_counts import histogram_of
from gradscope.training.loop.step_programs import Recorded, StepPrograms
from gradscope.training.state import TrainState, named_leaves
from gradscope.training.step_seen import NUMBERS


def tensor_rows(programs: StepPrograms, state: TrainState) -> Iterator[TensorRow]:
    """Yields the tensors that a step observes: its batch, then in execution order, those of the optimizer last.

    Args:
        programs: The step, which has been traced.
        state: A state; its shapes are used.
    """
    for key, leaf in programs.inputs.items():
        family, name = naming.split_key(key)
        yield TensorRow(family=family, name=name, shape=tuple(leaf.shape), dtype=str(leaf.dtype))
    found = {row.key: row for row in _backward_rows(programs)}
    yield from found.values()
    params, own = named_leaves(state.params), state.slots() | state.averages()
    for key in programs.keys:
        family, name = naming.split_key(key)
        leaf = own.get(key, params.get(name))
        if key not in found and key not in programs.inputs:
            shape, dtype = (None, None) if leaf is None else (tuple(leaf.shape), str(leaf.dtype))
            yield TensorRow(family=family, name=name, shape=shape, dtype=dtype)


def _backward_rows(programs: StepPrograms) -> Iterator[TensorRow]:
    """Yields the tensors of the loss and its gradients, as a dump of the same step would describe them."""
    if programs.outline is None:
        return
    zeros = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), programs.outline)
    known = frozenset(programs.keys)
    for record in zeros.session(CoreReading()).records():
        if naming.key_of(record.family, record.name) in known:
            yield TensorRow(
                family=record.family, name=record.name, shape=record.shape, dtype=record.dtype,
                layer=record.site.layer, source=record.site.source,
            )  # fmt: skip


def step_record(
    number: int, keys: Sequence[str], recorded: Recorded, *, examples: int | None, follows: bool
) -> StepRecord:
    """Returns what is recorded of a step; waits for the device.

    Args:
        number: The number of the step.
        keys: The keys of the observed tensors.
        recorded: What was recorded on the device.
        examples: Examples of all steps up to this one; None where it is not known.
        follows: Whether a step was recorded before, so that cosines have a meaning.
    """
    vectors, cosines, numbers = jax.device_get(recorded)
    stats = {key: _statistics(vector) for key, vector in zip(keys, vectors, strict=True)}
    total = float(numbers["grad_norm"]) ** 2
    for name, cosine in cosines.items():
        gradient = stats.get(naming.key_of(naming.PARAM_GRAD, name), {})
        gradient["cosine"] = _known(cosine) if follows else None
        gradient["share"] = _known(gradient.get("l2", math.nan) ** 2 / total) if total else None
        _add_ratio(stats, name)
    own: dict[str, float | int | None] = {
        "step": number, "time": time.time(), "examples": examples, "skipped": 0,
        **{name: float(numbers[name]) for name in NUMBERS if name in numbers},
    }  # fmt: skip
    histograms = {key: histogram_of(vector) for key, vector in zip(keys, vectors, strict=True)}
    known = {key: histogram for key, histogram in histograms.items() if histogram is not None}
    return StepRecord(numbers=own, stats=stats, histograms=known)


def _add_ratio(stats: Mapping[str, dict[str, Any]], name: str) -> None:
    update, param = (stats.get(naming.key_of(family, name), {}) for family in (naming.UPDATE, naming.PARAM))
    if param.get("l2") and "l2" in update:
        update["ratio"] = update["l2"] / param["l2"]


def _statistics(vector: np.ndarray) -> dict[str, Any]:
    """Returns the columns of a history from a vector of core statistics; those over no finite element are missing."""
    numbers = core_numbers(vector)
    counts = {"zeros": numbers.zeros, "nan": numbers.nan, "inf": numbers.inf}
    if not numbers.finite:
        return counts
    return {
        "l2": numbers.rms * math.sqrt(numbers.finite),
        "rms": numbers.rms,
        "mean": numbers.mean,
        "std": numbers.std,
        "amax": max(abs(numbers.minimum), abs(numbers.maximum)),
        **counts,
    }


def _known(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
