"""Turns what a step observed into rows of the run's history."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capturing.explain.index_bounds import index_bounds
from gradscope.capturing.in_steps.seen import Seen
from gradscope.capturing.records.measure import CoreReading
from gradscope.capturing.records.session import Session
from gradscope.comparison.judging.rounding.mixed_precision import mixed_dtype
from gradscope.comparison.precision import coarser
from gradscope.history.database.schema import BOUNDS, NARROWEST
from gradscope.history.history_rows import StepRecord, TensorRow, fact_texts
from gradscope.instrument.statistics.core_columns import statistics_of
from gradscope.instrument.statistics.histogram_counts import histogram_of
from gradscope.tracing.dataflow.affine_operands import affine_operands
from gradscope.tracing.tracer import Trace
from gradscope.training.recording.compared_arrays import NO_COSINE
from gradscope.training.recording.recorded import Recorded
from gradscope.training.step_seen import NUMBERS


def tensor_rows(outlines: Sequence[Seen], keys: Sequence[str], leaves: Mapping[str, Any]) -> Iterator[TensorRow]:
    """Yields the tensors that a step observes, its batch, then in execution order, those of the optimizer last.

    Args:
        outlines: The shapes of the observations of each loss and its gradients.
        keys: The keys of all observed tensors.
        leaves: What has the shapes and dtypes of further tensors, by key.
    """
    for key in keys:
        family, name = naming.split_key(key)
        if family == naming.INPUT:
            yield TensorRow(family=family, name=name, shape=tuple(leaves[key].shape), dtype=str(leaves[key].dtype))
    found = {row.key: row for outline in reversed(outlines) for row in _backward_rows(outline, frozenset(keys))}
    yield from found.values()
    for key in keys:
        family, name = naming.split_key(key)
        leaf = leaves.get(key)
        if key not in found and family != naming.INPUT:
            shape, dtype = (None, None) if leaf is None else (tuple(leaf.shape), str(leaf.dtype))
            yield TensorRow(family=family, name=name, shape=shape, dtype=dtype)


def unreached_params(outlines: Sequence[Seen]) -> dict[str, str]:
    """Returns why no gradient reaches a parameter, by name, of those that none of some losses reaches.

    Args:
        outlines: The shapes of the observations of each loss and its gradients.
    """
    of_each = [_unreached(_session(outline)) for outline in outlines]
    first, *others = of_each or [{}]
    return {name: why for name, why in first.items() if all(name in each for each in others)}


def affine_params(outlines: Sequence[Seen]) -> frozenset[str]:
    """Returns the names of the parameters in which all of some losses are affine, as in a dual variable.

    Args:
        outlines: The shapes of the observations of each loss and its gradients.
    """
    first, *others = [_affine(outline.watching.trace) for outline in outlines] or [frozenset[str]()]
    return first.intersection(*others)


def returned_by_readers(outlines: Sequence[Seen]) -> dict[str, frozenset[str]]:
    """Returns, by name of a parameter, the keys of the gradients that return to the layers that read it.

    Such a gradient is that of an output of a layer. Where layers are inside each other, it is the innermost.

    Args:
        outlines: The shapes of the observations of each loss and its gradients.
    """
    found = [_returned_by_readers(outline) for outline in outlines]
    return {name: frozenset().union(*(each.get(name, ()) for each in found)) for each in found for name in each}


def program_facts(outlines: Sequence[Seen]) -> dict[str, str]:
    """Returns what the programs of some losses say of a run, whatever its numbers are.

    It is what the integers of the batch look up, and the dtype of the fewest digits in which most of a loss computes:
    that of the parameters where nothing is computed in fewer; none where there are no floating-point parameters.

    Args:
        outlines: The shapes of the observations of each loss and its gradients.
    """
    bounds = dict.fromkeys(bound for each in outlines for bound in index_bounds(each.watching.trace))
    return {**_narrowest(outlines), **(fact_texts({BOUNDS: list(bounds)}) if bounds else {})}


def _narrowest(outlines: Sequence[Seen]) -> dict[str, str]:
    found = [dtype for each in outlines if (dtype := _mixed_dtype(each) or _params_dtype(each)) is not None]
    return {NARROWEST: reduce(coarser, found)} if found else {}


def _params_dtype(outline: Seen) -> str | None:
    params = (leaf for leaf in outline.watching.trace.arguments if leaf.family == naming.PARAM)
    floats = [np.dtype(leaf.dtype).name for leaf in params if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return reduce(coarser, floats) if floats else None


def _mixed_dtype(outline: Seen) -> str | None:
    arguments = outline.watching.trace.arguments
    session = _session(outline)
    for _ in session.records():
        pass  # the layers are known behind the last one
    kernels = {leaf.name for leaf in arguments if leaf.family == naming.PARAM and len(leaf.shape) > 1}
    return mixed_dtype(session.facts().layers, kernels)


def _affine(trace: Trace) -> frozenset[str]:
    params = {at: leaf.name for at, leaf in enumerate(trace.arguments) if leaf.family == naming.PARAM}
    return frozenset(params[at] for at in affine_operands(trace.root, trace.reachability, params))


def _returned_by_readers(outline: Seen) -> dict[str, frozenset[str]]:
    session = _session(outline)
    for _ in session.records():
        pass  # the layers are known behind the last one
    layers = session.facts().layers
    inside = {(each.parent, name) for each in layers for name in each.params}
    found: dict[str, frozenset[str]] = {}
    for layer in layers:
        for name in layer.params:
            if (layer.path, name) not in inside:
                keys = (naming.key_of(naming.ACTIVATION_GRAD, output) for output in layer.outputs)
                found[name] = found.get(name, frozenset()).union(keys)
    return found


def _unreached(session: Session) -> dict[str, str]:
    for _ in session.records():
        pass  # what is missing is known behind the last one
    return {
        line.name: line.detail
        for line in session.facts().ledger.missing
        if line.family == naming.PARAM_GRAD and line.reason == "disconnected"
    }


def _backward_rows(outline: Seen, known: frozenset[str]) -> Iterator[TensorRow]:
    """Yields the tensors of a loss and its gradients, as a dump of the same step would describe them."""
    for record in _session(outline).records():
        if naming.key_of(record.family, record.name) in known:
            yield TensorRow(
                family=record.family, name=record.name, shape=record.shape, dtype=record.dtype,
                layer=record.site.layer, source=record.site.source,
            )  # fmt: skip


def _session(outline: Seen) -> Session:
    zeros = jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), outline)
    return zeros.session(CoreReading())


def step_record(
    number: int, keys: Sequence[str], recorded: Recorded, *, examples: int | None, follows: bool, skipped: int = 0
) -> StepRecord:
    """Returns what is recorded of a step; waits for the device.

    Args:
        number: The number of the step.
        keys: The keys of the observed tensors.
        recorded: What was recorded on the device.
        examples: Examples of all steps up to this one; None where it is not known.
        follows: Whether a step was recorded before, so that cosines have a meaning.
        skipped: Updates that the run has skipped.
    """
    vectors, cosines, numbers, unchanged, directions = jax.device_get(recorded)
    stats: dict[str, dict[str, Any]] = {
        key: {**statistics_of(vector)} for key, vector in zip(keys, vectors, strict=True)
    }
    total = float(numbers["grad_norm"]) ** 2
    for name, cosine in cosines.items():
        gradient = stats.get(naming.key_of(naming.PARAM_GRAD, name), {})
        gradient["cosine"] = _known_cosine(cosine) if follows else None
        gradient["share"] = _known(gradient.get("l2", math.nan) ** 2 / total) if total else None
        _add_ratio(stats, name)
    for name, direction in directions.items():
        stats.get(naming.key_of(naming.UPDATE, name), {})["cosine"] = _known_cosine(direction)
    own: dict[str, float | int | None] = {
        "step": number, "time": time.time(), "examples": examples, "skipped": skipped,
        **{name: float(numbers[name]) for name in NUMBERS if name in numbers},
    }  # fmt: skip
    histograms = {key: histogram_of(vector) for key, vector in zip(keys, vectors, strict=True)}
    return StepRecord(
        numbers=own, stats=stats, unchanged={name: bool(each) for name, each in unchanged.items()},
        histograms={key: histogram for key, histogram in histograms.items() if histogram is not None},
    )  # fmt: skip


def _add_ratio(stats: Mapping[str, dict[str, Any]], name: str) -> None:
    update, param = (stats.get(naming.key_of(family, name), {}) for family in (naming.UPDATE, naming.PARAM))
    if param.get("l2") and "l2" in update:
        update["ratio"] = update["l2"] / param["l2"]


def _known_cosine(value: Any) -> float | None:
    return None if float(value) == NO_COSINE else _known(value)


def _known(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
