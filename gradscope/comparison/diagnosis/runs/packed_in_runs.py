"""`packed_parameters` finds parameters of one run that hold several of the other one, as queries, keys and values do.

Histories have statistics and no elements, and those of the parts add up to those of the whole: its norm, mean, spread
and largest magnitude. What the optimizer makes of parts need not, so that a run is not compared by such sums.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from gradscope import naming
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.diagnosis.runs.run_tensors import RunTensor
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.dump.record import Json
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow

#: The fewest and the most parts, and the most parameters of one layer among which they are looked for.
_PARTS: Final = (2, 4)
_AMONG: Final = 12
#: The last components of a name without which parts have one: as of `attn/q` and of `attn/q/kernel`.
_DEPTHS: Final = (1, 2)

_Statistics = Mapping[str, float | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """`Packed` is a parameter of one run that holds several of the other one.

    Attributes:
        whole: Its name.
        parts: The names of those that it holds.
        in_ref: Whether the reference has the whole.
    """

    whole: str
    parts: tuple[str, ...]
    in_ref: bool

    def to_json(self) -> dict[str, Json]:
        """Returns it as JSON."""
        return {"whole": self.whole, "parts": list(self.parts), "in_ref": self.in_ref}


def packed_parameters(
    ref: History, cand: History, tensors: Iterable[RunTensor], steps: Sequence[int]
) -> tuple[Packed, ...]:
    """Returns the parameters of one run that hold several of the other one, by their statistics.

    Args:
        ref: The reference.
        cand: The candidate.
        tensors: The tensors of both, paired.
        steps: The first step that both recorded, as updates take them apart; empty where there is none.

    Raises:
        DumpError: One of the histories is damaged.
    """
    alone = [each for each in tensors if each.tensor.family == naming.PARAM and None in (each.ref, each.cand)]
    if not alone or not steps:
        return ()
    ours, theirs = ref.stats_at(steps[0]), cand.stats_at(steps[0])
    of_ref = [(each.tensor, ours.get(each.ref, {})) for each in alone if each.ref is not None]
    of_cand = [(each.tensor, theirs.get(each.cand, {})) for each in alone if each.cand is not None]
    found = [*_packed(of_ref, of_cand, in_ref=True), *_packed(of_cand, of_ref, in_ref=False)]
    return tuple(found)


def allow_missing(packed: Sequence[Packed]) -> str:
    """Returns the regular expression of `--allow-missing` that lets pass what packed parameters are called."""
    words = {word for each in packed for word in _distinct((each.whole, *each.parts))}
    return f"(.*/)?({'|'.join(sorted(map(re.escape, words)))})(/.*)?"


def _distinct(names: Sequence[str]) -> set[str]:
    """Returns what names have for themselves, without the components that all begin and end with."""
    paths = [name.split("/") for name in names]
    shortest = min(map(len, paths))
    first = next((at for at in range(shortest - 1) if len({path[at] for path in paths}) > 1), shortest - 1)
    room = shortest - 1 - first
    last = next((at for at in range(room) if len({path[-1 - at] for path in paths}) > 1), room)
    return {"/".join(path[first : len(path) - last]) for path in paths}


def _packed(
    wholes: Sequence[tuple[TensorRow, _Statistics]], others: Sequence[tuple[TensorRow, _Statistics]], *, in_ref: bool
) -> Iterable[Packed]:
    for row, stats in wholes:
        if _size(row) and stats.get("std", 0.0) > 0:
            parts = _parts(row, stats, others)
            if parts is not None:
                yield Packed(whole=row.name, parts=parts, in_ref=in_ref)


def _parts(
    whole: TensorRow, stats: _Statistics, others: Sequence[tuple[TensorRow, _Statistics]]
) -> tuple[str, ...] | None:
    """Returns the one set of parameters of a layer whose statistics add up to those of another one; None for none."""
    size, found = _size(whole), set[tuple[str, ...]]()
    for depth in _DEPTHS:
        layers = defaultdict[str, list[tuple[TensorRow, _Statistics]]](list)
        for each in others:
            if 0 < _size(each[0]) < size:
                layers["/".join(each[0].name.split("/")[:-depth])].append(each)
        for members in layers.values():
            if len(members) <= _AMONG:
                for count in range(_PARTS[0], _PARTS[1] + 1):
                    found |= {
                        tuple(row.name for row, _ in chosen)
                        for chosen in combinations(members, count)
                        if sum(_size(row) for row, _ in chosen) == size and _adds_up(whole, stats, chosen)
                    }
    return next(iter(found)) if len(found) == 1 else None


def _adds_up(whole: TensorRow, stats: _Statistics, chosen: Sequence[tuple[TensorRow, _Statistics]]) -> bool:
    if not all({"l2", "mean", "amax"} <= each.keys() for _, each in chosen):
        return False
    size = _size(whole)
    norm = math.sqrt(sum(each["l2"] ** 2 for _, each in chosen))
    mean = sum(each["mean"] * _size(row) for row, each in chosen) / size
    added = {
        "l2": norm, "rms": norm / math.sqrt(size), "mean": mean,
        "std": math.sqrt(max(norm**2 / size - mean**2, 0.0)), "amax": max(each["amax"] for _, each in chosen),
    }  # fmt: skip
    bound = least_rel_l2({name: stats[name] for name in added if name in stats}, added)
    dtype = whole.dtype or "float32"
    return bound is not None and bound.rel_l2 <= default_tolerance(whole.family, dtype, chosen[0][0].dtype or dtype)


def _size(row: TensorRow) -> int:
    return 0 if row.shape is None else math.prod(row.shape)
