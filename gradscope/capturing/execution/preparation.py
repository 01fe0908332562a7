"""Preparation makes a run's arguments and compiles its observing program at the same time.

A model's `init` takes as long to compile and run as the observing program takes to trace and compile. Neither needs the
other's result, only shapes. So the arguments are made in a thread of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import jax

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.function_call import require_untraced
from gradscope.capturing.execution.run import Run
from gradscope.capturing.execution.segmented import SegmentedProgram, held_bytes, resident_bytes
from gradscope.capturing.execution.unsegmented import SingleRun
from gradscope.capturing.timings import Timings
from gradscope.errors import MachineError, ModelError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.resolve import resolve_query
from gradscope.instrument.query.trace_query import ResolvedQuery, TraceQuery
from gradscope.instrument.segments.cutting import Segment, segments_of
from gradscope.naming.sizes import shown_size
from gradscope.tracing.jaxpr.frames import OPERAND
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import Trace, trace_loss, with_constant_inputs
from gradscope.tracing.user_frames import user_code
from gradscope.work_for_threads import ThreadPool, submitted

#: By what the estimate of a run's bytes is divided, one after the other, where a run needs too much memory.
_SHARES: Final = (2, 4, 8, 16)


class RunnableProgram(Protocol):
    """A `RunnableProgram` is the compiled loss of a model together with everything that is observed of it."""

    @property
    def runs(self) -> int:
        """The number of runs in which it computes everything."""
        ...

    @property
    def size_bytes(self) -> int:
        """The memory that it needs at a time, or 0 where the backend does not report it; XLA computes it slowly."""
        ...

    @property
    def overlapped_bytes(self) -> int:
        """The memory that it needs at a time where each run starts while the tensors of the one before are there."""
        ...

    @property
    def bounded_by(self) -> str:
        """The operation that needs the most memory, in words; "" where everything is one run."""
        ...

    @property
    def scratch_bytes(self) -> int:
        """The space on disk that it uses between runs."""
        ...

    def compile(self) -> None:
        """Compiles it."""
        ...

    def start(self, leaves: Sequence[Any]) -> Run:
        """Runs the first run on the flat arguments and waits for it."""
        ...

    def further(self, leaves: Sequence[Any], first: Run) -> Iterator[Run]:
        """Yields the runs that follow the first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A `Prepared` run has everything that it needs to start.

    Attributes:
        resolved: The traced loss, its observations, and which of them are shown.
        variables: The model's variables.
        batch: Its batch.
        leaves: The leaves of both, as the program receives them; None for those that it does not need.
        program: The compiled program.
    """

    resolved: ResolvedQuery
    variables: Any
    batch: Any
    leaves: Sequence[Any]
    program: RunnableProgram

    def start(self) -> Run:
        """Runs the program on the leaves and waits for it; of a program in segments, runs the forward pass."""
        return self.program.start(self.leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`Bounds` limit the memory that a run may use.

    Attributes:
        memory: Bytes.
        scratch: A folder on the disk to which arrays are spilled; None for the system's folder of temporary files.
    """

    memory: int
    scratch: Path | None = None

    @property
    def run_bytes(self) -> int:
        """The bytes of outputs that one run may have, and as many of intermediate values."""
        return self.memory // 4  # the other half is for arguments and JAX itself

    def have_room_for(self, size_bytes: int) -> bool:
        """Returns whether so many bytes fit beside what is in memory now, but no less than JAX itself needs."""
        return size_bytes + max(held_bytes(), self.memory // 4) <= self.memory


def prepare(
    model: Model,
    arguments: Arguments,
    spec: CaptureSpec,
    query: TraceQuery,
    timings: Timings,
    *,
    bounds: Bounds | None = None,
    planned: Callable[[ResolvedQuery], object] = lambda _: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Prepared:
    """Traces, plans and compiles a loss while its arguments are being made.

    Args:
        model: The model.
        arguments: Its arguments.
        spec: Which tensors are shown.
        query: Which gradients and values other than the loss's own are computed.
        timings: Receives the seconds of each phase.
        bounds: The memory that one run may use; None for all in one run.
        planned: Called with what will be observed, before that is compiled: to begin what can be done meanwhile.
        meanwhile: Called in a thread while that is compiled, or loaded where it is kept, both of which leave the
            interpreter free.

    Returns:
        The compiled program and its arguments.

    Raises:
        ModelError: The user's code failed, or its loss cannot be differentiated.
        UsageError: A pattern selects nothing, or the query cannot be resolved.
        MachineError: The arguments and their gradients do not fit into the memory allowed.
        DumpError: The batch lacks leaves that the query needs.
    """
    with ThreadPool(1, thread_name_prefix="arguments") as pool:
        making = submitted(pool, arguments.make)
        with timings.phase("trace"), user_code(f"loss of {model.name}"):
            trace = trace_loss(model.loss, *arguments.shapes, operations=spec.looks_inside_layers or bool(query))
        require_untraced(trace.constants)  # a function may have values of a transformation around it
        staging = _Staging(model, arguments, spec, query, timings, bounds)
        try:
            resolved, program = staging.staged(trace)
        except ModelError:
            # A derivative rule may refuse an input, which only an observation differentiates.
            constant = with_constant_inputs(trace)
            if constant is None:
                raise
            resolved, program = staging.staged(constant)
        planned(resolved)
        submitted(pool, meanwhile)
        program.compile()
        if bounds is not None:
            program = _within(bounds, program, staging.smaller(resolved, bounds))
        with timings.phase("initialise"):
            variables, batch = making.result()
    leaves = _program_leaves(resolved, jax.tree_util.tree_leaves((variables, batch)))
    return Prepared(resolved=resolved, variables=variables, batch=batch, leaves=leaves, program=program)


@dataclass(frozen=True, slots=True)
class _Staging:
    """A `_Staging` stages the program of a trace; its fields are the arguments of `prepare`."""

    model: Model
    arguments: Arguments
    spec: CaptureSpec
    query: TraceQuery
    timings: Timings
    bounds: Bounds | None

    def staged(self, trace: Trace) -> tuple[ResolvedQuery, RunnableProgram]:
        """Returns the resolved query and the staged program."""
        with self.timings.phase("trace"), user_code(f"loss of {self.model.name}"):
            resolved = resolve_query(trace, self.spec, self.query)
            self.arguments.require(() if resolved.fragment is None else resolved.fragment.inputs)
            if self.bounds is not None:
                _require_arguments(resident_bytes(resolved, self._shapes(resolved)), self.bounds.memory)
            segments = None if self.bounds is None else _segments(resolved, self.bounds.run_bytes)
            if self.bounds is None or segments is None or _is_one_run(segments):
                return resolved, SingleRun(self.model.name, resolved, self._shapes(resolved), self.timings)
            return resolved, self._segmented(resolved, segments, self.bounds)

    def smaller(self, resolved: ResolvedQuery, bounds: Bounds) -> Iterator[RunnableProgram]:
        """Yields programs that need less and less memory and take longer: what a run needs is only estimated."""
        known = _segments(resolved, bounds.run_bytes)
        for share in _SHARES:
            segments = None if known is None else _segments(resolved, bounds.run_bytes // share)
            if segments is not None and _cuts(segments) != _cuts(known):
                known = segments
                yield self._segmented(resolved, segments, bounds)

    def _segmented(self, resolved: ResolvedQuery, segments: Sequence[Segment], bounds: Bounds) -> SegmentedProgram:
        shapes = self._shapes(resolved)
        return SegmentedProgram(self.model.name, resolved, segments, shapes, self.timings, scratch=bounds.scratch)

    def _shapes(self, resolved: ResolvedQuery) -> list[Any]:
        return _program_leaves(resolved, jax.tree_util.tree_leaves(self.arguments.shapes))


def _within(bounds: Bounds, program: RunnableProgram, smaller: Iterator[RunnableProgram]) -> RunnableProgram:
    """Returns a compiled program, or the first of smaller ones that fits; where none does, that of the least need."""
    while program.size_bytes > bounds.memory and (other := next(smaller, None)) is not None:
        other.compile()
        program = min(program, other, key=lambda each: each.size_bytes)
    return program


def _segments(resolved: ResolvedQuery, budget: int) -> list[Segment] | None:
    """Returns the segments of a loss; None where it is one of its own arguments."""
    root = resolved.trace.root
    if root.jaxpr.outvars[0] not in root.definitions or root.definitions[root.jaxpr.outvars[0]][0] == OPERAND:
        return None
    return segments_of(resolved.trace, resolved.plan, budget)


def _cuts(segments: Sequence[Segment] | None) -> list[tuple[int, int]]:
    """Returns for each segment its numbers of steps and of runs."""
    return [(len(segment.steps), len(segment.parts)) for segment in segments or ()]


def _require_arguments(size_bytes: int, memory: int) -> None:
    """Raises `MachineError` where not even the arguments and their gradients fit into the memory allowed."""
    if size_bytes > memory:
        raise MachineError(
            f"the arguments of the model and their gradients take {shown_size(size_bytes)}, above the "
            f"{shown_size(memory)} of --max-memory",
            hint="allow more",
        )


def _is_one_run(segments: Sequence[Segment]) -> bool:
    return len(segments) == len(segments[0].parts) == 1


def _program_leaves(resolved: ResolvedQuery, leaves: Sequence[Any]) -> list[Any]:
    """Returns the leaves as the program receives them: fed ones replaced, and None for those that it does not need."""
    needed = [True] * len(leaves) if resolved.fragment is None else resolved.fragment.arguments
    own = [leaf if is_needed else None for leaf, is_needed in zip(leaves, needed, strict=True)]
    return [resolved.arguments.get(number, leaf) for number, leaf in enumerate(own)]
