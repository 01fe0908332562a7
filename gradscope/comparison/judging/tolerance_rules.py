"""Tolerances that were asked for: which tensors are judged by what.

A *rule* is written `REGEX=EXPRESSION`; the expression alone is a rule for every tensor. The regular expression must
match the whole name or the whole key. Of several rules the first that matches a tensor judges it; a tensor that none
matches is judged by the default of its dtype and family. A file of rules has one on each line, empty lines and lines
that begin with `#` aside.

Sharp edge: positions that are finite on one side only fail every rule that does not itself speak of
`nonfinite_mismatch`, because every other metric is blind to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradscope.comparison.judging.expression_parser import parse_expression
from gradscope.comparison.judging.expressions import Expression, Limit
from gradscope.comparison.metrics.evidence import Evidence
from gradscope.errors import DumpError, UsageError
from gradscope.naming.patterns import Pattern

#: More text than this is no file of tolerances.
_LARGEST_FILE_BYTES: Final = 1 << 20

#: An equals sign that is no part of an operator.
_LONE_EQUALS: Final = re.compile(r"(?<![<>=!])=(?!=)")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a pair is judged by: an expression over its metrics, as it was spelt."""

    spelling: str
    expression: Expression

    @classmethod
    def parse(cls, spelling: str) -> Tolerance:
        """The tolerance a spelling stands for.

        Raises:
            UsageError: It is no expression over metrics.
        """
        return cls(spelling.strip(), parse_expression(spelling))

    @classmethod
    def at_most(cls, rel_l2: float) -> Tolerance:
        """The tolerance `rel_l2 <= number`."""
        return cls(f"{rel_l2!r}", Limit("rel_l2", "<=", rel_l2))

    @property
    def rel_l2(self) -> float | None:
        """Up to which `rel_l2` it lets a pair pass; None where it is no such limit."""
        limit = self.expression
        return limit.number if isinstance(limit, Limit) and (limit.metric, limit.operator) == ("rel_l2", "<=") else None

    def admits(self, evidence: Evidence) -> bool:
        """Whether a pair is the same by it; equal bytes are the same by every tolerance."""
        if evidence.bit_equal:
            return True
        if not evidence.metrics and evidence.needed != 0 and self.rel_l2 is None:
            return False
        conflicts = evidence.metrics.get("nonfinite_mismatch") and not self.expression.mentions("nonfinite_mismatch")
        known = {"rel_l2": evidence.needed, "bit_equal": evidence.bit_equal, **evidence.metrics}
        return not conflicts and self.expression.holds(known) is True


@dataclass(frozen=True, slots=True)
class Rule:
    """A tolerance for the tensors whose name or key a pattern matches."""

    pattern: Pattern
    tolerance: Tolerance

    @classmethod
    def parse(cls, spelling: str) -> Rule:
        """The rule a spelling stands for.

        Raises:
            UsageError: It is neither an expression nor `REGEX=EXPRESSION`.
        """
        problems: list[UsageError] = []
        # A regular expression may hold `=` as well: the first cut that leaves an expression counts.
        for cut in (0, *(found.end() for found in _LONE_EQUALS.finditer(spelling))):
            try:
                tolerance = Tolerance.parse(spelling[cut:])
            except UsageError as error:
                problems.append(error)
                continue
            return cls(Pattern.parse(f"re:{spelling[: cut - 1] if cut else '.*'}"), tolerance)
        # What was meant as the expression of a rule stands behind its first `=`.
        raise problems[min(1, len(problems) - 1)]


def read_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """The rules of a file.

    Raises:
        DumpError: The file cannot be read.
        UsageError: A line of it is not a rule; the line is named.
    """
    rules: list[Rule] = []
    for number, line in enumerate(_text(Path(path)).splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                rules.append(Rule.parse(line.strip()))
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error.message}", hint=error.hint) from error
    return tuple(rules)


def first_match(rules: Sequence[Rule], *spellings: str) -> Tolerance | None:
    """The tolerance of the first rule that matches a tensor by its name or its key; None where none does."""
    return next((rule.tolerance for rule in rules if rule.pattern.matches(*spellings)), None)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise DumpError(f"{path} is too large for a file of tolerances")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DumpError(f"cannot read the tolerances in {path}: {reason}") from error
