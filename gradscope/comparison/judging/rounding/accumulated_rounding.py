"""`accumulated_tolerances` returns the tolerances of tensors that are deep in a network.

Every value that is rounded has a new error of up to half an epsilon, and inherits those of what it is computed from.
Errors of one size that have nothing to do with each other add up to the square root of their number, as in a random
walk: behind `n` roundings an error is up to `sqrt(n)` times that of one. So the default tolerance of 16 bits, which is
that of one tensor, grows with the square root of the number of tensors on the longest way to a tensor.

That alone would pass faults deep in a network. But an error of rounding creeps: it is of the size of the errors that
the tensor inherits, where a fault makes it jump. So a tensor is held to twice the largest error among what it is
computed from, too, and keeps its default where any of that is over its own tolerance.

The gradients of parameters are sums in which terms cancel, and the backward pass of a normalisation subtracts means. So
the error of a gradient may be four times what is inherited, up to twice the default tolerance, and that of a parameter
up to three times.

The default tolerance of 16 bits is a few epsilons, and that of wider types hundreds: a small fault may begin within it,
and grow. So errors of wider types have to creep all the way, from the rounding of single operations on, which no fault
does. Where they do, they may be as large as the network makes them: those of ResNet-152 before training, in two
layouts, begin with 1e-7 and end with 2e-3. A step that makes more of what it inherits than that, as a batch norm over
few values does, has to be seen to make no error of its own.

An error that is a factor of the whole tensor, which nothing that it is computed from has, is no rounding, however small
it is beside what is inherited, unless computing the step again explains it.

A tensor of zeros has an error of 1, and so has one that is doubled. No tolerance grows to where those would pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gradscope.comparison.judging.rounding.rounding_floors import NARROW
from gradscope.dump.manifest.layer_graph import NearestKeys, Sources, inverted
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, AUX, is_gradient, key_of, split_key

#: How many times the largest inherited error an error of rounding may be, and where terms cancel.
_GROWTH: Final = 2.0
_CANCELLING_GROWTH: Final = 4.0

#: The error of a single operation, in machine epsilons of a type of more than 16 bits: of sums of some thousand terms,
#: and of a normalisation whose mean is larger than its deviation.
_ROUNDINGS: Final = 20.0

#: How many default tolerances of a type of more than 16 bits an error that creeps all the way may be.
_MOST_TOLERANCES: Final = 100.0

#: How many times the default tolerance an error may be where terms of a gradient cancel, and where many do: those of
#: all examples in the gradient of a parameter. Of networks in bfloat16, biases had 2.4 times.
_CANCELLING: Final = 2.0
_CANCELLING_SUM: Final = 3.0

#: The largest error that rounding may add up to, well below that of a tensor of zeros. A network of 30 layers in
#: bfloat16 without residuals had 0.71.
_MOST: Final = 0.75


def accumulated_tolerances(
    sources: Sources,
    errors: Mapping[str, float],
    tolerances: Mapping[str, float],
    epsilons: Mapping[str, float],
    *,
    carries: Callable[[str], bool],
    has_factor: Callable[[str, Sequence[str]], bool],
) -> dict[str, float]:
    """Returns the tolerances of tensors that are over their default, and may be by rounding that adds up.

    Args:
        sources: What tensors are computed from.
        errors: The `rel_l2` of the tensors that are compared, by the keys of owners.
        tolerances: Their default tolerances.
        epsilons: The machine epsilons of those that are rounded, each of the type that the tensor was computed in.
        carries: Returns whether the step that makes a tensor only carries on the errors of what it reads.
        has_factor: Returns whether the error of a tensor is a factor that nothing it is computed from has, which is the
            second argument.
    """
    if all(errors[key] <= tolerances[key] for key in epsilons):
        return {}
    nearest = NearestKeys(sources, errors)
    read = {key: [each for each in nearest.behind(key) if each != key] or _of_loss(key, errors) for key in errors}
    limits: dict[str, float] = {}
    depths: dict[str, int] = {}
    creeping: set[str] = set()
    for key in _in_order(read):
        before, own, error = read[key], tolerances[key], errors[key]
        depths[key] = 1 + max((depths.get(each, 0) for each in before), default=0)
        inherited = max((errors[each] for each in before), default=0.0)
        limits[key] = own
        if not creeping.issuperset(before):
            continue
        is_wide = epsilons.get(key, 0.0) <= NARROW
        # Behind a norm over few values, one channel may be most of a gradient, and its deviation most of the error.
        if own < error < math.inf and is_wide and has_factor(key, before) and not carries(key):
            continue
        creeps = _creeps(key, error, inherited, epsilons.get(key, 0.0))
        if creeps or (error <= _MOST_TOLERANCES * own and carries(key)):  # to compute a step again takes long
            creeping.add(key)
            agree = all(errors[each] <= limits[each] for each in before)
            if before and agree and error > own and key in epsilons:
                family, narrow = split_key(key)[0], epsilons[key] > NARROW
                most = _growth(family) * inherited if creeps else error
                limit = _of_narrow(family, inherited, own, depths[key]) if narrow else _of_wide(most, own)
                limits[key] = max(own, limit)
    raised = {key: limit for key, limit in limits.items() if limit > tolerances[key]}
    return raised | _of_auxiliary(raised, errors, tolerances)


def _of_loss(key: str, errors: Mapping[str, float]) -> list[str]:
    """Returns what a gradient is computed from that nothing but the loss reads: its value."""
    family, name = split_key(key)
    value = key_of(ACTIVATION, name)
    return [value] if family == ACTIVATION_GRAD and value in errors else []


def _creeps(key: str, error: float, inherited: float, epsilon: float) -> bool:
    """Returns whether an error is that of one more rounding."""
    return epsilon > NARROW or error <= max(_growth(split_key(key)[0]) * inherited, _ROUNDINGS * epsilon)


def _growth(family: str) -> float:
    return _CANCELLING_GROWTH if is_gradient(family) else _GROWTH


def _of_auxiliary(
    raised: Mapping[str, float], errors: Mapping[str, float], tolerances: Mapping[str, float]
) -> dict[str, float]:
    """Returns the tolerances of auxiliary outputs, of which no layer tells what they are computed from.

    They may be computed from any value, and be as far off as those are that are over their default.
    """
    values = [errors[key] for key in raised if split_key(key)[0] == ACTIVATION and errors[key] <= raised[key]]
    limit = _GROWTH * max(values, default=0.0)
    return {key: limit for key in errors if split_key(key)[0] == AUX and limit > tolerances[key]}


def _of_wide(most: float, tolerance: float) -> float:
    """Returns the largest error that rounding makes of an inherited one, in types of more than 16 bits.

    Args:
        most: The largest that its step makes of what it inherits.
        tolerance: The default tolerance of the tensor.
    """
    return min(most, _MOST_TOLERANCES * tolerance)


def _of_narrow(family: str, inherited: float, tolerance: float, depth: int) -> float:
    """Returns the same in types of up to 16 bits.

    Args:
        family: The family of the tensor.
        inherited: The largest error among what it is computed from.
        tolerance: As for `_of_wide`.
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
