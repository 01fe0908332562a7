"""Preparing a run: arguments made and the observing program compiled, at the same time.

A model's `init` takes as long to compile and run as the program that observes it takes to trace and compile; neither
needs the other's result, only shapes. So the arguments are made in a thread of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.observation import with_whole_facts
from gradscope.capturing.execution.run import Run
from gradscope.capturing.execution.segmented import Piecewise
from gradscope.capturing.timings import Timings
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.query.capture_spec import Wanted
from gradscope.instrument.query.resolve import answer
from gradscope.instrument.query.trace_query import Answer, Inquiry
from gradscope.instrument.segments import Segments
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import trace_loss
from gradscope.tracing.user_frames import user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything a run needs.

    Attributes:
        answer: The traced loss, what will be observed, and what of it is shown.
        variables: The model's variables.
        batch: Its batch.
        leaves: The leaves of both as they go into the run; None for those that it does not need.
        start: Runs the compiled program and waits for it; of a run in segments, the forward pass.
        further: Of that, the runs that follow the one it is given.
        runs: The number of all these runs.
        size_bytes: Tells the memory that they take at a time: arguments, outputs and what is needed on the way. XLA
            takes a while to tell.
        scratch_bytes: The space on disk for what is kept between them.
    """

    answer: Answer
    variables: Any
    batch: Any
    leaves: Sequence[Any]
    start: Callable[[], Run]
    further: Callable[[Run], Iterator[Run]]
    runs: int
    size_bytes: Callable[[], int]
    scratch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a run may take.

    Attributes:
        memory: Bytes.
        scratch: On whose disk what does not fit may lie meanwhile; None for where temporary files lie.
    """

    memory: int
    scratch: Path | None = None

    @property
    def run_bytes(self) -> int:
        """Bytes that one run may hand out, and as many that it may make: the rest is for arguments and JAX itself."""
        return self.memory // 4


def prepare(
    model: Model,
    arguments: Arguments,
    wanted: Wanted,
    inquiry: Inquiry,
    timings: Timings,
    *,
    bounds: Bounds | None = None,
) -> Prepared:
    """Trace, plan and compile while the arguments are being made.

    Args:
        model: The model.
        arguments: Its arguments.
        wanted: What is shown.
        inquiry: What is asked beyond the loss and its gradients.
        timings: Receives the seconds of each phase.
        bounds: How much one run may take; None for all in one run.

    Raises:
        ModelError: The user's code failed, or its loss cannot be differentiated.
        UsageError: A pattern selects nothing, or the inquiry cannot be answered.
        DumpError: The batch lacks what the inquiry needs.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="arguments") as pool:
        making = pool.submit(arguments.make)
        with timings.phase("trace"), user_code(f"loss of {model.name}"):
            trace = trace_loss(model.loss, *arguments.shapes, operations=wanted.looks_inside_layers or bool(inquiry))
            answered = answer(trace, wanted, inquiry)
            arguments.require(() if answered.fragment is None else answered.fragment.inputs)
            shapes = _given(answered, jax.tree_util.tree_leaves(arguments.shapes))
            segments = None if bounds is None else _segments(answered, bounds.run_bytes)
            program = (
                _Program(model.name, answered, shapes, timings)
                if bounds is None or segments is None
                else Piecewise(model.name, answered, segments, shapes, timings, scratch=bounds.scratch)
            )
        program.compile()
        with timings.phase("initialise"):
            variables, batch = making.result()
    leaves = _given(answered, jax.tree_util.tree_leaves((variables, batch)))
    return Prepared(
        answer=answered,
        variables=variables,
        batch=batch,
        leaves=leaves,
        start=lambda: program.start(leaves),
        further=lambda first: program.further(leaves, first),
        runs=program.runs,
        size_bytes=lambda: program.size_bytes,
        scratch_bytes=program.scratch_bytes,
    )


def _segments(answered: Answer, budget: int) -> Segments | None:
    """The segments of a loss; None where a single run will do, or its loss is one of its arguments."""
    root = answered.trace.root
    if root.jaxpr.outvars[0] not in root.definitions or root.definitions[root.jaxpr.outvars[0]][0] == OPERAND:
        return None
    segments = Segments(answered.trace, answered.plan, budget)
    return None if len(segments.all) == len(segments.all[0].parts) == 1 else segments


class _Program:
    """One observing program of a model: traced when it is made, then compiled, then run."""

    runs: Final = 1
    scratch_bytes: Final = 0

    def __init__(self, name: str, answered: Answer, shapes: Sequence[Any], timings: Timings) -> None:
        self._name = name
        self._answered = answered
        self._timings = timings
        program, self._reached = observing_program(answered.trace, answered.plan)
        self._stage: Any = jax.jit(program).lower(shapes, answered.feeds, answered.cotangents)

    def compile(self) -> None:
        with self._timings.phase("compile"), user_code(f"compiling {self._name}"):
            self._stage = self._stage.compile()

    @property
    def size_bytes(self) -> int:
        """Memory that the compiled program takes; 0 where the backend does not tell."""
        found = self._stage.memory_analysis()
        if found is None:
            return 0
        return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes

    def further(self, _leaves: Sequence[Any], _first: Run) -> Iterator[Run]:
        return iter(())

    def start(self, leaves: Sequence[Any]) -> Run:
        answered = self._answered
        with self._timings.phase("run"), user_code(f"running {self._name}"):
            seen = jax.block_until_ready(self._stage(leaves, answered.feeds, answered.cotangents))
        return Run(
            trace=answered.trace,
            plan=answered.plan,
            wanted=answered.wanted,
            arguments=leaves,
            observed=with_whole_facts(seen),
            reached=self._reached,
        )


def _given(answered: Answer, leaves: Sequence[Any]) -> list[Any]:
    """The leaves as they go into the run: fed ones replaced, those that it does not need left out."""
    needed = [True] * len(leaves) if answered.fragment is None else answered.fragment.arguments
    own = [leaf if wanted else None for leaf, wanted in zip(leaves, needed, strict=True)]
    return [answered.arguments.get(number, leaf) for number, leaf in enumerate(own)]
