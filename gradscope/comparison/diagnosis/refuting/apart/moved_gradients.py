"""`is_moved` tells gradients that two programs hand to other ones of several equal elements.

Of two equal largest values in a window, a maximum may hand its gradient to the first, or half of it to each.

`divided_gradients` finds those of a value that one program has twice, as the output and the last state of a recurrent
layer that runs for one step. Each has a gradient there, and they add up to that of the value which the other program
has once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np

from gradscope.comparison.diagnosis.refuting.behind.errors_behind import EXACT
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, key_of, printable, split_key

#: What the gradients of such a value are.
_DIVIDED: Final = "a gradient of one value that has several names, {}: the other program's is the sum of those"


def is_moved(dumps: Dumps, match: Match, row: ComparisonRow) -> bool:
    """Returns whether gradients differ only in how they are divided among elements that have the same value.

    Args:
        dumps: The dumps.
        match: The pair of the gradients of a value that agrees.
        row: Its row.
    """
    ref = FloatTensors(dumps.ref)
    value = ref.tensor(key_of(ACTIVATION, split_key(match.ref)[1]))
    one, other = ref.tensor(match.ref), FloatTensors(dumps.cand).made(match.recipe)
    if value is None or one is None or other is None or not value.shape == one.shape == other.shape:
        return False
    differences = np.bincount(np.unique(value, return_inverse=True)[1].reshape(-1), (other - one).reshape(-1))
    limit = row.tolerance if isinstance(row.tolerance, float) else EXACT
    return bool(np.linalg.norm(differences) <= limit * np.linalg.norm(one))


def divided_gradients(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]
) -> tuple[dict[Match, str], dict[str, str]]:
    """Returns the pairs of gradients of a value that one program has twice, and the keys of the others, with reasons.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    paired = {key for each in pairing.matched for key in (each.ref, *each.recipe.keys)}
    differing = (
        match
        for match in pairing.matched
        if split_key(match.ref)[0] == ACTIVATION_GRAD
        and rows[match.ref].status == "different"
        and (value := rows.get(key_of(ACTIVATION, split_key(match.ref)[1]))) is not None
        and value.status == "same"
    )
    found = ((match, _divided(dumps, match, rows[match.ref].tolerance or EXACT, paired)) for match in differing)
    divided = {match: each for match, each in found if each is not None}
    reasons = {match: why for match, (why, _) in divided.items()}
    return reasons, {copy: why for why, copies in divided.values() for copy in copies}


def _divided(dumps: Dumps, match: Match, limit: float, paired: Collection[str]) -> tuple[str, tuple[str, ...]] | None:
    ref, cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
    one, other = ref.tensor(match.ref), cand.made(match.recipe)
    if one is None or other is None or one.shape != other.shape:
        return None
    sides = (
        (dumps.ref, ref, match.ref, one, other),
        *([(dumps.cand, cand, match.cand, other, one)] if len(match.recipe.keys) == 1 else []),
    )
    for source, tensors, key, own, its in sides:
        copies = [each for each in _copies(source, tensors, key) if each not in paired]
        gradients = [tensors.tensor(each) for each in copies]
        added = [each.reshape(own.shape) for each in gradients if each is not None]
        if added and np.linalg.norm(np.sum([own, *added], axis=0) - its) <= limit * np.linalg.norm(its):
            names = (f"`{printable(split_key(each)[1])}`" for each in (key, *copies))
            return _DIVIDED.format(", ".join(names)), tuple(copies)
    return None


def _copies(source: DumpSource, tensors: FloatTensors, gradient: str) -> Iterator[str]:
    """Yields the gradients of other outputs of the layer that returns a value, which are that value, too."""
    name = split_key(gradient)[1]
    value = tensors.tensor(key_of(ACTIVATION, name))
    several = (layer.outputs for layer in source.manifest.layers if name in layer.outputs and len(layer.outputs) > 1)
    for each in next(several, ()):
        copy = tensors.tensor(key_of(ACTIVATION, each)) if each != name else None
        if copy is not None and value is not None and np.array_equal(copy.reshape(-1), value.reshape(-1)):
            yield key_of(ACTIVATION_GRAD, each)
