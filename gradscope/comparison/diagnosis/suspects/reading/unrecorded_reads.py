"""`unrecorded_read` tells that a layer reads another value than its counterpart, where neither program has one for it.

Programs without a scope around an attention, or around an activation function, have nothing between two layers. Then
what the layer behind reads shows where the difference is made: it is recovered of both programs (`recovered_values`),
or it is a function of what both programs have before, which the gradient of the kernel shows (`correlations`), or the
root mean square of what the layer reads (`read_powers`), or a sum of multiples of such values, or an attention of them
(`attentions`). Where the layer is the
same in both programs, or is right in both (`read_proofs`), that alone shows that it reads another value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.correlations import KernelForm, forms, gradient_error
from gradscope.comparison.diagnosis.step_kinds import have_same_elements, orders
from gradscope.comparison.diagnosis.suspects.reading.attentions.attention_reads import attention_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.gated_reads import GatedRead, gated_reads
from gradscope.comparison.diagnosis.suspects.reading.kinds.looked_up_rows import rows_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_powers import FunctionRead, function_read
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_proofs import multiplies_another, normalises_another
from gradscope.comparison.diagnosis.suspects.reading.kinds.read_sums import multiples, sum_in_words
from gradscope.comparison.diagnosis.suspects.reading.kinds.token_sequences import sequence_read
from gradscope.comparison.diagnosis.suspects.reading.other_sources import other_source
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered, RecoveredValues
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.layout.layouts import plainly_arranged
from gradscope.comparison.layout.recipe_steps import Reorder
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, PARAM, PARAM_GRAD, key_of, printable, split_key

#: The relative error up to which a gradient is made of what is read.
_FITS: Final = 1e-4

#: The largest relative error of recovered values that agree.
_AGREE: Final = 1e-3

#: The most elements of a value of which functions are tried, and of products that each of them takes.
_MOST_ELEMENTS: Final = 1 << 17
_MOST_PRODUCTS: Final = 1 << 26


def unrecorded_read(dumps: Dumps, pairing: Pairing, key: str) -> str:
    """Returns what a layer reads of which no program has an entry, in words; "" where that is not known to differ.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        key: The key of the output of the layer in the reference, which differs.
    """
    match = next((each for each in pairing.matched if each.ref == key), None)
    if match is None:
        return ""
    if words := other_source(dumps, pairing, match):
        return words
    sides = [_Side(dumps, pairing, match.ref, of_ref=True), _Side(dumps, pairing, match.cand, of_ref=False)]
    # A capture of PyTorch does not state what a layer reads: the other program may.
    words = (words for side in sides for words in (side.functions(),) if words)
    found = next(words, None) or sides[0].turned() or sides[0].terms() or sides[0].powers(sides[1])
    found = found or attention_read(dumps, pairing, match) or sequence_read(dumps, pairing, match)
    found = found or rows_read(dumps, pairing, match)
    if found or any(side.looks_up() for side in sides):
        return found
    found = sides[0].recovered() or sides[1].recovered() or sides[0].stated(sides[1])
    return found or sides[0].shown() or sides[1].shown()


class _Side:
    """_Side has the layer of one program whose output differs.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        key: The key of the output in the program.
        of_ref: Whether it is the reference.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, key: str, *, of_ref: bool) -> None:
        source = dumps.ref if of_ref else dumps.cand
        self._layers, names = source.manifest.layers, frozenset(source.keys())
        self._key, self._of_ref, self._matches = key, of_ref, pairing.matched
        self._layer = makers_of(self._layers).get(split_key(key)[1])
        self._pairs = RecoveredValues(dumps, pairing, of_ref=of_ref)
        sources = sources_of(self._layers).get(key, ())
        self._read = [each for each in sources if each in names and split_key(each)[0] in (ACTIVATION, INPUT)]

    def looks_up(self) -> bool:
        """Returns whether the layer reads tokens: which rows of a table it adds up, it decides by itself."""
        return any(map(self._pairs.is_integer, self._read))

    def functions(self) -> str:
        """Returns which functions of a value the layer reads in both programs, in words; "" if not others."""
        value, arriving = (
            self._pairs.pair(self._key),
            self._pairs.pair(key_of(ACTIVATION_GRAD, split_key(self._key)[1])),
        )
        if self._layer is None or value is None or arriving is None:
            return ""
        gradients = [*filter(None, (self._pairs.pair(key_of(PARAM_GRAD, name)) for name in self._layer.params))]
        for read in self._gated():
            for gradient, form in _near(gradients, read.argument, value):
                own = _fitting(form, read.functions(of_own=True), arriving.own, gradient.own)
                functions = read.functions(of_own=False) if own else ()
                other = _fitting(form, functions, arriving.other, gradient.other)
                if other and not {*own} & {*other}:
                    one, two = (own[0], other[0]) if self._of_ref else (other[0], own[0])
                    return read.clause(one, two)
        return ""

    def turned(self) -> str:
        """Returns along which axis only one of the programs reads a value in reverse, in words; "" along none.

        Images may have their channels in another order than their reader was made for.
        """
        value, arriving, *read = map(
            self._pairs.pair, (self._key, key_of(ACTIVATION_GRAD, split_key(self._key)[1]), *self._read)
        )
        known = [pair for pair in read if pair is not None and _agree(pair)]
        if self._layer is None or value is None or arriving is None or len(read) != 1 or not known:
            return ""
        gradients = [*filter(None, (self._pairs.pair(key_of(PARAM_GRAD, name)) for name in self._layer.params))]
        ways = {f"in reverse along the axis {axis}{self._whose(self._read[0])}": axis
                for axis, size in enumerate(known[0].own.shape) if axis and size > 1}  # fmt: skip
        own, other = (
            {"": known[0][side], **{words: np.flip(known[0][side], axis) for words, axis in ways.items()}}
            for side in (0, 1)
        )
        for gradient, form in _near(gradients, known[0], value):
            one = _fitting(form, own.items(), arriving.own, gradient.own)
            two = _fitting(form, other.items(), arriving.other, gradient.other)
            if len(one) == len(two) == 1 and one != two:
                name = f"`{self._name(self._read[0])}`"
                told, its = (f"{name} {words}".rstrip() for words in (one[0], two[0]))
                return f"which reads {told}, and in the candidate {its}"
        return ""

    def _whose(self, key: str) -> str:
        """Returns whose axes are meant of a value of the reference, in words; "" where both programs have the same."""
        same = any(key == each.ref and each.recipe.as_stored for each in self._matches)
        return "" if same else " of the reference"

    def _gated(self) -> Iterator[GatedRead]:
        """Yields what the layer may read of the values that it can read, if they agree."""
        pairs = [self._pairs.pair(key) for key in self._read]
        known = [pair for pair in pairs if pair is not None and _agree(pair)]
        if len(known) == len(pairs):
            yield from gated_reads(known, [f"`{self._name(key)}`" for key in self._read])

    def terms(self) -> str:
        """Returns of what multiples of the values that it reads the value is the sum, in words; "" if of the same.

        Terms of the reference that are scaled in the candidate say which code is at fault, as where a residual stream
        begins with another multiple of the embedding.
        """
        value, read = self._pairs.pair(self._key), [self._pairs.pair(key) for key in self._read]
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
        names = [f"`{self._name(key)}`" for key in self._read]
        return f"which adds up {sum_in_words(own, names)}, and in the candidate {sum_in_words(other, names)}"

    def powers(self, other: _Side) -> str:
        """Returns which functions of one value the layers read by their powers, in words; "" if not others."""
        one, two = self._function(), other._function()
        if one is None or two is None or not one.is_other_than(two):
            return ""
        return f"which reads the {one.words} of `{self._name(self._read[0])}`, and in the candidate the {two.words}"

    def _function(self) -> FunctionRead | None:
        """Returns which function of the one value that the layer can read it reads; None where that is not known."""
        read = self._pairs.pair(self._read[0]) if len(self._read) == 1 else None
        if self._layer is None or read is None or not _agree(read):
            return None
        return function_read(self._layers, self._layer, read.own)

    def _name(self, key: str) -> str:
        """Returns the name of a value in the reference."""
        match = next((each for each in self._matches if not self._of_ref and key in each.recipe.keys), None)
        return printable(split_key(key if match is None else match.ref)[1])

    def recovered(self) -> str:
        """Returns in words that what the layer reads differs, as far as it is recovered; "" where it does not."""
        if not all(map(_agree, filter(None, map(self._pairs.pair, self._read)))):
            return ""  # no step is needed where an input differs that both programs are given
        found = [] if self._layer is None else list(islice(self._pairs.of(self._key, self._layer), 1, None))
        if self._layer is None or not found or any(_agree(each) for each in found):
            return ""
        if any(_is_multiple(each) for each in found):  # the layer may as well multiply its product
            return ""
        if any(have_same_elements(each.other, each.own) for each in found):
            return "in the order of what it reads"
        return self._in_a_step(self._layer)

    def stated(self, other: _Side) -> str:
        """Returns in words that what the layer reads differs, by the power of that; "" where it does not.

        Only a layer of the same path and parameters begins with the same step.
        """
        own, its = self._layer, other._layer
        if own is None or its is None or (own.path, own.params) != (its.path, its.params):
            return ""
        pairs = [self._pairs.pair(key) for key in self._read]
        if not all(pair is not None and _agree(pair) for pair in pairs) or "in" not in own.rms or "in" not in its.rms:
            return ""
        differs = abs(its.rms["in"] - own.rms["in"]) > _AGREE * own.rms["in"]
        return self._in_a_step(own) if differs and own.elements.get("in") == its.elements.get("in") else ""

    def shown(self) -> str:
        """Returns in words that what the layer reads differs, as it is right itself; "" where it may be at fault."""
        value, *read = map(self._pairs.pair, (self._key, *self._read))
        if self._layer is None or value is None or not self._is_in_one_order(self._layer):
            return ""
        if not all(pair is not None and _agree(pair) for pair in read):
            return ""
        params = [self._pairs.pair(key_of(PARAM, name)) for name in self._layer.params]
        known = [pair for pair in params if pair is not None and _agree(pair)]
        if known and len(known) == len(params) and normalises_another(value, known):
            return self._in_a_step(self._layer)
        arriving = self._pairs.pair(key_of(ACTIVATION_GRAD, split_key(self._key)[1]))
        gradients = [*filter(None, (self._pairs.pair(key_of(PARAM_GRAD, name)) for name in self._layer.params))]
        single = read[0] if len(read) == 1 else None
        if arriving is None or single is None or single.own.size > _MOST_ELEMENTS:
            return ""
        return self._in_a_step(self._layer) if multiplies_another(single, value, arriving, known, gradients) else ""

    def _is_in_one_order(self, layer: Layer) -> bool:
        """Returns whether queries, keys and values that are packed otherwise are so in all tensors of a layer."""
        keys = {self._key, *(key_of(PARAM, name) for name in layer.params)}
        own = (each for each in self._matches if not keys.isdisjoint((each.ref,) if self._of_ref else each.recipe.keys))
        return len({any(isinstance(step, Reorder) for step in each.recipe.steps) for each in own}) < 2

    def _in_a_step(self, layer: Layer) -> str:
        around = _around(self._layers, layer, self._read)
        step = f"a step of `{printable(around)}`" if around else "a step"
        return f"in what it reads: {step} that neither program has an entry for"


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
    return bool(np.linalg.norm(pair.other - pair.own) <= _AGREE * np.linalg.norm(pair.own))


def _is_multiple(pair: Recovered) -> bool:
    factor = np.vdot(pair.own, pair.other) / max(float(np.vdot(pair.own, pair.own)), 1e-300)
    return bool(np.linalg.norm(pair.other - factor * pair.own) <= _AGREE * np.linalg.norm(pair.other))


def _fitting(form: KernelForm, functions: Iterable[tuple[str, Array]], arriving: Array, gradient: Array) -> list[str]:
    """Returns the functions of a value, in words, that make the gradient of a kernel."""
    return [words for words, read in functions if _reads(form, read, arriving, gradient)]


def _near(gradients: Sequence[Recovered], read: Recovered, value: Recovered) -> Iterator[tuple[Recovered, KernelForm]]:
    """Yields the forms of kernels whose taps lie no farther from an element of the output than the kernel is wide."""
    for gradient in gradients:
        shape = gradient.own.shape
        few = len(shape) > 1 and read.own.size <= _MOST_ELEMENTS and read.own.size * max(shape) <= _MOST_PRODUCTS
        for form in forms(shape, read.own.shape, value.own.shape) if few else ():
            near = form if form.matrix is not None else replace(form, reach=min(form.reach, max(shape[2:], default=1)))
            yield gradient, near


def _reads(form: KernelForm, read: Array, arriving: Array, gradient: Array) -> bool:
    """Returns whether the gradient of a kernel is made of a value, of a dense layer in any order of its features."""
    if gradient_error(form, read, arriving, gradient, most=_FITS) <= _FITS:
        return True
    turned = orders(read) if form.matrix is not None else ()
    return any(gradient_error(form, each, arriving, gradient) <= _FITS for each in turned)
