"""`kinked_tolerances` returns the tolerances of gradients that rounding decides through kinks.

Where a value is zero but for rounding, a rectifier passes its gradient in one of two programs only (`kinks`). What is
computed from that gradient inherits the error, which is no fault of either. The signs that flip tell the size of the
error where it is made, and from there it creeps: a gradient is as far off as the gradients that it is computed from,
where a fault makes the error jump. So a gradient over its tolerance is held to four times the largest error that
arrives, kinks included, and to its tolerance and four times what the kinks on the way make, added up as a random walk.

That is only where everything that the gradient is computed from agrees, values and parameters too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from gradscope.comparison.judging.rounding.kinks import KinkedShare
from gradscope.dump.manifest.layer_graph import NearestKeys, Sources, sources_first
from gradscope.naming import is_gradient, split_key
from gradscope.naming.wording import counted

#: How many times the errors that arrive a gradient's error may be: terms cancel in the backward pass of a normalisation
#: and in the gradients of parameters. Right ports of ResNet-50 had up to 2.4 times.
_GROWTH: Final = 4.0

#: How many times the errors that kinks make on the way, added up as a random walk, an error may be.
_MOST: Final = 4.0


class _ShareOf(Protocol):
    def __call__(self, gradient: str) -> KinkedShare: ...


def kinked_tolerances(
    sources: Sources,
    errors: Mapping[str, float],
    tolerances: Mapping[str, float],
    share: _ShareOf,
    has_factor: Callable[[str, Sequence[str]], bool],
) -> dict[str, float]:
    """Returns the tolerances of gradients that are over theirs because of kinks.

    Args:
        sources: What tensors are computed from.
        errors: The `rel_l2` of the tensors that are compared, by the keys of owners.
        tolerances: Their tolerances.
        share: Returns the share of a gradient that kinks decide.
        has_factor: Returns whether the error of a tensor is a factor that nothing it is computed from has, which is the
            second argument: kinks make none.
    """
    if not any(_is_gradient(key) and errors[key] > tolerances[key] for key in errors):
        return {}
    walk = _Walk(errors, tolerances, share, has_factor)
    nearest = NearestKeys(sources, errors)
    read = {key: [each for each in nearest.behind(key) if each != key] for key in errors}
    for key in sources_first(read, errors):
        walk.add(key, read[key])
    return {key: limit for key, limit in walk.limits.items() if limit > tolerances[key]}


def kinked_why(here: KinkedShare) -> str:
    """Returns why a gradient has a wider tolerance, from the share of it that kinks decide."""
    if not here.count:
        return "it is computed from gradients that rounding decides at kinks, such as a rectifier's at zero"
    elements = f"{counted(here.count, 'element')} of {here.size:,}"
    return f"rounding decides on which side of a kink, such as a rectifier's at zero, its value is at {elements}"


class _Walk:
    """`_Walk` follows errors from gradient to gradient.

    Attributes:
        limits: The tolerance of each gradient so far, wider where kinks are why.
    """

    def __init__(
        self,
        errors: Mapping[str, float],
        tolerances: Mapping[str, float],
        share: _ShareOf,
        has_factor: Callable[[str, Sequence[str]], bool],
    ) -> None:
        self._errors = errors
        self._tolerances = tolerances
        self._share = share
        self._has_factor = has_factor
        self._made: dict[str, float] = {}
        self.limits: dict[str, float] = {}

    def add(self, key: str, before: Sequence[str]) -> None:
        """Adds a gradient or a value behind those that it is computed from."""
        if not _is_gradient(key) or not all(self._agrees(each) for each in before):
            return
        gradients = [each for each in before if _is_gradient(each)]
        self._made[key] = max((self._made.get(each, 0.0) for each in gradients), default=0.0)
        if self._agrees(key):
            return
        here = self._share(key).made
        arriving = [(self._errors[each], self._share(each).passed, self._made.get(each, 0.0)) for each in gradients]
        inherited = max((math.hypot(error, passed) for error, passed, _ in arriving), default=0.0)
        made = max((math.hypot(made, passed, here) for _, passed, made in arriving), default=here)
        if not made or self._has_factor(key, before):
            return
        self._made[key] = made
        tolerance = self._tolerances[key]
        limit = math.hypot(here, max(tolerance, _GROWTH * inherited))
        self.limits[key] = min(limit, math.hypot(tolerance, _MOST * made))

    def _agrees(self, key: str) -> bool:
        return self._errors[key] <= self.limits.get(key, self._tolerances[key])


def _is_gradient(key: str) -> bool:
    return is_gradient(split_key(key)[0])
