"""`--check` and `--strict`: what makes a command that has done its work exit 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradscope.dump.manifest.manifest import LedgerLine
    from gradscope.stats import Finding

#: The rule that always fails a command: it is about gradscope and not about the model.
SELF_CHECK: Final = "self-check"

#: What stands for every rule.
ALL: Final = "all"

#: Of what is missing, so many are named on the spot.
_NAMED: Final = 10


def checked_rules(check: str | None) -> frozenset[str]:
    """The rules of a `--check` list; `all` stands for every rule.

    Raises:
        UsageError: There is no such rule, or none is named.
    """
    from gradscope.cli.options.shared import listed
    from gradscope.stats import RULES

    if check is None:
        return frozenset()
    known = [rule.name for rule in RULES]
    asked = listed(check, [*known, ALL], "finding")
    return frozenset(known) if ALL in asked else asked


def trips(findings: Sequence[Finding], rules: frozenset[str]) -> bool:
    """Whether any finding is one that was asked to fail the command."""
    return any(finding.rule in rules for finding in findings)


def unseen_sentences(unseen: Sequence[LedgerLine]) -> Iterator[str]:
    """What `--strict` says of what is missing: the first few by name."""
    from gradscope.naming import key_of, printable

    if unseen:
        yield f"--strict: {len(unseen):,} missing without your word"
    for line in unseen[:_NAMED]:
        yield f"  {printable(key_of(line.family, line.name))}: {line.reason}"
    if len(unseen) > _NAMED:
        yield f"  and {len(unseen) - _NAMED:,} more; gradscope show DUMP --ledger lists all"
