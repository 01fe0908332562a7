"""`accumulated_tolerances` returns the tolerances of tensors of 16 bits that are deep in a network.

Every value that is rounded to 16 bits has a new error of up to half an epsilon, and inherits those of what it is
computed from. Errors of one size that have nothing to do with each other add up to the square root of their number, as
in a random walk: behind `n` roundings an error is up to `sqrt(n)` times that of one. So the default tolerance, which is
that of one tensor, grows with the square root of the number of tensors on the longest way to a tensor.

That alone would pass faults deep in a network. But an error of rounding creeps: it is of the size of the errors that
the tensor inherits, where a fault makes it jump. So a tensor is held to twice the largest error among what it is
computed from, too, and keeps its default where any of that is over its own tolerance.

The gradients of parameters are sums in which terms cancel, and the backward pass of a normalisation subtracts means. So
the error of a gradient may be four times what is inherited, up to twice the default tolerance, and that of a parameter
up to three times.

A tensor of zeros has an error of 1, and so has one that is doubled. No tolerance grows to where those would pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gradscope.dump.manifest.layer_graph import NearestKeys, inverted, sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION_GRAD, is_gradient, split_key

#: How many times the largest inherited error an error of rounding may be, and where terms cancel.
_GROWTH: Final = 2.0
_CANCELLING_GROWTH: Final = 4.0

#: How many times the default tolerance an error may be where terms of a gradient cancel, and where many do: those of
#: all examples in the gradient of a parameter. Of networks in bfloat16, biases had 2.4 times.
_CANCELLING: Final = 2.0
_CANCELLING_SUM: Final = 3.0

#: The largest error that rounding may add up to, well below that of a tensor of zeros. A network of 30 layers in
#: bfloat16 without residuals had 0.71.
_MOST: Final = 0.75


def accumulated_tolerances(
    layers: Sequence[Layer], errors: Mapping[str, float], tolerances: Mapping[str, float], narrow: Collection[str]
) -> dict[str, float]:
    """Returns the tolerances of tensors that are over their default, and may be by rounding that adds up.

    Args:
        layers: The layers of the reference.
        errors: The `rel_l2` of the tensors that are compared, by the keys of owners.
        tolerances: Their default tolerances.
        narrow: The keys of those that were computed in 16 bits.
    """
    if all(errors[key] <= tolerances[key] for key in narrow):
        return {}
    sources = NearestKeys(sources_of(layers), errors)
    read = {key: [each for each in sources.behind(key) if each != key] for key in errors}
    limits: dict[str, float] = {}
    depths: dict[str, int] = {}
    for key in _in_order(read):
        before, own = read[key], tolerances[key]
        depths[key] = 1 + max((depths.get(each, 0) for each in before), default=0)
        limits[key] = own
        agree = all(errors[each] <= limits.get(each, tolerances[each]) for each in before)
        if key in narrow and before and agree and errors[key] > own:
            limits[key] = max(own, _limit(split_key(key)[0], max(errors[each] for each in before), own, depths[key]))
    return {key: limit for key, limit in limits.items() if limit > tolerances[key]}


def _limit(family: str, inherited: float, tolerance: float, depth: int) -> float:
    """Returns the largest error of rounding.

    Args:
        family: The family of the tensor.
        inherited: The largest error among what it is computed from.
        tolerance: Its default tolerance.
        depth: The number of tensors on the longest way to it.
    """
    walk = min(math.sqrt(depth) * tolerance, max(tolerance, _MOST))
    if not is_gradient(family):
        return min(_GROWTH * inherited, walk)
    times = _CANCELLING if family == ACTIVATION_GRAD else _CANCELLING_SUM
    cancelling = min(_CANCELLING_GROWTH * inherited, times * tolerance)
    return min(max(_GROWTH * inherited, cancelling), walk)


def _in_order(read: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns keys behind all that they are computed from; those of a cycle, as damaged dumps have, are left out."""
    waiting = {key: len(set(before)) for key, before in read.items()}
    readers = inverted({key: list(dict.fromkeys(before)) for key, before in read.items()})
    order = [key for key, count in waiting.items() if not count]
    for key in order:  # the list grows while it is read
        for reader in readers.get(key, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order
