"""`explain` reports what a column, a metric, a finding, a reason of the ledger or another word of a table is.

Words that label parts of reports have their texts in `printed_words`, and keys of JSON in `json_keys`. All others are
those of the tables that the program works by: `COLUMNS`, `METRICS`, `RULES`, `REASONS`, families (`MEANINGS`),
`ZERO_REASONS`, `STATUSES`, `PASSES`, the verdicts of `compare`, the faults of `mesh`, the verdicts and outcomes of
`check`, and of training runs the rules of alarms and the columns of `STEPS`, `STATS`, `NOISE` and `TRENDS`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.follow_ups.mesh_fault import FAULTS
from gradscope.comparison.judging.expressions import NAMES
from gradscope.comparison.judging.rows import STATUSES
from gradscope.comparison.metrics.metrics import METRICS, MetricSpec
from gradscope.comparison.pairing.matching import PASSES
from gradscope.comparison.result import VERDICTS as COMPARISON_VERDICTS
from gradscope.dump.manifest.reasons import REASONS, ReasonSpec
from gradscope.dump.manifest.zero_reasons import ZERO_REASONS
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.history.alarms.alarm_rules import RULES as ALARMS
from gradscope.history.alarms.alarm_rules import AlarmRule
from gradscope.history.database.schema import NOISE, STATS, STEPS
from gradscope.history.tensor_trends import TRENDS
from gradscope.history.views.learning import LEARNING_WORDS
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD
from gradscope.naming.families import MEANINGS, SLOT_MEANING, SLOT_PREFIX
from gradscope.naming.selecting.nearest_names import did_you_mean, nearest
from gradscope.presentation.render.document import Document, Note, Notes
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.explaining.json_keys import JSON_OBJECTS
from gradscope.presentation.reports.explaining.kinds_of_names import KINDS_OF_NAMES
from gradscope.presentation.reports.explaining.printed_words import WORDS
from gradscope.presentation.reports.proof import OUTCOMES, PROOF_VERDICTS
from gradscope.presentation.tables.facts import MAY_BE_MEANT
from gradscope.stats import COLUMNS, RULES, ColumnSpec, FindingRule, Thresholds
from gradscope.stats.columns import base_of

#: Version of the JSON: it grows when a key changes its meaning or goes away.
SCHEMA: Final = 1

#: Words that have fewer letters in common are not near: all are short, and made of the same common letters.
_SIMILAR: Final = 0.7
_LISTED: Final = "gradscope explain lists all; operations, as those of --ops, have the names of jax.lax"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An `Explanation` says what one name means.

    Attributes:
        name: The name.
        kind: What it is the name of, a key of `KINDS_OF_NAMES`.
        facts: Texts by label: `what`, `formula`, `unit`, `threshold`, `do` and others.
    """

    name: str
    kind: str
    facts: Mapping[str, str]

    def to_json(self) -> dict[str, Json]:
        """Returns name, kind and facts."""
        return {"name": self.name, "kind": self.kind, **self.facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationReport:
    """An `ExplanationReport` presents explanations.

    Attributes:
        explanations: What is explained.
        listed: Whether they are a list of all names, one line each.
    """

    explanations: tuple[Explanation, ...]
    listed: bool = False

    def document(self, screen: Screen) -> Document:  # noqa: ARG002 - the same on every screen
        """Returns notes on each name, or one note for each name of a kind."""
        if not self.listed:
            return tuple(
                Notes(
                    title=f"{each.name}: {KINDS_OF_NAMES[each.kind].title}",
                    notes=tuple(Note(label=label, text=text) for label, text in each.facts.items()),
                )
                for each in self.explanations
            )
        kinds = dict.fromkeys(each.kind for each in self.explanations)
        return tuple(
            Notes(
                title=f"{KINDS_OF_NAMES[kind].plural} (gradscope explain NAME)",
                notes=tuple(
                    Note(label=each.name, text=each.facts["what"]) for each in self.explanations if each.kind == kind
                ),
            )
            for kind in kinds
        )

    def rows(self) -> list[dict[str, Json]]:
        """Returns name, kind and facts of each explanation."""
        return [each.to_json() for each in self.explanations]

    def to_json(self) -> dict[str, Json]:
        """Returns the explanations as rows."""
        return {"schema": SCHEMA, "command": "explain", "rows": list(self.rows())}


_MEANINGS: Final = (
    ("family", {**MEANINGS, SLOT_PREFIX: SLOT_MEANING}),
    ("status", STATUSES),
    ("pass", PASSES),
    ("verdict", COMPARISON_VERDICTS),
    ("fault", FAULTS),
    ("proof", PROOF_VERDICTS),
    ("outcome", OUTCOMES),
)
#: What a column of the full tier says of it.
_FULL_TIER: Final = "full: inside a compiled step on request, value_and_grad(loss, tier='full')"
#: The dtypes whose default tolerances are shown.
_DTYPES: Final = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")


def explanation_report(name: str | None) -> ExplanationReport:
    """Returns the report on a name, which may be that of several kinds.

    Args:
        name: The name, in any case, with spaces, hyphens or underscores, with or without a type, as in
            `underflow@float16`; None for a list of all names.

    Raises:
        UsageError: Nothing has the name; the hint has the nearest.
    """
    everything = tuple(_explanations())
    if name is None:
        return ExplanationReport(explanations=everything, listed=True)
    found = tuple(each for each in everything if _is_called(each, name))
    if not found:
        near = nearest(name, [each.name for each in everything], similar=_SIMILAR)
        raise UsageError(f"no word of gradscope's own is {name!r}", hint=did_you_mean(near) if near else _LISTED)
    return ExplanationReport(explanations=found)


def explained_names() -> tuple[str, ...]:
    """Returns all names that can be explained."""
    return tuple(dict.fromkeys(each.name for each in _explanations()))


def _is_called(explanation: Explanation, name: str) -> bool:
    requested, known = _spelled(name), _spelled(explanation.name)
    if explanation.kind == "family" and requested.startswith(f"{known}/"):  # a key
        return True
    known = known.removesuffix(" layer") if explanation.kind == "word" and requested != known else known
    return requested == known or base_of(requested) == base_of(known) != known or requested == base_of(known)


def _spelled(name: str) -> str:
    """Returns a name as it is looked up: in any case, and with a space for each hyphen and underscore."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _explanations() -> Iterator[Explanation]:
    for rule in RULES:
        yield _explained(rule.name, "finding", _of_rule(rule))
    for alarm in ALARMS:
        yield _explained(alarm.name, "alarm", _of_alarm(alarm))
    for column in COLUMNS:
        yield _explained(column.name, "column", _of_column(column))
    for metric in METRICS:
        yield _explained(metric.name, "metric", _of_metric(metric))
    for table in (STEPS, STATS, NOISE):
        for name, (unit, meaning) in table.items():
            yield _explained(name, "series", {"what": _sentence(meaning), "unit": unit})
    for name, (unit, meaning) in TRENDS.items():
        use = f"gradscope show RUN --sort -{name}"
        yield _explained(name, "trend", {"what": _sentence(meaning), "unit": unit, "use": use})
    for reason in REASONS:
        yield _explained(reason.name, "reason", _of_reason(reason))
    for zero in ZERO_REASONS:
        use = "gradscope show DUMP --tensor KEY has the reason, and dump.manifest.causes all of them"
        yield _explained(zero.name, "zero", {"what": zero.sentence, "do": zero.remedy, "use": use})
    for word, meaning in WORDS.items():
        yield _explained(word, "word", {"what": _sentence(meaning), "use": _checking(word)})
    for kind, meanings in _MEANINGS:
        yield from (_explained(name, kind, {"what": _sentence(meaning)}) for name, meaning in meanings.items())
    for each in JSON_OBJECTS:
        yield from (_explained(key, "key", {"what": _sentence(it), "of": each.of}) for key, it in each.keys.items())


def _explained(name: str, kind: str, facts: Mapping[str, str]) -> Explanation:
    # The texts are Markdown; people read them here without its marks.
    return Explanation(
        name=name, kind=kind, facts={label: text.replace("`", "") for label, text in facts.items() if text}
    )


def _of_rule(rule: FindingRule) -> dict[str, str]:
    defaults = Thresholds()
    return {
        "what": rule.sentence,
        "formula": rule.formula,
        "threshold": ", ".join(f"{name} = {getattr(defaults, name):g}" for name in rule.thresholds),
        "do": rule.remedy,
        "use": _checking(rule.name),
    }


def _of_alarm(rule: AlarmRule) -> dict[str, str]:
    return {
        "what": rule.sentence,
        "formula": rule.formula,
        "of": ", ".join(rule.families),
        "do": rule.remedy,
        "use": f"--check {rule.name} makes train exit 1 on it; --on-alarm says what else an alarm does",
    }


def _checking(word: str) -> str:
    """Returns which commands exit 1 where a dump or a run says a word; "" for words that none does."""
    commands = {
        "dump and show": (*MAY_BE_MEANT, *(rule.name for rule in RULES)),
        "train and show of a run": LEARNING_WORDS,
    }
    known = ", and ".join(names for names, words in commands.items() if word in words)
    return f"--check {shlex.quote(word)} makes {known} exit 1 on it" if known else ""


def _sentence(meaning: str) -> str:
    return f"{meaning[0].upper()}{meaning[1:]}."


def _of_column(column: ColumnSpec) -> dict[str, str]:
    return {
        "what": column.sentence,
        "unit": column.unit,
        "of": ", ".join(column.families),
        "tier": "" if column.tier == "core" else _FULL_TIER,
        "use": f"gradscope show DUMP --sort -{column.name}" if _has_order(column) else "",
    }


def _has_order(column: ColumnSpec) -> bool:
    return column.kind in ("number", "share", "count") and column.name == column.base


def _of_metric(metric: MetricSpec) -> dict[str, str]:
    return {
        "what": metric.sentence,
        "unit": metric.unit,
        "of": ", ".join(metric.dtypes),
        "threshold": _default_tolerances() if metric.name == "rel_l2" else "",
        "use": f"gradscope compare REF CAND --tol '{metric.name} < LIMIT'" if metric.name in NAMES else "",
    }


def _default_tolerances() -> str:
    values = (f"{name} {default_tolerance(ACTIVATION, name, name):g}" for name in _DTYPES)
    gradient = default_tolerance(ACTIVATION_GRAD, _DTYPES[0], _DTYPES[0])
    factor = gradient / default_tolerance(ACTIVATION, _DTYPES[0], _DTYPES[0])
    return f"{', '.join(values)}, by the coarser dtype of the pair; {factor:g} times that for gradients"


def _of_reason(reason: ReasonSpec) -> dict[str, str]:
    return {
        "what": reason.sentence,
        "do": reason.remedy,
        "use": "gradscope show DUMP --ledger lists what is missing, and why",
    }
