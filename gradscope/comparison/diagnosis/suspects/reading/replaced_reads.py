"""`replaced_read` finds the step in whose place another operation makes what a layer reads in the other program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.step_kinds import Operation, recognised
from gradscope.comparison.diagnosis.suspects.reading.readers import Reader
from gradscope.comparison.diagnosis.suspects.steps import Step, with_words


def replaced_read(tensors: FloatTensors, reader: Reader, steps: Sequence[Step]) -> Step | None:
    """Returns the step in whose place another operation makes what the other program reads; None where none does.

    Args:
        tensors: The tensors of the program that has an entry for what its layer reads.
        reader: What shows what the other program reads.
        steps: The steps that may be wrong.
    """
    behind: list[Operation] = []  # what is computed of a step until the layer reads it
    value = reader.read
    for step in reversed([each for each in steps if each.of_ref is reader.of_ref]):
        read, own = list(tensors.read_by(step.layer)), tensors.tensor(step.key)
        if own is None or not np.array_equal(own.ravel(), value.ravel()):
            continue
        if len(read) != 1:
            return None
        known = list(recognised(read[0], own))
        for operation, alternatives in known:
            for other in alternatives:
                made = reduce(lambda each, then: then.apply(each), behind, other.apply(read[0]))
                if reader.reads(made.reshape(reader.read.shape)):
                    side = "candidate" if reader.of_ref else "reference"
                    return with_words(step, operation.words, other.words, side)
        if not known:
            return None
        behind, value = [known[0][0], *behind], read[0]
    return None
