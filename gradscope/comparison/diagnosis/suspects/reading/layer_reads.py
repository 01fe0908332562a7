"""`LayerReads` tells in words what a layer reads otherwise than its counterpart, by its output and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from gradscope.comparison.diagnosis.likely.layers.computed_dtypes import MOST_ROUNDED
from gradscope.comparison.diagnosis.likely.layers.functions.divided_rows import divided_rows
from gradscope.comparison.diagnosis.likely.layers.functions.function_differences import possible_functions
from gradscope.comparison.diagnosis.likely.layers.functions.possible_functions import Both, PossibleFunctions
from gradscope.comparison.diagnosis.likely.layers.kernels.part_orders import order_of_parts, users_of
from gradscope.comparison.diagnosis.step_kinds import have_same_elements
from gradscope.comparison.diagnosis.suspects.reading.kinds.joined_reads import joined_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_powers import FunctionRead, function_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_proofs import (
    multiplies_another,
    normalises_another,
    order_of_channels,
)
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_sums import multiples, sum_in_words
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered, RecoveredValues
from gradscope.comparison.diagnosis.suspects.reading.shown_reads import ShownReads
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.layout.layouts import plainly_arranged
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.precision import coarser, machine_epsilon
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, PARAM, PARAM_GRAD, key_of, printable, split_key

#: The largest relative error of recovered values that agree.
_AGREE: Final = 1e-3

#: How it ends that a step differs which no program has an entry for.
NO_ENTRY: Final = "that neither program has an entry for"

#: The most elements of a value of which products are tried.
_MOST_ELEMENTS: Final = 1 << 17


class LayerReads:
    """LayerReads tells what the layer of one program reads otherwise than its counterpart, by what is recovered.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        key: The key of the output in the program.
        of_ref: Whether it is the reference.

    Attributes:
        read: The keys of the values that the layer reads, in the program.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, key: str, *, of_ref: bool) -> None:
        source = dumps.ref if of_ref else dumps.cand
        self._layers, names = source.manifest.layers, frozenset(source.keys())
        self._users = users_of(dumps.cand.manifest.layers)
        self._key, self._of_ref, self._matches = key, of_ref, pairing.matched
        self._layer = makers_of(self._layers).get(split_key(key)[1])
        self._pairs = RecoveredValues(dumps, pairing, of_ref=of_ref)
        sources = sources_of(self._layers).get(key, ())
        self.read = [each for each in sources if each in names and split_key(each)[0] in (ACTIVATION, INPUT)]

    @classmethod
    def of_both(cls, dumps: Dumps, pairing: Pairing, match: Match) -> tuple[LayerReads, LayerReads]:
        """Returns what the layers of the reference and of the candidate read, given the pair of their outputs."""
        return cls(dumps, pairing, match.ref, of_ref=True), cls(dumps, pairing, match.cand, of_ref=False)

    def looks_up(self) -> bool:
        """Returns whether the layer reads tokens: which rows of a table it adds up, it decides by itself."""
        return any(map(self._pairs.is_integer, self.read))

    def functions(self) -> str:
        """Returns which functions of a value the layer reads in both programs, in words; "" if not others."""
        shown = self._shown()
        if shown is None:
            return ""
        for possible in self._possible(shown):
            if found := shown.functions(possible):
                own, other = found if self._of_ref else found[::-1]
                return f"which reads {possible.phrase(own)}, and in the candidate {other}"
        return ""

    def turned(self) -> str:
        """Returns along which axes only one of the programs reads a value otherwise, in words; "" along none.

        Images may have their channels in another order than their reader was made for, or rows for columns.
        """
        pairs, shown = [self._pairs.pair(key) for key in self.read], self._shown()
        if shown is None or len(pairs) != 1 or pairs[0] is None or not _agree(pairs[0]):
            return ""
        if (found := shown.turned(pairs[0])) is None:
            return ""
        name, whose = f"`{self._name(self.read[0])}`", self._whose(self.read[0])
        told, its = (f"{name} {words}{whose}" if words else name for words in (found if self._of_ref else found[::-1]))
        return f"which reads {told}, and in the candidate {its}"

    def _shown(self) -> ShownReads | None:
        """Returns what shows which values the layer reads; None where nothing does."""
        value = self._pairs.pair(self._key)
        arriving = self._pairs.pair(key_of(ACTIVATION_GRAD, split_key(self._key)[1]))
        if self._layer is None or value is None or arriving is None:
            return None
        found = (self._pairs.pair(key_of(PARAM_GRAD, name)) for name in self._layer.params)
        return ShownReads([*filter(None, found)], value, arriving)

    def _possible(self, shown: ShownReads) -> Iterator[PossibleFunctions]:
        """Yields the functions of what the layer can read that it may read, if that agrees."""
        pairs = [self._pairs.pair(key) for key in self.read]
        known = [Both(*pair) for pair in pairs if pair is not None and _agree(pair)]
        if known and len(known) == len(pairs):
            yield from possible_functions(known, [f"`{self._name(key)}`" for key in self.read], shown.shape)

    def joined(self) -> str:
        """Returns as which channels the layer reads a value in both programs, in words; "" if not as others."""
        value, *read = map(self._pairs.pair, (self._key, *self.read))
        arriving = self._pairs.pair(key_of(ACTIVATION_GRAD, split_key(self._key)[1]))
        if self._layer is None or value is None or arriving is None:
            return ""
        known = [(f"`{self._name(key)}`", pair) for key, pair in zip(self.read, read, strict=True) if pair is not None]
        named = [(name, pair.own) for name, pair in known if _agree(pair)]
        gradients = (self._pairs.pair(key_of(PARAM_GRAD, name)) for name in self._layer.params)
        if not named or (found := joined_read(named, value, arriving, [*filter(None, gradients)])) is None:
            return ""
        words, own, other = found if self._of_ref else (found[0], *found[:0:-1])
        return f"which reads {words} as {own}, and in the candidate as {other}"

    def _whose(self, key: str) -> str:
        """Returns whose axes are meant of a value of the reference, in words; "" where both programs have the same."""
        same = any(key == each.ref and each.recipe.as_stored for each in self._matches)
        return "" if same else " of the reference"

    def terms(self) -> str:
        """Returns of what multiples of the values that it reads the value is the sum, in words; "" if of the same.

        Terms of the reference that are scaled in the candidate say which code is at fault, as where a residual stream
        begins with another multiple of the embedding.
        """
        value, read = self._pairs.pair(self._key), [self._pairs.pair(key) for key in self.read]
        known = [pair for pair in read if pair is not None and _agree(pair)]
        if value is None or len(known) < max(2, len(read)):
            return ""
        sides = [[plainly_arranged(pair[side], value.own.shape) for pair in known] for side in (0, 1)]
        terms = [[each for each in side if each is not None] for side in sides]
        if any(len(each) < len(known) for each in terms):
            return ""
        own, other = multiples(value.own, terms[0]), multiples(value.other, terms[1])
        if own is None or other is None or np.allclose(own, other, rtol=_AGREE, atol=0.0):
            return ""
        names = [f"`{self._name(key)}`" for key in self.read]
        return f"which adds up {sum_in_words(own, names)}, and in the candidate {sum_in_words(other, names)}"

    def powers(self, other: LayerReads) -> str:
        """Returns which functions of one value the layers read by their powers, in words; "" if not others."""
        one, two = self._function(), other._function()
        if one is None or two is None or not one.is_other_than(two):
            return ""
        return f"which reads the {one.words} of `{self._name(self.read[0])}`, and in the candidate the {two.words}"

    def _function(self) -> FunctionRead | None:
        """Returns which function of the one value that the layer can read it reads; None where that is not known."""
        read = self._pairs.pair(self.read[0]) if len(self.read) == 1 else None
        if self._layer is None or read is None or not _agree(read):
            return None
        return function_read(self._layers, self._layer, read.own)

    def _name(self, key: str) -> str:
        """Returns the name of a value in the reference."""
        match = next((each for each in self._matches if not self._of_ref and key in each.recipe.keys), None)
        return printable(split_key(key if match is None else match.ref)[1])

    def recovered(self) -> str:
        """Returns in words that what the layer reads differs, as far as it is recovered; "" where it does not."""
        if not all(map(_agree, filter(None, map(self._pairs.pair, self.read)))):
            return ""  # no step is needed where an input differs that both programs are given
        found = [] if self._layer is None else list(islice(self._pairs.of(self._key, self._layer), 1, None))
        if self._layer is None or not found or any(_agree(each) for each in found):
            return ""
        if any(_is_multiple(each) for each in found):  # the layer may as well multiply its product
            return ""
        if any(have_same_elements(each.other, each.own) for each in found):
            return "in the order of the elements that it reads, as where axes are flattened or moved in another order"
        sides = (each if self._of_ref else each[::-1] for each in found)
        if words := next(filter(None, (divided_rows(*each) for each in sides)), ""):
            return f"in what it reads, which {words}"
        return self._in_a_step(self._layer)

    def stated(self, other: LayerReads) -> str:
        """Returns in words that what the layer reads differs, by the power of that; "" where it does not.

        Only a layer of the same path and parameters begins with the same step.
        """
        own, its = self._layer, other._layer
        if own is None or its is None or (own.path, own.params) != (its.path, its.params):
            return ""
        pairs = [self._pairs.pair(key) for key in self.read]
        if not all(pair is not None and _agree(pair) for pair in pairs) or "in" not in own.rms or "in" not in its.rms:
            return ""
        differs = abs(its.rms["in"] - own.rms["in"]) > _AGREE * own.rms["in"]
        return self._in_a_step(own) if differs and own.elements.get("in") == its.elements.get("in") else ""

    def shown(self) -> str:
        """Returns in words that what the layer reads differs, as it is right itself; "" where it may be at fault."""
        value, *read = map(self._pairs.pair, (self._key, *self.read))
        if self._layer is None or value is None or not self._is_in_one_order(self._layer):
            return ""
        if not all(pair is not None and _agree(pair) for pair in read):
            return ""
        params = [self._pairs.pair(key_of(PARAM, name)) for name in self._layer.params]
        known = [pair for pair in params if pair is not None and _agree(pair)]
        if len(known) == len(params):
            if order := order_of_channels(value if self._of_ref else Recovered(*value[::-1]), known):
                return f"in what it reads, {order}"
            if normalises_another(value, known):
                return self._in_a_step(self._layer)
        arriving = self._pairs.pair(key_of(ACTIVATION_GRAD, split_key(self._key)[1]))
        gradients = [*filter(None, (self._pairs.pair(key_of(PARAM_GRAD, name)) for name in self._layer.params))]
        single = read[0] if len(read) == 1 else None
        if arriving is None or single is None or single.own.size > _MOST_ELEMENTS:
            return ""
        return self._in_a_step(self._layer) if multiplies_another(single, value, arriving, known, gradients) else ""

    def digits(self, other: LayerReads) -> str:
        """Returns in words which program computes in fewer digits before the layer; "" where that does not explain it.

        Args:
            other: What the layer of the other program reads.
        """
        pair = self._pairs.pair(self._key)
        ref, cand = (each.narrowest for each in ((self, other) if self._of_ref else (other, self)))
        if pair is None or ref == cand:
            return ""
        narrow = coarser(ref or "float32", cand or "float32")
        if _error(pair) > MOST_ROUNDED * machine_epsilon(narrow):
            return ""
        return f"which is computed in {narrow} in the {'reference' if narrow == ref else 'candidate'}"

    @property
    def narrowest(self) -> str | None:
        """The dtype of the fewest digits in the layer around this one and what it reads; None where these are usual."""
        around = "" if self._layer is None else _around(self._layers, self._layer, self.read)
        return next((each.narrowest for each in self._layers if each.path == around), None)

    def _is_in_one_order(self, layer: Layer) -> bool:
        """Returns whether queries, keys and values that are packed otherwise are so in all tensors of a layer."""
        keys = {self._key, *(key_of(PARAM, name) for name in layer.params)}
        own = (each for each in self._matches if not keys.isdisjoint((each.ref,) if self._of_ref else each.recipe.keys))
        return len({order_of_parts(each, self._users) for each in own}) < 2

    def _in_a_step(self, layer: Layer) -> str:
        around = _around(self._layers, layer, self.read)
        step = f"a step of `{printable(around)}`" if around else "a step"
        return f"in what it reads: {step} {NO_ENTRY}"


def _around(layers: Sequence[Layer], layer: Layer, read: Sequence[str]) -> str:
    """Returns the path of the innermost layer around a layer and around all that make what it reads; "" for none.

    What programs are given, such as a mask, is made in no layer.
    """
    parents = {each.path: each.parent for each in layers}
    makers = {key_of(ACTIVATION, name): each.path for each in layers for name in each.outputs}

    def outwards(path: str | None) -> Iterator[str]:
        while path is not None:
            yield path
            path = parents.get(path)

    others = [{*outwards(makers.get(key))} for key in read if split_key(key)[0] != INPUT]
    around = islice(outwards(layer.path), 1, None)
    return next((each for each in around if others and all(each in paths for paths in others)), "")


def _agree(pair: Recovered) -> bool:
    return _error(pair) <= _AGREE


def _error(pair: Recovered) -> float:
    difference, own = (float(np.linalg.norm(each)) for each in (pair.other - pair.own, pair.own))
    return difference / own if own else math.inf if difference else 0.0


def _is_multiple(pair: Recovered) -> bool:
    factor = np.vdot(pair.own, pair.other) / max(float(np.vdot(pair.own, pair.own)), 1e-300)
    return bool(np.linalg.norm(pair.other - factor * pair.own) <= _AGREE * np.linalg.norm(pair.other))
