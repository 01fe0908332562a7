"""The losses of two dumps are compared as numbers, also a loss that one program alone has in a scope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradscope.comparison.judging.rounding.inherited_precision import InheritedPrecision
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.loss_values import is_loss
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import coarser
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import nearest, sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, split_key


def losses_agree(one: float, other: float, limit: float) -> bool:
    """Returns whether two losses agree: an infinite one with itself alone.

    Args:
        one: The reference's loss.
        other: The candidate's.
        limit: The largest relative error.
    """
    return one == other or (math.isfinite(other - one) and abs(other - one) <= limit * abs(one))


def loss_limit(
    dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow], cand_dtype: str | None = None
) -> float:
    """Returns the default limit on the relative error of the loss.

    It is the tolerance of the coarsest dtype in which a value was made, and at least what the values make of it that
    the loss is computed from, as deep in a network, where rounding has added up.

    Args:
        dumps: The dumps.
        matches: Their pairs.
        rows: The rows of the pairs, by the reference's keys.
        cand_dtype: The dtype in which the candidate was computed, as the user says; None for what the dump shows.
    """
    dtype = coarser(InheritedPrecision(dumps.ref).of_any, InheritedPrecision(dumps.cand, cand_dtype).of_any)
    return max(dumps.tolerance(ACTIVATION, dtype, dtype), _error_by_values(dumps, matches, rows))


def _error_by_values(dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> float:
    """Returns the largest relative error of the loss by the errors of the values that it is computed from.

    To first order, an error moves the loss by its product with the gradient, which is at most that of their norms.

    Returns:
        The error; 0 where no program tells what its loss is computed from, or any of that differs.
    """
    loss = dumps.ref.manifest.loss
    read = _read_by_loss(dumps, matches)
    if not loss or not math.isfinite(loss) or any(rows[key].status != "same" for key in read):
        return 0.0
    known = frozenset(dumps.ref.keys())
    gradients = {key: key_of(ACTIVATION_GRAD, split_key(key)[1]) for key in read if split_key(key)[0] == ACTIVATION}
    moves = (
        as_float(rows[key].metrics.get("rel_l2", 0.0)) * _l2(dumps.ref, key) * _l2(dumps.ref, gradient)
        for key, gradient in gradients.items()
        if gradient in known
    )
    return sum(moves) / abs(loss)


def _read_by_loss(dumps: Dumps, matches: Sequence[Match]) -> list[str]:
    """Returns the reference's keys of the pairs that the loss is computed from next; none where no program tells."""
    own = [(dumps.ref, {dumps.ref.resolve(match.ref): match for match in matches})]
    other = [(dumps.cand, {dumps.cand.resolve(key): match for match in matches for key in match.recipe.keys})]
    stated = next(((source, pairs) for source, pairs in own + other if source.manifest.loss_sources), None)
    if stated is None:
        return []
    source, pairs = stated
    graph = {**sources_of(source.manifest.layers), "": source.manifest.loss_sources}
    return [pairs[key].ref for key in nearest(graph, "", pairs)]


def _l2(source: DumpSource, key: str) -> float:
    found = source.entry(source.resolve(key)).stats.get("l2")
    return as_float(found) if isinstance(found, int | float | str) else 0.0


def losses_of_both_agree(dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether both dumps have a loss, and these agree, not by accident, as of values that differ.

    Args:
        dumps: The dumps.
        matches: Their pairs.
        rows: The rows of the pairs, by the reference's keys.
    """
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    if one is None or other is None or not losses_agree(one, other, loss_limit(dumps, matches, rows)):
        return False
    read = [key for key in _read_by_loss(dumps, matches) if split_key(key)[0] == ACTIVATION]
    return not any(rows[key].status == "different" for key in read)


def with_loss_compared(dumps: Dumps, row: ComparisonRow, limit: float) -> ComparisonRow:
    """Returns the row of a value that only the reference has; where that is a loss that differs, with the difference.

    A program can have a scope around its loss where the other has none. Every candidate has a loss.

    Args:
        dumps: The dumps.
        row: The row of a value that the reference has without a counterpart.
        limit: The largest relative error.
    """
    loss, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    if not row.counts or row.family != ACTIVATION or loss is None or other is None:
        return row
    if not is_loss(dumps.ref, key_of(row.family, row.name)) or losses_agree(loss, other, limit):
        return row
    error = abs(other - loss) / abs(loss) if loss and math.isfinite(other - loss) else math.inf
    return replace(
        row,
        status="different",
        metrics={"rel_l2": error, "nonfinite_mismatch": 0},
        tolerance=limit,
        needed=error,
        why=f"the losses are {loss:.6g} and {other:.6g}",
    )
