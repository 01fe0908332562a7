"""`Stretch` has the steps between what is compared, with their formulas, and what the other program has there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered, RecoveredValues
from gradscope.comparison.diagnosis.suspects.replaying.formulas import Formula, norm_of
from gradscope.comparison.diagnosis.suspects.replaying.step_formulas import formula_of
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.dump.manifest.layer_graph import consequences, inverted, sources_first, sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, split_key
from gradscope.naming.paths import without_iterations

#: The relative error up to which a value of float32 is reproduced, and the largest share of the difference that may be
#: left.
_REPRODUCED: Final = 1e-4
_LEFT: Final = 0.05

#: The fewest elements that show that a value is reproduced.
_FEWEST: Final = 4

#: The most steps of a stretch, and the most elements that are read to compute steps of it again.
_MOST_STEPS: Final = 128
_MOST_READ: Final = 1 << 28

#: The most iterations of a loop in which the formula of one step is looked for in vain: they compute the same.
_MOST_UNKNOWN: Final = 2


class Computed(NamedTuple):
    """Computed has a value of one program, what it is computed from, and how.

    Attributes:
        value: The value.
        sources: The keys of what the step reads, its parameters among that.
        reads: Their values.
        formula: How the value is computed; None where that is not known.
    """

    value: Array
    sources: tuple[str, ...]
    reads: tuple[Array, ...]
    formula: Formula | None


class Stretch:
    """Stretch has the steps of one program that the other has no entries for, up to what is compared behind.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        steps: The keys of the steps.
        outputs: The key of the first value over tolerance, and that of its counterpart in the other program.
        layer: The layer that computes it.
        of_ref: Whether the steps are those of the reference.
    """

    def __init__(
        self,
        dumps: Dumps,
        pairing: Pairing,
        steps: Collection[str],
        outputs: tuple[str, str],
        layer: Layer,
        *,
        of_ref: bool,
    ) -> None:
        output, other = outputs
        source, others = (dumps.ref, dumps.cand) if of_ref else (dumps.cand, dumps.ref)
        roundings = (FloatTensors(each).rounding(key, _REPRODUCED) for each, key in ((source, output), (others, other)))
        self._reproduced = max(roundings)
        self._tensors, self._sources = FloatTensors(source), sources_of(source.manifest.layers)
        self._pairs, self._output, self._layer = RecoveredValues(dumps, pairing, of_ref=of_ref), output, layer
        self._others: dict[str, Recovered | None] = {}
        self._computed: dict[str, Computed | None] = {}
        self._unknown: Counter[str] = Counter()
        self._left = _MOST_READ
        self.steps = frozenset({*steps, output})

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of the steps and of what is compared next behind them, each behind what it is computed from."""
        values = {key: made_of for key, made_of in self._sources.items() if _is_value(key)}
        readers = inverted(values)
        found, pending = set(self.steps), [key for key in self.steps if key != self._output]
        while pending and len(found) <= _MOST_STEPS:
            for key in readers.get(pending.pop(), ()):
                if key not in found:
                    found.add(key)
                    pending += [] if self._pair(key) is not None else [key]
        # What is compared may differ in other ways than by what follows, and so may all that is computed from it.
        compared = [key for key in found if self._pair(key) is not None]
        found -= frozenset().union(*(consequences(values, key) for key in compared)) - self.steps
        return sources_first(self._sources, found)

    def computed(self, key: str) -> Computed | None:
        """Returns how a value is computed; None where the dump does not have it."""
        if key not in self._computed:
            value = self._tensors.tensor(key)
            known = ((each, self._tensors.tensor(each)) for each in dict.fromkeys(self._sources.get(key, ())))
            reads = {each: tensor for each, tensor in known if tensor is not None}
            made = None if value is None else self._formula(key, list(reads.values()), value)
            self._computed[key] = None if value is None else Computed(value, (*reads,), (*reads.values(),), made)
        return self._computed[key]

    def _formula(self, key: str, reads: Sequence[Array], value: Array) -> Formula | None:
        """Returns the formula of a step, and looks for none in a loop whose steps of that name had none."""
        name = without_iterations(key)
        if self._unknown[name] >= _MOST_UNKNOWN:
            return None
        found = formula_of(reads, value)
        self._unknown[name] += found is None and name != key
        return found

    def unexplained(self, replaced: Mapping[str, Formula]) -> float:
        """Returns how far what follows from other formulas is from what the other program has, as a relative error.

        It is infinite where the other program is known to have anything else, or not to differ by what follows, and
        where too much was computed already.

        Args:
            replaced: The formulas, by the keys of the steps that they replace.
        """
        made: dict[str, Array] = {}
        unknown: set[str] = set()
        largest = 0.0
        shown = False
        for key in self.keys:
            step = self.computed(key)
            formula = None if step is None else step.formula
            if step is None or formula is None:
                if unknown.union(made).intersection(self._sources.get(key, ())):
                    unknown.add(key)
                continue
            used = {step.sources[at] for at in formula.uses}
            if unknown & used:
                unknown.add(key)
            if key in unknown or not (key in replaced or made.keys() & used):
                continue
            self._left -= sum(each.size for each in step.reads)
            if self._left < 0:
                return math.inf
            reads = zip(step.sources, step.reads, strict=True)
            found = replaced.get(key, formula).apply([made.get(source, own) for source, own in reads])
            if found.size != step.value.size or not np.isfinite(found).all():
                return math.inf
            found = found.reshape(step.value.shape)
            error, differs = self._error(key, step.value, found)
            if error > self._reproduced:
                return math.inf
            largest, shown = max(largest, error), shown or differs
            if self._pair(key) is None:
                made[key] = found
        return largest if shown else math.inf

    def _error(self, key: str, own: Array, found: Array) -> tuple[float, bool]:
        """Returns the error of a value in place of one's own, and whether it explains that the other program differs.

        Where it is not known what the other program has, the error is 0, and nothing is explained.
        """
        pair = self._pair(key)
        if pair is not None:
            return _error_of(pair.own, pair.other, found)
        for each in self._recovered:
            places = each.places(own)
            if places is not None:
                where, alone = places
                return _error_of(own.ravel()[alone], each.other.ravel()[where], found.ravel()[alone])
        return 0.0, False

    @cached_property
    def _recovered(self) -> Sequence[Recovered]:
        """What is recovered of what the layer of the divergence reads, and its output."""
        return list(self._pairs.of(self._output, self._layer))

    def _pair(self, key: str) -> Recovered | None:
        if key not in self._others:
            self._others[key] = self._pairs.pair(key)
        return self._others[key]


def _is_value(key: str) -> bool:
    return split_key(key)[0] == ACTIVATION


def _error_of(own: Array, other: Array, found: Array) -> tuple[float, bool]:
    """Returns the relative error of a value, and whether it explains a difference from one's own."""
    norm, difference, left = map(norm_of, (other, own - other, found - other))
    error = left / norm if norm else math.inf if left else 0.0
    return error, left <= _LEFT * difference and difference > 0 and own.size >= _FEWEST
