"""A reference and a candidate made of two losses, and the candidate isolated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradscope as gs
from gradscope.capturing.isolate.isolate import isolate
from gradscope.capturing.timings import Timings
from gradscope.comparison import CompareOptions
from gradscope.comparison.follow_ups.isolation import Isolation
from gradscope.comparison.pairing.matching import Dumps
from gradscope.tracing.loading.model import Model

Loss = Callable[[Any, Any], Any]


def isolated(
    reference: gs.Dump,
    candidate: gs.Dump,
    loss: Loss,
    variables: Any,
    batch: Any,
    *,
    options: CompareOptions = CompareOptions(),  # noqa: B008 - frozen
) -> Isolation:
    """The candidate's layers, each alone, judged by the reference."""
    model = Model.of_values("candidate", loss, variables, batch)
    dumps = Dumps(ref=reference.source, cand=candidate.source)
    return isolate(model, dumps, options, Timings())


def of_losses(reference: Loss, candidate: Loss, variables: Any, batch: Any, **capture: Any) -> Isolation:
    """Two losses on the same arguments, the second isolated."""
    one, other = (gs.capture(loss, variables, batch, **capture) for loss in (reference, candidate))
    return isolated(one, other, candidate, variables, batch)


def wrong(found: Isolation) -> list[str]:
    """The layers that make error themselves."""
    return [row.name for row in found.different]
