"""`what_is_read` finds whether a layer of the candidate reads what its counterpart in the reference reads.

A program may have no entry for what a layer reads. The gradient of the kernel shows it all the same: it is made of what
the layer reads and of the gradient that arrives at its output (`correlations`). Where what the layer of one program
reads makes the gradient of the kernel in the other program, with the gradient that arrives there, both layers read the
same values, whatever differs behind. That the program's own tensors fit each other so is required first: a layer may
compute more than a product with its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.suspects.correlations import KernelForm, forms, is_cheap
from gradscope.comparison.diagnosis.suspects.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION_GRAD, PARAM_GRAD, key_of, split_key

#: What a layer reads: the same values as its counterpart, the same in another order, or others.
Reading: TypeAlias = Literal["same", "reordered", "other"]

#: The least error that a form can have, and how many times the program's own error one fits that is no larger.
_EXACT: Final = 1e-5
_MARGIN: Final = 10

#: What an error has to exceed that is not rounding, as a share of the difference to be explained.
_SHARE: Final = 0.1

#: The largest number of features whose order is found.
_MOST_FEATURES: Final = 4096

#: The derivatives of the functions that a layer may apply to its product, by its output.
_DERIVATIVES: Final[Mapping[str, Callable[[Array], Array]]] = MappingProxyType({
    "": np.ones_like,
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
    "relu": lambda y: (y > 0).astype(y.dtype),
})  # fmt: skip


def what_is_read(
    dumps: Dumps, pairing: Pairing, match: Match, layers: tuple[Layer, Layer | None], difference: float
) -> Reading | None:
    """Returns what the candidate's counterpart of a layer reads; None where the kernels of the layers do not show it.

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
        return None if found is None else found.astype(np.float64)

    sides = ((_Side(ref, in_cand), layers[0], match.ref), (_Side(cand, in_ref), layers[1], match.cand))
    readings = (_reading(side, layer, key, difference) for side, layer, key in sides if layer is not None)
    return next(filter(None, readings), None)


class _Side(NamedTuple):
    """_Side has the tensors of one program, and returns those of the other in its layout.

    Attributes:
        own: The tensors.
        other: Returns the other program's tensor for a key of this one; None where there is none.
    """

    own: FloatTensors
    other: Callable[[str], Array | None]


class _Use(NamedTuple):
    """_Use has the output of a layer, the gradient that arrives there, and the gradient of a kernel."""

    value: Array
    arriving: Array
    kernel: Array

    def gradients(self) -> Iterator[Array]:
        """Yields what arrives at the product of the layer, for each function that it may apply to that."""
        yield from (self.arriving * derivative(self.value) for derivative in _DERIVATIVES.values())


def _reading(side: _Side, layer: Layer, key: str, difference: float) -> Reading | None:
    """Returns what the other program reads; None where the kernels do not show it, or do not agree."""
    found: set[Reading] = set()
    for name in layer.params:
        keys = (key, key_of(ACTIVATION_GRAD, split_key(key)[1]), key_of(PARAM_GRAD, name))
        one, other = _use(map(side.own.tensor, keys)), _use(map(side.other, keys))
        if one is not None and other is not None and one.value.shape == other.value.shape:
            readings = (_by_kernel(read, one, other, difference) for read in side.own.read_by(layer))
            found |= {*filter(None, readings)}
    return found.pop() if len(found) == 1 else None


def _use(tensors: Iterator[Array | None]) -> _Use | None:
    """Returns a use of a kernel; None where one of its tensors is not known, or no gradient arrives."""
    known = [each for each in tensors if each is not None]
    if len(known) < len(_Use._fields):
        return None
    use = _Use(*known)
    return use if use.value.shape == use.arriving.shape and np.any(use.arriving) and np.any(use.kernel) else None


def _by_kernel(read: Array, one: _Use, other: _Use, difference: float) -> Reading | None:
    """Returns what the other program reads, by what one reads and the uses of a kernel in both."""
    if one.kernel.shape != other.kernel.shape:
        return None
    for form in forms(one.kernel.shape, read.shape, one.value.shape):
        if not is_cheap(read.shape, one.value.shape, form):
            continue
        limit = max(_EXACT, _MARGIN * min(_error(form, read, each, one.kernel) for each in one.gradients()))
        if limit > _SHARE * difference:
            continue
        if min(_error(form, read, each, other.kernel) for each in other.gradients()) <= limit:
            return "same"
        orders = (_error(form, read, each, other.kernel, reordered=True) for each in other.gradients())
        return "reordered" if not form.strides and min(orders) <= limit else "other"
    return None


def _error(form: KernelForm, read: Array, arriving: Array, gradient: Array, *, reordered: bool = False) -> float:
    """Returns the relative error of the gradient of a kernel that is made of what is read and of what arrives.

    Args:
        form: How they belong together.
        read: What the layer reads.
        arriving: The gradient at its product.
        gradient: The gradient of the kernel.
        reordered: Whether the layer may read its features in another order.
    """
    taps = form.taps(gradient)
    possible = form.possible(read, arriving, taps.shape[1])
    if reordered:
        return _error_of_features(taps[0], possible[0])
    rows = possible.reshape(len(possible), -1)
    squares = [float(np.square(rows - tap.reshape(-1)).sum(1).min()) for tap in taps]
    return math.sqrt(sum(squares)) / max(float(np.linalg.norm(gradient)), 1e-300)


def _error_of_features(found: Array, possible: Array) -> float:
    """Returns the relative error of features that are each others in some order; infinity where none is."""
    if len(found) > _MOST_FEATURES:
        return math.inf
    squares = np.square(found).sum(1)[:, None] + np.square(possible).sum(1)[None, :] - 2 * found @ possible.T
    order = squares.argmin(1)
    if len({*order.tolist()}) < len(order):
        return math.inf
    return float(np.linalg.norm(found - possible[order]) / max(float(np.linalg.norm(found)), 1e-300))
