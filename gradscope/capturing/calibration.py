"""Calibration runs a model several times and measures the noise floor of each of its tensors.

The model runs again under changes that should make no difference. The distance that a tensor moves, as `rel_l2`, is its
*noise floor*. The changes are:

- every element of variables and batch changes in its last bit, up or down at random, twice;
- matrices are multiplied with the highest precision that the backend has;
- the examples of the batch come in reverse order; this counts for parameter gradients only, and only where the loss
  stays the same.

The largest of these distances is the statistic `noise`. A run in bfloat16 gives the statistic `noise@bfloat16`: the
error of low precision in this model. A run in float32 gives `noise@float32`, where the model computes in float64. A
model that does not run in such a type, as its loops carry another one, lacks the statistic.
Parameters, state and inputs are not computed, so they have no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.explain.self_check import nudged
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.timings import Timings
from gradscope.comparison import compare
from gradscope.comparison.judging.limits.noise import LOW_PRECISION_NOISE, NOISE
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.sources.memory_dump import MemoryDump, MemoryWriter
from gradscope.errors import ModelError
from gradscope.naming import ACTIVATION, PARAM_GRAD, is_gradient, key_of
from gradscope.tracing.loading.model import Model

#: How far the loss may move, relatively, where the order of examples does not matter.
_SAME_LOSS: Final = 1e-4

#: How many times the last bits are changed.
_NUDGES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A `Calibrated` holds a run in memory and the noise floors of its tensors.

    Attributes:
        dump: The run.
        noise: Noise floors by key, then by the name of the statistic.
        refused: How the model failed in a type in which it does not run, by the name of the statistic.
        rounding: The keys of the tensors that are zero but for rounding, whose noise is all of them.
    """

    dump: MemoryDump
    noise: Mapping[str, Mapping[str, float]]
    refused: Mapping[str, ModelError]
    rounding: frozenset[str]

    def write_to(self, sink: RecordSink) -> Manifest:
        """Writes the run as a dump, with the noise floors among the statistics of its tensors.

        Args:
            sink: Receives the records.

        Returns:
            The manifest of the dump.

        Raises:
            MachineError: There is not enough space, or the disk fails.
        """
        sink.require_space(sum(record.array.nbytes for record in self.dump.records() if record.array is not None))
        for record in self.dump.records():
            floors = self.noise.get(key_of(record.family, record.name), {})
            sink.add(replace(record, stats={**record.stats, **floors}) if record.stats else record)
        return sink.commit(self.dump.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rerun:
    """A `_Rerun` describes one change under which the model runs again.

    Attributes:
        statistic: The noise floor that it measures.
        arguments: The arguments of the loss.
        settings: Makes the context with JAX's settings for this run.
        reordered: Whether the examples come in another order, so that only sums over examples compare.
        may_fail: Whether the model may refuse it, as one that carries float32 through a loop does another type.
    """

    statistic: str
    arguments: Arguments
    settings: Callable[[], AbstractContextManager[object]] = nullcontext
    reordered: bool = False
    may_fail: bool = False


def calibrate(
    model: Model, arguments: Arguments, lower: Mapping[str, Arguments], request: DumpRequest, timings: Timings
) -> Calibrated:
    """Runs a model, and runs it again under changes that make no difference.

    Args:
        model: The model.
        arguments: Its arguments.
        lower: The arguments in lower precision, by the dtypes for which `judging.limits.noise` has a noise floor.
        request: What the dump contains.
        timings: Receives the seconds of each phase.

    Returns:
        The run with its noise floors.

    Raises:
        ModelError: The user's code failed in the precision of the reference.
        MachineError: Memory ran out.
        UsageError: A pattern selects nothing.
    """

    def run(changed: Arguments, reading: TensorReading) -> MemoryDump:
        writer = MemoryWriter()
        return writer.dump(dump_model(model, changed, replace(request, reading=reading), writer, timings))

    reference = run(arguments, request.reading)  # this run and one other are in memory at a time
    noise: dict[str, dict[str, float]] = {}
    refused: dict[str, ModelError] = {}
    rounding: set[str] = set()
    for rerun in _reruns(arguments, lower):
        try:
            with rerun.settings():
                moved = run(rerun.arguments, TensorReading())
        except ModelError as error:
            if not rerun.may_fail:
                raise
            refused[rerun.statistic] = error
            continue
        for row in _moved_rows(reference, moved, rerun):
            key, distance = key_of(row.family, row.name), as_float(row.metrics["rel_l2"])
            rounding.update([key] if row.is_rounding and rerun.statistic == NOISE else ())
            floors = noise.setdefault(key, {})
            floors[rerun.statistic] = max(distance, floors.get(rerun.statistic, 0.0))
    return Calibrated(dump=reference, noise=noise, refused=refused, rounding=frozenset(rounding))


def _reruns(arguments: Arguments, lower: Mapping[str, Arguments]) -> Iterator[_Rerun]:
    for seed in range(_NUDGES):
        yield _Rerun(statistic=NOISE, arguments=_changed(arguments, lambda pair, seed=seed: _nudged(pair, seed)))
    yield _Rerun(statistic=NOISE, arguments=arguments, settings=lambda: jax.default_matmul_precision("highest"))
    yield _Rerun(statistic=NOISE, arguments=_changed(arguments, _reversed), reordered=True)
    for dtype, narrow in lower.items():
        yield _Rerun(statistic=LOW_PRECISION_NOISE[dtype], arguments=narrow, may_fail=True)


def _changed(arguments: Arguments, change: Callable[[tuple[Any, Any]], tuple[Any, Any]]) -> Arguments:
    return replace(arguments, make=lambda: change(arguments.make()))


def _nudged(pair: tuple[Any, Any], seed: int) -> tuple[Any, Any]:
    leaves, tree = jax.tree_util.tree_flatten(pair)
    # Distinct seeds for every leaf of every run.
    return jax.tree_util.tree_unflatten(
        tree, [nudged(jnp.asarray(leaf), seed * len(leaves) + number) for number, leaf in enumerate(leaves)]
    )


def _reversed(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    variables, batch = pair
    return variables, jax.tree_util.tree_map(lambda leaf: leaf[::-1] if jnp.ndim(leaf) else leaf, batch)


def _moved_rows(reference: MemoryDump, moved: MemoryDump, rerun: _Rerun) -> Iterator[ComparisonRow]:
    """Yields the row of each computed tensor, with how far it moved."""
    one, other = reference.manifest.loss, moved.manifest.loss
    # Where the loss depends on the order of the examples, another order is a difference and not noise.
    if rerun.reordered and (one is None or other is None or not np.isclose(one, other, rtol=_SAME_LOSS)):
        return
    for row in compare(reference, moved).rows:
        computed = row.family == PARAM_GRAD if rerun.reordered else row.family == ACTIVATION or is_gradient(row.family)
        if computed and row.metrics.get("nonfinite_mismatch") == 0:
            yield row
