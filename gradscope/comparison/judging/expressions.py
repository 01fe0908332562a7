"""Expressions test the metrics of a pair, such as `rel_l2 < 1e-4 and max_abs < 1`.

    expression = term {"or" term}            comparison = metric operator number | number operator metric
    term       = factor {"and" factor}       operator   = "<" | "<=" | ">" | ">=" | "==" | "!="
    factor     = "not" factor | "(" expression ")" | "bit_equal" | comparison

Expressions are parsed by `expression_parser` and never evaluated as Python. The value of an expression is true, false
or undecided: a comparison is undecided where the pair lacks its metric (integers have no `ulp_max`, a dump of
statistics has no `max_abs`). `and`, `or` and `not` are those of Kleene's three-valued logic.

References:
    S. C. Kleene, "Introduction to Metamathematics" (1952), section 64: the strong three-valued connectives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from gradscope.comparison.metrics.metrics import METRICS
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.protocols import implements

#: The metrics that an expression may use: those whose values have an order.
NAMES: Final = tuple(spec.name for spec in METRICS if spec.kind not in ("index", "element"))

OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = MappingProxyType(
    {
        "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    }
)  # fmt: skip


class Expression(Protocol):
    """Expression is a condition on metrics."""

    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        """Returns whether the metrics satisfy the condition; None where they do not decide it."""
        ...

    def mentions(self, metric: str) -> bool:
        """Returns whether the condition uses a metric."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit is the condition `metric operator number`."""

    metric: str
    operator: str
    number: float

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        value = metrics.get(self.metric)
        if value is None:
            return None
        number = float(value) if isinstance(value, bool) else as_float(value)
        return OPERATORS[self.operator](number, self.number)

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return metric == self.metric


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Conjunction is the condition `first and second and ...`."""

    parts: Sequence[Expression]

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        parts = [each.holds(metrics) for each in self.parts]
        if False in parts:
            return False
        return None if None in parts else True

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return any(each.mentions(metric) for each in self.parts)


@dataclass(frozen=True, slots=True)
class Disjunction:
    """Disjunction is the condition `first or second or ...`."""

    parts: Sequence[Expression]

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        parts = [each.holds(metrics) for each in self.parts]
        if True in parts:
            return True
        return None if None in parts else False

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return any(each.mentions(metric) for each in self.parts)


@dataclass(frozen=True, slots=True)
class Negation:
    """Negation is the condition `not expression`."""

    expression: Expression

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        value = self.expression.holds(metrics)
        return None if value is None else not value

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return self.expression.mentions(metric)
