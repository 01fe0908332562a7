"""Explanations of a run's results are stored with them, each by running the loss again where there is need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradscope.capturing.execution.preparation import Bounds, Prepared
from gradscope.capturing.explain.attempt import Attempt
from gradscope.capturing.explain.nonfinite.origin_search import find_origins
from gradscope.capturing.explain.one_hot_labels import labels_from_one
from gradscope.capturing.explain.row_lookups import out_of_bounds
from gradscope.capturing.explain.zeros.neighbourhood import MOST_BYTES
from gradscope.capturing.explain.zeros.rounding_zeros import cancels, rounding_causes
from gradscope.capturing.records.session import Session
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.manifest import Cause
from gradscope.dump.manifest.operation_facts import Origin
from gradscope.dump.manifest.operation_facts.out_of_bounds import OutOfBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanations:
    """`Explanations` are what was found out about a run.

    Attributes:
        origins: Where values that are not finite began.
        causes: Why gradients are zero.
        out_of_bounds: Look-ups by indices beyond what they look up.
        failed: Which explanations could not be found because a search failed, as sentences.
    """

    origins: tuple[Origin, ...] = ()
    causes: tuple[Cause, ...] = ()
    out_of_bounds: tuple[OutOfBounds, ...] = ()
    failed: tuple[str, ...] = ()


def explanations(
    loss: Callable[[Any, Any], Any],
    prepared: Prepared,
    session: Session,
    bounds: Bounds | None,
    timings: Timings,
    *,
    runs: bool,
) -> Explanations:
    """Returns what there is to explain in a run, as far as it can be found out; never raises.

    Args:
        loss: The loss.
        prepared: Its arguments.
        session: The run, after its last record.
        bounds: The memory that a run may use; None for no bound. Where there is one, the complete model does not run
            again to find gradients that are zero but for rounding, and look-ups that are masked.
        timings: Receives the seconds of each search.
        runs: Whether the loss may run again at all.
    """
    origins: tuple[Origin, ...] = ()
    causes: tuple[Cause, ...] = ()
    beyond: tuple[OutOfBounds, ...] = ()
    failed: list[str] = []
    if runs and session.nonfinite:
        with timings.phase("search for the origin"), Attempt() as attempt:
            origins = find_origins(loss, prepared, session.flags, finite=math.isfinite(session.loss() or 0.0))
        failed += [f"where the first NaN or Inf began {attempt.failure}"] if attempt.failure else []
    if runs and session.zeros:
        with timings.phase("explain"), Attempt() as attempt:
            causes = session.causes(MOST_BYTES if bounds is None else min(bounds.run_bytes, MOST_BYTES))
        failed += [f"why gradients are zero {attempt.failure}"] if attempt.failure else []
    if runs and not session.nonfinite and bounds is None:
        with timings.phase("explain"), Attempt() as attempt:
            found = rounding_causes(session.run, session.gradients, [each for each in causes if cancels(each)])
            causes = tuple({(each.family, each.name): each for each in (*causes, *found)}.values())
        failed += [f"why gradients are small {attempt.failure}"] if attempt.failure else []
    with timings.phase("explain"), Attempt() as attempt:
        most_bytes = MOST_BYTES if runs and bounds is None else 0
        trace, leaves = prepared.resolved.trace, prepared.leaves
        beyond = (*out_of_bounds(trace, leaves, most_bytes=most_bytes), *labels_from_one(trace, leaves))
    failed += [f"whether indices are out of bounds {attempt.failure}"] if attempt.failure else []
    return Explanations(origins=origins, causes=causes, out_of_bounds=beyond, failed=tuple(failed))
