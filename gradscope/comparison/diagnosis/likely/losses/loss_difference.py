"""`loss_difference` states by how much the losses of two dumps differ, and whether their reduction explains the rest.

A loss that is a sum in one program and a mean in the other is a multiple of it, and so is every gradient, although all
values that the loss is computed from agree. One that adds up parts of the batch may count some of them more than
others: the gradients of a part are as many times the reference's.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.divergence import first_divergence
from gradscope.comparison.diagnosis.likely.losses.before_loss import alone_before_loss
from gradscope.comparison.diagnosis.unpaired_sources import Program
from gradscope.comparison.judging.compare_options import LOSS, CompareOptions
from gradscope.comparison.judging.loss_comparison import losses_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.recipe_steps import Concatenate
from gradscope.comparison.loss_values import is_loss
from gradscope.comparison.metrics.bounds import statistics_are_multiples
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.errors import MissingKeyError
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, AUX, INPUT, is_gradient, key_of, split_key

#: A factor that is nearer to one than this is no other reduction.
_LEAST_FACTOR: Final = 1e-3

#: How near the factor of each gradient is to that of the losses, in parts of its distance from one.
_NEAREST: Final = 0.25

#: Gradients that are a multiple of others differ from it by so much of their norm, as in float32.
_APART: Final = 1e-4

#: The largest gradient that is read again, in elements, and the most parts of a batch that are listed.
_MOST_ELEMENTS: Final = 1 << 22
_MOST_PARTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDifference:
    """LossDifference stores two losses that differ beyond tolerance.

    Attributes:
        ref: The loss of the reference.
        cand: The loss of the candidate.
        factor: How many times the reference's both the loss and all gradients are, while what the loss is computed
            from agrees; None where that is not so.
        reduction: What such a factor is, in words, where the shapes of the batch have it; else "".
        by_statistics: Whether statistics alone show it of a gradient.
        in_rows: Whether a row has both losses, as the first value that differs.
        at_loss: Whether all values that the loss may be computed from agree, so that it is the first that differs.
        alone: The rows without a counterpart from which only the loss is computed; empty where others differ, too.
        parts: How many times the candidate counts each part of the batch, where it has parts that do not count alike.
    """

    ref: float
    cand: float
    factor: float | None = None
    reduction: str = ""
    by_statistics: bool = False
    in_rows: bool = False
    at_loss: bool = False
    alone: tuple[ComparisonRow, ...] = ()
    parts: tuple[float, ...] = ()

    @property
    def explains(self) -> bool:
        """Whether another reduction of the loss explains all that differs."""
        return self.factor is not None

    @property
    def values(self) -> str:
        """Both losses in words."""
        return f"{self.ref:.6g} and {self.cand:.6g}{self._counted}"

    @property
    def _counted(self) -> str:
        """How it counts the parts of the batch, in words."""
        if not self.parts:
            return ""
        if len(self.parts) > _MOST_PARTS:
            low, high = min(self.parts), max(self.parts)
            return f"; the candidate counts its {len(self.parts)} parts of the batch {low:.3g} to {high:.3g} times"
        *first, last = (f"{each:.3g}" for each in self.parts)
        return f"; the candidate counts its {len(self.parts)} parts of the batch {', '.join(first)} and {last} times"

    @property
    def sentence(self) -> str:
        """The difference in words."""
        if self.factor is None:
            return f"the losses are {self.values}"
        of = f", as {self.reduction}" if self.reduction else ""
        multiple = f"it is {self.factor:.4g} times the reference's ({self.values}), and so is every gradient"
        of = f", as far as statistics tell{of}" if self.by_statistics else of
        return f"the loss is reduced otherwise: {multiple}{of}"

    def to_json(self) -> dict[str, Json]:
        """Returns the losses as JSON."""
        factor: dict[str, Json] = {} if self.factor is None else {"factor": self.factor}
        parts: dict[str, Json] = {"parts": list(self.parts)} if self.parts else {}
        return {"ref": self.ref, "cand": self.cand, **factor, **parts}


def loss_difference(
    dumps: Dumps,
    matches: Sequence[Match],
    rows: Sequence[ComparisonRow],
    options: CompareOptions,
    *,
    programs: tuple[Program, Program],
    limit: float,
) -> LossDifference | None:
    """Returns how the losses of two dumps differ; None where they agree within tolerance, or are not both known.

    Args:
        dumps: The dumps.
        matches: The pairs.
        rows: All rows.
        options: How strictly tensors are compared.
        programs: The programs of the reference and of the candidate.
        limit: The largest relative error, where no option sets another.
    """
    ref, cand = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    if ref is None or cand is None or (math.isnan(ref) and math.isnan(cand)):
        return None
    requested = options.tolerance(LOSS, LOSS, limit)
    if requested is None:
        limit = 0.0
    elif requested.rel_l2 is not None:
        limit = requested.rel_l2
    if losses_agree(ref, cand, limit):
        return None
    forward = first_divergence(rows).forward
    if forward is not None and forward.family == AUX:
        forward = None  # auxiliary outputs, as running statistics, are beside the loss and not before it
    of_loss = forward is not None and _is_loss(dumps, forward)
    ratio = cand / ref if ref else 0.0
    factor = ratio if ratio and math.isfinite(ratio) else 1.0  # no loss is a multiple of another that is zero
    multiples = _Multiples(dumps, matches, factor, limit)
    if (forward is not None and not of_loss) or not multiples.are_all(rows):
        at_loss = forward is None and any(row.family == ACTIVATION and row.compared for row in rows)
        alone = tuple(alone_before_loss(rows, *programs)) if at_loss else ()
        parts = next(_parts_counted(dumps, matches), ()) if at_loss else ()
        return LossDifference(ref=ref, cand=cand, in_rows=of_loss, at_loss=at_loss, alone=alone, parts=parts)
    words = next(_reductions(dumps, matches, factor, limit), "")
    return LossDifference(
        ref=ref, cand=cand, factor=factor, reduction=words, in_rows=of_loss, by_statistics=multiples.by_statistics
    )


def _is_loss(dumps: Dumps, row: ComparisonRow) -> bool:
    return row.family == ACTIVATION and row.status != "extra" and is_loss(dumps.ref, key_of(ACTIVATION, row.name))


class _Multiples:
    """`_Multiples` finds whether gradients are one multiple of the reference's.

    Args:
        dumps: The dumps.
        matches: The pairs.
        factor: How many times the reference's they are.
        limit: The largest relative error of losses.

    Attributes:
        by_statistics: Whether statistics alone have shown it of one.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match], factor: float, limit: float) -> None:
        self._dumps, self._factor, self._limit = dumps, factor, limit
        self.by_statistics = False
        self._counterparts = {
            each.ref: each.cand for each in matches if each.recipe.only_moves and not each.recipe.part
        }

    def are_all(self, rows: Sequence[ComparisonRow]) -> bool:
        """Returns whether every gradient is such a multiple, and there are any."""
        gradients = [row for row in rows if row.compared and is_gradient(row.family)]
        own = [row for row in gradients if not _is_nothing(self._dumps, row)]
        return bool(own) and abs(self._factor - 1) > _LEAST_FACTOR and all(map(self._is_one, own))

    def _is_one(self, row: ComparisonRow) -> bool:
        apart, ratio = row.metrics.get("1-cos"), row.metrics.get("norm_ratio")
        # Within the tolerance of a coarse type, what is hardly another gradient is a multiple by many factors near one.
        tolerance = min(max(self._limit, row.tolerance or 0.0), _NEAREST * abs(self._factor - 1))
        if row.metrics.get("nonfinite_mismatch"):
            return False
        if apart is None or ratio is None:
            return self._is_one_by_statistics(key_of(row.family, row.name), tolerance)
        apart, ratio = as_float(apart), as_float(ratio)
        apart, ratio = (2 - apart, -ratio) if apart > 1 else (apart, ratio)
        return apart <= tolerance**2 and abs(ratio / self._factor - 1) <= tolerance

    def _is_one_by_statistics(self, key: str, tolerance: float) -> bool:
        """Returns the same of a gradient of which one dump has no elements."""
        if (counterpart := self._counterparts.get(key)) is None:
            return False
        ref, cand = (
            source.entry(source.resolve(each))
            for source, each in ((self._dumps.ref, key), (self._dumps.cand, counterpart))
        )
        self.by_statistics = True
        same_size = math.prod(ref.shape) == math.prod(cand.shape)
        return same_size and statistics_are_multiples(ref.stats, cand.stats, self._factor, tolerance)


def _is_nothing(dumps: Dumps, row: ComparisonRow) -> bool:
    """Returns whether a gradient that agrees is zero, but for rounding, or is that of the loss itself, which is one."""
    if row.status != "same":
        return False
    try:
        entry = dumps.ref.entry(dumps.ref.resolve(key_of(row.family, row.name)))
    except MissingKeyError:  # the reference has it by its iterations
        return False
    rounding = row.needed == 0 and "rel_l2" in row.metrics and not row.metrics.get("bit_equal")
    if entry.absent is not None or entry.stats.get("rms") == 0 or rounding:
        return True
    return is_loss(dumps.ref, key_of(ACTIVATION, row.name))


def _parts_counted(dumps: Dumps, matches: Sequence[Match]) -> Iterator[tuple[float, ...]]:
    """Yields how many times gradients of parts of the batch are the reference's, where not all are alike."""
    for match in matches:
        if not _joins_parts(match):
            continue
        keys = match.recipe.keys
        if not dumps.ref.has_tensor(match.ref) or not all(map(dumps.cand.has_tensor, keys)):
            continue
        if math.prod(dumps.ref.entry(match.ref).shape) > _MOST_ELEMENTS:
            continue
        whole, parts = _wide(dumps.ref.array(match.ref)), [_wide(dumps.cand.array(key)) for key in keys]
        made, numbers = match.recipe.made_of(parts), [np.full(each.shape, at) for at, each in enumerate(parts)]
        of_part = match.recipe.made_of(list(numbers))
        factors = [_factor(whole[of_part == at], made[of_part == at]) for at in range(len(parts))]
        known = tuple(each for each in factors if each is not None)
        if len(known) == len(parts) and max(known) - min(known) > _LEAST_FACTOR:
            yield known


def _joins_parts(match: Match) -> bool:
    """Returns whether a gradient is made of those of several parts of the batch."""
    steps = match.recipe.steps
    along_examples = any(isinstance(each, Concatenate) and each.axis == 0 for each in steps)
    return split_key(match.ref)[0] == ACTIVATION_GRAD and along_examples and match.recipe.only_moves


def _factor(ref: Array, cand: Array) -> float | None:
    """Returns how many times some gradients are the reference's; None where they are no multiple of these."""
    power = float(ref @ ref)
    factor = float(ref @ cand) / power if power else math.nan
    return factor if np.linalg.norm(cand - factor * ref) <= _APART * math.sqrt(power) else None


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _reductions(dumps: Dumps, matches: Sequence[Match], factor: float, limit: float) -> Iterator[str]:
    """Yields the reductions that have a factor: of parts of the batch, of examples, of first axes of an input."""
    counts = {len(each.recipe.keys) for each in matches if _joins_parts(each)}
    yield from (f"a sum over {count} parts of the batch is of their mean" for count in sorted(counts)
                if abs(factor / count - 1) <= limit)  # fmt: skip
    sources = dumps.ref, dumps.cand  # a capture of PyTorch has no labels
    shapes = [entry.shape for source in sources for entry in source.manifest.entries if entry.family == INPUT]
    for shape in shapes:
        for axes, size in enumerate(itertools.accumulate(shape, operator.mul)):
            of = f"{size} examples" if axes == 0 else f"{size} numbers"
            if size > 1 and abs(factor / size - 1) <= limit:
                yield f"a sum over {of} is of their mean"
            if size > 1 and abs(factor * size - 1) <= limit:
                yield f"a mean over {of} is of their sum"
