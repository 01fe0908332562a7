"""`with_loss_compared` compares a loss that one program has in a scope with the other's, as a number."""

from __future__ import annotations

import math
from dataclasses import replace

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, is_gradient, key_of, split_key


def losses_agree(one: float, other: float, limit: float) -> bool:
    """Returns whether two losses agree: an infinite one with itself alone.

    Args:
        one: The reference's loss.
        other: The candidate's.
        limit: The largest relative error.
    """
    return one == other or (math.isfinite(other - one) and abs(other - one) <= limit * abs(one))


def is_loss(source: DumpSource, key: str) -> bool:
    """Returns whether a value is the loss of a dump: the one number that has it, and from which nothing is computed.

    Args:
        source: The dump.
        key: The key of a value.
    """
    if not source.has_tensor(key):
        return False
    entry, loss = source.entry(source.resolve(key)), source.manifest.loss
    if loss is None or entry.shape or entry.family != ACTIVATION or dtype_class(entry.dtype) != "float":
        return False
    if float(source.array(key)) != loss:  # the graph is made for none of the other numbers of a program
        return False
    made_of = sources_of(source.manifest.layers)
    read = (each for made, each in made_of.items() if not is_gradient(split_key(made)[0]))
    return not any(source.resolve(key) in each for each in read)


def with_loss_compared(dumps: Dumps, row: ComparisonRow) -> ComparisonRow:
    """Returns the row of a value that only the reference has; where that is a loss that differs, with the difference.

    A program can have a scope around its loss where the other has none. Every candidate has a loss.

    Args:
        dumps: The dumps.
        row: The row of a value that the reference has without a counterpart.
    """
    key, other = key_of(row.family, row.name), dumps.cand.manifest.loss
    if not row.counts or row.family != ACTIVATION or other is None or not is_loss(dumps.ref, key):
        return row
    dtype, loss = dumps.ref.entry(dumps.ref.resolve(key)).dtype, float(dumps.ref.array(key))
    tolerance = dumps.tolerance(ACTIVATION, dtype, dtype)
    if losses_agree(loss, other, tolerance):
        return row
    error = abs(other - loss) / abs(loss) if loss and math.isfinite(other - loss) else math.inf
    return replace(
        row,
        status="different",
        metrics={"rel_l2": error, "nonfinite_mismatch": 0},
        tolerance=tolerance,
        needed=error,
        why=f"the losses are {loss:.6g} and {other:.6g}",
    )
