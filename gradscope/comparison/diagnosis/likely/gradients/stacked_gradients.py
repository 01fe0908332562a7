"""`other_slices` and `other_rows` tell of which parts of a parameter one program alone has a gradient."""

from __future__ import annotations

from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.clauses import MOST_NAMES
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, INPUT, split_key

#: The largest tensor in bytes that is read a second time.
_READ_AGAIN_BYTES: Final = 64 << 20


def other_slices(dumps: Dumps, match: Match) -> str:
    """Returns of which slices of a stack that loops read the gradient is, where those are others; "" where not.

    Args:
        dumps: The dumps.
        match: A pair of gradients of a parameter.
    """
    if (arrays := _stacked(dumps, match)) is None:
        return ""
    read, its = (np.flatnonzero(each.any(1)).tolist() for each in arrays)
    counts = _iterations(dumps.ref, match.ref), _iterations(dumps.cand, match.cand)
    if read == its or (len(read), len(its)) != counts or min(counts) < 2:
        return ""
    return f"is of the slices {its} alone, and the reference's of {read}"


def other_rows(dumps: Dumps, match: Match, row: ComparisonRow) -> str:
    """Returns for which rows of a table one program alone has a gradient, where all others agree; "" for none.

    Args:
        dumps: The dumps.
        match: A pair of gradients of a parameter.
        row: Its row.
    """
    if (arrays := _stacked(dumps, match)) is None or row.tolerance is None:
        return ""
    ref, cand = (each.astype(np.result_type(each, np.float64)) for each in arrays)
    of_one = ref.any(1) != cand.any(1)
    rows, error = np.flatnonzero(of_one).tolist(), float(np.linalg.norm((cand - ref)[~of_one]))
    if not rows or of_one[ref.any(1) | cand.any(1)].all():  # a table that one program does not learn at all
        return ""
    if not error <= row.tolerance * float(np.linalg.norm(ref[~of_one])):  # nor where one is no number
        return ""
    has_more = cand[of_one].any(1)
    if has_more.any() != has_more.all():
        return ""
    which = [*map(str, rows[:MOST_NAMES]), *(["..."] if len(rows) > MOST_NAMES else [])]
    whose = "the reference has none" if has_more.all() else "it has none"
    looked_up = any(_is_looked_up(*each) for each in ((dumps.ref, match.ref), (dumps.cand, match.cand)))
    reason = " (as of PyTorch's `padding_idx`)" if looked_up else ""
    return f"differs in the rows [{', '.join(which)}] alone, for which {whose}{reason}"


def _is_looked_up(source: DumpSource, gradient: str) -> bool:
    """Returns whether a layer that uses a parameter alone reads whole numbers, as that does which looks up its rows."""
    name = split_key(gradient)[1]
    read = {key for layer in source.manifest.layers if layer.params == (name,) for key in layer.inputs}
    entries = (each for each in source.manifest.entries if each.family in (ACTIVATION, INPUT) and each.name in read)
    return any(dtype_class(each.dtype) == "integer" for each in entries)


def _stacked(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both tensors of a pair in one layout, each as a row for each slice along its first axis, or None."""
    sides = ((dumps.ref, (match.ref,)), (dumps.cand, match.recipe.keys))
    if len(match.recipe.keys) > 1 or not all(source.has_tensor(key) for source, keys in sides for key in keys):
        return None
    ref, cand = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    if ref.nbytes > _READ_AGAIN_BYTES or ref.ndim < 2 or ref.shape != cand.shape:
        return None
    return ref.reshape(len(ref), -1), cand.reshape(len(cand), -1)


def _iterations(source: DumpSource, gradient: str) -> int:
    """Returns in how many iterations of a loop a program uses a parameter."""
    name = split_key(gradient)[1]
    paths = (layer.path for layer in source.manifest.layers if name in layer.params)
    return len({path.partition("]")[0] for path in paths if "[" in path})
