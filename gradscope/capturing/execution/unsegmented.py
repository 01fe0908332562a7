"""A single run computes loss and gradients, and all that is observed of them, by one program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax

from gradscope.capturing.execution.observation import with_global_facts
from gradscope.capturing.execution.run import Run
from gradscope.capturing.timings import Timings
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.query.trace_query import ResolvedQuery
from gradscope.instrument.rewriting.program_parts import in_parts, is_compiled_in_parts
from gradscope.tracing.jaxpr.derivatives.custom_rules import rules_of_libraries
from gradscope.tracing.user_frames import user_code


class SingleRun:
    """A `SingleRun` is one observing program of a model, traced when it is made, then compiled, then run."""

    def __init__(self, name: str, resolved: ResolvedQuery, shapes: Sequence[Any], timings: Timings) -> None:
        self.runs = 1
        self.bounded_by = ""
        self.scratch_bytes = 0
        self._name = name
        self._resolved = resolved
        self._timings = timings
        program, self._reached = observing_program(resolved.trace, resolved.plan)
        compiled = in_parts(program) if is_compiled_in_parts(resolved.trace.jaxpr) else program
        self._stage: Any = jax.jit(compiled).lower(shapes, resolved.feeds, resolved.cotangents)

    def compile(self) -> None:
        """Compiles the program."""
        with self._timings.phase("compile"), user_code(f"compiling {self._name}"):
            self._stage = self._stage.compile()

    @property
    def size_bytes(self) -> int:
        """The memory of the compiled program; 0 where the backend does not report it."""
        found = self._stage.memory_analysis()
        if found is None:
            return 0
        return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes

    @property
    def overlapped_bytes(self) -> int:
        """The memory of the compiled program, which runs once."""
        return self.size_bytes

    def further(self, leaves: Sequence[Any], first: Run) -> Iterator[Run]:  # noqa: ARG002 - there is one run only
        """Returns no runs."""
        return iter(())

    def start(self, leaves: Sequence[Any]) -> Run:
        """Runs the program on the flat arguments and waits for it."""
        resolved = self._resolved
        with (
            self._timings.phase("run"),
            user_code(f"running {self._name}", partial(rules_of_libraries, resolved.trace.root)),
        ):
            seen = jax.block_until_ready(self._stage(leaves, resolved.feeds, resolved.cotangents))
        return Run(
            trace=resolved.trace,
            plan=resolved.plan,
            spec=resolved.spec,
            arguments=leaves,
            observed=with_global_facts(seen),
            reached=self._reached,
        )
