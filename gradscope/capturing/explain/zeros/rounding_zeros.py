"""Rounding zeros are gradients that are zero but for rounding: small ones of a run that an invariance explains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.zeros.displacement import precision
from gradscope.capturing.explain.zeros.invariance import Invariances, words_of
from gradscope.dump.manifest.manifest import Cause
from gradscope.naming import IterationIndex
from gradscope.tracing.jaxpr.frames import ValueKey
from gradscope.tracing.lookup.softmax_axes import SoftmaxAxes

_CANCELLATION = "cancellation"
#: Units of rounding, of 1 or of the loss, below which all gradients, or a change of the loss, may be rounding.
_LOST: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A `Gradient` is one that is not zero.

    Attributes:
        family: Its family.
        name: Its name.
        value: The value that it is the gradient with respect to.
        iteration: The iteration of the loops around that value.
        rms: The root mean square of its finite elements.
        size: The number of its elements.
    """

    family: str
    name: str
    value: ValueKey
    iteration: IterationIndex
    rms: float
    size: int

    @property
    def norm(self) -> float:
        """The root of the sum of the squares of its elements."""
        return self.rms * math.sqrt(self.size)


def cancels(cause: Cause) -> bool:
    """Returns whether the terms of a gradient that is exactly zero cancel, by an invariance maybe."""
    return cause.family == naming.PARAM_GRAD and cause.why.startswith(_CANCELLATION)


def rounding_causes(run: Run, gradients: Sequence[Gradient], cancelling: Sequence[Cause]) -> Iterator[Cause]:
    """Yields the causes of gradients that are zero because the loss does not change with the value.

    Args:
        run: The run.
        gradients: Its gradients that are not zero.
        cancelling: Causes of gradients that are exactly zero because their terms cancel.
    """
    known = precision(site.dtype for site in run.trace.sites)
    small = known.small
    finite = [each for each in gradients if math.isfinite(each.rms)]
    parameters = [each for each in finite if each.family == naming.PARAM_GRAD]
    most = max((each.rms for each in parameters), default=0.0)
    tiny = {each.value.position: each for each in parameters if each.rms < small * most}
    # Of a loss that is constant, none is larger than the others: all are small beside 1, that of the loss itself.
    constant = all(each.norm < _LOST * known.eps for each in parameters)
    if constant:
        tiny = {each.value.position: each for each in parameters}
    tiny = dict(sorted(tiny.items(), key=lambda item: item[1].rms))
    zero = {n: leaf for n, leaf in enumerate(run.trace.arguments) if any(each.name == leaf.name for each in cancelling)}
    zero = {n: leaf for n, leaf in zero.items() if leaf.family == naming.PARAM}
    if not tiny and not zero:
        return
    found = Invariances(run, [*zero, *tiny])
    if constant and tiny and found.moved > _LOST * known.eps * max(1.0, abs(float(run.observed.loss))):
        return
    # What is exactly zero may be so around this point alone, as long as no margin of a hinge is kept.
    taken_out = [number for number in zero if number in found.of_arguments]
    far = Invariances(run, taken_out, far=True).of_arguments if taken_out else {}
    local = {number for number in taken_out if number not in far}
    axes = SoftmaxAxes(run.trace)
    for number, cuts in found.of_arguments.items():
        if number in local:
            continue
        name = run.trace.arguments[number].name
        rounding = number in tiny
        zero_words = "is zero but for rounding" if rounding else "zero by construction"
        why = f"{zero_words}: the loss does not change with it; {words_of(cuts, axes)}"
        yield Cause(family=naming.PARAM_GRAD, name=name, why=why, rounding=rounding)
    if found.of_arguments:
        yield from _of_values(found, gradients, small, axes)


def _of_values(found: Invariances, gradients: Sequence[Gradient], small: float, axes: SoftmaxAxes) -> Iterator[Cause]:
    """Yields the causes of gradients with respect to other values that the same operations take out."""
    known: dict[ValueKey, float] = {}
    for each in gradients:
        known[each.value] = max(each.rms, known.get(each.value, 0.0))
    of_values = [each for each in gradients if each.family != naming.PARAM_GRAD]
    taken_out = found.of_values(each.value for each in of_values)
    for each in of_values:
        cuts = taken_out.get(each.value, [])
        beyond = next((known[value] for value in found.beyond(cuts) if value in known), 0.0)
        if each.rms < small * beyond:
            why = f"is zero but for rounding: the loss does not change with it; {words_of(cuts, axes)}"
            yield Cause(family=each.family, name=each.name, why=why, rounding=True)
