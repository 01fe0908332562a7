"""Facts about a complete run: the lines below a dump's tables, and the same in JSON."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Examples, Manifest
from gradscope.dump.manifest.reasons import PHRASES
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF, factor_in
from gradscope.dump.record import AS_DATA, STOPPED, Json
from gradscope.naming import printable
from gradscope.naming.wording import counted
from gradscope.presentation.tables.numbers import count, number
from gradscope.stats import unscaled_inputs

#: Provenance that is shown below the tables; the JSON has all of it.
_PROVENANCE: Final = ("backend", "device", "seed", "batch_size", "matmul_precision")

#: Why parameters are kept constant on purpose, by how the ledger says so.
_ON_PURPOSE: Final = {
    STOPPED: "a stop_gradient is applied to them",
    AS_DATA: "what is made of them counts as data behind a stop_gradient, as a target does",
}

#: How a reason ends of a gradient that a log of a softmax makes zero but for rounding.
_LOG_SOFTMAX: Final = re.compile(
    r"(?:log_softmax|logsumexp|softmax_cross_entropy\w*) at \S+(?: and \S+ at \S+)* takes? out what it adds"
    r"(?:, over axis .*)?$"
)

#: The most places in the program that a line names.
_MOST_PLACES: Final = 3

#: The most parts of a model that a line names, and the most parameters, and characters of their names.
_MOST_PARTS: Final = 6
_MOST_NAMES: Final = 3
_NAMES_WIDTH: Final = 60

#: The origin of layers' names, where it is not the usual one.
_NAMING: Final = {
    "parameters and lines": "of the parameters that layers use, or the lines that compute them: no scope is opened"
}


#: The word of the alarms that a run raised at the step of a dump.
ALARM: Final = "alarm"
#: The words of facts that are no finding, as they may be meant, though each may be a fault.
MAY_BE_MEANT: Final = ("no effect", "clipped", "dropped", "rectified", "squashed", "softmax", "unscaled")


class Doubt(NamedTuple):
    """A `Doubt` is what may be a fault and may be meant: a word of `MAY_BE_MEANT`, a sentence, and its line if any."""

    word: str
    why: str
    source: str | None = None

    def to_json(self) -> dict[str, Json]:
        """Returns what is known of it, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def doubts(manifest: Manifest) -> Iterator[Doubt]:
    """Yields what may be a fault of the model and may be meant, by the order of the words."""
    yield from (Doubt("no effect", why) for why in _without_effect(manifest))
    yield from (Doubt("clipped", printable(each.sentence), each.source) for each in manifest.clips)
    masks = (each for each in manifest.random_masks if each.is_beyond_rates)
    yield from (Doubt("dropped", printable(each.sentence), each.source) for each in masks)
    for word in ("rectified", "squashed"):
        logits = (each for each in manifest.rectified_logits if each.is_bounded is (word == "squashed"))
        yield from (Doubt(word, printable(each.sentence), each.source) for each in logits)
    yield from (Doubt("softmax", printable(each.sentence), each.source) for each in manifest.softmax_uses)
    yield from (Doubt("unscaled", printable(each)) for each in unscaled_inputs(manifest))


def facts(path: str, manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Returns pairs of a label and a text, in the order in which they are shown."""
    return tuple((label, text) for label, text in _facts(path, manifest) if text)


def facts_json(path: str, manifest: Manifest) -> dict[str, Json]:
    """Returns the facts about the run; a fact that is not known has no key."""
    found: dict[str, Json] = {
        "dump": path,
        "loss": manifest.loss,
        "ledger": dict(manifest.ledger.counts()),
        "self_check": None if manifest.self_check is None else dict(manifest.self_check),
        "examples": None if manifest.examples is None else _examples(manifest.examples),
        "timings": dict(manifest.timings),
        "provenance": dict(manifest.provenance),
        "complete": manifest.complete,
        "tier": manifest.tier,
        "note": manifest.note or None,
        "may_be_meant": [each.to_json() for each in doubts(manifest)] or None,
    }
    return {name: fact for name, fact in found.items() if fact is not None}


def by_reason(counts: Mapping[str, int]) -> str:
    """Returns numbers of tensors by reason, each reason with its meaning: `8 captured, 2 eliminated (not needed)`."""
    meanings = {reason: f" ({PHRASES[reason]})" for reason in counts if reason in PHRASES}
    return ", ".join(f"{count(number)} {reason}{meanings.get(reason, '')}" for reason, number in counts.items())


def _facts(path: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    counted = manifest.provenance.get("counted")
    yield "loss", "" if manifest.loss is None else f"{manifest.loss:.6g}" + (f", {counted}" if counted else "")
    yield ALARM, _alarms(manifest.provenance.get("alarms"))
    yield "gradients", "; ".join(_gradients(manifest.provenance))
    yield "fed", _names(manifest.provenance.get("feed"))
    doubtful = [*doubts(manifest)]
    said = {word: "; ".join([why for each, why, _ in doubtful if each == word][:_MOST_PLACES]) for word in MAY_BE_MEANT}
    counts = manifest.ledger.counts()
    yield "tensors", by_reason(counts) if any(counts.values()) else ""
    yield "frozen", _frozen(manifest)
    yield "satisfied", _satisfied(manifest)
    yield "at zero", _behind_zeros(manifest)
    yield from said.items()
    yield "self-check", "" if manifest.self_check is None else _self_check(manifest.self_check)
    yield "examples", "" if manifest.examples is None else manifest.examples.sentence
    yield "seconds", ", ".join(f"{phase} {_seconds(seconds)}" for phase, seconds in manifest.timings.items())
    yield "run", ", ".join(_provenance(manifest.provenance))
    yield "command", _command(manifest.provenance.get("argv"))
    yield "names", _NAMING.get(str(manifest.provenance.get("naming")), "")
    yield "statistics", "" if manifest.tier == "full" else f"of the {manifest.tier} tier only"
    yield "dump", path
    yield "note", manifest.note
    yield "incomplete", "" if manifest.complete else "the run that wrote this dump did not finish"


def _gradients(provenance: Mapping[str, Json]) -> Iterator[str]:
    """Yields what gradients are of, where that is not the loss, and which values count as constant."""
    if of := _names(provenance.get("of")):
        yield f"of {of} in place of the loss"
    if stopped := _names(provenance.get("stop_gradient")):
        yield f"with {stopped} as constant"


def _alarms(stated: Json) -> str:
    """Returns the alarms that a run raised at the step of a dump, in words."""
    return "; ".join(printable(str(each)) for each in stated[:_MOST_PLACES]) if isinstance(stated, list) else ""


def _names(stated: Json) -> str:
    return ", ".join(printable(str(each)) for each in stated) if isinstance(stated, list | dict) else ""


def _frozen(manifest: Manifest) -> str:
    """Returns which parameters are kept constant on purpose; "" for none."""
    lines = [line for line in manifest.ledger.missing if line.family == naming.PARAM_GRAD]
    found = (([line.name for line in lines if line.detail.endswith(end)], why) for end, why in _ON_PURPOSE.items())
    return "; ".join(f"{parameters_of_parts(names)}: {why}" for names, why in found if names)


def _satisfied(manifest: Manifest) -> str:
    """Returns which parameters learn nothing because every margin of the loss is kept; "" for none."""
    kept = (cause for cause in manifest.causes if cause.why.startswith("satisfied"))
    names = [cause.name for cause in kept if cause.family == naming.PARAM_GRAD]
    return f"{parameters_of_parts(names)}: every margin of the loss is kept in this batch" if names else ""


def _without_effect(manifest: Manifest) -> Iterator[str]:
    """Yields which parameters a log of a softmax takes out, as one over the examples does.

    Of a softmax, as that of attention, a key's bias is taken out whatever the axis is.
    """
    found: dict[str, list[str]] = {}
    for cause in manifest.causes:
        if cause.family == naming.PARAM_GRAD and cause.rounding and (at := _LOG_SOFTMAX.search(cause.why)):
            found.setdefault(at[0], []).append(cause.name)
    yield from (f"{parameters_of_parts(names)}: {printable(why)}" for why, names in found.items())


def _behind_zeros(manifest: Manifest) -> str:
    """Returns which parameters have no gradient before others, by which they are multiplied, move from zero."""
    names: list[str] = []
    gates: dict[str, None] = {}
    for cause in manifest.causes:
        factors = {factor_in(reason).removeprefix(PRODUCT_OF) for reason in cause.why.split("; ")}
        if cause.family == naming.PARAM_GRAD and all(each.startswith(f"{naming.PARAM}/") for each in factors):
            names.append(cause.name)
            gates.update(dict.fromkeys(sorted(factors)))
    if not names:
        return ""
    first, *others = map(printable, gates)
    zero = f"{first}{f' and {len(others)} more' * bool(others)} {'are' if others else 'is'} zero"
    return f"{parameters_of_parts(names)}: no gradient while {zero}"


def parameters_of_parts(names: Sequence[str]) -> str:
    """Returns the names of a few parameters; of more, their number and the parts of the model that they are in.

    Of each outermost part, it is the innermost one that has all of them, as one block of many.

    Args:
        names: Their names.
    """
    listed = ", ".join(map(printable, names))
    if len(names) == 1 or (len(names) <= _MOST_NAMES and len(listed) <= _NAMES_WIDTH):
        return listed
    scopes: dict[str, list[list[str]]] = {}
    for name in names:
        scopes.setdefault(name.partition("/")[0], []).append(name.split("/")[:-1])
    parts = [printable("/".join(_common(those)) or part) for part, those in scopes.items()]
    more = f" and {len(parts) - _MOST_PARTS} more" if len(parts) > _MOST_PARTS else ""
    return f"{counted(len(names), 'parameter')} of {', '.join(parts[:_MOST_PARTS])}{more}"


def _common(paths: Sequence[Sequence[str]]) -> list[str]:
    """Returns what some paths begin with, component by component."""
    levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return [level[0] for level in levels]


def _seconds(seconds: float) -> str:
    """Returns seconds with three decimals, so that they add up, and never zero for a phase that took time."""
    return "<0.001" if 0 < seconds < 0.0005 else f"{seconds:.3f}"


def _self_check(found: Mapping[str, Json]) -> str:
    """Returns a sentence that compares the observed gradients with those of the plain program."""
    total, equal = found.get("total"), found.get("bit_equal")
    equality = f"{equal} of {total} parameter gradients are bit for bit those of the plain program"
    largest = f", of {printable(str(found['largest']))}" if "largest" in found else ""
    zero = found.get("zero_but_rounding")
    without = (
        f"; zero but for rounding: {', '.join(map(printable, map(str, zero)))}"
        if isinstance(zero, list) and zero
        else ""
    )
    return f"{equality}; the largest rel_l2 is {number(as_float(found.get('max_rel_l2', 0.0)))}{largest}{without}"


def _command(argv: Json) -> str:
    return printable(shlex.join(map(str, argv))) if isinstance(argv, list) else ""


def _examples(examples: Examples) -> dict[str, Json]:
    return {**asdict(examples), "sentence": examples.sentence}


def _provenance(provenance: Mapping[str, Json]) -> Iterator[str]:
    versions = provenance.get("versions")
    if isinstance(versions, dict) and "jax" in versions:
        yield f"jax {versions['jax']}"
    yield from (f"{name} {provenance[name]}" for name in _PROVENANCE if name in provenance)
