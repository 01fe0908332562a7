"""`left_out_among` finds the steps whose flat regions gradients pass in the other program.

A step such as a rectifier is *flat* where its result does not change with what it reads: no gradient arrives at that
element of what it reads, although one arrives at the result. In a program that takes the step, none arrives there
either, whatever follows. Where gradients do, the program leaves the step out, or has another one in its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.steps import Found, Step
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, gradient_key, key_of, split_key
from gradscope.naming.wording import counted

#: The least number of flat elements that show anything.
_LEAST: Final = 8

#: The share of the flat elements at which gradients arrive in a program that does not take the step.
_MOST: Final = 0.9


def left_out_among(dumps: Dumps, pairing: Pairing, found: Found) -> Found:
    """Returns the steps that the other program leaves out as suspects, where it was not known what is at fault.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        found: What else shows.
    """
    if found.made_before or not found.unknown:
        return found
    flat = _FlatSteps(dumps, pairing)
    left_out = [shown for step in found.unknown if (shown := flat.shown_left_out(step)) is not None]
    return Found(left_out, found.unknown, made_before=True) if left_out else found


class _FlatSteps:
    """_FlatSteps finds whether gradients pass the flat regions of steps in the other program.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        values = [each for each in pairing.matched if split_key(each.ref)[0] == ACTIVATION]
        self._of_ref = {dumps.ref.resolve(each.ref): each for each in values}
        self._of_cand = {dumps.cand.resolve(each.cand): each for each in values if len(each.recipe.keys) == 1}
        self._owners = {of_ref: _owners(source) for of_ref, source in ((True, dumps.ref), (False, dumps.cand))}

    def shown_left_out(self, step: Step) -> Step | None:
        """Returns a step that the other program leaves out, with what shows it; None where nothing does.

        Args:
            step: A step of one program only.
        """
        if len(read := {*step.layer.inputs}) != 1:
            return None
        key = key_of(ACTIVATION, *read)
        match = (self._of_ref if step.of_ref else self._of_cand).get(self._owners[step.of_ref].get(key, key))
        own = self._ref if step.of_ref else self._cand
        arriving, passed = own.tensor(gradient_key(step.key)), own.tensor(gradient_key(key))
        if match is None or arriving is None or passed is None or arriving.shape != passed.shape:
            return None
        flat = (passed == 0) & (arriving != 0)
        gradients = self._gradients(match)
        if gradients is None or np.count_nonzero(flat) < _LEAST:
            return None
        in_ref, in_cand = gradients
        other = in_cand if step.of_ref else in_ref
        # Of the candidate's flat elements, the gradients of the reference are those at the same places.
        places = flat if step.of_ref else match.recipe.made_of([flat.astype(np.float64)]) > 0
        if places.shape != other.shape or np.mean(other[places] != 0) < _MOST:
            return None
        side, count = "candidate" if step.of_ref else "reference", counted(int(np.count_nonzero(flat)), "element")
        likely = f"flat at {count} of which the {side} has gradients"
        return replace(step, row=replace(step.row, likely=likely))

    def _gradients(self, match: Match) -> tuple[Array, Array] | None:
        """Returns the gradients of a pair of values in the layout of the reference; None where one is not known."""
        gradients = replace(match.recipe, keys=tuple(map(gradient_key, match.recipe.keys)))
        one, other = self._ref.tensor(gradient_key(match.ref)), self._cand.made(gradients)
        return None if one is None or other is None else (one, other)


def _owners(source: DumpSource) -> dict[str, str]:
    """Returns the first names of the values of a dump that have others."""
    values = (each for each in source.manifest.entries if each.family == ACTIVATION and each.alias_of is not None)
    return {key: source.resolve(key) for key in (key_of(ACTIVATION, each.name) for each in values)}
