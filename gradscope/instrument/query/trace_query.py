"""Queries: what is requested of a traced loss beyond what it computes and its own gradients.

Other values may be differentiated in the place of the loss (*of*), values may count as constant (*stops*), values or
the gradients that arrive at them may be given instead of computed (*feeds*), and only a few values may be requested
(*fetches*), of which the rest of the program is then no part. TensorFlow's names for these are `ys`, `stop_gradients`,
`feed_dict` and `fetches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gradscope.dump.record import Json
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.tracing.tracer import Trace

#: The prefix of a value's name that means the gradient that arrives at it.
GRADIENT: Final = "gradient/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuery:
    """A query, by the names of values (see `tracing.lookup.named_values`).

    Attributes:
        of: What is differentiated in the place of the loss; empty for the loss.
        cotangents: The initial gradient of each of them, None for ones; empty for ones throughout.
        stops: What counts as constant.
        feeds: Values given and not computed; under `gradient/NAME`, the gradient that arrives at a value.
        fetches: The only values requested; a dump's key or `gradient/NAME` requests a gradient. Empty for all.
    """

    of: tuple[str, ...] = ()
    cotangents: tuple[Any, ...] = ()
    stops: tuple[str, ...] = ()
    feeds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fetches: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.of or self.stops or self.feeds or self.fetches)


class PrunedProgram(NamedTuple):
    """The part of a program that an inquiry needs.

    Attributes:
        needed: The number of operations that are run.
        total: The number of all operations.
        arguments: For each argument, whether anything depends on it that is requested.
        inputs: The names of those that are leaves of the batch.
    """

    needed: int
    total: int
    arguments: tuple[bool, ...]
    inputs: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """The numbers, and the inputs' names."""
        return {"needed": self.needed, "total": self.total, "inputs": list(self.inputs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuery:
    """How an inquiry is answered.

    Attributes:
        trace: The trace, with what arrives where when that is differentiated which is requested.
        plan: What is observed, fed, stopped and run.
        spec: What is shown.
        feeds: The values fed, by site.
        arguments: The arguments fed, by number.
        cotangents: The initial gradient of each seed.
        fragment: What is run; None where all of it is.
    """

    trace: Trace
    plan: Plan
    spec: CaptureSpec
    feeds: Mapping[int, Any] = field(default_factory=dict[int, Any])
    arguments: Mapping[int, Any] = field(default_factory=dict[int, Any])
    cotangents: tuple[Any, ...] = ()
    fragment: PrunedProgram | None = None
