"""Preparing a run: arguments made and the observing program compiled, at the same time.

A model's `init` takes as long to compile and run as the program that observes it takes to trace and compile; neither
needs the other's result, only shapes. So the arguments are made in a thread of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.capture.observation import with_whole_facts
from gradscope.capture.run import Run
from gradscope.capture.timings import Timings
from gradscope.errors import ModelError
from gradscope.instrument.inquiry import Answer, Inquiry, answer
from gradscope.instrument.plan import Plan
from gradscope.instrument.planning import Wanted
from gradscope.instrument.program import observing_program
from gradscope.tracing.batches import DataRequest
from gradscope.tracing.checkpoints import CheckpointRequest, variables_from_file
from gradscope.tracing.model import Model
from gradscope.tracing.tracer import trace_loss
from gradscope.tracing.userframes import user_code

#: Examples in a batch where neither the user nor the model says how many.
BATCH_SIZE: Final = 8

#: JAX's ways of saying that a function wants values where it was given shapes.
_WANTS_VALUES: Final = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """A loss's arguments before they are values: what they will look like, and how to make them.

    Attributes:
        shapes: The pair (variables, batch) as pytrees of `jax.ShapeDtypeStruct`.
        make: Makes the pair; slow, and free of side effects, so it may run in a thread.
        batch_size: Number of examples.
        notes: Sentences about what was done to a batch from a file.
    """

    shapes: tuple[Any, Any]
    make: Callable[[], tuple[Any, Any]]
    batch_size: int
    notes: tuple[str, ...] = ()


def model_arguments(
    model: Model,
    *,
    seed: int,
    batch_size: int | None = None,
    dtype: str | None = None,
    data: DataRequest | None = None,
    checkpoint: CheckpointRequest | None = None,
) -> Arguments:
    """The arguments of a model's loss.

    Args:
        model: The model.
        seed: Seeds one key, split for `init` and `batch`.
        batch_size: Number of examples of the model's own batch; None for the model's own default.
        dtype: Floating-point leaves are converted to it; None leaves them.
        data: Where the batch is; None for the model's own.
        checkpoint: Where the variables are; None for those that `init` makes.

    Raises:
        ModelError: `init` or `batch` failed, or a pipeline.
        UsageError: There is no such pipeline.
        DumpError: The files do not hold variables and a batch such as the model's own.
    """
    init_key, batch_key = jax.random.split(jax.random.key(seed))
    size = _default_size(model) if batch_size is None else batch_size
    with user_code(f"init of {model.name}"):
        maker = _held if model.held else _deferred
        variables, make_variables = maker(lambda: _converted("init", model.init(init_key), dtype))
    with user_code(f"batch of {model.name}"):
        batch, make_batch = _deferred(lambda: _converted("batch", model.batch(batch_key, size), dtype))
    notes: tuple[str, ...] = ()
    if checkpoint is not None and not model.restored:
        saved = variables_from_file(checkpoint.path, variables, checkpoint.key_map, make_variables)
        notes = saved.notes
        variables, make_variables = _restored(_converted("checkpoint", saved.variables, dtype), variables)
    if data is not None:
        read = data.batch(batch)
        size, notes = read.size, (*notes, *read.notes)
        batch, make_batch = _deferred(lambda: jax.tree_util.tree_map(jnp.asarray, read.batch))

    def make() -> tuple[Any, Any]:
        with user_code(f"init of {model.name}"):
            made = make_variables()
        with user_code(f"batch of {model.name}"):
            return made, make_batch()

    return Arguments(shapes=(variables, batch), make=make, batch_size=size, notes=notes)


def _restored(saved: Any, expected: Any) -> tuple[Any, Callable[[], Any]]:
    """The shapes of saved variables, and a way to have them on the devices where the model's own would lie."""

    def placed(array: Any, leaf: Any) -> Any:
        return jnp.asarray(array) if leaf.sharding is None else jax.device_put(array, leaf.sharding)

    shapes = jax.tree_util.tree_map(
        lambda array, leaf: leaf.update(dtype=jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)),
        saved,
        expected,
    )
    return shapes, lambda: jax.tree_util.tree_map(placed, saved, expected)


def _default_size(model: Model) -> int:
    """The number of examples that a model's `batch` has as its default, or one that suits most."""
    default = list(inspect.signature(model.batch).parameters.values())[1].default
    return default if isinstance(default, int) else BATCH_SIZE


def _deferred(function: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """A function's output shapes, and a way to have its values: compiled as a whole where it can be traced."""
    try:
        shapes, make = jax.eval_shape(function), jax.jit(function)
    except _WANTS_VALUES:
        return _held(function)  # it reads files or branches on values: run it as it is, once
    if jax.device_count() == 1:
        return shapes, make
    # Over which devices the values will be spread is known only once this is compiled.
    compiled = make.lower().compile()
    return _placed(shapes, compiled.output_shardings), compiled


def _held(function: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """The shapes of what a function returns, and a way to have it, without compiling: its values exist already."""
    values = function()
    shardings = jax.tree_util.tree_map(lambda leaf: getattr(leaf, "sharding", None), values)
    return _placed(jax.eval_shape(lambda: values), shardings), lambda: values


def _placed(shapes: Any, shardings: Any) -> Any:
    """Shapes that tell over which devices their values are spread, where those are several."""
    leaves, tree = jax.tree_util.tree_flatten(shapes)
    placed = [
        leaf if sharding is None or sharding.num_devices == 1 else leaf.update(sharding=sharding)
        for leaf, sharding in zip(leaves, tree.flatten_up_to(shardings), strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, placed)


def _converted(maker: str, tree: Any, dtype: str | None) -> Any:
    """What the model's `init` or `batch` made, its floating-point leaves converted."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        _require_array(f"{maker}()" + jax.tree_util.keystr(path), leaf)
    if dtype is None:
        return tree
    wanted = jnp.dtype(dtype)
    return jax.tree_util.tree_map(lambda leaf: leaf.astype(wanted) if _is_floating(leaf) else leaf, tree)


def _require_array(name: str, leaf: Any) -> None:
    try:
        jax.typeof(leaf)
    except TypeError as error:
        raise ModelError(
            f"{name} is of type {type(leaf).__name__}, expected an array or a number",
            hint="return a pytree of arrays; what is no number does not go into a loss",
        ) from error


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything a run needs.

    Attributes:
        answer: The traced loss, what will be observed, and what of it is shown.
        variables: The model's variables.
        batch: Its batch.
        leaves: The leaves of both as they go into the run; None for those that it does not need.
        start: Runs the compiled program and waits for it.
        further: Compiles and runs, one by one, the programs that observe what the first does not.
        runs: The number of all these runs.
        size_bytes: What the first of them takes: arguments, outputs and what it needs on the way.
    """

    answer: Answer
    variables: Any
    batch: Any
    leaves: Sequence[Any]
    start: Callable[[], Run]
    further: Callable[[], Iterator[Run]]
    runs: int
    size_bytes: int


def prepare(
    model: Model, arguments: Arguments, wanted: Wanted, inquiry: Inquiry, timings: Timings, *, budget: int | None = None
) -> Prepared:
    """Trace, plan and compile while the arguments are being made.

    Args:
        model: The model.
        arguments: Its arguments.
        wanted: What is shown.
        inquiry: What is asked beyond the loss and its gradients.
        timings: Receives the seconds of each phase.
        budget: Bytes of tensors that one run may hand out; None for all in one run.

    Raises:
        ModelError: The user's code failed, or its loss cannot be differentiated.
        UsageError: A pattern selects nothing, or the inquiry cannot be answered.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="arguments") as pool:
        making = pool.submit(arguments.make)
        with timings.phase("trace"), user_code(f"loss of {model.name}"):
            trace = trace_loss(model.loss, *arguments.shapes, operations=wanted.operations or bool(inquiry))
            answered = answer(trace, wanted, inquiry)
            first, *others = [answered.plan] if budget is None else answered.plan.parts(budget)
            shapes = _given(answered, jax.tree_util.tree_leaves(arguments.shapes))
            compiling = _Program(model, replace(answered, plan=first), shapes, timings)
        compiling.compile()
        with timings.phase("initialise"):
            variables, batch = making.result()
    leaves = _given(answered, jax.tree_util.tree_leaves((variables, batch)))

    def further() -> Iterator[Run]:
        for plan in others:
            program = _Program(model, _sites_only(answered, plan), shapes, timings)
            program.compile()
            yield replace(program.run(leaves), trace=answered.trace, sites_only=True)

    return Prepared(
        answer=answered,
        variables=variables,
        batch=batch,
        leaves=leaves,
        start=lambda: compiling.run(leaves),
        further=further,
        runs=1 + len(others),
        size_bytes=compiling.size_bytes,
    )


def _sites_only(answered: Answer, plan: Plan) -> Answer:
    """The same answer, for a run that observes sites and nothing else."""
    trace = answered.trace
    arguments = tuple(replace(leaf, differentiated=False) for leaf in trace.arguments)
    return replace(
        answered,
        trace=replace(trace, arguments=arguments),
        plan=replace(plan, outputs=(False,) * len(trace.outputs)),
    )


class _Program:
    """One observing program of a model: traced when it is made, then compiled, then run."""

    def __init__(self, model: Model, answered: Answer, shapes: Sequence[Any], timings: Timings) -> None:
        self._name = model.name
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

    def run(self, leaves: Sequence[Any]) -> Run:
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
