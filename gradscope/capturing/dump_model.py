"""`dump_model` runs one batch of one model and writes one dump.

It does everything of `gradscope dump` between reading the options and printing the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import jax

from gradscope import naming
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.arrays.passes.compiled_pass import expect_reductions
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.observation import is_readable_here
from gradscope.capturing.execution.preparation import Bounds, Prepared, prepare
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.self_check import self_check
from gradscope.capturing.records.distributed import is_part, reading_for
from gradscope.capturing.records.example_gradients import ExampleProgram, combination
from gradscope.capturing.records.explanations import Explanations, explanations
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.records.prefetch import one_ahead
from gradscope.capturing.records.session import Session
from gradscope.capturing.run_environment import machine_provenance, model_provenance
from gradscope.capturing.timings import Timings
from gradscope.dump.interfaces import RecordSink
from gradscope.dump.manifest.manifest import Examples, Manifest, RunFacts
from gradscope.dump.manifest.provenance import SOURCE_LINES, command_line, content_hash
from gradscope.dump.record import Json
from gradscope.errors import MachineError, ModelError, UsageError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import ResolvedQuery, TraceQuery
from gradscope.instrument.taps import full_tensor
from gradscope.naming.sizes import shown_size
from gradscope.tracing.debug_flags import debug_flags_off
from gradscope.tracing.jaxpr.source_lines import lines_around
from gradscope.tracing.layers.fallback_scopes import has_scopes
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.loading.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """A `DumpRequest` states what a dump contains.

    Attributes:
        spec: Which tensors are captured.
        query: Which gradients and values other than the loss's own are computed.
        reading: How tensors are measured, and whether they are stored.
        self_check: Whether the plain program runs too.
        explain: Whether the loss runs again where there is something to explain: a NaN, a gradient that is zero, or
            rows that a table does not have.
        source: Whether the dump has the source lines of the program, with those around them.
        facts: Provenance that only the caller knows, such as the seed.
        bounds: The memory that a run may use. Where it is not enough, the loss runs in segments. None for no bound.
        notify: Receives messages for the user: before the run the size of the tensors, after it that examples are
            coupled.
        meanwhile: Called in a thread while the program is compiled, for what takes the interpreter's time and has to
            be done in any case, such as imports. The dump does not depend on it.
    """

    spec: CaptureSpec = field(default_factory=CaptureSpec)
    query: TraceQuery = field(default_factory=TraceQuery)
    reading: TensorReading = field(default_factory=TensorReading)
    self_check: bool = False
    explain: bool = True
    source: bool = False
    facts: dict[str, Json] = field(default_factory=dict[str, Json])
    bounds: Bounds | None = None
    notify: Callable[[str], None] = lambda _: None
    meanwhile: Callable[[], object] = lambda: None


@debug_flags_off()
def dump_model(
    model: Model,
    arguments: Arguments,
    request: DumpRequest,
    writer: RecordSink,
    timings: Timings,
) -> Manifest:
    """Runs a model's loss on its arguments, forward and backward, and writes what was observed.

    Args:
        model: The model.
        arguments: Its arguments.
        request: What the dump contains.
        writer: Receives the records.
        timings: Receives the seconds of each phase.

    Returns:
        The manifest of the finished dump.

    Raises:
        ModelError: The user's code failed.
        MachineError: Memory or disk ran out. What was captured until then is saved next to the requested path.
        UsageError: A pattern selects nothing.
    """

    def expect(resolved: ResolvedQuery) -> None:
        expect_reductions(_tensor_bytes(resolved), may_compile=request.bounds is None)

    prepared = prepare(
        model, arguments, request.spec, request.query, timings,
        bounds=request.bounds, planned=expect, meanwhile=request.meanwhile,
    )  # fmt: skip
    _require_memory(prepared, request)
    if request.spec.terms and not prepared.resolved.plan.terms:
        request.notify("no value that is shown is used more than once, so that no gradient has terms")
    examples = ExampleProgram(model, prepared, arguments.batch_size, timings) if request.spec.per_example else None
    size = _tensor_bytes(prepared.resolved) + (0 if examples is None else examples.size_bytes)
    program = prepared.program
    if program.runs > 1:
        request.notify(f"{shown_size(size)} of tensors are captured in {program.runs} runs")
    if request.reading.keep:
        writer.require_space(size + program.scratch_bytes)
    first = prepared.start()
    session = Session(first, reading_for(writer, request.reading), _further(prepared, first, request.bounds))
    del first  # the session lets go of its tensors when they are written
    provenance = _provenance(model, prepared, request)
    with _salvaging(writer, provenance):
        with timings.phase("write"):
            for record in session.records():
                writer.add(record)
        # The searches follow the loss's own gradients, so they would explain the wrong run for any other query. They
        # also need all values in one process.
        explained = Explanations()
        if not request.query and not is_part(writer):
            explained = explanations(model.loss, prepared, session, request.bounds, timings, runs=request.explain)
            for sentence in explained.failed:
                request.notify(sentence)
        checked = None
        if request.self_check:
            with timings.phase("self-check"):
                checked = self_check(model.loss, prepared, session.run)
        combined = None if examples is None else _add_examples(writer, session, examples, request, timings)
    return writer.commit(
        replace(
            session.facts(),
            causes=explained.causes,
            out_of_bounds=explained.out_of_bounds,
            provenance=provenance,
            self_check=checked,
            examples=combined,
            timings=timings.seconds,
            origins=explained.origins,
            note="; ".join(explained.failed),
        )
    )


def _further(prepared: Prepared, first: Run, bounds: Bounds | None) -> Iterator[Run]:
    """Returns the runs that follow the first: where two fit, each starts while the tensors of the last are written."""
    runs = prepared.program.further(prepared.leaves, first)
    fits = bounds is not None and bounds.have_room_for(prepared.program.overlapped_bytes)
    return one_ahead(runs) if fits else runs


def _add_examples(
    writer: RecordSink, session: Session, program: ExampleProgram, request: DumpRequest, timings: Timings
) -> Examples | None:
    """Writes the gradients of each example, and returns how they combine to the batch's gradient."""
    gradients = program.run()
    with timings.phase("write"):
        for record in session.example_records(gradients, program.count):
            writer.add(record)
    combined = combination(session.run, gradients, program.count, machine_provenance())
    if combined is not None and combined.coupled:
        request.notify(combined.sentence)
    return combined


def _require_memory(prepared: Prepared, request: DumpRequest) -> None:
    """Raises `MachineError` where the run does not fit into the memory allowed."""
    if request.bounds is not None and (needed := prepared.program.size_bytes) > request.bounds.memory:
        bounding = prepared.program.bounded_by
        raise MachineError(
            f"a run of the model needs {shown_size(needed)}, above the "
            f"{shown_size(request.bounds.memory)} of --max-memory"
            + (f"; the most is for {bounding}" if bounding else ""),
            hint="run a smaller batch, or allow more"
            + ("; an operation of the loss is in one segment, or an iteration of a loop" if bounding else ""),
        )


def _query_facts(query: TraceQuery, resolved: ResolvedQuery) -> dict[str, Json]:
    """Returns the parts of the query by name, and the size of the program that it needed."""
    names_by_option = {
        "of": query.of,
        "stop_gradient": query.stops,
        "feed": query.feeds,
        "fetch": query.fetches,
    }
    facts: dict[str, Json] = {name: list(names) for name, names in names_by_option.items() if names}
    return facts if resolved.fragment is None else {**facts, "fragment": resolved.fragment.to_json()}


@contextmanager
def _salvaging(writer: RecordSink, provenance: dict[str, Json]) -> Generator[None]:
    """Saves what was captured before a failure next to the requested path, and names that file in the error's hint."""
    try:
        yield
    except (ModelError, MachineError) as failure:
        try:
            saved = writer.commit_incomplete(failure.message, RunFacts(provenance=provenance))
        except MachineError:
            raise failure from None  # the disk is what failed
        if saved is not None:
            failure.hint = f"what was captured until then is in {saved.name}"
        raise


def _tensor_bytes(resolved: ResolvedQuery) -> int:
    """Returns the bytes of all tensors in a run's records.

    Raises:
        UsageError: A dtype cannot be stored.
    """
    plan, arguments = resolved.plan, resolved.trace.arguments
    leaves = sum(_leaf_bytes(leaf) * (1 + leaf.differentiated) for leaf in arguments)
    named = [number for number, site in enumerate(plan.sites) if site.names]
    cotangents = [number for number in plan.sinks if not plan.is_site(number) or plan.sites[number].names]
    return leaves + sum(_bytes(plan.observed(each).shape, plan.tap_point(each).dtype) for each in (*named, *cotangents))


def _leaf_bytes(leaf: Leaf) -> int:
    if leaf.dtype == jax.dtypes.float0:
        raise UsageError(
            f"{naming.key_of(leaf.family, leaf.name)} is of dtype float0, which has no values to store",
            hint="leave it out",
        )
    return _bytes(leaf.shape, leaf.dtype)


def _bytes(shape: tuple[int, ...], dtype: object) -> int:
    return math.prod(shape) * as_numpy_dtype(str(dtype)).itemsize


def _provenance(model: Model, prepared: Prepared, request: DumpRequest) -> dict[str, Json]:
    inputs = [leaf.family == naming.INPUT for leaf in prepared.resolved.trace.arguments]
    leaves = zip(prepared.leaves, inputs, strict=True)
    batch = [full_tensor(value) for value, is_input in leaves if is_input and value is not None]
    return {
        "model": model.name,
        **model_provenance(model.source, model.file_sha256),
        **request.facts,
        **({"batch_sha256": content_hash(batch)} if all(map(is_readable_here, batch)) else {}),
        **({} if (counted := model.counted()) is None else {"counted": counted}),
        "trace_fingerprint": prepared.resolved.trace.fingerprint,
        "naming": "scopes" if has_scopes(prepared.resolved.trace.root) else "parameters and lines",
        **machine_provenance(),
        **_query_facts(request.query, prepared.resolved),
        "argv": command_line(),
        **({SOURCE_LINES: _source_lines(prepared)} if request.source else {}),
    }


def _source_lines(prepared: Prepared) -> Json:
    equations = (each for frame in prepared.resolved.trace.root.walk() for each in frame.jaxpr.eqns)
    return {label: [first, list(lines)] for label, (first, lines) in lines_around(equations).items()}
