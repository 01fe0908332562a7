"""`--check` and `--strict` decide whether a command that has done its work exits 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradscope.dump.manifest.manifest import LedgerLine, Manifest
    from gradscope.history.history_reader import History
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
    from gradscope.presentation import MAY_BE_MEANT
    from gradscope.stats import RULES

    return _checked(check, [rule.name for rule in RULES], MAY_BE_MEANT, "finding")


def checked_alarms(check: str | None) -> frozenset[str]:
    """Returns the rules and words of a `--check` list about a run; `all` means every rule of an alarm.

    Raises:
        UsageError: There is no such rule, or none is named.
    """
    from gradscope.history.alarms.alarm_rules import RULES
    from gradscope.history.views.learning import LEARNING_WORDS

    return _checked(check, [rule.name for rule in RULES], LEARNING_WORDS, "alarm")


def _checked(check: str | None, rules: Sequence[str], words: Iterable[str], noun: str) -> frozenset[str]:
    """Returns the names of a list, with all rules in place of `all`."""
    from gradscope.cli.options.shared import listed

    if check is None:
        return frozenset()
    names = listed(check, [*rules, *words, ALL], noun)
    return names.union(rules) - {ALL} if ALL in names else names


def trips_run(history: History, alarms: Iterable[Alarm], names: frozenset[str]) -> bool:
    """Returns whether any alarm is of one of these rules, or a run says any of these words of its loss and updates."""
    from gradscope.history.views.learning import LEARNING_WORDS, learning

    if any(alarm.rule in names for alarm in alarms):
        return True
    words = names.intersection(LEARNING_WORDS)
    return bool(words) and bool(words & learning(history, history.steps(), history.losses()).words)


def trips(manifest: Manifest, findings: Sequence[Finding], names: frozenset[str]) -> bool:
    """Returns whether any finding is of one of these rules, or anything that may be meant of one of these words."""
    from gradscope.presentation import doubts

    return any(each.rule in names for each in findings) or any(each.word in names for each in doubts(manifest))


def unseen_sentences(unseen: Sequence[LedgerLine]) -> Iterator[str]:
    """Yields the messages of `--strict` about missing tensors: the first few by name."""
    from gradscope.naming import key_of, printable

    if unseen:
        yield f"--strict: {len(unseen):,} missing that you did not exclude"
    for line in unseen[:_NAMED]:
        yield f"  {printable(key_of(line.family, line.name))}: {line.reason}"
    if len(unseen) > _NAMED:
        yield f"  and {len(unseen) - _NAMED:,} more; gradscope show DUMP --ledger lists all"
