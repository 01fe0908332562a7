"""`other_operations` finds pairs of operations that two programs of one function do not have in common.

An operation is called by its primitive and a number. Where a layer was rewritten, the name is that of another step, and
what differs between such steps is no error: the layers, their gradients, those of parameters, and the loss agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.comparison.judging.loss_comparison import losses_of_both_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.operation_names import OperationNames
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, is_gradient, split_key


def other_operations(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> frozenset[str]:
    """Returns the reference's keys of pairs of operations that differ, where all that has a name of its own agrees.

    Where both programs have the same operations one by one, and the same order of examples, one that differs does so.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = [match for match in pairing.matched if rows[match.ref].status != "same"]
    if not differing or any(split_key(match.ref)[0] not in (ACTIVATION, ACTIVATION_GRAD) for match in differing):
        return frozenset()
    operations = OperationNames(dumps)
    named = (match for match in pairing.matched if not operations.name(match))
    shown = any(rows[match.ref].compared and is_gradient(split_key(match.ref)[0]) for match in named)
    agree = all(map(operations.name, differing)) and losses_of_both_agree(dumps, pairing.matched, rows)
    if not (shown and agree):
        return frozenset()
    inputs = (match for match in pairing.matched if split_key(match.ref)[0] == INPUT)
    otherwise = any(match.recipe.examples or not match.recipe.as_stored for match in inputs)
    return frozenset(match.ref for match in differing if otherwise or _is_misled(operations, match))


def _is_misled(operations: OperationNames, match: Match) -> bool:
    return any(operations.mislead(split_key(key)[1]) for key in (match.ref, *match.recipe.keys))
