"""`what_is_read` finds whether a layer of the candidate reads what its counterpart in the reference reads.

The candidate may have no entry for what a layer reads. The gradient of the kernel shows it all the same: it is made of
what the layer reads and of the gradient that arrives at its output (`correlations`). Where what the reference's layer
reads and the gradient in the candidate make the candidate's gradient of the kernel, both layers read the same values,
whatever differs behind. That the reference's own tensors fit each other so is required first: a layer may compute more
than a product with its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.refuting.functions_between import arriving_gradient
from gradscope.comparison.diagnosis.suspects.correlations import KernelForm, forms, is_cheap
from gradscope.comparison.diagnosis.suspects.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import PARAM_GRAD, key_of

#: What a layer reads: the same values as its counterpart, the same in another order, or others.
Reading: TypeAlias = Literal["same", "reordered", "other"]

#: The least error that a form can have, and how many times the reference's own error one fits that is no larger.
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
    dumps: Dumps, matches: Mapping[str, Match], layer: Layer, key: str, difference: float
) -> Reading | None:
    """Returns what the candidate's counterpart of a layer reads; None where the kernels of the layer do not show it.

    Args:
        dumps: The dumps.
        matches: The pairs, by the reference's keys.
        layer: The reference's layer.
        key: The key of its output, which is paired.
        difference: The relative error of that.
    """
    ref, cand = _output(dumps, matches[key], of_ref=True), _output(dumps, matches[key], of_ref=False)
    if ref is None or cand is None or ref.value.shape != cand.value.shape:
        return None
    found = (_by_kernel(dumps, matches, layer, name, ref, cand, difference) for name in layer.params)
    readings = {each for each in found if each is not None}
    return readings.pop() if len(readings) == 1 else None


class _Output(NamedTuple):
    """_Output has the output of a layer and the gradient that arrives there, in the reference's layout."""

    value: Array
    gradient: Array

    def gradients(self) -> Iterator[Array]:
        """Yields what arrives at the product of the layer, for each function that it may apply to that."""
        yield from (self.gradient * derivative(self.value) for derivative in _DERIVATIVES.values())


def _output(dumps: Dumps, match: Match, *, of_ref: bool) -> _Output | None:
    source, keys = (dumps.ref, (match.ref,)) if of_ref else (dumps.cand, match.recipe.keys)
    if dtype_class(source.entry(keys[0]).dtype) != "float":
        return None
    gradient = arriving_gradient(source, keys[0], None if of_ref else match.recipe)
    if gradient is None or not np.any(gradient) or not all(map(source.has_tensor, keys)):
        return None
    value = source.array(match.ref) if of_ref else match.recipe.array(source)
    return _Output(value.astype(np.float64), gradient) if value.shape == gradient.shape else None


def _by_kernel(
    dumps: Dumps,
    matches: Mapping[str, Match],
    layer: Layer,
    name: str,
    ref: _Output,
    cand: _Output,
    difference: float,
) -> Reading | None:
    match = matches.get(key_of(PARAM_GRAD, name))
    if match is None or not (dumps.ref.has_tensor(match.ref) and all(map(dumps.cand.has_tensor, match.recipe.keys))):
        return None
    one, other = dumps.ref.array(match.ref).astype(np.float64), match.recipe.array(dumps.cand).astype(np.float64)
    if one.shape != other.shape or not np.any(one) or not np.any(other):
        return None
    for read in FloatTensors(dumps.ref).read_by(layer):
        for form in forms(one.shape, read.shape, ref.value.shape):
            if not is_cheap(read.shape, ref.value.shape, form):
                continue
            own = min(_error(form, read, each, one) for each in ref.gradients())
            limit = max(_EXACT, _MARGIN * own)
            if limit > _SHARE * difference:
                continue
            if min(_error(form, read, each, other) for each in cand.gradients()) <= limit:
                return "same"
            orders = (_error(form, read, each, other, reordered=True) for each in cand.gradients())
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
