"""What a comparison is asked: which names, how strictly, and what may be missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gradscope.errors import UsageError
from gradscope.naming import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How two dumps are compared.

    Attributes:
        selection: Which names take part.
        allow_missing: Regular expressions; a name or key on one side only that one of them matches as a whole is listed
            and does not count.
        rel_l2: One tolerance on `rel_l2` for every tensor; None for the defaults by dtype and family.
        bitwise: Whether only equal bytes are the same.
        rtol: The relative part of numpy's rule, for the metric `mismatch`.
        atol: Its absolute part.
        threads: How many tensors are compared at a time.

    Raises:
        UsageError: A tolerance is negative or not finite, there is no thread, or there is a tolerance beside `bitwise`,
            which knows none.
    """

    selection: Selection = field(default_factory=Selection)
    allow_missing: tuple[str, ...] = ()
    rel_l2: float | None = None
    bitwise: bool = False
    rtol: float = 1e-5
    atol: float = 1e-8
    threads: int = 2

    def __post_init__(self) -> None:
        for name, value in (("rel_l2", self.rel_l2 or 0.0), ("rtol", self.rtol), ("atol", self.atol)):
            if not 0 <= value < math.inf:
                raise UsageError(f"{name} is {value}, expected a finite number, zero or more")
        if self.threads < 1:
            raise UsageError(f"threads is {self.threads}, expected one or more")
        if self.bitwise and self.rel_l2 is not None:
            raise UsageError("a bitwise comparison has no tolerance", hint="give either bitwise or a tolerance")
