"""`with_gradient_makers` tells the layer that returns the first gradient that differs from the code between two layers.

Where a layer reads a value through code without an entry, such as a function of it, the gradient of the value is what
the layer returns, sent back through that code. A dump has the root mean square of the gradient that arrives at what the
layer reads. Where that is the reference's, the code is at fault, unless the layer returns the reference's gradient in
another order, or with other signs. Where it is not, the layer is, if nothing else reads the value: a sum without an
entry, as that of a pyramid of features, may go on to other layers through code. What the loss itself reads beside a
layer, as the norms of activations, has a gradient of it as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.comparison.diagnosis.divergence import Blame
from gradscope.comparison.diagnosis.refuting.behind.errors_behind import EXACT
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.suspects.reading.recovered_values import Recovered, RecoveredValues
from gradscope.comparison.diagnosis.suspects.steps import makers_of
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, key_of, split_key

#: The share of a tensor's tolerance up to which two root mean squares are equal: rounding errors cancel in them.
_OF_TOLERANCE: Final = 0.05

#: How much larger than the reference's an element may be that is no larger, and how much smaller all are that are.
_EQUAL: Final = 1e-3

#: The fewest elements of which it is no chance that none is larger than the reference's, or none smaller.
_FEWEST: Final = 16


def with_gradient_makers(dumps: Dumps, pairing: Pairing, first: ComparisonRow | None, blame: Blame) -> Blame:
    """Returns where a divergence comes from, the layers that made a gradient told apart from the code before them.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        first: The first gradient over tolerance; None where there is none.
        blame: Where the divergence comes from.
    """
    # An output of a loop of which the reference has the iterations alone has the candidate's name.
    if first is None or not blame.makers or key_of(ACTIVATION_GRAD, first.name) not in dumps.ref.keys():  # noqa: SIM118
        return blame
    found = _Returned(dumps, pairing, first)
    layers = {layer.path: layer for layer in dumps.ref.manifest.layers if layer.path in blame.makers}
    through = tuple(path for path in blame.makers if path in layers and found.is_sent_on(layers[path]))
    right = {path: found.is_right(layers[path]) for path in through}
    wrong = tuple(path for path in through if right[path] is False)
    wrong = tuple(path for path in wrong if not found.may_be_read_beside(layers[path], wrong))
    if wrong:
        return replace(blame, makers=wrong)
    proven = frozenset(path for path in through if right[path]) if True in right.values() else frozenset[str]()
    right_ones = proven if proven and found.is_in_order() else frozenset[str]()
    return replace(blame, code_before=through, right=right_ones, by_loss=found.is_read_by_loss())


class _Returned:
    """`_Returned` knows what is known of the gradients that layers return for a value.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        first: The row of the value's gradient.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing, first: ComparisonRow) -> None:
        self._pairs = RecoveredValues(dumps, pairing, of_ref=True)
        self._matches = {match.ref: match for match in pairing.matched}
        self._tolerance = first.tolerance or 0.0
        self._gradient = dumps.ref.resolve(key_of(ACTIVATION_GRAD, first.name))
        self._value = dumps.ref.resolve(key_of(ACTIVATION, first.name))
        self._of_loss = frozenset(dumps.ref.manifest.loss_sources), frozenset(dumps.cand.manifest.loss_sources)
        self._cand, self._makers = dumps.cand, makers_of(dumps.cand.manifest.layers)
        self._layers, self._tensors = dumps.ref.manifest.layers, FloatTensors(dumps.ref)

    def is_sent_on(self, layer: Layer) -> bool:
        """Returns whether what a layer returns passes code without an entry on the way to the value.

        Args:
            layer: The layer in the reference.
        """
        other, match = self._counterpart(layer), self._matches.get(self._value)
        of_cand = () if other is None or match is None else other.sources
        return self._value in layer.sources or any(key in of_cand for key in (match.recipe.keys if match else ()))

    def is_read_by_loss(self) -> bool:
        """Returns whether the loss of one of the programs reads the value itself, beside what layers make of it."""
        match = self._matches.get(self._value)
        others = (self._cand.resolve(key) for key in match.recipe.keys) if match is not None else ()
        in_ref, in_cand = self._of_loss
        return self._value in in_ref or not in_cand.isdisjoint(others)

    def is_right(self, layer: Layer) -> bool | None:
        """Returns whether the gradient of what a layer reads has the reference's size; None where that says nothing.

        Only a layer that reads what its counterpart reads, and no value with an entry, says something.

        Args:
            layer: The layer in the reference.
        """
        other = self._counterpart(layer)
        if other is None or layer.inputs or other.inputs or self._apart(layer, other, "in") is not False:
            return None
        differs = self._apart(layer, other, "grad_in")
        return None if differs is None else not differs

    def may_be_read_beside(self, layer: Layer, others: Collection[str]) -> bool:
        """Returns whether code that is no sum may send on what a layer reads to a layer that is none of some others.

        What a block adds to a value, as in a residual network, has the gradient of the sum, and so has the value.

        Args:
            layer: The layer in the reference.
            others: The paths of the others.
        """
        read = _values_read(layer)
        beside = (each for each in self._layers if each.path not in others and read < _values_read(each))
        return bool(read) and not all(len(each.outputs) == 1 and self._adds_up(each) for each in beside)

    def _adds_up(self, layer: Layer) -> bool:
        """Returns whether a layer returns a sum of a value that it reads, which then has the gradient of that."""
        total, *terms = (
            self._tensors.tensor(key_of(ACTIVATION_GRAD, name))
            for name in (layer.outputs[0], *(split_key(key)[1] for key in _values_read(layer)))
        )
        if total is None:
            return False
        shaped = (each for each in terms if each is not None and each.shape == total.shape)
        return any(bool(np.linalg.norm(each - total) <= EXACT * np.linalg.norm(total)) for each in shaped)

    def is_in_order(self) -> bool:
        """Returns whether the value's gradient is larger or smaller throughout, and so no gradient in another order."""
        pair = self._pairs.pair(self._gradient)
        return pair is not None and _is_longer(pair) is not _is_longer(Recovered(pair.other, pair.own))

    def _apart(self, layer: Layer, other: Layer, name: str) -> bool | None:
        """Returns whether the root mean squares of two layers differ; None where rounding may tell, or that is unknown.

        Args:
            layer: The layer in the reference.
            other: Its counterpart.
            name: The name of the root mean square.
        """
        if layer.elements.get(name) != other.elements.get(name) or not {name} <= layer.rms.keys() & other.rms.keys():
            return None
        apart, rms = abs(layer.rms[name] - other.rms[name]), layer.rms[name]
        if apart <= _OF_TOLERANCE * self._tolerance * rms:
            return False
        return True if apart > self._tolerance * rms else None

    def _counterpart(self, layer: Layer) -> Layer | None:
        """Returns the innermost layer of the candidate that makes the counterpart of what a layer returns."""
        matches = (self._matches.get(key_of(ACTIVATION, name)) for name in layer.outputs)
        keys = (self._cand.resolve(key) for match in matches if match is not None for key in match.recipe.keys)
        found = (self._makers.get(key.partition("/")[2]) for key in keys)
        return next((each for each in found if each is not None), None)


def _values_read(layer: Layer) -> frozenset[str]:
    """Returns the keys of the values that a layer reads, or that it computes its outputs from where it states those."""
    stated = (key for key in layer.sources if split_key(key)[0] != PARAM)
    return frozenset(stated if layer.sources else (key_of(ACTIVATION, name) for name in layer.inputs))


def _is_longer(pair: Recovered) -> bool:
    """Returns whether no element of a gradient is smaller than the reference's, and some are larger."""
    own, other = (np.abs(each).ravel() for each in pair)
    if own.size < _FEWEST or own.shape != other.shape or not np.all(np.isfinite(own) & np.isfinite(other)):
        return False
    slack = _EQUAL * (own + float(np.sqrt(np.square(own).mean())))
    return bool(np.all(other >= own - slack) and np.linalg.norm(other) > (1 + 2 * _EQUAL) * np.linalg.norm(own))
