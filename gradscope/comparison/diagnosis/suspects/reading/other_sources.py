"""`other_source` tells that a layer reads the output of another layer than its counterpart does.

A scan in reverse applies its layers from the last to the first, and a port may take the output of another block. Both
programs have an entry for either value then, so that nothing has to be recovered.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.step_kinds import have_same_elements
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, INPUT, printable, split_key

#: The least relative error of values that are no form of each other.
_OTHER: Final = 0.1


def other_source(dumps: Dumps, pairing: Pairing, match: Match) -> str:
    """Returns which other value a layer reads in the candidate, in words; "" where that is not known.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        match: The pair of its outputs.
    """
    plain = {dumps.cand.resolve(each.cand): each.ref for each in pairing.matched if each.recipe.as_stored}
    read, others = _read(dumps.ref, match.ref), _read(dumps.cand, match.cand)
    if len(match.recipe.keys) > 1 or not others <= plain.keys():
        return ""
    counterparts = {dumps.ref.resolve(plain[key]): plain[key] for key in others}
    alone, instead = read - counterparts.keys(), counterparts.keys() - read
    if len(alone) != 1 or len(instead) != 1:
        return ""
    (one,), (other,) = alone, instead
    if one not in {dumps.ref.resolve(key) for key in plain.values()}:
        return ""  # the candidate has no entry for it, and is seen to read what is before it
    values = FloatTensors(dumps.ref)
    own, its = values.tensor(one), values.tensor(other)
    # A step that does nothing, as a dropout in evaluation, has another name for the value that it reads, and so may one
    # that arranges it.
    if own is None or its is None or own.shape != its.shape or not _is_other(own, its):
        return ""
    return f"which reads {_quoted(one)}, and in the candidate {_quoted(other)}"


def _read(source: DumpSource, key: str) -> frozenset[str]:
    """Returns the keys of the values that a value is computed from, of owners."""
    keys = sources_of(source.manifest.layers).get(source.resolve(key), ())
    known = frozenset(source.keys())
    return frozenset(
        source.resolve(each) for each in keys if each in known and split_key(each)[0] in (ACTIVATION, INPUT)
    )


def _is_other(one: np.ndarray, other: np.ndarray) -> bool:
    if have_same_elements(other, one):
        return False
    factor = np.vdot(one, other) / max(float(np.vdot(one, one)), 1e-300)
    return bool(np.linalg.norm(other - factor * one) > _OTHER * np.linalg.norm(other))


def _quoted(key: str) -> str:
    return f"`{printable(split_key(key)[1])}`"
