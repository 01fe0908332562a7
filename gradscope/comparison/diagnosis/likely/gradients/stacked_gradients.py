"""`other_slices` and `other_rows` tell what one program alone has gradients of, `differing_rows` where few differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.clauses import MOST_NAMES
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, INPUT, PARAM_GRAD, split_key

#: The largest tensor in bytes that is read a second time.
_READ_AGAIN_BYTES: Final = 64 << 20

#: The largest share of rows that are few.
_FEW: Final = 1 / 4

#: What the indices of an axis are, of a vector and of a matrix.
_NOUNS: Final = (("elements",), ("rows", "columns"))

_OF_PADDING: Final = " (as of PyTorch's `padding_idx`)"


def other_slices(dumps: Dumps, match: Match) -> str:
    """Returns of which slices of a stack that loops read the gradient is, where those are others; "" where not.

    Args:
        dumps: The dumps.
        match: A pair of gradients of a parameter.
    """
    if (arrays := _in_one_layout(dumps, match)) is None or arrays[0].ndim < 2:
        return ""
    read, its = (np.flatnonzero(each.reshape(len(each), -1).any(1)).tolist() for each in arrays)
    counts = _iterations(dumps.ref, match.ref), _iterations(dumps.cand, match.cand)
    if read == its or (len(read), len(its)) != counts or min(counts) < 2:
        return ""
    return f"is of the slices {its} alone, and the reference's of {read}"


def other_rows(dumps: Dumps, match: Match, row: ComparisonRow) -> str:
    """Returns for which rows or columns one program alone has a gradient, where all others agree; "" for none.

    Args:
        dumps: The dumps.
        match: A pair of gradients.
        row: Its row.
    """
    for part in _parts(dumps, match, row):
        differ = part.ref.any(1) != part.cand.any(1)
        known = part.ref.any(1) | part.cand.any(1)
        has_more = part.cand[differ].any(1)
        # A gradient that one program does not have at all is none of rows.
        if differ[known].all() or has_more.any() != has_more.all() or not part.agrees_but_for(differ):
            continue
        whose = "the reference has none" if has_more.all() else "it has none"
        reason = _OF_PADDING if part.axis == 0 and _is_padded(dumps, match) else ""
        return f"differs in the {part.named(differ)} alone, for which {whose}{reason}"
    return ""


def differing_rows(dumps: Dumps, match: Match, row: ComparisonRow) -> str:
    """Returns in which few rows or columns gradients differ, where all others agree; "" where in many.

    Args:
        dumps: The dumps.
        match: A pair of gradients.
        row: Its row.
    """
    for part in _parts(dumps, match, row):
        differ = part.differing()
        if 0 < differ.sum() <= _FEW * len(differ) and part.agrees_but_for(differ):
            reason = _OF_PADDING if part.axis == 0 and differ.sum() == 1 and _is_padded(dumps, match) else ""
            return f"differs in the {part.named(differ)} alone{reason}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A `_Part` stores two gradients as a row for each index of one axis.

    Attributes:
        ref: The reference's.
        cand: The candidate's, in the same layout.
        axis: The axis.
        dims: The number of axes.
        tolerance: The tolerance of their difference, relative to the norm of the reference's.
    """

    ref: Array
    cand: Array
    axis: int
    dims: int
    tolerance: float

    def differing(self) -> NDArray[np.bool_]:
        """Returns which rows differ by more than the tolerance; of small ones, by that of an average row."""
        norms, errors = (np.linalg.norm(each, axis=1) for each in (self.ref, self.cand - self.ref))
        return errors > self.tolerance * np.maximum(norms, np.linalg.norm(norms) / math.sqrt(len(norms)))

    def agrees_but_for(self, differ: NDArray[np.bool_]) -> bool:
        """Returns whether all others than some rows agree, of which there is at least one."""
        ref, cand = self.ref[~differ], self.cand[~differ]
        # Where one is no number, this is false.
        return bool(differ.any()) and float(np.linalg.norm(cand - ref)) <= self.tolerance * float(np.linalg.norm(ref))

    def named(self, differ: NDArray[np.bool_]) -> str:
        """Returns which rows some are, in words: rows [2, 5]; columns 8 to 15; slices [0] of axis 2."""
        numbers = np.flatnonzero(differ).tolist()
        which = [*map(str, numbers[:MOST_NAMES]), *(["..."] if len(numbers) > MOST_NAMES else [])]
        in_turn = len(numbers) > MOST_NAMES and numbers == [*range(numbers[0], numbers[-1] + 1)]
        some = f"{numbers[0]} to {numbers[-1]}" if in_turn else f"[{', '.join(which)}]"
        if self.dims > len(_NOUNS):
            return f"slices {some} of axis {self.axis}"
        return f"{_NOUNS[self.dims - 1][self.axis]} {some}"


def _parts(dumps: Dumps, match: Match, row: ComparisonRow) -> Iterator[_Part]:
    """Yields a pair of gradients by its first axis, which of a value has the examples, and by its last."""
    if row.tolerance is None or (arrays := _in_one_layout(dumps, match)) is None or not arrays[0].ndim:
        return
    ref, cand = (each.astype(np.result_type(each, np.float64)) for each in arrays)
    last = ref.ndim - 1
    for axis in dict.fromkeys((0, last) if row.family == PARAM_GRAD else (last,)):
        one, other = (np.moveaxis(each, axis, 0).reshape(each.shape[axis], -1) for each in (ref, cand))
        yield _Part(ref=one, cand=other, axis=axis, dims=ref.ndim, tolerance=row.tolerance)


def _is_padded(dumps: Dumps, match: Match) -> bool:
    """Returns whether a layer of either program looks up rows of the parameter, of which PyTorch may leave one out."""
    return any(_is_looked_up(*each) for each in ((dumps.ref, match.ref), (dumps.cand, match.cand)))


def _is_looked_up(source: DumpSource, gradient: str) -> bool:
    """Returns whether a layer that uses a parameter alone reads whole numbers, as that does which looks up its rows."""
    name = split_key(gradient)[1]
    layers = [layer for layer in source.manifest.layers if layer.params == (name,)]
    read = {key for layer in layers for key in (*layer.inputs, *(split_key(each)[1] for each in layer.sources))}
    entries = (each for each in source.manifest.entries if each.family in (ACTIVATION, INPUT) and each.name in read)
    return any(dtype_class(each.dtype) == "integer" for each in entries)


def _in_one_layout(dumps: Dumps, match: Match) -> tuple[Array, Array] | None:
    """Returns both tensors of a pair in one layout; None where they are large, or not of one shape."""
    sides = ((dumps.ref, (match.ref,)), (dumps.cand, match.recipe.keys))
    if len(match.recipe.keys) > 1 or not all(source.has_tensor(key) for source, keys in sides for key in keys):
        return None
    ref, cand = dumps.ref.array(match.ref), match.recipe.array(dumps.cand)
    return None if ref.nbytes > _READ_AGAIN_BYTES or ref.shape != cand.shape else (ref, cand)


def _iterations(source: DumpSource, gradient: str) -> int:
    """Returns in how many iterations of a loop a program uses a parameter."""
    name = split_key(gradient)[1]
    paths = (layer.path for layer in source.manifest.layers if name in layer.params)
    return len({path.partition("]")[0] for path in paths if "[" in path})
