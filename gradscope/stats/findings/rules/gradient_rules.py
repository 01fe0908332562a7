"""These rules find parameters that do not learn, `zero-grad` and `unused-param`, and judge the self-check.

They are about parameters. A value without a gradient behind which there is no parameter (a metric, a moving average) is
in the ledger alone. The gradients that are lost at one place, for one reason, are one finding, at the value that is
closest to the place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.manifest.operation_facts import StepFunction
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF
from gradscope.dump.record import AS_DATA, STOPPED
from gradscope.naming.numbering import NUMBER
from gradscope.naming.wording import counted
from gradscope.stats.findings.rule_evidence import (
    Finding,
    RuleEvidence,
    Suspect,
    Thresholds,
    is_zero,
    key,
    suspect,
)  # fmt: skip

_UNUSED: Final = "disconnected"
#: How the reason of a zero gradient begins where a gate is closed.
GATED: Final = "masked: multiplied by exact zeros in mul"
#: How the reason of a zero gradient begins where every margin of the loss is kept.
SATISFIED: Final = "satisfied"
#: How the reason of a zero gradient begins where a rectifier is why.
DEAD_UNITS: Final = "dead units"
#: How it goes on where an input of zeros, such as a mask, is all that the rectifier's layer receives a multiple of.
_SILENCED: Final = re.compile(rf"{DEAD_UNITS}.*: (?:{PRODUCT_OF})?{naming.INPUT}/(.*) is 0")
#: How it begins where an operation behind a value takes out what it adds.
_INVARIANT: Final = "zero by construction: the loss does not change with it"
_NUMBER: Final = re.compile(NUMBER)
#: The most names of unused parts of a block that a finding lists.
_MOST_NAMES: Final = 4


def zero_gradient(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds places where the gradients of parameters are lost, and are exactly zero or absent before them."""
    lost: dict[str, list[tuple[str, Entry]]] = {}
    for entry in evidence.entries:
        if entry.family in (naming.PARAM_GRAD, naming.ACTIVATION_GRAD) and (reason := _reason(evidence, entry)):
            lost.setdefault(_of_all_blocks(reason), []).append((reason, entry))
    starting = tuple(starting_at_zero(evidence)) if lost else ()
    for found in lost.values():
        params = [(reason, entry) for reason, entry in found if entry.family == naming.PARAM_GRAD]
        faults = [entry for reason, entry in params if not _is_by_construction(evidence, entry, reason, starting)]
        if faults:
            reason = next(reason for reason, entry in params if entry is faults[0])
            values = [entry for _, entry in found if entry.family != naming.PARAM_GRAD]
            yield _lost(reason, [entry for _, entry in params], values, silencing_input(evidence, reason))


def step_function(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds step functions at which gradients end, where reductions of the same tensors still hand one to them."""
    found: dict[tuple[str, str | None], list[tuple[StepFunction, Entry]]] = {}
    for each in evidence.manifest.step_functions:
        family = naming.PARAM_GRAD if each.family == naming.PARAM else naming.ACTIVATION_GRAD
        entry = evidence.entry(family, each.name)
        if entry is not None and entry.absent is None and not is_zero(entry):
            found.setdefault((each.primitive, each.source), []).append((each, entry))
    for (primitive, source), ended in found.items():
        step, first = ended[0]
        place = "" if source is None else f" at {naming.printable(source)}"
        why = (
            f"is not that of its elements: {primitive}{place} is constant wherever it has a derivative, and what "
            f"arrives comes through {' and '.join(step.beside)} of the tensor alone"
        )
        if len(ended) > 1:
            why += f"; {counted(len(ended) - 1, 'tensor')} more {'is' if len(ended) == 2 else 'are'} alike"
        lost = suspect("zero-grad", first, why, [entry for _, entry in ended])
        yield replace(lost, finding=replace(lost.finding, source=source))


def _of_all_blocks(reason: str) -> str:
    """Returns a reason without the numbers in the name of a parameter, which differ from block to block."""
    place, separator, name = reason.partition(f" {naming.PARAM}/")
    return place + separator + _NUMBER.sub("#", name)


def silencing_input(evidence: RuleEvidence, reason: str) -> Entry | None:
    """Returns the input of zeros because of which a rectifier is dead, by the reason of a zero gradient."""
    silenced = _SILENCED.fullmatch(reason)
    return None if silenced is None else evidence.entry(naming.INPUT, silenced[1])


def _lost(reason: str, params: Sequence[Entry], values: Sequence[Entry], silencing: Entry | None) -> Suspect:
    exact = params[0].absent is None
    closest = max(values or params, key=lambda entry: entry.site.index)
    many = "1 parameter" if len(params) == 1 else f"{len(params)} parameters"
    if silencing is not None:
        why = f"is zero in every element, and multiplies what goes on: no gradient reaches {many}: {reason}"
        return suspect("zero-grad", silencing, why, [*params, *values], total=True)
    state = "is exactly zero" if exact else "is absent"
    why = f"{state}, and that of {many}{_of_part(params, closest)} with it: {naming.printable(reason)}" if values else (
        f"{state}{'' if len(params) == 1 else f', in {many}'}: {naming.printable(reason)}"
    )  # fmt: skip
    return suspect("zero-grad", closest, why, [*params, *values])


def _of_part(params: Sequence[Entry], shown: Entry) -> str:
    """Returns the part of the model that parameters are in, as " of encoder"; "" where the shown name says it."""
    scopes = [param.name.split("/")[:-1] for param in params]
    common = [names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, zip(*scopes, strict=False))]
    part = "/".join(common)
    return f" of {naming.printable(part)}" if part and not f"{shown.name}/".startswith(f"{part}/") else ""


def _reason(evidence: RuleEvidence, entry: Entry) -> str:
    """Returns why a gradient is zero or absent; "" where it is neither, or its value is unused, frozen or data."""
    if entry.absent == "disconnected":
        detail = evidence.detail(entry)
        return "" if not detail or detail.startswith(_UNUSED) or detail.endswith((STOPPED, AS_DATA)) else detail
    cause = evidence.cause(entry)
    if not is_zero(entry) or (cause is not None and (cause.rounding or cause.why.startswith(_UNUSED))):
        return ""
    return "its cause is not determined" if cause is None else cause.why


def _is_by_construction(evidence: RuleEvidence, entry: Entry, reason: str, starting: Sequence[Entry]) -> bool:
    """Returns whether a zero is no fault: it goes away with the next step, or the loss does not depend on the value."""
    if reason.startswith(("branch not taken", SATISFIED)):
        return True
    if reason.startswith(("cancellation", _INVARIANT)):
        beside = (other for other in evidence.of(naming.PARAM_GRAD) if other.site.layer == entry.site.layer)
        return any(len(other.shape) > len(entry.shape) and not is_zero(other) for other in beside)
    return reason.startswith("masked") and any(_is_switched_off_by(param, entry, reason) for param in starting)


def _is_switched_off_by(param: Entry, entry: Entry, reason: str) -> bool:
    """Returns whether a gradient is zero because a parameter is, which the next step changes."""
    if reason.endswith(f": {key(param)} is 0"):
        return True
    if reason.endswith(f": {PRODUCT_OF}{key(param)} is 0"):
        return f"{GATED} " in reason  # where two signals are multiplied by each other, `init` reports it
    source = param.site.source
    return param.site.index >= entry.site.index and source is not None and source in reason


def starting_at_zero(evidence: RuleEvidence) -> Iterator[Entry]:
    """Yields the parameters that are zero and have a gradient: those of branches that are switched off at first."""
    for param in evidence.of(naming.PARAM):
        gradient = evidence.entry(naming.PARAM_GRAD, param.name)
        if is_zero(param) and gradient is not None and gradient.absent is None and not is_zero(gradient):
            yield param


def unused_parameter(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds parameters on which the loss does not depend at all, by the largest parts of the model that have no other.

    Some are used by no layer; others are, and what that layer computes does not reach the loss.
    """
    params = {entry.name: entry for entry in evidence.entries if entry.family == naming.PARAM}
    unused = {
        name: why for name, entry in params.items()
        if (why := _unused(evidence, entry)) is not None and not _is_lost_in_derivative(evidence, name)
    }  # fmt: skip
    if not unused:
        return
    used = {part for name in params if name not in unused for part in _around(name)}
    parts: dict[str, list[Entry]] = {}
    for name in unused:
        part = next((part for part in _around(name) if part not in used), name)
        parts.setdefault(part, []).append(params[name])
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for part, entries in parts.items():
        alike.setdefault((_without_numbers(part), unused[entries[0].name]), []).append(part)
    for together in alike.values():
        entries = [entry for part in together for entry in parts[part]]
        of = "" if len(entries) == 1 else f", nor does the rest of {naming.printable(_paths(together))}"
        yield suspect("unused-param", entries[0], f"does not reach the loss{of}{unused[entries[0].name]}", entries)


def _without_numbers(part: str) -> tuple[str, ...]:
    """Returns what the paths of parts of alike blocks have in common: that of the block, or else the part itself."""
    block, _, _ = part.rpartition("/")
    around = tuple(_NUMBER.split(block))
    return around if len(around) > 1 else (part,)


def _paths(parts: Sequence[str]) -> str:
    """Returns paths that differ in their numbers or last components in a few words: `blocks/0..2/ln1, ln2`."""
    blocks, last = zip(*((block, name) for block, _, name in (part.rpartition("/") for part in parts)), strict=True)
    numbers = zip(*(map(int, _NUMBER.findall(block)) for block in blocks), strict=True)
    ranges = [f"{min(each)}..{max(each)}" if min(each) < max(each) else str(min(each)) for each in map(list, numbers)]
    between = iter(ranges)
    block = _NUMBER.sub(lambda _: next(between), blocks[0])
    names = list(dict.fromkeys(last))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (f"{block}/" if block else "") + ", ".join(names[:_MOST_NAMES]) + more


def _around(name: str) -> list[str]:
    """Returns the paths of a name's parents, the outermost first, and the name itself."""
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _unused(evidence: RuleEvidence, param: Entry) -> str | None:
    """Returns the rest of a sentence on why the loss does not depend on a parameter; None where it does."""
    gradient = evidence.entry(naming.PARAM_GRAD, param.name)
    cause = None if gradient is None else evidence.cause(gradient)
    if gradient is not None and gradient.absent == "disconnected":
        known = evidence.detail(gradient) or _UNUSED
    elif cause is not None and is_zero(gradient):
        known = cause.why
    else:
        return None
    if not known.startswith(_UNUSED):
        return None
    rest = known.removeprefix(_UNUSED).removeprefix(": the loss does not depend on it")
    return naming.printable(rest)


def _is_lost_in_derivative(evidence: RuleEvidence, name: str) -> bool:
    """Returns whether a parameter is a constant of an energy: of the layer that adds it, the derivative alone is used.

    Nothing reads what the layer returns, and yet its kernel has a gradient, by way of the derivative.
    """
    beside = {other for layer in evidence.manifest.layers if not layer.outputs and name in layer.params
              for other in layer.params if other.rpartition("/")[0] == name.rpartition("/")[0]}  # fmt: skip
    gradients = (evidence.entry(naming.PARAM_GRAD, other) for other in beside - {name})
    return any(gradient is not None and gradient.absent is None for gradient in gradients)


def self_check(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds parameters whose gradient in the instrumented program differs from the plain one by more than rounding."""
    names = (evidence.manifest.self_check or {}).get("beyond_rounding")
    known: Mapping[str, Entry | None] = {
        str(name): evidence.entry(naming.PARAM_GRAD, str(name)) for name in (names if isinstance(names, list) else ())
    }
    for name, entry in known.items():
        why = "differs from the gradient of the plain program by more than rounding"
        found = Finding(
            rule="self-check", name=name, family=naming.PARAM_GRAD, why=why,
            source=None if entry is None else entry.site.source,
            iteration=() if entry is None else entry.site.iteration,
        )  # fmt: skip
        yield Suspect(finding=found)
