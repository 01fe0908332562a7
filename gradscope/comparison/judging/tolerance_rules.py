"""Tolerance rules are tolerances that the user sets for some or all tensors.

A *rule* is written `REGEX=EXPRESSION`; an expression alone is a rule for every tensor. The regular expression has to
match the full name or the full key. The first rule that matches a tensor applies; a tensor that no rule matches is
judged by the default of its dtype and family. A file of rules has one rule per line; empty lines and lines that begin
with `#` are ignored. A rule whose pattern matches no tensor at all is an error, unless a file has it, which may serve
several models.

Sharp edge: positions that are finite in one dump only fail every rule that does not mention `nonfinite_mismatch`,
because every other metric leaves them out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from gradscope.comparison.judging.expression_parser import parse_expression
from gradscope.comparison.judging.expressions import Expression, Limit
from gradscope.comparison.metrics.evidence import PairEvidence
from gradscope.dump.storage.bounded_text import bounded_text
from gradscope.errors import DumpError, UsageError
from gradscope.naming.selecting.bounded_regex import MatchingTime
from gradscope.naming.selecting.patterns import Pattern

#: Files larger than this are refused.
_LARGEST_FILE_BYTES: Final = 1 << 20

#: An equals sign that is not part of an operator.
_LONE_EQUALS: Final = re.compile(r"(?<![<>=!])=(?!=)")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerance stores an expression over the metrics of a pair, and its spelling."""

    spelling: str
    expression: Expression

    @classmethod
    def parse(cls, spelling: str) -> Tolerance:
        """Returns the tolerance of a spelling.

        Raises:
            UsageError: The spelling is not an expression over metrics.
        """
        return cls(spelling.strip(), parse_expression(spelling))

    @classmethod
    @lru_cache(maxsize=256)
    def at_most(cls, rel_l2: float) -> Tolerance:
        """Returns the tolerance `rel_l2 <= number`."""
        return cls(f"{rel_l2!r}", Limit("rel_l2", "<=", rel_l2))

    @property
    def rel_l2(self) -> float | None:
        """The largest `rel_l2` that passes; None where the expression is not such a limit."""
        limit = self.expression
        return limit.number if isinstance(limit, Limit) and (limit.metric, limit.operator) == ("rel_l2", "<=") else None

    @property
    def stated(self) -> float | str:
        """The largest `rel_l2` that passes, or else the spelling."""
        return self.spelling if self.rel_l2 is None else self.rel_l2

    def admits(self, evidence: PairEvidence) -> bool:
        """Returns whether a pair passes; equal bytes pass every tolerance."""
        if evidence.bit_equal:
            return True
        if not evidence.metrics and evidence.needed != 0 and self.rel_l2 is None:
            return False
        conflicts = evidence.metrics.get("nonfinite_mismatch") and not self.expression.mentions("nonfinite_mismatch")
        known = {"rel_l2": evidence.needed, "bit_equal": evidence.bit_equal, **evidence.metrics}
        return not conflicts and self.expression.holds(known) is True


@dataclass(frozen=True, slots=True)
class ToleranceRule:
    """ToleranceRule stores a tolerance for the tensors whose name or key a pattern matches, of which there may be none.

    Attributes:
        pattern: The pattern.
        tolerance: The tolerance.
        may_be_unused: Whether there may be no such tensor.
    """

    pattern: Pattern
    tolerance: Tolerance
    may_be_unused: bool = False

    @classmethod
    def parse(cls, spelling: str, matching_time: MatchingTime | None = None) -> ToleranceRule:
        """Returns the rule of a spelling.

        Args:
            spelling: As the user wrote it.
            matching_time: What its matches may take together with those of other rules; by default alone.

        Raises:
            UsageError: The spelling is neither an expression nor `REGEX=EXPRESSION`.
        """
        # A regular expression may contain `=` as well, and an expression contains none alone: the last one is between.
        cuts = [0, *(found.end() for found in _LONE_EQUALS.finditer(spelling))]
        try:
            tolerance = Tolerance.parse(spelling[cuts[-1] :])
        except UsageError:
            # The error is about the text after the first `=`, where the expression of a rule is expected.
            Tolerance.parse(spelling[cuts[min(1, len(cuts) - 1)] :])
            raise
        # Spaces around the equals sign belong to neither side: with them a pattern would match no name.
        regex = spelling[: cuts[-1] - 1].strip() if cuts[-1] else ".*"
        return cls(Pattern.parse(f"re:{regex}", matching_time), tolerance)


def read_rules(path: str | os.PathLike[str]) -> tuple[ToleranceRule, ...]:
    """Returns the rules of a file.

    Raises:
        DumpError: The file cannot be read.
        MachineError: It may not be read.
        UsageError: A line is not a rule; the message has its number.
    """
    rules: list[ToleranceRule] = []
    together = MatchingTime()
    for number, line in enumerate(_text(Path(path)).splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                rules.append(replace(ToleranceRule.parse(line.strip(), together), may_be_unused=True))
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error.message}", hint=error.hint) from error
    return tuple(rules)


def _text(path: Path) -> str:
    try:
        return bounded_text(path, _LARGEST_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DumpError(f"cannot read the tolerances in {path}: {reason}") from error
