"""These rules find parameters that do not learn, `zero-grad` and `unused-param`, and judge the self-check.

They are about parameters. A value without a gradient behind which there is no parameter (a metric, a moving average) is
in the ledger alone. The gradients that are lost at one place, for one reason, are one finding, at the value that is
closest to the place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.manifest.operation_facts import StepFunction
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF, factor_in, places_in
from gradscope.dump.record import AS_DATA, STOPPED
from gradscope.naming.numbering import NUMBER
from gradscope.naming.wording import counted, some_of
from gradscope.stats.findings.rule_evidence import (
    DEEPEST,
    Finding,
    RuleEvidence,
    Suspect,
    Thresholds,
    is_zero,
    key,
    suspect,
)  # fmt: skip
from gradscope.stats.findings.rules.harmless_zeros import HarmlessZeros

_UNUSED: Final = "disconnected"
#: How the reason of a zero gradient begins where a rectifier is why.
DEAD_UNITS: Final = "dead units"
#: How it names the rectifier.
_NUMBER: Final = re.compile(NUMBER)
#: What the places are at which an absent gradient ends, and how the other reasons begin.
_PASSES: Final = "every path to the loss passes"
_CONSTANT: Final = "constant: "
#: What the reason of an unused parameter says that another place than the parameter tells.
_LAST_USE: Final = "its last use is "
#: The most names of unused parts of a block that a finding lists.
_MOST_NAMES: Final = 4


def zero_gradient(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds places where the gradients of parameters are lost, and are exactly zero or absent before them."""
    lost: dict[str, list[tuple[str, Entry]]] = {}
    for entry in evidence.entries:
        if entry.family in (naming.PARAM_GRAD, naming.ACTIVATION_GRAD) and (reason := _reason(evidence, entry)):
            lost.setdefault(_of_all_blocks(reason), []).append((reason, entry))
    harmless = HarmlessZeros(evidence)
    for found in lost.values():
        params = [(reason, entry) for reason, entry in found if entry.family == naming.PARAM_GRAD]
        faults = [entry for reason, entry in params if not harmless.has(entry, reason)]
        if faults:
            reason = next(reason for reason, entry in params if entry is faults[0])
            values = [entry for _, entry in found if entry.family != naming.PARAM_GRAD]
            yield _lost(reason, [entry for _, entry in params], values, silencing_input(evidence, reason))


def constant_loss(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds a loss that no parameter changes: every gradient is rounding, or exactly zero."""
    gradients = evidence.of(naming.PARAM_GRAD)
    reasons = [(entry, cause) for entry in gradients if (cause := evidence.cause(entry)) is not None]
    rounding = [(entry, cause) for entry, cause in reasons if cause.rounding]
    known = {key(entry) for entry, _ in rounding}
    if rounding and all(is_zero(entry) or key(entry) in known for entry in gradients):
        closest, cause = max(rounding, key=lambda each: each[0].site.index)
        others = [
            entry for entry in evidence.of(naming.ACTIVATION_GRAD) if (at := evidence.cause(entry)) and at.rounding
        ]
        why = f"{naming.printable(cause.why)}, and so it is with every parameter: nothing is learned"
        yield _where_lost(suspect("zero-grad", closest, why, [*gradients, *others]), cause.why)


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
        lost = suspect("zero-grad", first, why, [entry for _, entry in ended])
        yield replace(lost, finding=replace(lost.finding, source=source))


def _of_all_blocks(reason: str) -> str:
    """Returns a reason without the numbers in the name of a parameter, which differ from block to block."""
    place, separator, name = reason.partition(f" {naming.PARAM}/")
    return place + separator + _NUMBER.sub("#", name)


def silencing_input(evidence: RuleEvidence, reason: str) -> Entry | None:
    """Returns the input of zeros because of which a rectifier is dead, by the reason of a zero gradient."""
    family, name = naming.split_key(factor_in(reason).removeprefix(PRODUCT_OF))
    is_input = reason.startswith(DEAD_UNITS) and family == naming.INPUT
    return evidence.entry(family, name) if is_input else None


def _lost(reason: str, params: Sequence[Entry], values: Sequence[Entry], silencing: Entry | None) -> Suspect:
    exact = params[0].absent is None
    closest = max(values or params, key=lambda entry: entry.site.index)
    many = counted(len(params), "parameter")
    names = f" ({naming.printable(some_of([each.name for each in params]))})"
    if silencing is not None:
        why = f"is zero in every element, and multiplies what goes on: no gradient reaches {many}{names}: {reason}"
        lost = suspect("zero-grad", silencing, why, [*params, *values], total=True)
        return _counting(_where_lost(lost, reason), len(params))
    state = "is exactly zero" if exact else "is absent"
    because = naming.printable(reason if exact or reason.startswith(_CONSTANT) else f"{_PASSES} {reason}")
    why = f"{state}, and that of {many}{_of_part(params, closest)} with it{names}: {because}" if values else (
        f"{state}{'' if len(params) == 1 else f', in {many}{names}'}: {because}"
    )  # fmt: skip
    lost = suspect("zero-grad", closest, why, [*params, *values])
    return _counting(_where_lost(lost, reason), len(params) if values else len(params) - 1)


def _where_lost(lost: Suspect, reason: str) -> Suspect:
    """Returns a suspect with the first line that its reason names, where it names any: there is what to change."""
    place = next(iter(places_in(reason)), lost.finding.source)
    return replace(lost, finding=replace(lost.finding, source=place))


def _counting(lost: Suspect, counted: int) -> Suspect:
    """Returns a suspect whose sentence counts some of the tensors that it concerns."""
    return replace(lost, finding=replace(lost.finding, counted=counted))


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


def unused_parameter(evidence: RuleEvidence, _: Thresholds) -> Iterator[Suspect]:
    """Finds parameters on which the loss does not depend at all, by the largest parts of the model that have no other.

    Some are used by no layer; others are, and what that layer computes does not reach the loss.
    """
    params = {entry.name: entry for entry in evidence.entries if entry.family == naming.PARAM}
    constants = _lost_in_derivatives(evidence)
    unused = {
        name: why for name, entry in params.items()
        if (why := _unused(evidence, entry)) is not None and name not in constants
    }  # fmt: skip
    if not unused:
        return
    if len(unused) == len(params) > 1:
        last = max(params.values(), key=lambda entry: entry.site.index)
        why = f"does not reach the loss{unused[last.name]}, and no other parameter does: nothing is learned"
        yield suspect("unused-param", last, why, params.values())
        return
    used = {part for name in params if name not in unused for part in _around(name)}
    parts: dict[str, list[Entry]] = {}
    for name in unused:
        part = next((part for part in _around(name) if part not in used), name)
        parts.setdefault(part, []).append(params[name])
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for part, entries in parts.items():
        alike.setdefault((_without_numbers(part), unused[entries[0].name]), []).append(part)
    for together in _of_one_cause(alike):
        entries = [entry for alike_parts in together for part in alike_parts for entry in parts[part]]
        rest = _listed([_paths(alike_parts) for alike_parts in together])
        of = "" if len(entries) == 1 else f", nor does the rest of {naming.printable(rest)}"
        yield suspect("unused-param", entries[0], f"does not reach the loss{of}{unused[entries[0].name]}", entries)


def _of_one_cause(alike: Mapping[tuple[tuple[str, ...], str], Sequence[str]]) -> list[list[Sequence[str]]]:
    """Returns parts, in groups of alike ones, together where one place is the last use of all of them."""
    found: dict[object, list[Sequence[str]]] = {}
    for (common, why), parts in alike.items():
        found.setdefault(why if _LAST_USE in why else (common, why), []).append(parts)
    return list(found.values())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


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
    return (f"{block}/" if block else "") + _listed(names)


def _around(name: str) -> list[str]:
    """Returns the paths of a name's outermost parents, the outermost first, and the name itself."""
    parts = name.split("/", DEEPEST)
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


def _lost_in_derivatives(evidence: RuleEvidence) -> AbstractSet[str]:
    """Returns the parameters that are constants of an energy: of layers that add them, the derivative alone is used.

    Nothing reads what such a layer returns, and yet its kernel has a gradient, by way of the derivative.
    """
    found: set[str] = set()
    for layer in evidence.manifest.layers:
        beside: dict[str, set[str]] = {}
        for name in () if layer.outputs else layer.params:
            beside.setdefault(name.rpartition("/")[0], set()).add(name)
        for names in beside.values():
            gradients = {name: evidence.entry(naming.PARAM_GRAD, name) for name in names}
            learning = {name for name, each in gradients.items() if each is not None and each.absent is None}
            found |= names if len(learning) > 1 else names - learning if learning else set()
    return found


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
