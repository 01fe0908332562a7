"""`backward_suspects` finds the steps in one program only that may have made the first gradient that differs.

A step is first at fault where the gradients of the parameters that it uses differ. Where all values agree but the loss,
and so do the gradients from which the first one that differs is computed, a term of the loss may be at fault, which has
no counterpart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradscope.comparison.diagnosis.divergence import Blame
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.plain_steps import is_recognised
from gradscope.comparison.diagnosis.suspects.steps import Found, Step, steps_of
from gradscope.comparison.diagnosis.suspects.wrong_parameters import keys_of
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.manifest.layer_graph import readers_of
from gradscope.naming import ACTIVATION, PARAM_GRAD, key_of, split_key


def backward_suspects(dumps: Dumps, rows: Sequence[ComparisonRow], first: ComparisonRow | None, blame: Blame) -> Found:
    """Returns the suspects where only gradients differ.

    Args:
        dumps: The dumps.
        rows: All rows.
        first: The first gradient over tolerance.
        blame: Where it comes from, as far as the rows tell.
    """
    if not blame.unpaired_gradients:
        steps = [step for step in steps_of(dumps, _of_loss(rows)) if step.layer.path in blame.makers]
        return Found(steps, steps)
    return _with_gradients(dumps, rows, first, steps_of(dumps, blame.unpaired_gradients))


def _of_loss(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Returns the rows of values that only the reference has, and that count although all others agree."""
    return [row for row in rows if row.family == ACTIVATION and row.status == "missing" and row.counts]


def _with_gradients(
    dumps: Dumps, rows: Sequence[ComparisonRow], first: ComparisonRow | None, steps: list[Step]
) -> Found:
    """Returns the suspects among gradients, those whose parameters have other gradients first, from the loss on.

    Of those, the first is one that sends its parameters no gradient in one of the programs, as behind a stop_gradient,
    or a step without parameters that reads it.
    Where a value is read by several layers, its gradient may lack what arrives from one of them, and well-known
    functions among those are not suspected.

    Args:
        dumps: The dumps.
        rows: All rows.
        first: The first gradient over tolerance.
        steps: The steps of one program only that it is computed from.
    """
    gradients = [row for row in rows if row.family == PARAM_GRAD and row.counts and row.status != "same"]
    differing = {split_key(key)[1] for row in gradients for key in keys_of(row)}
    # No gradient arrives in one of the programs, or zeros where it has several parameters as one.
    compared = (row for row in gradients if row.status == "different")
    cut = {row.name for row in compared if row.metrics.get("norm_ratio", 0.0) in (0.0, math.inf)}
    guilty = [step for step in steps if differing.intersection(_own_params(dumps, step))]
    ref, cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
    read_by_several = first is not None and len(readers_of(dumps.ref.manifest.layers, first.name)) > 1
    if read_by_several and all(_is_recognised(ref if step.of_ref else cand, step) for step in steps):
        return Found([], steps)
    silent = {step.row.name for step in guilty if cut.intersection(_own_params(dumps, step))}
    # What reads one and has no parameters does not show whether a gradient arrives there.
    behind = {
        step.row.name for step in steps if silent.intersection(step.layer.inputs) and not _own_params(dumps, step)
    }

    def place(step: Step) -> tuple[bool, bool, bool, int]:
        likely = step.row.name in behind or step in guilty
        return step.row.name not in silent | behind, not likely, not step.of_ref, -step.row.index

    ordered = sorted(steps, key=place)
    return Found(ordered, ordered, made_before=bool(guilty))


def _is_recognised(tensors: FloatTensors, step: Step) -> bool:
    return is_recognised(tensors, step.layer, key_of(ACTIVATION, step.row.name))


def _own_params(dumps: Dumps, step: Step) -> frozenset[str]:
    """Returns the parameters that a layer uses itself, and not only its parts."""
    layers = (dumps.ref if step.of_ref else dumps.cand).manifest.layers
    return frozenset(step.layer.params).difference(*(each.params for each in layers if each.parent == step.layer.path))
