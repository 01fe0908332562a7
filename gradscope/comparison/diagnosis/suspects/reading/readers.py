"""`reader_of` finds of any values whether a layer of one program reads them, though it has no entry for what it reads.

The gradient of the kernel shows it: it is made of what the layer reads and of the gradient that arrives at its output
(`correlations`). Where some values make the gradient of the kernel, with the gradient that arrives, the layer reads
them, whatever differs behind. Of a dense layer the output shows it, too: it is a function of the product.

That the tensors of the other program, which has an entry for what its layer reads, fit each other so is required first:
a layer may compute more than a product with its kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.activation_functions import DERIVATIVES, ELEMENTWISE
from gradscope.comparison.diagnosis.refuting.apart.correlations import (
    KernelForm,
    forms,
    gradient_error,
    matrices,
    padded_otherwise,
)
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.step_kinds import orders
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION_GRAD, PARAM, PARAM_GRAD, key_of, split_key
from gradscope.protocols import implements

#: The least error that a form can have, and how many times the program's own error one fits that is no larger.
_EXACT: Final = 1e-5
_MARGIN: Final = 10

#: How many times more features than examples a kernel has of which sums of the examples are few of all values.
_FEWER: Final = 2

#: What an error has to exceed that is not rounding, as a share of the difference to be explained.
_SHARE: Final = 0.1


class Reader(Protocol):
    """Reader finds what a layer of one program reads, which has no entry for that."""

    @property
    def of_ref(self) -> bool:
        """Whether it is the reference that has an entry for what its layer reads."""
        ...

    @property
    def read(self) -> Array:
        """What that layer reads."""
        ...

    def reads(self, values: Array) -> bool:
        """Returns whether the layer of the other program reads some values."""
        ...

    def reorders(self) -> bool:
        """Returns whether that layer reads the same features, or the same values by other axes, in another order."""
        ...

    def pads_otherwise(self) -> bool:
        """Returns whether that layer reads the same values, with others behind their edges."""
        ...


def reader_of(
    dumps: Dumps, pairing: Pairing, match: Match, layers: tuple[Layer, Layer | None], difference: float
) -> Reader | None:
    """Returns what shows what one of two layers reads; None where their tensors do not show it.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        match: The pair of the outputs of the layers.
        layers: The reference's layer, and the candidate's where it is known.
        difference: The relative error of the pair.
    """
    matches = {each.ref: each for each in pairing.matched}
    reverse, ref, cand = ReversePairing(dumps, pairing.matched), FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def in_cand(key: str) -> Array | None:
        found = matches.get(key)
        if found is None or any(cand.tensor(each) is None for each in found.recipe.keys):
            return None
        return found.recipe.array(dumps.cand).astype(np.float64)

    def in_ref(key: str) -> Array | None:
        found = reverse.array(key) if cand.tensor(key) is not None else None
        return None if found is None or not np.isfinite(found).all() else found.astype(np.float64)

    sides = ((_Side(ref, in_cand, True), layers[0], match.ref), (_Side(cand, in_ref, False), layers[1], match.cand))
    found = (_readers(side, layer, key, difference) for side, layer, key in sides if layer is not None)
    return next(itertools.chain.from_iterable(found), None)


class _Side(NamedTuple):
    """_Side has the tensors of one program, and returns those of the other in its layout.

    Attributes:
        own: The tensors.
        other: Returns the other program's tensor for a key of this one; None where there is none.
        of_ref: Whether the program is the reference.
    """

    own: FloatTensors
    other: Callable[[str], Array | None]
    of_ref: bool


class _Use(NamedTuple):
    """_Use has the output of a layer, the gradient that arrives there, and the gradient of a kernel."""

    value: Array
    arriving: Array
    kernel: Array

    def gradients(self) -> Iterator[Array]:
        """Yields what arrives at the product of the layer, for each function that it may apply to that."""
        yield from (self.arriving * derivative(self.value) for derivative in DERIVATIVES.values())


def _readers(side: _Side, layer: Layer, key: str, difference: float) -> Iterator[Reader]:
    """Yields the readers that the tensors of a layer make."""
    values = side.own.tensor(key), side.other(key)
    if values[0] is None or values[1] is None or values[0].shape != values[1].shape:
        return
    for name in layer.params:
        keys = (key, key_of(ACTIVATION_GRAD, split_key(key)[1]), key_of(PARAM_GRAD, name))
        one, other = _use(map(side.own.tensor, keys)), _use(map(side.other, keys))
        if one is not None and other is not None and one.kernel.shape == other.kernel.shape:
            for read in side.own.read_by(layer):
                yield from _by_kernel(side.of_ref, read, one, other, difference)
    params = [(side.own.tensor(key), side.other(key)) for key in (key_of(PARAM, name) for name in layer.params)]
    known = [
        (one, other) for one, other in params if one is not None and other is not None and one.shape == other.shape
    ]
    if len(known) == len(params) and known:
        for read in side.own.read_by(layer):
            yield from _by_product(side.of_ref, read, known, (values[0], values[1]), difference)


def _use(tensors: Iterator[Array | None]) -> _Use | None:
    """Returns a use of a kernel; None where one of its tensors is not known, or no gradient arrives."""
    known = [each for each in tensors if each is not None]
    if len(known) < len(_Use._fields):
        return None
    use = _Use(*known)
    return use if use.value.shape == use.arriving.shape and np.any(use.arriving) and np.any(use.kernel) else None


def _by_kernel(of_ref: bool, read: Array, one: _Use, other: _Use, difference: float) -> Iterator[Reader]:
    """Yields a reader by the uses of a kernel in both programs, of which one has what it reads."""
    for zeros in forms(one.kernel.shape, read.shape, one.value.shape):
        for form in (zeros, *padded_otherwise(zeros)):
            most = _SHARE * difference
            errors = (gradient_error(form, read, each, one.kernel, most=most / _MARGIN) for each in one.gradients())
            limit = max(_EXACT, _MARGIN * min(errors))
            if limit <= most:
                yield _ByKernel(of_ref=of_ref, read=read, form=form, use=other, limit=limit)
                break


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByKernel:
    """_ByKernel finds what a layer reads by the gradient of its kernel.

    Attributes:
        of_ref: As for `Reader`.
        read: As for `Reader`.
        form: How the kernel belongs to what is read.
        use: The use of the kernel in the program that lacks what it reads.
        limit: The largest relative error of the gradient of the kernel.
    """

    of_ref: bool
    read: Array
    form: KernelForm
    use: _Use
    limit: float

    @implements(Reader)
    def reads(self, values: Array) -> bool:
        return any(
            gradient_error(self.form, values, arriving, kernel, most=self.limit) <= self.limit
            for kernel in self._kernels()
            for arriving in self.use.gradients()
        ) or any(self._is_of_examples(values, kernel) for kernel in self._kernels())

    def _is_of_examples(self, values: Array, kernel: Array) -> bool:
        """Returns whether the gradient of a kernel of many features is made of a value, whatever arrives behind it.

        It is a sum of the features of the examples then, also where the layer does something else with its product. A
        factor of all examples would show in nothing but the size of the gradient, and may be that of the value.
        """
        if self.form.matrix is None:
            return False
        found = self.form.taps(kernel)[0]
        rows = values.reshape(-1, len(found))
        if _FEWER * len(rows) > len(found):
            return False
        basis = np.linalg.svd(rows, full_matrices=False)[2]
        left = np.linalg.norm(found - basis.T @ (basis @ found))
        made = rows.T @ self.use.arriving.reshape(len(rows), -1)
        factor = np.vdot(made, found) / max(float(np.vdot(made, made)), 1e-300)
        size = float(np.linalg.norm(found))
        return bool(left <= self.limit * size and np.linalg.norm(found - factor * made) > self.limit * size)

    def _kernels(self) -> Iterator[Array]:
        """Yields the gradient of the kernel, and its transpose where only the values of the kernel show its layout."""
        yield self.use.kernel
        if self.form.matrix is not None and len({*self.form.matrix}) == 1:
            yield self.use.kernel.reshape(self.form.matrix).T

    @implements(Reader)
    def reorders(self) -> bool:
        if self.form.matrix is None:
            return False
        form, kernel = self.form, self.use.kernel
        errors = (gradient_error(form, self.read, each, kernel, reordered=True) for each in self.use.gradients())
        return min(errors) <= self.limit or any(map(self.reads, orders(self.read)))

    @implements(Reader)
    def pads_otherwise(self) -> bool:
        return any(replace(self, form=form).reads(self.read) for form in padded_otherwise(self.form))


def _by_product(
    of_ref: bool, read: Array, params: Sequence[tuple[Array, Array]], values: tuple[Array, Array], difference: float
) -> Iterator[Reader]:
    """Yields a reader by the outputs of a dense layer in both programs, of which one has what it reads."""
    kernels, *biases = sorted(params, key=lambda each: each[0].size, reverse=True)
    for matrix, turned in itertools.product(matrices(kernels[0].shape), (False, True)):
        one, other = (each.reshape(matrix).T if turned else each.reshape(matrix) for each in kernels)
        fits = read.size % len(one) == 0 and read.size * one.shape[1] == values[0].size * len(one)
        if not fits or any(bias.size != one.shape[1] for bias, _ in biases):
            continue
        # A bias of all heads may have an axis of them.
        shifts = [sum((bias[which].ravel() for bias in biases), start=np.zeros(one.shape[1])) for which in (0, 1)]
        for function in (np.copy, *ELEMENTWISE.values()):
            error = _relative(function(read.reshape(-1, len(one)) @ one + shifts[0]), values[0])
            limit = max(_EXACT, _MARGIN * error)
            if limit <= _SHARE * difference:
                yield _ByProduct(of_ref=of_ref, read=read, kernel=other, shift=shifts[1], value=values[1], limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ByProduct:
    """_ByProduct finds what a dense layer reads by its output, which is a function of the product.

    Attributes:
        of_ref: As for `Reader`.
        read: As for `Reader`.
        kernel: The kernel in the program that lacks what it reads.
        shift: The bias.
        value: The output.
        limit: The largest relative error of the output.
    """

    of_ref: bool
    read: Array
    kernel: Array
    shift: Array
    value: Array
    limit: float

    @implements(Reader)
    def reads(self, values: Array) -> bool:
        product = values.reshape(-1, len(self.kernel)) @ self.kernel + self.shift
        functions = (np.copy, *ELEMENTWISE.values())
        return any(_relative(function(product), self.value) <= self.limit for function in functions)

    @implements(Reader)
    def reorders(self) -> bool:
        return any(map(self.reads, orders(self.read)))

    @implements(Reader)
    def pads_otherwise(self) -> bool:
        return False


def _relative(found: Array, expected: Array) -> float:
    size = max(float(np.linalg.norm(expected)), 1e-300)
    return float(np.linalg.norm(found.reshape(-1) - expected.reshape(-1))) / size
