"""`PartOrders` tells that a layer adds the parts of its bias to the products of other parts of its kernel.

Queries, keys and values may be one layer in one program and three in the other, or be packed in another order. The
parts of the kernel and those of the bias have to be taken in one order. Where they are not, some of the three values
are products with the bias of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.layout.recipe_steps import Concatenate, Reorder
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, PARAM, key_of, printable, split_key

#: The parts of a tensor: the layers that have them, or their numbers in the other program.
Order: TypeAlias = tuple[str, ...]

#: The most parts of a layer.
_MOST_PARTS: Final = 8

#: The relative error up to which values are those of an order.
_ROUNDING: Final = 1e-5


def order_of_parts(match: Match, users: Mapping[str, str]) -> Order:
    """Returns the parts of a pair's reference in their order; none where the recipe joins no parts.

    Args:
        match: The pair.
        users: The paths of the candidate's layers that use a parameter or make a value, by its key.
    """
    steps = match.recipe.steps
    if len(match.recipe.keys) > 1:
        return tuple(users.get(key, "") for key in match.recipe.keys) if _joins(match) else ()
    return next((tuple(map(str, each.order)) for each in steps if isinstance(each, Reorder)), ())


def users_of(layers: Sequence[Layer]) -> dict[str, str]:
    """Returns the paths of the innermost layers that use a parameter or make a value, by the key of that.

    Args:
        layers: The layers of a program.
    """
    used = {key_of(PARAM, name): layer.path for layer in layers for name in layer.params}
    return used | {key_of(ACTIVATION, name): layer.path for layer in layers for name in layer.outputs}


class PartOrders:
    """PartOrders finds layers whose kernel and bias have their parts in different orders.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._entry, self._users = dumps.ref.entry, users_of(dumps.cand.manifest.layers)
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)

    def words(self, match: Match, read: Sequence[Match]) -> str:
        """Returns a clause about which parts of a bias are added to those of a product; "" where those of its own are.

        Args:
            match: The pair of what the layers make.
            read: The pairs of what that is computed from, parameters among them.
        """
        params = [each for each in read if split_key(each.ref)[0] == PARAM]
        kernels, biases = (
            [each for each in params if (len(self._entry(each.ref).shape) > 1) is many] for many in (True, False)
        )
        if len(kernels) != 1 or len(biases) != 1:
            return ""
        found = [order_of_parts(each, self._users) for each in (*kernels, *biases)]
        count = max(map(len, found))
        of_kernel, of_bias = (each or tuple(map(str, range(count))) for each in found)
        if of_kernel == of_bias or sorted(of_kernel) != sorted(of_bias) or not len({*of_bias}) == count <= _MOST_PARTS:
            return ""
        # The part of the reference's bias that the candidate adds where it has a part of the reference's kernel.
        added = [of_bias.index(each) for each in of_kernel]
        order = tuple(map(of_kernel.index, order_of_parts(match, self._users) or sorted(of_kernel)))
        if not self._is_made_so(match, biases[0], added, order):
            return ""
        names = [f"`{printable(split_key(each.ref)[1])}`" for each in (*kernels, *biases)]
        return f"adds the parts {added} of {names[1]} to the products of the parts {[*range(count)]} of {names[0]}"

    def _is_made_so(self, match: Match, bias: Match, added: Sequence[int], order: Sequence[int]) -> bool:
        """Returns whether the candidate's value is the reference's with other parts of the bias.

        Args:
            match: The pair of the values.
            bias: The pair of the bias.
            added: The part of the bias that is added to each part of the product.
            order: The part of the product that each part of the candidate's value is.
        """
        one, other, vector = self._ref.tensor(match.ref), self._cand.made(match.recipe), self._ref.tensor(bias.ref)
        if one is None or other is None or vector is None or one.shape != other.shape or vector.size % len(added):
            return False
        for axis in (each for each, size in enumerate(one.shape) if size == vector.size):
            products, own = (np.split(each, len(added), axis) for each in (one, other))
            parts = np.split(vector, len(added))
            along = [-1 if each == axis else 1 for each in range(one.ndim)]
            made = [products[part] + (parts[added[part]] - parts[part]).reshape(along) for part in order]
            if all(np.linalg.norm(a - b) <= _ROUNDING * np.linalg.norm(b) for a, b in zip(made, own, strict=True)):
                return True
        return False


def _joins(match: Match) -> bool:
    return any(isinstance(each, Concatenate) for each in match.recipe.steps)
