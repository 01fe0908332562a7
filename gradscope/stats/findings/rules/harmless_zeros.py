"""Gradients of zeros are harmless where they go away with the next step, or where the loss does not depend on a value.

A branch that is switched off at first has a parameter of zeros that itself has a gradient; what the others of the
branch miss comes with the next step.
"""

from __future__ import annotations

from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF, factor_in, places_in
from gradscope.stats.findings.rule_evidence import RuleEvidence, is_zero, key

#: How the reason of a zero gradient begins where a gate is closed.
GATED: Final = "masked: multiplied by exact zeros in mul"
#: How the reason of a zero gradient begins where every margin of the loss is kept.
SATISFIED: Final = "satisfied"
#: How it begins where an operation behind a value takes out what it adds.
_INVARIANT: Final = "zero by construction: the loss does not change with it"


class HarmlessZeros:
    """`HarmlessZeros` tells which gradients of parameters are zero without a fault, of one dump.

    Args:
        evidence: What is known of the dump.
    """

    def __init__(self, evidence: RuleEvidence) -> None:
        self._evidence = evidence
        starting = [param for param in evidence.of(naming.PARAM) if _starts_at_zero(evidence, param)]
        self._starting = {key(param) for param in starting}
        self._used: dict[str, list[tuple[int, str]]] = {}
        for param in starting:
            if param.site.source is not None:
                # The last two say whether any but one is used behind a value.
                last = [*self._used.get(param.site.source, ()), (param.site.index, key(param))]
                self._used[param.site.source] = sorted(last)[-2:]
        self._most_axes: dict[str | None, int] = {}
        for gradient in evidence.of(naming.PARAM_GRAD):
            if not is_zero(gradient):
                layer = gradient.site.layer
                self._most_axes[layer] = max(len(gradient.shape), self._most_axes.get(layer, 0))

    def has(self, gradient: Entry, reason: str) -> bool:
        """Returns whether a gradient that is zero for a reason is one of them."""
        if reason.startswith(("branch not taken", SATISFIED)):
            return True
        if reason.startswith(("cancellation", _INVARIANT)):
            return self._most_axes.get(gradient.site.layer, 0) > len(gradient.shape)
        return reason.startswith("masked") and self._is_switched_off(gradient, reason)

    def waits(self, param: Entry) -> bool:
        """Returns whether a gradient is zero only because another parameter is, which the next step changes."""
        gradient = self._evidence.entry(naming.PARAM_GRAD, param.name)
        cause = None if gradient is None else self._evidence.cause(gradient)
        return cause is not None and factor_in(cause.why) in self._starting

    def _is_switched_off(self, gradient: Entry, reason: str) -> bool:
        factor = factor_in(reason)
        param = factor.removeprefix(PRODUCT_OF)
        if param in self._starting and (param == factor or f"{GATED} " in reason):
            return True
        # Where two signals are multiplied by each other, `init` reports the factor.
        used = (each for place in places_in(reason) for each in self._used.get(place, ()))
        return any(index >= gradient.site.index for index, other in used if other != param)


def _starts_at_zero(evidence: RuleEvidence, param: Entry) -> bool:
    """Returns whether a parameter is zero and has a gradient."""
    gradient = evidence.entry(naming.PARAM_GRAD, param.name)
    return is_zero(param) and gradient is not None and gradient.absent is None and not is_zero(gradient)
