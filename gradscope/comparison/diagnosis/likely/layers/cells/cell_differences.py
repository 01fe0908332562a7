"""`CellDifferences` tells in what two recurrent layers differ: a gate, a function, a bias, a direction, a state.

The layer of one program is computed from its weights and what it reads. Where one form of it is what that program has,
and another one what the other program has, that is how they differ: nothing else makes the same sequence of states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.likely.layers.cells.forms import Form, Kind, difference, other_forms, usual_form
from gradscope.comparison.diagnosis.likely.layers.cells.recurrent_cells import (
    RecurrentLayer,
    Runs,
    is_recurrent,
    recurrent_layer,
)
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, INPUT, key_of, split_key

#: The relative error up to which a value is that of a layer.
_ROUNDING: Final = 2e-5

#: The most examples that are computed, steps, and products for one form.
_MOST_EXAMPLES: Final = 4
_MOST_STEPS: Final = 1 << 10
_MOST_PRODUCTS: Final = 1 << 26

#: The fewest steps that tell another state at the beginning.
_FEWEST_STEPS: Final = 4

#: The facts of a form by which a right layer has values beside its output, or before it turns that.
_OF_STEPS: Final = frozenset(("reversed", "cell_state"))

#: The facts of a form that are the same where a bias is zero.
_OF_BIASES: Final = frozenset(("input_bias", "recurrent_bias", "state_bias"))


class CellDifferences:
    """CellDifferences finds in what the layer that one program has differs from that of the other.

    Args:
        source: The dump of the program.
        other: The dump of the other one.
        of_ref: Whether the program is the reference.
    """

    def __init__(self, source: DumpSource, other: DumpSource, *, of_ref: bool) -> None:
        self._layers, self._of_ref = source.manifest.layers, of_ref
        self._own, self._other, self._keys = FloatTensors(source), FloatTensors(other), [*other.keys()]
        recurrent = (each for each in source.manifest.layers if is_recurrent(each))
        self._makers = {name: each for each in recurrent for name in each.outputs}
        self._sources = sources_of(self._layers)

    @classmethod
    def of_both(cls, dumps: Dumps) -> tuple[CellDifferences, CellDifferences]:
        """Returns those of the reference's layers, and of the candidate's.

        Args:
            dumps: The dumps.
        """
        return cls(dumps.ref, dumps.cand, of_ref=True), cls(dumps.cand, dumps.ref, of_ref=False)

    def words(self, key: str, value: Array | None = None) -> str:
        """Returns what the value is in both programs, as `of a GRU that in the candidate ...`; "" if not known.

        Args:
            key: The key of the layer's output in the program that has the layer.
            value: What the other program has for it, in its layout; None to look for that by the values.
        """
        if (layer := self._makers.get(split_key(key)[1])) is None:
            return ""
        outputs = dict.fromkeys((key, *(key_of(ACTIVATION, name) for name in layer.outputs)))
        # One of several layers may be paired by its name with the first of those. One may return its last states alone.
        with np.errstate(all="ignore"):  # forms are tried that may overflow
            found = "" if value is None else self._words(key, [value])
            return found or next(filter(None, (self._words(each, None) for each in outputs)), "")

    def _words(self, key: str, others: Sequence[Array] | None) -> str:
        own, layer = self._own.tensor(key), self._makers[split_key(key)[1]]
        recurrent = recurrent_layer(layer, self._own)
        if recurrent is None or own is None or own.ndim not in (2, 3):
            return ""
        searched = self._candidates(own, len(recurrent.cells[-1])) if others is None else others
        for read, steps in itertools.product(self._reads(layer, key, recurrent), (0, 1) if own.ndim > 2 else (0,)):
            told = _Compared.of(recurrent, read, own, searched, steps)
            if told and (one := told.own_form()):
                return self._told(recurrent.kind, told.difference(one, frozenset() if others else _OF_STEPS))
        return ""

    def _told(self, kind: Kind, difference: _Difference | None) -> str:
        if difference is None:
            return ""
        ref, cand = (difference.own, difference.its)[:: 1 if self._of_ref else -1]
        article = "a" if kind == "GRU" else "an"
        words = f"{difference.verb} {cand}{difference.where}, and in the reference {ref}"
        return f"of {article} {kind} that in the candidate {words}"

    def _reads(self, layer: Layer, key: str, recurrent: RecurrentLayer) -> Iterator[Array]:
        """Yields what the layer may read: what is stated, else every value before it that has as many features."""
        width = recurrent.cells[0][0].inputs.shape[-1]
        read = [*self._own.read_by(layer)]
        if not read:
            keys = [each for each in self._sources.get(key, ()) if split_key(each)[0] in (ACTIVATION, INPUT)]
            read = [each for each in map(self._own.tensor, keys) if each is not None]
        yield from (each for each in read if each.ndim in (2, 3) and each.shape[-1] == width)

    def _candidates(self, own: Array, directions: int) -> list[Array]:
        """Returns the values of the other program that may be what it has in the place of the layer's output."""
        keys = [each for each in self._keys if split_key(each)[0] == ACTIVATION]
        sizes = dict.fromkeys((own.size, own.size // directions))
        return [each for size in sizes for each in self._other.of_size(keys, size)]


class _Difference(NamedTuple):
    """_Difference has what a layer does otherwise than the other program's, and how in both, in words.

    Attributes:
        verb: What it does.
        own: How its program does.
        its: How the other one does.
        where: In which of its parts; "" for all.
    """

    verb: str
    own: str
    its: str
    where: str = ""


class _Compared(NamedTuple):
    """_Compared has what a layer reads and makes, and what the other program may have for that.

    Attributes:
        layer: The layer.
        read: What it reads, of shape `[steps, examples, inputs]`.
        runs: What it makes of that by other forms.
        own: What each of its directions makes, of shape `[steps, examples, states]`.
        others: What the other program may have for that of each.
    """

    layer: RecurrentLayer
    read: Array
    runs: Runs
    own: Sequence[Array]
    others: Sequence[Sequence[Array]]

    @classmethod
    def of(
        cls, layer: RecurrentLayer, read: Array, own: Array, others: Iterable[Array], steps: int
    ) -> _Compared | None:
        """Returns the values by their steps; None where they are too many, or are not those of one sequence.

        Args:
            layer: The layer.
            read: What it reads, of shape `[steps, inputs]`, or with an axis of examples before or behind the steps.
            own: What it makes.
            others: What the other program may have for that.
            steps: The axis of the steps.
        """
        if own.ndim == 2:
            read, own = read[:, None] if read.ndim == 2 else read, own[:, None]
            others = [each[:, None] if each.ndim == 2 else each for each in others]
        if read.ndim != 3 or read.shape[:2] != own.shape[:2]:
            return None
        directions, width = len(layer.cells[-1]), layer.cells[-1][0].states.shape[-1]
        read, own = (np.moveaxis(each, steps, 0) for each in (read, own))
        count, examples = own.shape[:2]
        products = count * sum(cell.inputs.size + cell.states.size for cells in layer.cells for cell in cells)
        kept = min(_MOST_EXAMPLES, examples, _MOST_PRODUCTS // max(1, products))
        if own.shape[-1] != directions * width or not 1 < count <= _MOST_STEPS or not kept:
            return None
        found: list[list[Array]] = [[] for _ in range(directions)]
        for each in others:
            for axis in (0, 1):
                moved = np.moveaxis(each, axis, 0) if each.ndim == 3 else each
                if moved.shape[:2] != (count, examples) or moved.ndim != 3:
                    continue
                moved, parts = moved[:, :kept], moved.shape[-1] // width
                if moved.shape[-1] == own.shape[-1]:
                    for at, part in enumerate(np.split(moved, parts, -1)):
                        found[at].append(part)
                elif moved.shape[-1] == width:
                    for part in found:
                        part.append(moved)
        read = read[:, :kept]
        return cls(layer, read, Runs(layer, read), np.split(own[:, :kept], directions, -1), found)

    @property
    def backwards(self) -> bool:
        """Whether one of the directions runs from the end."""
        return len(self.own) > 1

    def own_form(self) -> Form | None:
        """Returns the form of all cells of the layer; None where none is known, or several are that are not usual."""
        if self._is_own(usual := usual_form(self.layer.kind)):
            return usual
        others = other_forms(self.layer.kind, usual, backwards=self.backwards)
        found = list(itertools.islice(filter(self._is_own, others), 2))
        return found[0] if len(found) == 1 else None

    def _is_own(self, form: Form) -> bool:
        made = self.runs.outputs(dict.fromkeys(self._places(), form))
        return made is not None and all(itertools.starmap(_near, zip(made, self.own, strict=True)))

    def difference(self, own: Form, besides: frozenset[str]) -> _Difference | None:
        """Returns what the layer does otherwise; None where that is not clear.

        Args:
            own: Its form.
            besides: The facts in which it is not looked for.
        """
        if self._has(self.own):  # it is right, and what differs is made of it
            return None
        found: list[tuple[int, str, _Difference]] = []
        for where, places in self._scopes():
            for form in other_forms(self.layer.kind, own, backwards=self.backwards):
                fact, verb, one, other = difference(self.layer.kind, own, form)
                if fact in besides:
                    continue
                forms = {place: form if place in places else own for place in self._places()}
                if self._has(self.runs.outputs(forms)):
                    found.append((len(places), fact, _Difference(verb, one, other, where)))
        found += ((0, "weights", each) for each in self._other_weights(own))
        facts = {fact for _, fact, _ in found}
        if len({each[:3] for _, _, each in found}) == 1 or (found and facts <= _OF_BIASES):
            return min(found)[2]
        return None if found or self.layer.kind == "LSTM" or len(self.layer.cells) > 1 else self._by_steps(own)

    def _other_weights(self, own: Form) -> Iterator[_Difference]:
        """Yields which direction has the weights of the other."""
        for places in ((0, 0), (1, 1)) if self.backwards else ():
            layer = self.layer._replace(cells=[[cells[at] for at in places] for cells in self.layer.cells])
            if self._has(Runs(layer, self.read).outputs(dict.fromkeys(self._places(), own))):
                where = _in_direction(1 - places[0])
                yield _Difference("uses", "its own", "the weights of the other direction", where)

    def _by_steps(self, own: Form) -> _Difference | None:
        """Returns that steps are right, each for itself, where the first or some are not."""
        told: list[_Difference] = []
        for direction, (value, others) in enumerate(zip(self.own, self.others, strict=True)):
            if any(_near(value, each) for each in others):
                continue
            order = slice(None, None, -1 if direction else 1)
            found = [self._of_steps(own, direction, each[order], self.read[order]) for each in others]
            words = next(filter(None, found), None)
            if words is None:
                return None
            told.append(words._replace(where=_in_direction(direction) if self.backwards else ""))
        if len(told) > 1:
            return told[0]._replace(where="") if len({each[:3] for each in told}) == 1 else None
        return next(iter(told), None)

    def _of_steps(self, form: Form, direction: int, value: Array, read: Array) -> _Difference | None:
        """Returns which steps of a value do not follow from those before them."""
        made = self.layer.next_states(read, value, direction, form)
        size = np.linalg.norm(value) / np.sqrt(value.size / value.shape[-1])
        wrong = ~(np.linalg.norm(made - value, axis=-1) <= _ROUNDING * size)
        if len(value) >= _FEWEST_STEPS and wrong[0].any() and not wrong[1:].any():
            return _Difference("begins", "with zeros", "with another state")
        held = (value == np.concatenate([np.zeros_like(value[:1]), value[:-1]])).all(-1)
        if (wrong & ~held).any() or not 0 < wrong.sum() < wrong.size / 2:
            return None
        return _Difference("keeps its state", "at none", "at some steps of some examples, as behind their lengths")

    def _has(self, made: Sequence[Array] | None) -> bool:
        """Returns whether the other program has what each direction makes."""
        pairs = [] if made is None else [*zip(made, self.others, strict=True)]
        return bool(pairs) and all(any(_near(each, other) for other in others) for each, others in pairs)

    def _places(self) -> list[tuple[int, int]]:
        return [(layer, at) for layer, cells in enumerate(self.layer.cells) for at in range(len(cells))]

    def _scopes(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Yields which cells may be of another form, with where they are in words."""
        places, seen = self._places(), set[tuple[tuple[int, int], ...]]()
        layers = [None, *range(len(self.layer.cells))]
        for layer, direction in itertools.product(layers, (None, *range(len(self.own)))):
            some = [(of, at) for of, at in places if layer in (None, of) and direction in (None, at)]
            if tuple(some) not in seen:
                seen.add(tuple(some))
                of_layer = "" if layer is None else f" in layer {layer}"
                yield of_layer + ("" if direction is None else _in_direction(direction)), some


def _in_direction(direction: int) -> str:
    return " in the direction from the end" if direction else " in the direction from the beginning"


def _near(one: Array, other: Array) -> bool:
    return bool(np.linalg.norm(one - other) <= _ROUNDING * np.linalg.norm(other))
