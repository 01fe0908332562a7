"""Expressions over the metrics of a row: what a tolerance asks for, `rel_l2 < 1e-4 and max_abs < 1`.

    expression = term {"or" term}            comparison = metric operator number | number operator metric
    term       = factor {"and" factor}       operator   = "<" | "<=" | ">" | ">=" | "==" | "!="
    factor     = "not" factor | "(" expression ")" | "bit_equal" | comparison

They are parsed by `expressionparser` and never evaluated as Python. An expression *holds*, does not hold, or cannot
tell: a metric that a row lacks (integers have no `ulp_max`, a dump of statistics has no `max_abs`) makes a comparison
that cannot tell, and `and`, `or`, `not` are Kleene's.

References:
    S. C. Kleene, "Introduction to Metamathematics" (1952), section 64: the strong three-valued connectives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from gradscope.comparison.metrics.metrics import METRICS
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.record import Json
from gradscope.protocols import implements

#: The metrics that an expression may name: those that have an order.
NAMES: Final = tuple(spec.name for spec in METRICS if spec.kind not in ("index", "element"))

OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = MappingProxyType(
    {
        "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    }
)  # fmt: skip


class Expression(Protocol):
    """Something that a row's metrics satisfy or not."""

    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        """Whether the metrics satisfy it; None where they cannot tell."""
        ...

    def mentions(self, metric: str) -> bool:
        """Whether it speaks of a metric."""
        ...


@dataclass(frozen=True, slots=True)
class Limit:
    """`metric operator number`."""

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
class Both:
    """`first and second`."""

    first: Expression
    second: Expression

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        parts = self.first.holds(metrics), self.second.holds(metrics)
        if False in parts:
            return False
        return None if None in parts else True

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return self.first.mentions(metric) or self.second.mentions(metric)


@dataclass(frozen=True, slots=True)
class Either:
    """`first or second`."""

    first: Expression
    second: Expression

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        parts = self.first.holds(metrics), self.second.holds(metrics)
        if True in parts:
            return True
        return None if None in parts else False

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return self.first.mentions(metric) or self.second.mentions(metric)


@dataclass(frozen=True, slots=True)
class Negation:
    """`not expression`."""

    expression: Expression

    @implements(Expression)
    def holds(self, metrics: Mapping[str, Json]) -> bool | None:
        held = self.expression.holds(metrics)
        return None if held is None else not held

    @implements(Expression)
    def mentions(self, metric: str) -> bool:
        return self.expression.mentions(metric)
