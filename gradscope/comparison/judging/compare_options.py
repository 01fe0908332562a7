"""`CompareOptions` stores which names are compared, by what tolerance, and which names may be in one dump only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gradscope.arrays.dtypes import is_floating
from gradscope.comparison.judging.tolerance_rules import Tolerance, ToleranceRule
from gradscope.comparison.pairing.by_rules import MapRule
from gradscope.errors import UsageError
from gradscope.naming import Selection
from gradscope.naming.selecting.first_pattern import FirstPattern
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.naming.selecting.patterns import Pattern

#: What the loss is called in a rule.
LOSS: Final = "loss"

#: The defaults of `numpy.isclose`.
_RTOL: Final = 1e-5
_ATOL: Final = 1e-8

#: The tolerance of `numpy.allclose`: no element is over the limit.
_CLOSE: Final = Tolerance.parse("mismatch == 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """CompareOptions stores how two dumps are compared.

    Attributes:
        selection: Which names take part.
        map_rules: Rules that pair tensors of the candidate with names of the reference, before all other passes.
        allow_missing: Regular expressions. A name or key in one dump only that one of them matches in full is listed
            and does not count.
        rules: Tolerances by name; the first rule that matches a tensor applies.
        rel_l2: The tolerance on `rel_l2` of every tensor that no rule matches; None for the defaults by dtype and
            family.
        bitwise: Whether only equal bytes count as the same.
        rtol: The relative tolerance of `numpy.isclose`. Where `rtol` or `atol` is set, no element may mismatch in a
            tensor for which there is no other tolerance. Otherwise the rule is only measured, as `mismatch`.
        atol: The absolute tolerance of `numpy.isclose`.
        cand_dtype: The dtype in which the candidate was computed, `bfloat16` or `float16`, where its dump does not show
            it; None for what the dump shows.
        threads: How many tensors are compared at a time.

    Raises:
        UsageError: There is no floating-point type `cand_dtype`. A tolerance is negative or not finite, `threads` is
            less than one, or `bitwise` is combined with a tolerance.
    """

    selection: Selection = field(default_factory=Selection)
    map_rules: tuple[MapRule, ...] = ()
    allow_missing: tuple[str, ...] = ()
    rules: tuple[ToleranceRule, ...] = ()
    rel_l2: float | None = None
    bitwise: bool = False
    rtol: float | None = None
    atol: float | None = None
    cand_dtype: str | None = None
    threads: int = 2
    _first_rule: FirstPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first_rule", FirstPattern([rule.pattern for rule in self.rules]))
        if self.cand_dtype is not None and not is_floating(self.cand_dtype):
            hint = "name one such as bfloat16, float16 or float32"
            raise UsageError(f"there is no floating-point type {self.cand_dtype!r}", hint=hint)
        for name, value in (("rel_l2", self.rel_l2), ("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name} is {value}, expected a finite number, zero or more")
        if self.threads < 1:
            raise UsageError(f"threads is {self.threads}, expected one or more")
        if self.bitwise and self.has_tolerance:
            raise UsageError("a bitwise comparison has no tolerance", hint="give either bitwise or a tolerance")

    def require_matches(self, names: Iterable[str], numbers: Iterable[str] = (LOSS,)) -> None:
        """Raises an error for a pattern of the selection or of a tolerance that matches nothing.

        Args:
            names: The names and keys of all tensors.
            numbers: What else has a tolerance, and is not selected.

        Raises:
            UsageError: A pattern matches nothing; the hint has the nearest names.
        """
        known = list(names)
        self.selection.require_matches(known)
        known += numbers
        for rule in self.rules:
            if not rule.may_be_unused and not any(map(rule.pattern.matches, known)):
                regex = rule.pattern.spelling.removeprefix("re:")
                raise UsageError(f"the tolerance of {regex!r} matches nothing", hint=nearest_hint(regex, known))

    @property
    def closeness(self) -> tuple[float, float]:
        """`rtol` and `atol` of `numpy.isclose`, with numpy's defaults where they are None."""
        return _RTOL if self.rtol is None else self.rtol, _ATOL if self.atol is None else self.atol

    def tolerance(self, name: str, key: str, default: float) -> Tolerance | None:
        """Returns the tolerance of a tensor, or None where only equal bytes count as the same.

        Args:
            name: The tensor's name.
            key: The tensor's key.
            default: The tolerance on `rel_l2` where no option sets another.
        """
        if self.bitwise:
            return None
        if found := self._first_rule.match(name, key):
            return self.rules[found[0]].tolerance
        if self.rel_l2 is not None:
            return Tolerance.at_most(self.rel_l2)
        return _CLOSE if self._has_closeness else Tolerance.at_most(default)

    def may_be_missing(self, *spellings: str) -> bool:
        """Returns whether a tensor, known by its name and key, may be in one dump only.

        Raises:
            UsageError: An `allow_missing` is not a regular expression.
        """
        return any(Pattern.parse(f"re:{regex}").matches(*spellings) for regex in self.allow_missing)

    @property
    def _has_closeness(self) -> bool:
        return self.rtol is not None or self.atol is not None

    @property
    def has_tolerance(self) -> bool:
        """Whether any tolerance is not the default."""
        return bool(self.rules) or self.rel_l2 is not None or self._has_closeness
