"""`--check`: which findings make a command exit 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradscope.stats import Finding

#: The rule that always fails a command: it is about gradscope and not about the model.
SELF_CHECK: Final = "self-check"


def checked_rules(check: str | None) -> frozenset[str]:
    """The rules of a `--check` list; `all` stands for every rule.

    Raises:
        UsageError: There is no such rule.
    """
    from gradscope.errors import UsageError
    from gradscope.naming.patterns import nearest_hint
    from gradscope.stats import RULES

    known = [rule.name for rule in RULES]
    asked = [name.strip() for name in (check or "").split(",") if name.strip()]
    if "all" in asked:
        return frozenset(known)
    for name in asked:
        if name not in known:
            raise UsageError(f"there is no finding {name!r}", hint=nearest_hint(name, known))
    return frozenset(asked)


def trips(findings: Sequence[Finding], rules: frozenset[str]) -> bool:
    """Whether any finding is one that was asked to fail the command."""
    return any(finding.rule in rules for finding in findings)
