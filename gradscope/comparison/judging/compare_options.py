"""What a comparison is asked: which names, how strictly, and what may be missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from gradscope.comparison.judging.tolerance_rules import Rule, Tolerance, first_match
from gradscope.comparison.pairing.by_rules import MapRule
from gradscope.errors import UsageError
from gradscope.naming import Selection
from gradscope.naming.patterns import Pattern

#: The defaults of `numpy.isclose`.
_RTOL: Final = 1e-5
_ATOL: Final = 1e-8

#: What numpy calls close: no element is over the limit.
_CLOSE: Final = Tolerance.parse("mismatch == 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How two dumps are compared.

    Attributes:
        selection: Which names take part.
        map_rules: Which tensors of the candidate are which of the reference, before anything is guessed from names.
        allow_missing: Regular expressions; a name or key on one side only that one of them matches as a whole is listed
            and does not count.
        rules: Tolerances by name, the first that matches a tensor counts; the defaults are by dtype and family.
        rel_l2: One tolerance on `rel_l2` for every tensor that no rule matches; None for the defaults.
        bitwise: Whether only equal bytes are the same.
        rtol: The relative part of numpy's rule. Where it or `atol` is given, no element may mismatch by that rule, in
            any tensor that no other tolerance is for; else the rule is only measured, as the metric `mismatch`.
        atol: Its absolute part.
        threads: How many tensors are compared at a time.

    Raises:
        UsageError: A tolerance is negative or not finite, there is no thread, or there is a tolerance beside `bitwise`,
            which knows none.
    """

    selection: Selection = field(default_factory=Selection)
    map_rules: tuple[MapRule, ...] = ()
    allow_missing: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    rel_l2: float | None = None
    bitwise: bool = False
    rtol: float | None = None
    atol: float | None = None
    threads: int = 2

    def __post_init__(self) -> None:
        for name, value in (("rel_l2", self.rel_l2), ("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name} is {value}, expected a finite number, zero or more")
        if self.threads < 1:
            raise UsageError(f"threads is {self.threads}, expected one or more")
        if self.bitwise and self._asks_for_tolerance:
            raise UsageError("a bitwise comparison has no tolerance", hint="give either bitwise or a tolerance")

    @property
    def closeness(self) -> tuple[float, float]:
        """The relative and the absolute part of numpy's rule, numpy's own where they are not given."""
        return _RTOL if self.rtol is None else self.rtol, _ATOL if self.atol is None else self.atol

    def tolerance(self, name: str, key: str, default: float) -> Tolerance | None:
        """What a tensor is judged by.

        Args:
            name: Its name.
            key: Its key.
            default: The tolerance on `rel_l2` where nothing was asked for.

        Returns:
            The tolerance; None where only equal bytes are the same.
        """
        if self.bitwise:
            return None
        asked = first_match(self.rules, name, key)
        if asked is not None:
            return asked
        if self.rel_l2 is not None:
            return Tolerance.at_most(self.rel_l2)
        return _CLOSE if self._asks_for_closeness else Tolerance.at_most(default)

    def may_be_missing(self, *spellings: str) -> bool:
        """Whether what is known under some spellings may be on one side only.

        Raises:
            UsageError: An `allow_missing` is not a regular expression.
        """
        return any(Pattern.parse(f"re:{regex}").matches(*spellings) for regex in self.allow_missing)

    @property
    def _asks_for_closeness(self) -> bool:
        return self.rtol is not None or self.atol is not None

    @property
    def _asks_for_tolerance(self) -> bool:
        return bool(self.rules) or self.rel_l2 is not None or self._asks_for_closeness
