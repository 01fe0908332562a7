"""A segmented run computes loss and gradients in the memory of `--max-memory`, at the price of a second forward pass.

The first run is the forward pass. It returns the loss and writes the values between segments to disk. The runs that
follow go backwards, and each returns the observations of one segment. The last one returns the arguments and their
gradients, which are complete by then.

Why segments and not full runs that each observe some of the sites (2026-11): a full run needs memory for everything
that its backward pass keeps, whatever it observes, and the number of such runs would be the number of times that the
tensors fill the memory allowed.
"""

from __future__ import annotations

import ctypes
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
from gradscope.capturing.timings import Timings
from gradscope.instrument.observing_program import Observed, Reached
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.trace_query import ResolvedQuery
from gradscope.instrument.rewriting.observed_values import Captured
from gradscope.instrument.segments import Connected, Segment, Segments, bytes_of
from gradscope.tracing.jaxpr.frames import source_in
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.user_frames import user_code


def trim_malloc() -> None:
    """Returns the C library's free memory to the operating system."""
    # glibc keeps free blocks below 32 MiB, of which a run leaves a gigabyte. Other libraries return memory themselves.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
    stage: Any
    connected: Connected
    onward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompiledSegment:
    """A `_CompiledSegment` holds the compiled programs of one segment."""

    segment: Segment
    forward: Any
    backward: tuple[_Backward, ...]


class SegmentedProgram:
    """A `SegmentedProgram` holds the compiled programs of a loss in segments.

    Args:
        name: The model's name in messages.
        answered: The traced loss and its observations.
        segments: The segments of the loss.
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
        segments: Segments,
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
        self._flowing: set[Atom] = set()
        self._programs: list[_CompiledSegment] = []
        self.runs = sum(1 + len(segment.parts) for segment in segments.all)

    def compile(self) -> None:
        """Compiles all programs."""
        with self._timings.phase("compile"), user_code(f"compiling {self._name}"):
            self._programs = [self._compiled(segment) for segment in reversed(self._segments.all)][::-1]

    @property
    def size_bytes(self) -> int:
        """The memory that is needed at a time: arguments, their gradients, and the largest run's own."""
        arguments = sum(bytes_of(shape) for shape in self._shapes if shape is not None)
        gradients = sum(bytes_of(leaf) for leaf in self._resolved.trace.arguments if leaf.differentiated)
        stages = [
            stage for programs in self._programs for stage in (programs.forward, *(b.stage for b in programs.backward))
        ]
        return arguments + gradients + max(map(_own_bytes, stages))

    @property
    def bounded_by(self) -> str:
        """The operation of the run that needs the most memory: `scan at model.py:22, whose 8 iterations run as one`."""
        runs = [(each, stage) for each in self._programs for stage in each.backward]
        largest, backward = max(runs, key=lambda run: _own_bytes(run[1].stage))
        root, plan = self._resolved.trace.root, backward.plan
        sizes = {
            number: sum(bytes_of(variable.aval) for variable in root.jaxpr.eqns[number].outvars)
            for number in largest.segment.numbers
        }
        for number in plan.numbers:
            frame, equation, _ = plan.key_of(number)
            at = frame[0][0] if frame else equation
            sizes[at] = sizes.get(at, 0) + plan.bytes_of(number)
        equation = root.jaxpr.eqns[max(largest.segment.numbers, key=lambda number: sizes[number])]
        name, source = equation.primitive.name, source_in(root, equation)
        where = f"{name} at {source}" if source else name
        count = equation.params.get("length") if name == "scan" else None
        return where if count is None else f"{where}, whose {count} iterations run as one"

    @property
    def scratch_bytes(self) -> int:
        """The space on disk that is used between runs."""
        return self._segments.kept_bytes

    def start(self, leaves: Sequence[Any]) -> Run:
        """Runs the forward pass."""
        self._kept = DiskSpill(self._scratch)
        with self._timings.phase("run"), user_code(f"running {self._name}"):
            for programs in self._programs:
                trim_malloc()
                reads = [self._kept.get(atom) for atom in programs.segment.reads]
                written = jax.block_until_ready(programs.forward(leaves, reads))
                for atom, value in zip(programs.segment.writes, written, strict=True):
                    self._kept.put(atom, value)
        outputs = [self._output(atom, leaves) for atom in self._resolved.trace.root.jaxpr.outvars]
        seen = Observed(outputs[0], outputs[1:], Captured.nothing(), {}, {})
        return self._run(leaves, self._resolved.plan.part(()), seen, Reached(), sites_only=True)

    def further(self, leaves: Sequence[Any], first: Run) -> Iterator[Run]:
        """Yields the runs that follow the forward pass."""
        with self._kept:
            yield from self._backwards(leaves, first)

    def _backwards(self, leaves: Sequence[Any], first: Run) -> Iterator[Run]:
        cotangents: dict[Atom, Any] = {}
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
                yield self._run(leaves, backward.plan, seen, backward.connected.reached, sites_only=True)
                del seen
            for atom in programs.segment.writes:
                cotangents.pop(atom, None)
        complete = {n: jnp.zeros_like(leaves[n]) if each is None else each for n, each in gradients.items()}
        yield self._run(leaves, first.plan, first.observed._replace(gradients=complete), reached, sites_only=False)

    def _compiled(self, segment: Segment) -> _CompiledSegment:
        """Compiles the programs of a segment."""
        reads = [_shape(atom) for atom in segment.reads]
        # The segments behind this one are compiled already, so it is known which cotangents come from them.
        arriving = {at: _shape(atom) for at, atom in enumerate(segment.writes) if atom in self._flowing}
        forward = jax.jit(self._segments.forward(segment)).lower(self._shapes, reads).compile()
        backward: list[_Backward] = []
        for at, observed in enumerate(segment.parts):
            program, connected = self._segments.backward(segment, observed, onward=at == 0)
            stage = jax.jit(program).lower(self._shapes, reads, arriving).compile()
            backward.append(_Backward(plan=observed, stage=stage, connected=connected, onward=at == 0))
        self._flowing.update(segment.reads[at] for at in backward[0].connected.reads)
        return _CompiledSegment(segment=segment, forward=forward, backward=tuple(backward))

    def _returned(
        self, segment: Segment, backward: _Backward, leaves: Sequence[Any], cotangents: Mapping[Atom, Any]
    ) -> tuple[Observed, Any]:
        trim_malloc()
        reads = [self._kept.get(atom) for atom in segment.reads]
        arriving = {at: cotangents[atom] for at, atom in enumerate(segment.writes) if atom in cotangents}
        with self._timings.phase("run"), user_code(f"running {self._name}"):
            returned = jax.block_until_ready(backward.stage(leaves, reads, arriving))
        return with_global_facts(Observed(None, [], returned.captured, returned.arrived, {})), returned

    def _output(self, atom: Atom, leaves: Sequence[Any]) -> Any:
        if is_literal(atom):
            return np.asarray(atom.val)
        jaxpr = self._resolved.trace.root.jaxpr
        own = dict(zip(jaxpr.invars, leaves, strict=True))
        own |= zip(jaxpr.constvars, self._resolved.trace.constants, strict=True)
        return self._kept.get(atom) if atom in self._kept else own[atom]

    def _run(self, leaves: Sequence[Any], plan: Plan, seen: Observed, reached: Reached, *, sites_only: bool) -> Run:
        return Run(
            trace=self._resolved.trace,
            plan=plan,
            spec=self._resolved.spec,
            arguments=leaves,
            observed=seen,
            reached=reached,
            sites_only=sites_only,
        )


def _add(sums: dict[Any, Any], shares: Mapping[Any, Any]) -> None:
    """Adds the shares of one segment to the sums over segments."""
    for name, share in shares.items():
        known = sums.get(name)
        sums[name] = share if known is None else known + share


def _shape(atom: Atom) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _own_bytes(stage: Any) -> int:
    """Returns a compiled program's memory in addition to its arguments; 0 where the backend does not report it."""
    found = stage.memory_analysis()
    return 0 if found is None else found.temp_size_in_bytes + found.output_size_in_bytes
