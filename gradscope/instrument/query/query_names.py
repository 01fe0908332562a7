"""The names of a query, found in the trace that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gradscope import naming
from gradscope.instrument.query.trace_query import GRADIENT, TraceQuery
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.lookup.named_values import NamedValue, NamedValues


class Injected(NamedTuple):
    """An `Injected` is a value with the tensor that replaces it, or that replaces the gradient that arrives there.

    Attributes:
        name: Its name in the query.
        named: The value.
        tensor: The tensor; None for an initial gradient of ones.
    """

    name: str
    named: NamedValue
    tensor: Any

    @property
    def value(self) -> ValueKey | None:
        """The location at which the value is made; None for a constant."""
        return self.named.value


class Fetch(NamedTuple):
    """A `Fetch` is a value that a query fetches, or its gradient."""

    name: str
    named: NamedValue
    gradient: bool


class QueryNames(NamedTuple):
    """`QueryNames` are the values that a query names.

    Attributes:
        of: The values that are differentiated in place of the loss, with their initial gradients.
        stops: The values that count as constant. An argument is none: nothing is behind it, and what arrives there is
            its gradient.
        fed: The values that are not computed.
        gradient_fed: The values at which a gradient is injected and none arrives.
        fetches: The only values and gradients that are shown; empty for all.
    """

    of: list[Injected]
    stops: list[NamedValue]
    fed: list[Injected]
    gradient_fed: list[Injected]
    fetches: list[Fetch]


def find_names(known: NamedValues, query: TraceQuery) -> QueryNames:
    """Returns the values that a query names.

    Args:
        known: The names of the trace.
        query: The query.

    Raises:
        UsageError: A name is unknown.
    """
    initial = query.cotangents or (None,) * len(query.of)
    gradients = {name.removeprefix(GRADIENT): each for name, each in query.feeds.items() if name.startswith(GRADIENT)}
    values = {name: each for name, each in query.feeds.items() if not name.startswith(GRADIENT)}
    return QueryNames(
        of=[Injected(name, known.find(name), each) for name, each in zip(query.of, initial, strict=True)],
        stops=[stop for stop in map(known.find, query.stops) if stop.value is None or not is_argument(stop.value)],
        fed=[Injected(name, known.find(name), each) for name, each in values.items()],
        gradient_fed=[Injected(name, known.find(name, prefix=GRADIENT), each) for name, each in gradients.items()],
        fetches=[_fetch(name, known) for name in query.fetches],
    )


def _fetch(name: str, known: NamedValues) -> Fetch:
    if name.startswith(GRADIENT):
        own = name.removeprefix(GRADIENT)
        return Fetch(own, known.find(own, prefix=GRADIENT), gradient=True)
    family, _, own = name.partition("/")
    if naming.is_gradient(family):
        of_value = naming.key_of(naming.value_family(family) or family, own)
        return Fetch(own, known.find(of_value), gradient=True)
    return Fetch(name.removeprefix(f"{naming.ACTIVATION}/"), known.find(name), gradient=False)


def values_of(named: Iterable[NamedValue | Injected | Fetch]) -> list[ValueKey]:
    """Returns where some values are made, without constants and without repetitions."""
    values = (each.value if isinstance(each, NamedValue | Injected) else each.named.value for each in named)
    return list(dict.fromkeys(value for value in values if value is not None))


def values_at(named: Iterable[NamedValue | Injected]) -> list[ValueAt]:
    """Returns where some values are made and in which iteration, without constants."""
    values = (each if isinstance(each, NamedValue) else each.named for each in named)
    return [ValueAt(each.value, each.iteration) for each in values if each.value is not None]


def is_argument(value: ValueKey) -> bool:
    """Returns whether a value is an argument of the traced function."""
    return not value.frame and value.equation == OPERAND
