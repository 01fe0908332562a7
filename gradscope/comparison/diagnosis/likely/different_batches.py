"""`different_batches` states how the batches of two dumps differ, where their rows prove it.

Of batches of different sizes nothing that is computed from them agrees, neither values nor gradients. Of one size, they
may share some of their examples, or an input may have its rows in another order than the inputs beside it, as labels
that a loader shuffles alone. Under `--x64` JAX draws other random numbers from a key, batches and parameters alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.diagnosis.clauses import some_of
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.example_orders import examples_of
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.naming import INPUT, PARAM, split_key
from gradscope.naming.wording import counted

_ADVICE: Final = "Dump both with one batch: the same `--seed` and `--batch-size`, or `--data`"


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentBatches:
    """DifferentBatches stores how the batches of two dumps differ.

    Attributes:
        sentence: The difference in words, without a full stop.
        advice: What to do, likewise; "" where the difference may be the fault that is looked for.
        sizes_differ: Whether one has more examples, so that all that is computed from them differs.
    """

    sentence: str
    advice: str = _ADVICE
    sizes_differ: bool = False


def different_batches(
    dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]
) -> DifferentBatches | None:
    """Returns how the batches differ; None where they do not, or where that is not known.

    Args:
        dumps: The dumps.
        matches: The pairs.
        rows: Their rows, by the reference's keys.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    inputs = [match for match in matches if split_key(match.ref)[0] == INPUT and len(match.recipe.keys) == 1]
    return (
        _of_sizes(dumps, inputs)
        or _torn_apart(dumps, inputs, rows)
        or _overlapping(dumps, inputs, rows)
        or _drawn_otherwise(dumps, rows)
    )


def _of_sizes(dumps: Dumps, inputs: Sequence[Match]) -> DifferentBatches | None:
    shapes = [(dumps.ref.entry(each.ref).shape, dumps.cand.entry(each.cand).shape) for each in inputs]
    shapes = [pair for pair in shapes if any(pair)]
    sizes = {(one[:1], other[:1]) for one, other in shapes}
    if len(sizes) != 1 or any(not all(pair) or pair[0][1:] != pair[1][1:] for pair in shapes):
        return None
    ((ref,), (cand,)) = next(iter(sizes))
    if ref == cand:
        return None
    why = "so that all that is computed from them differs"
    sentence = f"The batch has {counted(ref, 'example')} in the reference and {cand} in the candidate, {why}"
    return DifferentBatches(sentence=sentence, sizes_differ=True)


def _torn_apart(dumps: Dumps, inputs: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> DifferentBatches | None:
    """Returns that some inputs have their rows in another order, and others beside them have not."""
    moved = [(match, order) for match in inputs if (order := match.recipe.examples) is not None and not order.axis]
    if not moved:
        return None
    order = moved[0][1]
    still = [match for match in inputs if match.recipe.plain and rows[match.ref].status == "same"]
    stays = [match for match in still if _length(dumps, match) == len(order.order) and dumps.ref.has_tensor(match.ref)
             and examples_of([order.apply(array := dumps.ref.array(match.ref))]) != examples_of([array])]  # fmt: skip
    if not stays:
        return None
    names = [some_of([split_key(match.ref)[1] for match in group]) for group in ([each for each, _ in moved], stays)]
    verbs = ["has its" if len(moved) == 1 else "have their", "has" if len(stays) == 1 else "have"]
    sentence = f"{names[0]} {verbs[0]} rows in another order, and {names[1]} {verbs[1]} not"
    return DifferentBatches(sentence=sentence, advice="")


def _overlapping(dumps: Dumps, inputs: Sequence[Match], rows: Mapping[str, ComparisonRow]) -> DifferentBatches | None:
    """Returns how many examples are in both batches, of one size, where not all are."""
    differing = [match for match in inputs if rows[match.ref].status == "different"]
    size = {_length(dumps, match) for match in differing}
    if len(size) != 1 or (length := size.pop()) is None or length < 2:
        return None
    together = [match for match in inputs if _length(dumps, match) == length]
    if not all(match.recipe.as_stored and dumps.ref.has_tensor(match.ref) and dumps.cand.has_tensor(match.cand)
               and dumps.ref.entry(match.ref).dtype == dumps.cand.entry(match.cand).dtype
               for match in together):  # fmt: skip
        return None
    ref = Counter(examples_of([dumps.ref.array(match.ref) for match in together]))
    cand = Counter(examples_of([dumps.cand.array(match.cand) for match in together]))
    both = (ref & cand).total()
    if not 0 < both < length:  # all are the same in another order, such as with NaNs, which no order makes agree
        return None
    sentence = f"The batches have {both} of {length} examples in common"
    return DifferentBatches(sentence=sentence)


def _drawn_otherwise(dumps: Dumps, rows: Mapping[str, ComparisonRow]) -> DifferentBatches | None:
    """Returns that the values which differ were drawn in float64 in one run alone, from the same seed."""
    runs = {"reference": dumps.ref.manifest.provenance, "candidate": dumps.cand.manifest.provenance}
    wide = [name for name, run in runs.items() if run.get("x64") and run.get("seed") is not None]
    narrow = [name for name, run in runs.items() if run.get("x64") is False and run.get("seed") is not None]
    if len(wide) != 1 or len(narrow) != 1 or any(runs[wide[0]].get(each) for each in ("checkpoint", "data")):
        return None
    if not any(row.family in (INPUT, PARAM) and row.status == "different" for row in rows.values()):
        return None
    return DifferentBatches(
        sentence=f"The {wide[0]} was made with `--x64`, with which JAX draws other random numbers",
        advice=f"Give it those of the {narrow[0]}, whose dump is a file for `--checkpoint` and for `--data`",
    )


def _length(dumps: Dumps, match: Match) -> int | None:
    """Returns the size of the leading axis, where it is that of both dumps."""
    one, other = dumps.ref.entry(match.ref).shape, dumps.cand.entry(match.cand).shape
    return one[0] if one and one == other else None
