"""Products of what a layer reads with its kernel are what they are, whatever the layer is called.

`ProductPairs` finds whether the values of a pair are the products of one kernel, of what both read or a function of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE, Elementwise
from gradscope.comparison.diagnosis.refuting.apart.correlations import matrices
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.placing.paired_inputs import PairedInputs
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, PARAM, PARAM_GRAD, key_of, split_key

#: The most elements of a value that functions of it are tried of.
_MOST_ELEMENTS: Final = 1 << 17

#: Two values whose `1-cos` is no larger are multiples of each other.
_PARALLEL: Final = 1e-8

#: The share of its tolerance by which a value differs from its counterpart by more than rounding.
_FAINT: Final = 0.1

#: The number of axes of the kernel of a dense layer.
_OF_DENSE: Final = 2

#: The relative error of a product that is computed again, in float32.
_ROUNDING: Final = 1e-4


def is_product(tensors: FloatTensors, layer: Layer, key: str, functions: Iterable[Elementwise] = (np.asarray,)) -> bool:
    """Returns whether an output is the product of what its layer reads with a kernel, plus a bias or not.

    Args:
        tensors: The tensors of the dump.
        layer: The layer; where it has several outputs, they may be parts of one product.
        key: The key of its output.
        functions: The functions of which one may be applied to what is read before.
    """
    outputs = [tensors.tensor(key_of(split_key(key)[0], name)) for name in layer.outputs]
    parts, params = [each for each in outputs if each is not None], list(params_of(tensors, layer))
    alike = len({each.shape[:-1] for each in parts}) == 1 and all(each.ndim for each in parts)
    if len(parts) < len(outputs) or not params or not alike:
        return False
    value, (kernel, *biases) = np.concatenate(parts, -1), sorted(params, key=lambda each: each.size, reverse=True)
    rounding = tensors.rounding(key, _ROUNDING)
    return kernel.ndim > 1 and any(
        _is_product_of(function(read), turned, biases, value, rounding)
        for read in tensors.read_by(layer)
        for function in functions
        for matrix in matrices(kernel.shape)
        for turned in (kernel.reshape(matrix), kernel.reshape(matrix).T)
    )


def _is_product_of(read: Array, kernel: Array, biases: Sequence[Array], value: Array, rounding: float) -> bool:
    outputs = kernel.shape[1]
    if value.size % outputs or any(bias.size != outputs for bias in biases):
        return False
    expected = value.reshape(-1, outputs) - sum((bias.reshape(-1) for bias in biases), start=np.zeros(outputs))
    limit = rounding * np.linalg.norm(value)
    rows = (
        each for axis in range(read.ndim) for each in _rows(np.moveaxis(read, axis, -1), kernel, expected, rounding)
    )
    return any(np.linalg.norm(each @ kernel - expected) <= limit for each in rows)


def _rows(read: Array, kernel: Array, expected: Array, rounding: float) -> Iterator[Array]:
    """Yields what a layer may read of a value: all features, or those that stand together and fit the first row.

    Args:
        read: The value, its features last.
        kernel: The kernel.
        expected: The rows of the product.
        rounding: The relative error of the product.
    """
    inputs = kernel.shape[0]
    if read.shape[-1] < inputs or read.size // read.shape[-1] != len(expected):
        # Several axes may be features, as the heads of attention are.
        yield from [read.reshape(-1, inputs)] if read.size == len(expected) * inputs else ()
        return
    rows = read.reshape(len(expected), -1)
    # A layer may read a part of the features, as a coupling does: the rows of the others are those of no product.
    first = np.lib.stride_tricks.sliding_window_view(rows[0], inputs) @ kernel - expected[0]
    limit = 10 * rounding * (np.linalg.norm(expected[0]) + np.linalg.norm(rows[0]) * np.linalg.norm(kernel))
    for start in np.flatnonzero(np.linalg.norm(first, axis=-1) <= limit):
        yield rows[:, start : start + inputs]


def params_of(tensors: FloatTensors, layer: Layer) -> Iterator[Array]:
    """Yields the parameters of a layer; none where one of them is not known.

    Args:
        tensors: The tensors of the dump.
        layer: The layer.
    """
    params = [tensors.tensor(key_of(PARAM, name)) for name in layer.params]
    known = [each for each in params if each is not None]
    yield from known if len(known) == len(params) else ()


class ProductPairs:
    """ProductPairs finds whether the values of a pair are the products of one kernel, with values that are paired.

    Args:
        dumps: The dumps.
        pairing: The pairs that are not only suggested by their places.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._tensors = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        # A part comes after its composite, and is more exact.
        self._makers = [
            {
                source.resolve(key_of(ACTIVATION, name)): layer
                for layer in source.manifest.layers
                for name in layer.outputs
            }
            for source in (dumps.ref, dumps.cand)
        ]
        self._inputs = PairedInputs(dumps, pairing)
        self._dumps = dumps
        self._params = {each.ref: each.recipe.keys for each in pairing.matched if split_key(each.ref)[0] == PARAM}
        self._kernels = {key: others for key, others in self._params.items() if len(self._shape(key)) > 1}

    def are_of_one_kernel(self, match: Match) -> bool:
        """Returns whether both values are products of what is paired, with kernels that are paired.

        Args:
            match: The pair.
        """
        layers = self._layers(match)
        if not self.use_one_kernel(match) or not self._inputs.share(match.ref, match.cand):
            return False
        return all(
            is_product(tensors, layer, key) or is_product(tensors, layer, key, _of_few(tensors, layer))
            for tensors, layer, key in zip(self._tensors, layers, (match.ref, match.cand), strict=True)
        )

    def are_factors(self, match: Match, others: Iterable[Match]) -> bool:
        """Returns whether the layers of another pair read these values alone, and return products of one kernel.

        Args:
            match: The pair of the values.
            others: Pairs, of which one may be that of the products.
        """
        values = match.ref, match.cand
        readers = (each for each in others if each is not match and self._are_read_alone(values, self._layers(each)))
        return any(self.use_one_kernel(each) and all(self._are_products(each)) for each in readers)

    def _are_read_alone(self, values: Sequence[str], layers: Sequence[Layer]) -> bool:
        """Returns whether the layers of both programs read a value, as it is, and no other one."""
        read = [{key_of(ACTIVATION, name) for name in layer.inputs} for layer in layers]
        return read == [{each} for each in values]

    def _are_products(self, match: Match) -> Iterator[bool]:
        """Yields of both values whether they are products of just what their layers read."""
        for tensors, layer, key in zip(self._tensors, self._layers(match), (match.ref, match.cand), strict=True):
            yield is_product(tensors, layer, key)

    def use_one_kernel(self, match: Match) -> bool:
        """Returns whether the layers of both values use kernels that are paired, whatever they read.

        Args:
            match: The pair.
        """
        layers = self._layers(match)
        if len(layers) < len(self._makers) or len(match.recipe.keys) > 1:
            return False
        own, others = ({key_of(PARAM, name) for name in layer.params} for layer in layers)
        return any(others.issuperset(self._kernels.get(key, ("",))) for key in own)

    def are_of_one_layer(self, match: Match, rows: Mapping[str, ComparisonRow], trace: float) -> bool:
        """Returns whether both values are of one layer, however small the trace is that their difference leaves.

        Args:
            match: The pair.
            rows: The rows of pairs, by the reference's keys.
            trace: The largest error of what is compared next behind the values.
        """
        if self.are_of_one_kernel(match):
            return True
        limit = rows[match.ref].tolerance or 0.0
        if trace > limit and _is_multiple(rows[match.ref]) and self.use_one_kernel(match):
            return True
        return trace > _FAINT * limit and self._share_convolution(match, rows, shows=trace > limit)

    def _share_convolution(self, match: Match, rows: Mapping[str, ComparisonRow], *, shows: bool) -> bool:
        """Returns whether both layers read what is paired, and have the same parameters, among them a kernel of taps.

        Where a step inside is no convolution, it has no parameters: the values belong to one layer all the same. So
        it is where they differ that is told, if what is behind shows it, or faintly, with the kernel's gradient. Where
        all that is behind agrees, the gradient differs by a fault farther on.
        """
        layers = self._layers(match)
        if not self.use_one_kernel(match) or not self._inputs.share(match.ref, match.cand):
            return False
        own, others = ({key_of(PARAM, name) for name in layer.params} for layer in layers)
        if {each for key in own for each in self._params.get(key, ("",))} != others:
            return False
        taps = [key for key in own & self._kernels.keys() if len(self._shape(key)) > _OF_DENSE]
        gradients = (rows.get(key_of(PARAM_GRAD, split_key(key)[1])) for key in taps)
        return bool(taps) and (shows or any(row is not None and row.status == "different" for row in gradients))

    def _shape(self, key: str) -> Sequence[int]:
        return self._dumps.ref.entry(key).shape

    def _layers(self, match: Match) -> list[Layer]:
        """Returns the layers of both values, as far as they are known."""
        found = (makers.get(key) for makers, key in zip(self._makers, (match.ref, match.cand), strict=True))
        return [layer for layer in found if layer is not None]


def _of_few(tensors: FloatTensors, layer: Layer) -> Iterable[Elementwise]:
    """Returns the functions that a layer may apply to what it reads; none where that is too much to try them."""
    return ELEMENTWISE.values() if all(each.size <= _MOST_ELEMENTS for each in tensors.read_by(layer)) else ()


def _is_multiple(row: ComparisonRow) -> bool:
    """Returns whether one value is a positive multiple of the other, of which a norm hides all but its epsilon."""
    return as_float(row.metrics.get("1-cos", 1.0)) <= _PARALLEL
