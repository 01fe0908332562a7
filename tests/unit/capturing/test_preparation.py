"""While a program is compiled, other work is done in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.preparation import Prepared, prepare
from gradscope.capturing.timings import Timings
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.tracing.loading.model import Model

VALUES = np.ones(3, np.float32)


def loss(w: Any, x: Any) -> Any:
    return (w * x).sum()


def prepared_while(work: Callable[[], object], begun: Callable[[str], None] = lambda _: None) -> Prepared:
    model = Model.of_values("m", loss, VALUES, VALUES)
    arguments = Arguments.of(VALUES, VALUES)
    return prepare(model, arguments, CaptureSpec(), TraceQuery(), Timings(begun), meanwhile=work)


def test_work_is_done_in_a_thread_once_there_is_a_program_to_compile() -> None:
    phases: list[str] = []
    seen: list[tuple[threading.Thread, set[str]]] = []
    prepared_while(lambda: seen.append((threading.current_thread(), set(phases))), phases.append)
    ((thread, phases_before),) = seen
    assert thread is not threading.current_thread()
    assert phases_before >= {"trace"}
    assert not phases_before & {"run"}


def test_a_program_is_prepared_where_the_work_fails() -> None:
    def failing() -> None:
        raise ImportError

    prepared = prepared_while(failing)
    assert float(np.asarray(prepared.start().observed.loss)) == VALUES.sum()
