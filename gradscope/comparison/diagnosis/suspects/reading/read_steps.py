"""`ReadSteps` tells which steps of one program are right or wrong by what the layer of a divergence reads.

A step is right where the layer reads its value in the other program, too, or where that value is a part of what is
recovered of both programs (`recovered_values`) and agrees; then so is all that it is computed from. The first whose
part differs is wrong, or what that is computed from and is not known to be right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.plain_steps import is_arrangement
from gradscope.comparison.diagnosis.suspects.reading.readers import Reader
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import RecoveredValues
from gradscope.comparison.diagnosis.suspects.steps import Step
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.dump.manifest.layer_graph import before, sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, key_of

#: The most values of which it is found whether a layer reads them in place of another.
_MOST_READ: Final = 16


class ReadSteps:
    """ReadSteps tells steps apart by what a layer reads.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        of_ref: Whether the steps are those of the reference.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, *, of_ref: bool) -> None:
        source, self._of_ref = dumps.ref if of_ref else dumps.cand, of_ref
        self._own, self._sources = FloatTensors(source), sources_of(source.manifest.layers)
        self._recovered = RecoveredValues(dumps, pairing, of_ref=of_ref)

    @cached_property
    def _used(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(self._sources.values()))

    def is_used(self, name: str) -> bool:
        """Returns whether anything is computed from a value: of several outputs of a layer that may be some.

        Args:
            name: The name of the value.
        """
        return key_of(ACTIVATION, name) in self._used

    def another_is(self, reader: Reader, output: str) -> bool:
        """Returns whether the other program's layer reads another value of those that its output is computed from.

        A value from which the program computes what its layer reads says that a step is left out instead.

        Args:
            reader: What shows what the layer reads.
            output: The key of the output of the layer.
        """
        if reader.of_ref is not self._of_ref:
            return False
        behind = before(self._sources, [output])
        skipped = before(self._sources, self._equal(behind, reader.read))
        nearest = [key for key in [*self._sources][::-1] if key in behind - skipped]
        possible = self._own.of_size(nearest, reader.read.size)
        return any(map(reader.reads, itertools.islice(possible, _MOST_READ)))

    def beside(self, reader: Reader, steps: Iterable[Step]) -> list[Step]:
        """Returns the steps from which a layer computes something beside what it is known to read.

        Args:
            reader: What shows what the layer reads.
            steps: The steps that may be wrong.
        """
        steps = [step for step in steps if step.of_ref is self._of_ref]
        if reader.of_ref is not self._of_ref or not steps:
            return []
        keys = (key for step in steps for key in (step.key, *self._sources.get(step.key, ())))
        right = before(self._sources, self._equal(dict.fromkeys(keys), reader.read))
        return [step for step in steps if step.key not in right] if right else []

    def left(self, reader: Reader | None, output: str, layer: Layer, steps: Sequence[Step]) -> tuple[list[Step], bool]:
        """Returns the steps that may be wrong, and whether it is known that one of them is, or the layer.

        Args:
            reader: What shows what the layer reads; None where nothing does.
            output: The key of the output of the layer.
            layer: The layer.
            steps: The steps of one program only that the output is computed from.
        """
        own = [step for step in steps if step.of_ref is self._of_ref]
        making = [step for step in own if not is_arrangement(self._own, step.layer, step.key)]
        values = {step.key: value for step in making if (value := self._own.tensor(step.key)) is not None}
        found: dict[str, bool] = {}
        for each in self._recovered.of(output, layer) if values else ():
            if len(own) == len(steps) and each.is_rearranged():
                return [], True
            parts = ((key, each.part(value)) for key, value in values.items())
            found |= {key: agrees for key, agrees in parts if agrees is not None}
        if reader is not None and reader.of_ref is self._of_ref and reader.reads(reader.read):
            found |= dict.fromkeys(self._equal(values, reader.read), True)
        agreeing = [key for key, agrees in found.items() if agrees]
        right = before(self._sources, [*agreeing, *self._recovered.parts_beside(making)])
        wrong = next((step for step in making if found.get(step.key) is False and step.key not in right), None)
        if wrong is None or len(own) < len(steps):
            return [step for step in steps if step not in own or step.key not in right], False
        behind = before(self._sources, [wrong.key])
        return [step for step in making if step.key in behind and step.key not in right], True

    def _equal(self, keys: Iterable[str], value: Array) -> list[str]:
        """Returns the keys of the tensors that are a value, in any shape."""
        tensors = ((key, self._own.tensor(key)) for key in keys)
        return [key for key, each in tensors if each is not None and np.array_equal(each.ravel(), value.ravel())]
