"""`RecoveredValues` recovers what a layer reads in both programs, and compares the steps of which that has the values.

Steps without a counterpart cannot be compared, but the layer that reads them says what it reads: a dense layer whose
kernel has no more inputs than outputs has one input for each output, and one that adds its product to another value
has that value beside the product. The gradient of the kernel has to be made of what is recovered, in both programs.
Values that are joined or stacked before the layer reads them, or in its output, are found in that by their elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.apart.correlations import matrices
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.step_kinds import have_same_elements
from gradscope.comparison.diagnosis.suspects.steps import Step, is_inside
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, PARAM_GRAD, key_of, split_key

#: The relative error up to which products and gradients are made of what is recovered, and recovered values agree.
_FITS: Final = 1e-4
_AGREE: Final = 1e-3

#: How near a recovered element is to that of a step, relative to the largest, and how much farther all others are.
_NEAR: Final = 1e-5
_MARGIN: Final = 4

#: The least ratio of the singular values of gradients that are independent, for all their rounding.
_INDEPENDENT: Final = 1e-3

#: The fewest elements of a step that say anything, and the most in which they are searched.
_FEWEST: Final = 4
_MOST: Final = 1 << 16

#: The largest number of products that are computed for the inverse of a kernel.
_MOST_PRODUCTS: Final = 1 << 30

#: The inverses of the functions that a layer may apply to its product, each with its derivative by its output.
_INVERSES: Final[Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]]] = MappingProxyType({
    "": (np.copy, np.ones_like),
    "tanh": (np.arctanh, lambda y: 1 - y * y),
    "sigmoid": (lambda y: np.log(y) - np.log1p(-y), lambda y: y * (1 - y)),
})  # fmt: skip


class Recovered(NamedTuple):
    """Recovered has a value of both programs in the layout of one, whose steps' values may be parts of it."""

    own: Array
    other: Array

    def is_rearranged(self) -> bool:
        """Returns whether one is the other in another order, or with some elements left out, as a dropout does."""
        if have_same_elements(self.other, self.own):
            return True
        kept = np.abs(self.other) > _NEAR * np.abs(self.own).max()
        ratios = self.other[kept] / np.where(self.own[kept] == 0, 1, self.own[kept])
        return 1 < kept.sum() < kept.size and float(np.ptp(ratios)) <= _AGREE * abs(float(ratios.mean()))

    def part(self, value: Array) -> bool | None:
        """Returns whether the part that is a step's value is the same in the other program; None where it has none.

        Args:
            value: The value of a step.
        """
        places = self.places(value)
        return None if places is None else _is_close(self.other.ravel()[places[0]], value.ravel()[places[1]], _AGREE)

    def places(self, value: Array) -> tuple[Array, Array] | None:
        """Returns where the elements of a step's value are, and which of its elements those are; None for no part.

        Args:
            value: The value.
        """
        if not _FEWEST <= value.size <= self.own.size <= _MOST:
            return None
        flat = self.own.ravel()
        order = np.argsort(flat)
        ranked, wanted = np.concatenate([[-np.inf], flat[order], [np.inf]]), value.ravel()
        place = np.searchsorted(ranked, wanted)
        place -= wanted - ranked[place - 1] < ranked[place] - wanted
        near = _NEAR * float(np.abs(flat).max())
        if np.any(np.abs(ranked[place] - wanted) > near):
            return None
        alone = np.minimum(ranked[place + 1] - ranked[place], ranked[place] - ranked[place - 1]) > _MARGIN * near
        if 2 * alone.sum() < alone.size or alone.sum() < _FEWEST:
            return None
        return order[place[alone] - 1], alone


class RecoveredValues:
    """RecoveredValues recovers what layers read.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        of_ref: Whether the layers are those of the reference.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, *, of_ref: bool) -> None:
        source = dumps.ref if of_ref else dumps.cand
        self._source = source
        self._layers, self._own, self._cand = source.manifest.layers, FloatTensors(source), FloatTensors(dumps.cand)
        self._dumps, self._matches = dumps, {match.ref: match for match in pairing.matched}
        self._reverse = None if of_ref else ReversePairing(dumps, pairing.matched)
        candidates = {key for match in pairing.matched for key in match.recipe.keys}
        self._paired = self._matches.keys() if of_ref else candidates

    def of(self, key: str, layer: Layer) -> Iterator[Recovered]:
        """Yields the output of a layer, and what is recovered of the values that it reads.

        Args:
            key: The key of the output.
            layer: The layer.
        """
        value = self.pair(key)
        if value is None:
            return
        yield value
        arriving = self.pair(key_of(ACTIVATION_GRAD, split_key(key)[1]))
        params = [(name, self.pair(key_of(PARAM, name))) for name in layer.params]
        known = [(name, pair) for name, pair in params if pair is not None]
        if arriving is None or len(known) < len(params) or not known:
            return
        (name, kernel), *biases = sorted(known, key=lambda each: each[1].own.size, reverse=True)
        gradient = self.pair(key_of(PARAM_GRAD, name))
        # A bias that one of the programs does not add has no gradient there.
        added = all(self.pair(key_of(PARAM_GRAD, each)) is not None for each, _ in biases)
        if gradient is None or kernel.own.ndim < 2 or not added:
            return
        for shape, turned in itertools.product(matrices(kernel.own.shape), (False, True)):
            matrix, slope = (_each(pair, _reshaped(shape, turned=turned)) for pair in (kernel, gradient))
            outputs = matrix.own.shape[1]
            if value.own.size % outputs or any(pair.own.size != outputs for _, pair in biases):
                continue
            rows, sent = (_each(pair, _rows_of(outputs)) for pair in (value, arriving))
            for _, bias in biases:
                rows = Recovered(rows.own - bias.own.ravel(), rows.other - bias.other.ravel())
            use = _Use(rows, sent, matrix, slope)
            yield from use.beside(list(self._own.read_by(layer)))
            yield from use.inverted(value)
            yield from use.by_gradients(value)

    def parts_beside(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yields the keys of values that are parts of an output of a layer around some steps, and agree.

        Of a layer that returns several values the graph does not tell what each is computed from.

        Args:
            steps: The steps.
        """
        layers = self._layers
        several = [layer for layer in layers if len(layer.outputs) > 1]
        for layer in (each for each in several if any(is_inside(layers, step.layer, {each.path}) for step in steps)):
            made = {key_of(ACTIVATION, name) for each in layers if each.parent == layer.path for name in each.outputs}
            values = {key: value for key in made - self._paired if (value := self._own.tensor(key)) is not None}
            for output in filter(None, map(self.pair, (key_of(ACTIVATION, name) for name in layer.outputs))):
                yield from (key for key, value in values.items() if output.part(value))

    def pair(self, key: str) -> Recovered | None:
        """Returns a tensor of both programs in the layout of the layers' own; None where one has none.

        Args:
            key: Its key.
        """
        own = self._own.tensor(key)
        other = None if own is None else self._other(key)
        return None if own is None or other is None or own.shape != other.shape else Recovered(own, other)

    def is_integer(self, key: str) -> bool:
        """Returns whether a value of the layers' program is one of integers, such as tokens."""
        return dtype_class(self._source.entry(self._source.resolve(key)).dtype) == "integer"

    def _other(self, key: str) -> Array | None:
        if self._reverse is not None:
            found = self._reverse.array(key) if key in self._paired else None
        else:
            match = self._matches.get(key)
            known = match is not None and all(self._cand.tensor(each) is not None for each in match.recipe.keys)
            found = match.recipe.array(self._dumps.cand) if match is not None and known else None
        return None if found is None or not np.isfinite(found).all() else found.astype(np.float64)


class _Use(NamedTuple):
    """_Use has the output of a dense layer without its bias, and what its kernel and gradients are, as matrices."""

    value: Recovered
    arriving: Recovered
    kernel: Recovered
    gradient: Recovered

    def beside(self, reads: Sequence[Array]) -> Iterator[Recovered]:
        """Yields what is added to the product of one of the values that are read: another of them."""
        for read in (each for each in reads if each.size == len(self.value.own) * len(self.kernel.own)):
            rows = read.reshape(-1, len(self.kernel.own))
            rest = Recovered(*(value - rows @ kernel for value, kernel in zip(self.value, self.kernel, strict=True)))
            is_read = any(
                each is not read and each.size == rest.own.size and _is_close(rest.own.ravel(), each.ravel(), _FITS)
                for each in reads
            )
            if is_read and self._makes_gradients(Recovered(rows, rows), self.arriving):
                yield rest

    def inverted(self, output: Recovered) -> Iterator[Recovered]:
        """Yields what the layer reads, where its kernel has an inverse.

        Args:
            output: The output with its bias.
        """
        inputs, outputs = self.kernel.own.shape
        if inputs > outputs or max(len(self.value.own), inputs) * inputs * outputs > _MOST_PRODUCTS:
            return
        back = _each(self.kernel, lambda each: each.T @ np.linalg.pinv(each @ each.T, hermitian=True))
        for argument, arriving in self._arguments(output):
            read = Recovered(*(rows @ each for rows, each in zip(argument, back, strict=True)))
            if self._makes_products(read, argument) and self._makes_gradients(read, arriving):
                yield read

    def by_gradients(self, output: Recovered) -> Iterator[Recovered]:
        """Yields what the layer reads, where its kernel has no inverse, and the gradients of its rows are independent.

        The gradient of the kernel is the sum of the products of what each row reads and what arrives there. That the
        products with the kernel are the output shows that it is so.

        Args:
            output: The output with its bias.
        """
        (inputs, outputs), count = self.kernel.own.shape, len(self.value.own)
        if inputs <= outputs or count > outputs or inputs * outputs * count > _MOST_PRODUCTS:
            return
        for argument, arriving in self._arguments(output):
            sizes = (np.linalg.svd(each, compute_uv=False) for each in arriving)
            if not all(size[-1] > _INDEPENDENT * size[0] for size in sizes):
                continue
            read = Recovered(
                *(np.linalg.pinv(sent).T @ slope.T for sent, slope in zip(arriving, self.gradient, strict=True))
            )
            if self._makes_products(read, argument):
                yield read

    def _arguments(self, output: Recovered) -> Iterator[tuple[Recovered, Recovered]]:
        """Yields what a function may be applied to that makes the output, without the bias, and what arrives there.

        Args:
            output: The output with its bias.
        """
        shift = _each(output, lambda each: each.reshape(self.value.own.shape))
        for inverse, derivative in _INVERSES.values():
            argument = Recovered(*(inverse(y) - y + value for y, value in zip(shift, self.value, strict=True)))
            arriving = Recovered(*(sent * derivative(y) for sent, y in zip(self.arriving, shift, strict=True)))
            if all(np.isfinite(each).all() for each in (*argument, *arriving)):
                yield argument, arriving

    def _makes_products(self, read: Recovered, argument: Recovered) -> bool:
        """Returns whether the products of what is read are given ones, in both programs."""
        products = (rows @ kernel for rows, kernel in zip(read, self.kernel, strict=True))
        return all(map(_is_close, products, argument, (_FITS, _FITS)))

    def _makes_gradients(self, read: Recovered, arriving: Recovered) -> bool:
        """Returns whether the gradients of the kernel are those of a product with what is read, in both programs."""
        made = (rows.T @ sent for rows, sent in zip(read, arriving, strict=True))
        return all(map(_is_close, made, self.gradient, (_FITS, _FITS)))


def _rows_of(outputs: int) -> Callable[[Array], Array]:
    return lambda each: each.reshape(-1, outputs)


def _reshaped(shape: tuple[int, int], *, turned: bool) -> Callable[[Array], Array]:
    return lambda each: each.reshape(shape).T if turned else each.reshape(shape)


def _each(pair: Recovered, function: Callable[[Array], Array]) -> Recovered:
    return Recovered(function(pair.own), function(pair.other))


def _is_close(found: Array, expected: Array, limit: float) -> bool:
    return bool(np.linalg.norm(found - expected) <= limit * np.linalg.norm(expected))
