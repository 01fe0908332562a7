"""A segmented run computes loss and gradients in the memory of `--max-memory`, at the price of a second forward pass.

The first run is the forward pass. It returns the loss and writes the values between segments to disk. The runs that
follow go backwards, and each returns the observations of one segment. The last one returns the arguments and their
gradients, which are complete by then. Where the memory allowed holds the tensors of two runs, each run starts while
those of the one before are measured and written.

Why segments and not full runs that each observe some of the sites (2026-11): a full run needs memory for everything
that its backward pass keeps, whatever it observes, and the number of such runs would be the number of times that the
tensors fill the memory allowed.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.execution.disk_spill import DiskSpill
from gradscope.capturing.execution.observation import with_global_facts
from gradscope.capturing.execution.run import Run
from gradscope.capturing.execution.shared_programs import SharedProgram, SharedPrograms
from gradscope.capturing.timings import Timings
from gradscope.instrument.observing_program import Observed, Reached
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.trace_query import ResolvedQuery
from gradscope.instrument.rewriting.observed_values import Captured
from gradscope.instrument.segments.cutting import Segment
from gradscope.instrument.segments.program_steps import Value, bytes_of
from gradscope.instrument.segments.programs import Connected, Inputs, backward_program, forward_program
from gradscope.tracing.jaxpr.frames import OPERAND, FrameKey, source_in
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.user_frames import user_code


def trim_malloc() -> None:
    """Returns the C library's free memory to the operating system."""
    # glibc keeps free blocks below 32 MiB, of which a run leaves a gigabyte. Other libraries return memory themselves.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def held_bytes() -> int:
    """Returns the bytes of memory that the process keeps, freed ones given back; 0 where the system states none."""
    trim_malloc()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backward:
    """A `_Backward` is the compiled program of one backward run of a segment.

    Attributes:
        plan: What it observes.
        stage: The program.
        connected: The values in it to which the loss is connected.
        onward: Whether it returns cotangents for the segment before.
    """

    plan: Plan
    stage: SharedProgram
    connected: Connected
    onward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompiledSegment:
    """A `_CompiledSegment` holds the compiled programs of one segment."""

    segment: Segment
    forward: SharedProgram
    backward: tuple[_Backward, ...]


class SegmentedProgram:
    """A `SegmentedProgram` holds the compiled programs of a loss in segments.

    Args:
        name: The model's name in messages.
        resolved: The traced loss and its observations.
        segments: The segments of the loss, in program order.
        shapes: The flat arguments' shapes.
        timings: Receives the seconds of each phase.
        scratch: A folder on the disk that is used between runs; None for the system's folder of temporary files.

    Attributes:
        runs: The number of runs.
    """

    def __init__(
        self,
        name: str,
        resolved: ResolvedQuery,
        segments: Sequence[Segment],
        shapes: Sequence[Any],
        timings: Timings,
        *,
        scratch: Path | None,
    ) -> None:
        self._name = name
        self._resolved = resolved
        self._segments = segments
        self._shapes = shapes
        self._timings = timings
        self._scratch = scratch
        self._flowing: set[Value] = set()
        self._compiler = SharedPrograms()
        self._programs: list[_CompiledSegment] = []
        self.runs = sum(1 + len(segment.parts) for segment in segments)

    def compile(self) -> None:
        """Compiles all programs."""
        with self._timings.phase("compile"), user_code(f"compiling {self._name}"):
            self._programs = [self._compiled(segment) for segment in reversed(self._segments)][::-1]

    @property
    def size_bytes(self) -> int:
        """The memory that is needed at a time: arguments, their gradients, and the largest run's own."""
        stages = [
            stage for programs in self._programs for stage in (programs.forward, *(b.stage for b in programs.backward))
        ]
        return resident_bytes(self._resolved, self._shapes) + max(stage.own_bytes for stage in stages)

    @property
    def overlapped_bytes(self) -> int:
        """The memory that is needed at a time where each run starts while the tensors of the one before are there."""
        stages = [backward.stage for each in reversed(self._programs) for backward in each.backward]
        pairs = (one.output_bytes + other.own_bytes for one, other in itertools.pairwise(stages))
        return max(self.size_bytes, resident_bytes(self._resolved, self._shapes) + max(pairs, default=0))

    @property
    def bounded_by(self) -> str:
        """The operation of the run that needs the most memory: `scan at model.py:22, 1 of 8 iterations at a time`."""
        runs = [(each.segment, backward) for each in self._programs for backward in each.backward]
        segment, backward = max(runs, key=lambda run: run[1].stage.own_bytes)
        sizes = {(step.frame.key, step.equation): step.size_bytes for step in segment.steps}
        for number in backward.plan.numbers:
            frame, equation, _ = backward.plan.key_of(number)
            outer = next((at for at in _equations_around(frame, equation) if at in sizes), None)
            if outer is not None:
                sizes[outer] += backward.plan.bytes_of(number)
        step = max(segment.steps, key=lambda step: sizes[step.frame.key, step.equation])
        equation = step.frame.jaxpr.eqns[step.equation]
        name, source = equation.primitive.name, source_in(step.frame, equation)
        where = f"{name} at {source}" if source else name
        length = equation.params.get("length") if name == "scan" else None
        if length is None:
            return where
        count = "all" if step.iterations is None else f"{len(step.iterations)} of"
        return f"{where}, {count} {length} iterations at a time"

    @property
    def scratch_bytes(self) -> int:
        """The space on disk that is used between runs."""
        return sum(value.size_bytes for segment in self._segments for value in segment.writes)

    def start(self, leaves: Sequence[Any]) -> Run:
        """Runs the forward pass."""
        self._kept = DiskSpill(self._scratch)
        with self._timings.phase("run"), user_code(f"running {self._name}"):
            for programs in self._programs:
                trim_malloc()
                written = jax.block_until_ready(programs.forward(self._inputs(programs.segment, leaves)))
                for value, array in zip(programs.segment.writes, written, strict=True):
                    self._kept.put(value, array)
        outputs = [self._output(atom, leaves) for atom in self._resolved.trace.root.jaxpr.outvars]
        seen = Observed(outputs[0], outputs[1:], Captured.nothing(), {}, {})
        return self._run(leaves, self._resolved.plan.part(()), seen, Reached(), sites_only=True)

    def further(self, leaves: Sequence[Any], first: Run) -> Iterator[Run]:
        """Yields the runs that follow the forward pass."""
        with self._kept:
            yield from self._backwards(leaves, first)

    def _backwards(self, leaves: Sequence[Any], first: Run) -> Iterator[Run]:
        cotangents: dict[Value, Any] = {}
        gradients = {n: None for n, leaf in enumerate(self._resolved.trace.arguments) if leaf.differentiated}
        reached = Reached()
        for programs in reversed(self._programs):
            for backward in programs.backward:
                seen, returned = self._returned(programs.segment, backward, leaves, cotangents)
                if backward.onward:
                    _add(
                        cotangents, {programs.segment.reads[at]: returned.reads[at] for at in backward.connected.reads}
                    )
                    arguments = backward.connected.reached.arguments
                    _add(gradients, {number: returned.gradients[number] for number in arguments})
                    reached.arguments.update(arguments)
                del returned
                yield self._run(
                    leaves, backward.plan, seen, backward.connected.reached, sites_only=True,
                    iterations=programs.segment.iterations,
                )  # fmt: skip
                del seen
            for value in programs.segment.writes:
                cotangents.pop(value, None)
        complete = {n: jnp.zeros_like(leaves[n]) if each is None else each for n, each in gradients.items()}
        yield self._run(leaves, first.plan, first.observed._replace(gradients=complete), reached, sites_only=False)

    def _compiled(self, segment: Segment) -> _CompiledSegment:
        """Compiles the programs of a segment."""
        trace = self._resolved.trace
        inputs = Inputs(
            {number: self._shapes[number] for number in segment.arguments},
            [value.shape for value in segment.reads],
            jax.ShapeDtypeStruct((), jnp.int32),
        )
        # The segments behind this one are compiled already, so it is known which cotangents come from them.
        arriving = {at: value.shape for at, value in enumerate(segment.writes) if value in self._flowing}
        forward = self._compiler.compiled(forward_program(trace, segment), inputs)
        backward: list[_Backward] = []
        for at, observed in enumerate(segment.parts):
            program, connected = backward_program(trace, segment, observed, onward=at == 0)
            stage = self._compiler.compiled(program, inputs, arriving)
            backward.append(_Backward(plan=observed, stage=stage, connected=connected, onward=at == 0))
        self._flowing.update(segment.reads[at] for at in backward[0].connected.reads)
        return _CompiledSegment(segment=segment, forward=forward, backward=tuple(backward))

    def _inputs(self, segment: Segment, leaves: Sequence[Any]) -> Inputs:
        arguments = {number: leaves[number] for number in segment.arguments}
        start = np.int32(0 if segment.iterations is None else segment.iterations.start)
        return Inputs(arguments, [self._kept.get(value) for value in segment.reads], start)

    def _returned(
        self, segment: Segment, backward: _Backward, leaves: Sequence[Any], cotangents: Mapping[Value, Any]
    ) -> tuple[Observed, Any]:
        trim_malloc()
        arriving = {at: cotangents[value] for at, value in enumerate(segment.writes) if value in cotangents}
        with self._timings.phase("run"), user_code(f"running {self._name}"):
            returned = jax.block_until_ready(backward.stage(self._inputs(segment, leaves), arriving))
        return with_global_facts(Observed(None, [], returned.captured, returned.arrived, {})), returned

    def _output(self, atom: Atom, leaves: Sequence[Any]) -> Any:
        root = self._resolved.trace.root
        if is_literal(atom):
            return np.asarray(atom.val)
        if atom not in root.definitions:
            return dict(zip(root.jaxpr.constvars, self._resolved.trace.constants, strict=True))[atom]
        equation, position = root.definitions[atom]
        return leaves[position] if equation == OPERAND else self._kept.get(Value.of(root, atom))

    def _run(
        self,
        leaves: Sequence[Any],
        plan: Plan,
        seen: Observed,
        reached: Reached,
        *,
        sites_only: bool,
        iterations: range | None = None,
    ) -> Run:
        return Run(
            trace=self._resolved.trace,
            plan=plan,
            spec=self._resolved.spec,
            arguments=leaves,
            observed=seen,
            reached=reached,
            sites_only=sites_only,
            iterations=iterations,
        )


def resident_bytes(resolved: ResolvedQuery, shapes: Sequence[Any]) -> int:
    """Returns the bytes that are in memory in every run: the arguments, of the given shapes, and their gradients."""
    arguments = sum(bytes_of(shape) for shape in shapes if shape is not None)
    return arguments + sum(bytes_of(leaf) for leaf in resolved.trace.arguments if leaf.differentiated)


def _add(sums: dict[Any, Any], shares: Mapping[Any, Any]) -> None:
    """Adds the shares of one segment to the sums over segments."""
    for name, share in shares.items():
        known = sums.get(name)
        sums[name] = share if known is None else known + share


def _equations_around(frame: FrameKey, equation: int) -> Iterator[tuple[FrameKey, int]]:
    """Yields the equations, with their frames, that run an equation of a frame, the outermost first, and then it."""
    for depth, (number, _) in enumerate(frame):
        yield frame[:depth], number
    yield frame, equation
