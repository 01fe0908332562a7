"""The intermediate results of comparing one block that are alive at the same time, for `arrays.scratch`."""

from __future__ import annotations

from enum import Enum


class Slot(Enum):
    """One buffer each."""

    REF = "the reference's block as float64"
    CAND = "the candidate's block as float64"
    DIFFERENCE = "candidate minus reference"
    MAGNITUDE = "the magnitudes of the reference"
    SMALL = "elements of the reference too small for a relation"
    WORK = "a step's own result"
    MASK = "elements of which a step asks a question"
