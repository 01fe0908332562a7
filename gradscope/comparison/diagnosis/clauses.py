"""Clauses of the verdict's sentence state what differs besides the first divergence, and name tensors in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from gradscope.comparison.diagnosis.divergence import BACKWARD, FORWARD, Blame, Divergence, first_divergence
from gradscope.comparison.diagnosis.growth import creeping
from gradscope.comparison.diagnosis.refuting.hidden_biases import HIDDEN
from gradscope.comparison.judging.judge import OF_PYTORCH, UNPROVEN
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.judging.unpaired.incomparable_inputs import OF_LOSS, OF_MASK, UNREAD
from gradscope.comparison.judging.unpaired.unmatched import OTHER_FORM, UNTRAINED
from gradscope.comparison.judging.unpaired.unmatched_state import CONSTANTS, STATISTICS, UNRETURNED
from gradscope.comparison.layout.recipe_steps import FLIP, OF_VECTOR, REORDER
from gradscope.comparison.layout.recipes import REORDERED
from gradscope.comparison.metrics.evidence import frozen_in, no_gradient_in
from gradscope.naming import (
    ACTIVATION_GRAD,
    AUX,
    EXAMPLE_GRAD,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    STATE,
    key_of,
    printable,
)
from gradscope.naming.wording import counted

#: What a run is given, in words.
_GIVEN: Final = {INPUT: "inputs", PARAM: "parameters", STATE: "state"}

#: The nouns for tensors of the other families without a direction; those not here are called by their names.
_NOUNS: Final = {
    INPUT_GRAD: "input gradient",
    PARAM_GRAD: "parameter gradient",
    EXAMPLE_GRAD: "per-example gradient",
    AUX: "auxiliary output",
}

#: What one program may have alone: why it does not count, what it does with it, what it is, what the other does not.
_KEPT: Final = (
    (STATISTICS, "updates", "running statistic", "have"),
    (UNRETURNED, "updates", "running statistic", "return"),
    (CONSTANTS, "keeps", "state tensor", "have"),
    (UNTRAINED, "has", "untrained parameter", "have"),
    (HIDDEN, "adds", "parameter without effect", "have"),
    (OTHER_FORM, "reads", "input", "have"),
)

#: The gradients that may be a consequence of the first divergence.
_GRADIENTS: Final = (PARAM_GRAD, INPUT_GRAD, EXAMPLE_GRAD)

#: What a layer uses otherwise whose kernel may have another layout by mistake.
OF_KERNEL: Final = "its kernel"

#: The largest number of names in one clause.
MOST_NAMES: Final = 3


def rearranged(rows: Sequence[ComparisonRow], blame: Blame) -> list[str]:
    """Returns a clause about parameters that have the same values in another layout, under one name or unlike others.

    The parts of others are in another order, such as the queries, keys and values of one kernel. In a port that is
    meant so. Where the first layer that differs uses one, the layout may be the fault, unless the values show another;
    of several, the others are only counted.
    """
    stored = (row for row in rows if row.family == PARAM and row.made_by and not OF_VECTOR.fullmatch(row.made_by))
    own = [
        row for row in stored if row.matched_by == "name" or row.name in blame.turned or f", {REORDER} " in row.made_by
    ]
    found = [row for row in own if blame.params is None or row.name in blame.params]
    if not found:
        return []
    first = first_divergence(rows).forward
    shown = blame.unrecorded or (first is not None and first.likely and OF_KERNEL not in first.likely)
    # No port means a stack of layers to be in reverse; what a layer is known to do otherwise is no order of its gates.
    moved = any(REORDER in row.made_by or row.made_by.startswith(f"{FLIP} ") for row in found)
    does_otherwise = first is not None and first.explained and first.likely and OF_KERNEL not in first.likely
    if does_otherwise or (shown and len(found) < len(own) and not moved):
        return []
    names = [f"{quoted(row.name)} ({row.made_by})" for row in found[:MOST_NAMES]]
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    what, plural = f"{', '.join(names)}{more}", len(found) > 1
    if len(found) < len(own):
        verb = "are" if plural else "is"
        return [f"{len(found):,} of the {len(own):,} parameters in another layout {verb} read there: {what}"]
    return [f"{counted(len(found), 'parameter')} {'have' if plural else 'has'} another layout: {what}"]


def unproven(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns a clause about inputs whose layout nothing but their own values shows, as of an image on its side."""
    found = [f"{quoted(row.name)} ({row.made_by})" for row in rows if row.why == UNPROVEN]
    which = "which no parameter has, and may be the cause"
    return [f"the same input in another layout, {which}: {', '.join(found[:MOST_NAMES])}"] if found else []


def reordered(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns a clause about a batch whose examples are in another order, or are taken in one."""
    families = {row.family for row in rows if row.made_by.endswith(REORDERED)}
    if INPUT in families:
        return ["the batch has its examples in another order"]
    return ["the candidate takes the examples of the batch in another order"] if families else []


def given(rows: Sequence[ComparisonRow]) -> str:
    """Returns a sentence about what differs of what the runs were given; "" where nothing does.

    It comes first, since all other differences may follow from it.
    """
    which = different_values_given(rows)
    return f"The runs start from different {which}" if which else ""


def different_values_given(rows: Sequence[ComparisonRow]) -> str:
    """Returns the inputs, parameters and state that differ, as "parameters (`fc1/b`)"; "" where none does."""
    parts = [
        f"{nouns} ({some_of([row.name for row in found])}{_likely(found)})"
        for family, nouns in _GIVEN.items()
        if (found := [row for row in rows if row.family == family and row.status == "different"])
    ]
    *some, last = parts or [""]
    return f"{', '.join(some)} and {last}" if some else last


def _likely(rows: Sequence[ComparisonRow]) -> str:
    """Returns what explains the first of some rows that are named, where something does."""
    known = [row for row in rows[:MOST_NAMES] if row.likely]
    return "".join(f"; {'it' if len(rows) == 1 else quoted(row.name)} {row.likely}" for row in known[:1])


def others(rows: Sequence[ComparisonRow], divergence: Divergence, blame: Blame) -> list[str]:
    """Returns clauses about families without a direction and not given: consequences, then the rest."""
    directed = (*FORWARD, *BACKWARD, *_GIVEN)
    different = [
        row
        for row in rows
        if row.status == "different" and row.family not in directed and row is not divergence.forward
    ]
    follows = Counter(row.family for row in different if _follows(row, blame))
    beside = [row for row in different if not _follows(row, blame) and _key(row) in blame.of_makers]
    others = Counter(row.family for row in different) - follows - Counter(row.family for row in beside)
    last_first = sorted(different, key=lambda row: -row.index)
    additional = _distinct(
        row.name for row in last_first if row.family in _GRADIENTS and not _follows(row, blame) and row not in beside
    )
    parts: list[str] = []
    where = "above it " if divergence.backward is not None else ""
    if caused := follows.total():
        parts.append(f"{_together(follows, _GRADIENTS)} {where}{'follows' if caused == 1 else 'follow'} from that")
    if beside:
        found = Counter(row.family for row in beside)
        names = f", of {some_of(_distinct(row.name for row in beside))}" if len(beside) <= MOST_NAMES else ""
        parts.append(f"{_together(found, _GRADIENTS)} {_verb(len(beside))} with it{names}")
    if own := sum(others[each] for each in _GRADIENTS):
        # Where nothing else differs, they are the place.
        alone = divergence.forward is None and divergence.backward is None
        names = f", of {some_of(additional)}" if own <= MOST_NAMES or alone else ""
        parts.append(f"{_together(others, _GRADIENTS)} {_verb(own)}{' in addition' if caused else ''}{names}")
    rest = (f"{_together(others, [each])} {_verb(others[each])}" for each in others if each not in _GRADIENTS)
    return [*parts, *rest, *_unreached(rows), *creeping(rows, divergence.forward)]


def _unreached(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns clauses about parameters, or slices of them, and inputs of which one program alone has a gradient."""
    clauses: list[str] = []
    for ratio, side in ((0.0, "candidate"), (math.inf, "reference")):
        names = [
            row.name
            for row in rows
            if row.family in (PARAM_GRAD, INPUT_GRAD)
            and row.status == "different"
            and (row.metrics.get("norm_ratio") == ratio or row.why.startswith(no_gradient_in(side)))
        ]
        if names:
            clauses.append(f"no gradient arrives at {some_of(names)} in the {side}")
    of_others = [row for row in rows if row.family in (PARAM_GRAD, INPUT_GRAD) and row.explained and row.likely]
    return [*clauses, *(f"the gradient of {quoted(row.name)} {row.likely}" for row in of_others[:1])]


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _together(counts: Counter[str], families: Sequence[str]) -> str:
    """Returns the counts of families in words: `2 parameter gradients and 1 input gradient`."""
    *some, last = (counted(counts[each], _NOUNS.get(each, f"{each} tensor")) for each in families if counts[each])
    return f"{', '.join(some)} and {last}" if some else last


def _follows(row: ComparisonRow, blame: Blame) -> bool:
    """Returns whether a gradient that differs is computed from the first divergence."""
    return row.family in _GRADIENTS and (_key(row) in blame.backward or _key(row) in blame.forward)


def _key(row: ComparisonRow) -> str:
    return key_of(PARAM_GRAD if row.family == EXAMPLE_GRAD else row.family, row.name)


def one_sided(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns clauses about how many tensors only one dump has, and of which parameters some are."""
    clauses: list[str] = []
    for status, side, other in (("missing", "reference", "candidate"), ("extra", "candidate", "reference")):
        alone = [row for row in rows if row.counts and row.status == status]
        of_params = [row.name for row in alone if row.family in (PARAM, PARAM_GRAD)]
        which = "of" if len(of_params) == len(alone) else "among them"
        kept = {row.name for row in rows if row.family == STATE and row.status not in ("same", "different", status)}
        untrained = f", which the {other} keeps as state" if kept.issuperset(of_params) else ""
        names = f", {which} {some_of(_distinct(of_params))}{untrained}" if of_params else ""
        if alone:
            clauses.append(f"{counted(len(alone), 'tensor')} only in the {side}{names}")
    return clauses


def kept_alone(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns clauses about state, biases and inputs that one of the dumps has alone, which does not count."""
    clauses: list[str] = []
    for why, verb, noun, lacks in _KEPT:
        for status, side, other in (("missing", "reference", "candidate"), ("extra", "candidate", "reference")):
            alone = [row for row in rows if (row.status, row.why) == (status, why)]
            if names := [row.name for row in alone if row.family in _GIVEN or why == UNRETURNED]:
                what = f"{counted(len(names), noun)} that the {other} does not {lacks}"
                clauses.append(f"the {side} {verb} {what}, {some_of(names)}")
    return clauses


def incomparable(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns clauses about running variances and gradients that differ, or that one has, which does not count."""
    missing = [row for row in rows if row.status == "missing"]
    clauses: list[str] = []
    if names := [row.name for row in missing if row.why in (OF_LOSS, UNREAD)]:
        what = f"{counted(len(names), 'input gradient')} {_verb(len(names))}, of {some_of(names)}"
        clauses.append(f"{what}, which the loss reads: a capture from PyTorch has no gradient of that")
    if names := [row.name for row in missing if row.why == OF_MASK]:
        clauses.append(f"a gradient of {some_of(names)}, of zeros and ones, arrives in one of the programs alone")
    if names := [each.name for each in rows if each.why == OF_PYTORCH]:
        what = f"{counted(len(names), 'running variance')} {_verb(len(names))}, of {some_of(names)}"
        clauses.append(f"{what}: {OF_PYTORCH}")
    for side, other in (("reference", "candidate"), ("candidate", "reference")):
        if names := [
            row.name for row in rows if row.family in (PARAM_GRAD, ACTIVATION_GRAD) and row.why == frozen_in(side)
        ]:
            clauses.append(
                f"the {side} does not differentiate {some_of(names)} (`requires_grad`), and the {other} does"
            )
    return clauses


def _verb(count: int) -> str:
    return "differs" if count == 1 else "differ"


def quoted(name: str) -> str:
    """Returns a name as the sentence shows it."""
    return f"`{printable(name)}`"


def some_of(names: Sequence[str]) -> str:
    """Returns the first names in quotes, and the number of the others."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(quoted, names[:MOST_NAMES])) + more
