"""`other_operations` finds pairs of operations that two programs of one function do not have in common.

An operation is called by its primitive and a number. Where a layer was rewritten, the name is that of another step, and
what differs between such steps is no error: the layers, their gradients, those of parameters, and the loss agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.comparison.diagnosis.refuting.apart.moved_gradients import is_moved
from gradscope.comparison.judging.loss_comparison import losses_of_both_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.operation_names import OperationNames
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, is_gradient, key_of, split_key


def other_operations(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> frozenset[str]:
    """Returns the reference's keys of pairs of operations that differ, where all that has a name of its own agrees.

    Where both programs have the same operations one by one, and the same order of examples, one that differs does so.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = {match for match in pairing.matched if rows[match.ref].status != "same"}
    if not differing or any(split_key(match.ref)[0] not in (ACTIVATION, ACTIVATION_GRAD) for match in differing):
        return frozenset()
    operations = OperationNames(dumps)
    named = (match for match in pairing.matched if not operations.name(match))
    shown = any(rows[match.ref].compared and is_gradient(split_key(match.ref)[0]) for match in named)
    if not shown or not all(operations.name(each) or _is_as_right(dumps, each, rows) for each in differing):
        return frozenset()
    inputs = (match for match in pairing.matched if split_key(match.ref)[0] == INPUT)
    otherwise = any(match.recipe.examples or not match.recipe.as_stored for match in inputs)
    # What passed by the errors of such pairs is off as soon as these are none.
    off = [match for match in pairing.matched if match in differing or _is_off(dumps, match, rows[match.ref])]
    found = frozenset(
        match.ref for match in off if operations.name(match) and (otherwise or _is_misled(operations, match))
    )
    # The loss is an operation, too, and is not told to differ by the name of another step.
    others = [match for match in pairing.matched if match.ref not in found]
    return found if found and losses_of_both_agree(dumps, others, rows) else frozenset()


def _is_as_right(dumps: Dumps, match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether a pair is of gradients that differ in what equal elements of a value get of them."""
    family, name = split_key(match.ref)
    value = rows.get(key_of(ACTIVATION, name)) if family == ACTIVATION_GRAD else None
    return value is not None and value.status == "same" and is_moved(dumps, match, rows[match.ref])


def _is_off(dumps: Dumps, match: Match, row: ComparisonRow) -> bool:
    """Returns whether a pair differs by more than its own tolerance, whatever it inherits from what it is made of."""
    ref, cand = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    return (row.needed or 0.0) > dumps.tolerance(ref.family, ref.dtype, cand.dtype)


def _is_misled(operations: OperationNames, match: Match) -> bool:
    return any(operations.mislead(split_key(key)[1]) for key in (match.ref, *match.recipe.keys))
