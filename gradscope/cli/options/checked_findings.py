"""`--check` and `--strict` decide whether a command that has done its work exits 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gradscope.dump.manifest.manifest import LedgerLine, Manifest
    from gradscope.history.history_rows import Alarm
    from gradscope.stats import Finding

#: The rule that always makes a command exit 1, because it is about gradscope and not about the model.
SELF_CHECK: Final = "self-check"

#: The name that means every rule.
ALL: Final = "all"

#: The number of missing tensors that are named in the message.
_NAMED: Final = 10


def checked_rules(check: str | None) -> frozenset[str]:
    """Returns the rules and words of a `--check` list; `all` means every rule, as what may be meant is no finding.

    Raises:
        UsageError: There is no such rule, or none is named.
    """
    if check is None:
        return frozenset()
    findings, alarms = _of_dumps(), _of_runs()
    return _checked(check, *findings, "finding", {*alarms[0], *alarms[1]}, "a training run, and not of a dump")


def checked_alarms(check: str | None) -> frozenset[str]:
    """Returns the rules and words of a `--check` list about a run; `all` means all but what may be meant.

    Raises:
        UsageError: There is no such rule, or none is named.
    """
    if check is None:
        return frozenset()
    alarms, findings = _of_runs(), _of_dumps()
    return _checked(check, *alarms, "alarm", {*findings[0], *findings[1]}, "a dump, and not of a training run")


def _of_dumps() -> tuple[list[str], Collection[str]]:
    """Returns the rules of findings, and the words of what may be meant."""
    from gradscope.presentation import MAY_BE_MEANT
    from gradscope.stats import RULES

    return [rule.name for rule in RULES], MAY_BE_MEANT


def _of_runs() -> tuple[list[str], Collection[str]]:
    """Returns the rules of alarms and the faults of a loss, and the words of what may be meant."""
    from gradscope.history.alarms.alarm_rules import RULES
    from gradscope.history.views.learning import LOSS_FAULTS, MEANT_WORDS

    return [*(rule.name for rule in RULES), *LOSS_FAULTS], MEANT_WORDS


def _checked(
    check: str, rules: Sequence[str], words: Iterable[str], noun: str, others: Collection[str], of_others: str
) -> frozenset[str]:
    """Returns the names of a list, with all rules in place of `all`."""
    from gradscope.cli.options.shared import listed
    from gradscope.errors import UsageError

    known = [*rules, *words, ALL]
    for name in check.split(","):
        if name.strip() in others and name.strip() not in known:
            raise UsageError(f"there is no {noun} {name.strip()!r}", hint=f"it is said of {of_others}")
    names = listed(check, known, noun)
    return names.union(rules) - {ALL} if ALL in names else names


def failures_of_run(path: Path, alarms: Iterable[Alarm] | None, names: frozenset[str]) -> dict[str, list[str]]:
    """Returns the places of alarms of these rules, by rule, and of what a run says in these words.

    Args:
        path: The run's folder.
        alarms: The alarms; None for all that the run has.
        names: The rules and words.
    """
    from gradscope.history.alarms.alarm_rules import NONFINITE
    from gradscope.history.history_reader import History
    from gradscope.history.views.learning import LEARNING_WORDS, learning

    if not names:
        return {}
    found: dict[str, list[str]] = {}
    with History(path) as history:
        for alarm in history.alarms() if alarms is None else alarms:
            place = f"at step {alarm.step}" + ("" if alarm.key is None else f" in {alarm.key}")
            found.setdefault(alarm.rule, []).append(place)
        if names.intersection((*LEARNING_WORDS, NONFINITE)):
            words = learning(history, history.steps(), history.losses()).words
            found = {word: [f"in {path}"] for word in sorted(words)} | found
    return {rule: places for rule, places in found.items() if rule in names}


def failures(
    path: Path, manifest: Manifest, findings: Sequence[Finding], names: frozenset[str]
) -> dict[str, list[str]]:
    """Returns the places of findings of these rules, by rule, and of what may be meant, by these words.

    A finding counts, too, where a consequence of it is of these rules: it is the cause of what was asked for.
    """
    from gradscope.naming import key_of
    from gradscope.presentation import doubts

    found: dict[str, list[str]] = {}
    for finding in findings:
        rule = finding.failing(names)
        behind = "" if finding.source is None else f" ({finding.source})"
        cause = "" if rule == finding.rule else f"a consequence of {finding.rule} "
        if rule is not None:
            found.setdefault(rule, []).append(f"{cause}at {key_of(finding.family, finding.name)}{behind}")
    for doubt in doubts(manifest):
        found.setdefault(doubt.word, []).append(f"in {path}" if doubt.source is None else f"at {doubt.source}")
    return {rule: places for rule, places in found.items() if rule in names}


def failure_sentence(found: Mapping[str, Sequence[str]]) -> str:
    """Returns which rules and words make a command exit 1, and where: the message on standard error."""
    each = (
        f"{rule} {places[0]}" + (f" and {len(places) - 1:,} more" if places[1:] else "")
        for rule, places in found.items()
    )
    return f"failed: {'; '.join(each)}"


def unseen_sentences(unseen: Sequence[LedgerLine]) -> Iterator[str]:
    """Yields the messages of `--strict` about missing tensors: the first few by name."""
    from gradscope.naming import key_of, printable

    if unseen:
        yield f"--strict: {len(unseen):,} missing that you did not exclude"
    for line in unseen[:_NAMED]:
        yield f"  {printable(key_of(line.family, line.name))}: {line.reason}"
    if len(unseen) > _NAMED:
        yield f"  and {len(unseen) - _NAMED:,} more; gradscope show DUMP --ledger lists all"
