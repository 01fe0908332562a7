"""Making dumps: of any function in one call, or step by step inside a training loop."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

import jax

from gradscope.api.reading import Dump
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.gradients import Question, gradients_of
from gradscope.capturing.records.distributed import Writer, dump_writer, reading_for
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.run_environment import machine_provenance
from gradscope.capturing.seen import Seen, require_observable
from gradscope.capturing.timings import Timings
from gradscope.capturing.value_and_grad import Keep, Signature, observing_value_and_grad
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Manifest, RunFacts
from gradscope.dump.sources.memory_dump import MemoryDump, MemoryWriter
from gradscope.errors import UsageError
from gradscope.instrument.query.capture_spec import EVERYTHING, Wanted
from gradscope.instrument.query.trace_query import Inquiry
from gradscope.naming import Selection, family_set, several
from gradscope.tracing.loading.model import Model
from gradscope.tracing.loading.module_models import lifted_model


def capture(
    loss: Callable[[Any, Any], Any],
    variables: Any,
    batch: Any,
    *,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
    ops: bool | Literal["outputs", "inputs"] = False,
    terms: bool = False,
    per_example: bool = False,
    stop_gradients: str | Sequence[str] = (),
    feed: Mapping[str, Any] | None = None,
    fetch: str | Sequence[str] = (),
    stats_only: bool = False,
    self_check: bool = False,
) -> Dump:
    """Run a loss forward and backward once and keep what `gradscope dump` would write, in memory.

    Args:
        loss: `loss(variables, batch) -> scalar` or `-> (scalar, aux)`.
        variables: Pytree of arrays, Flax's `{"params": ..., ...}` or parameters alone; or an NNX or Equinox module.
        batch: Pytree of arrays.
        select: Patterns of names to keep; all where empty.
        exclude: Patterns of names to leave out.
        families: Families to keep; all where None.
        depth: Only layers of at most so many scopes.
        ops: Every operation beside every layer; with "inputs" also the gradient with respect to each of its inputs, as
            that operation alone sees it.
        terms: For every value that is used several times, what flows back from each use; they sum to its gradient.
        per_example: Also the gradients of the loss of each example alone, a batch of one: `example_grad`. The leaves of
            the batch that have a leading axis then have one of the same size, which is the example.
        stop_gradients: Names of values that count as constant.
        feed: Values in the place of computed ones, by name; under `gradient/NAME`, of the gradient that arrives there.
        fetch: Names of the only values asked for; what they do not need is not run. All where empty.
        stats_only: Keep statistics and no tensors.
        self_check: Run the plain program too, and record how far observing changed the gradients.

    Raises:
        ModelError: The loss failed, or is not a scalar that can be differentiated.
        UsageError: A pattern selects nothing, a family is named that nothing asks to be made, a name is unknown, a
            tensor does not fit, or the batch does not tell its examples.
    """
    name = getattr(loss, "__name__", "loss")
    model = lifted_model(Model(name=name, init=lambda _: variables, batch=lambda _key, _size: batch, loss=loss))
    own = model.init(None)
    arguments = Arguments(shapes=jax.eval_shape(lambda: (own, batch)), make=lambda: (own, batch), batch_size=0)
    request = DumpRequest(
        wanted=replace(
            _wanted(select, exclude, families, depth),
            operations=bool(ops),
            operands=ops == "inputs",
            terms=terms,
            per_example=per_example,
        ),
        reading=TensorReading(keep=not stats_only),
        inquiry=Inquiry(stops=several(stop_gradients), feeds=feed or {}, fetches=several(fetch)),
        self_check=self_check,
    )
    writer = MemoryWriter()
    return Dump(writer.dump(dump_model(model, arguments, request, writer, Timings())))


def value_and_grad(  # noqa: PLR0917 - positional as in jax.value_and_grad
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[str] = (),
    *,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
    observe: Keep = "stats",
) -> Callable[..., tuple[tuple[Any, Any], Seen]]:
    """A drop-in for `jax.value_and_grad` that also observes.

    The result is pure: it composes with `jit`, `vmap`, `shard_map`, `lax.scan` and donation, and can be differentiated
    again. Value and gradients are those of `jax.value_and_grad`: bit for bit operation by operation, under `jit` up to
    the rounding of fusions. `fun` is traced, as under `jit`: arrays are tracers in it, and its control flow cannot
    depend on their elements. An argument that is not differentiated and not an array is passed as it is.

    Args:
        fun: Returns a real scalar, or a pair of it and a pytree if `has_aux`. Its arguments are any pytrees.
        argnums: The position of the argument that is differentiated, or those of several; negative ones count from the
            last.
        has_aux: Whether `fun` returns a pair. Leaves of the second that are not arrays are returned as they are.
        holomorphic: Whether `fun` is holomorphic: differentiated arguments and value are then complex.
        allow_int: Whether differentiated arguments may have integers, whose gradients are of dtype float0.
        reduce_axes: Nothing, as in JAX, which has withdrawn it.
        select: Patterns of names to observe; all where empty.
        exclude: Patterns of names to leave out.
        families: Families to observe; where None, activations, parameters and the gradients of both.
        depth: Only layers of at most so many scopes.
        observe: Core statistics, or whole tensors.

    Returns:
        A function that returns `((value, gradients), seen)`, or `(((value, aux), gradients), seen)`.

    Raises:
        TypeError: `fun` cannot be called, `argnums` is not a position; from the function returned: an argument or the
            value cannot be differentiated.
        UsageError: A family is not observed, or a pattern is not one; from the function returned: a pattern selects
            nothing.
    """
    if not callable(fun):
        raise TypeError(f"expected a function, got {fun!r}")
    if reduce_axes:
        raise NotImplementedError("JAX has withdrawn reduce_axes")
    signature = Signature(argnums=_indices(argnums), has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int)
    wanted = _wanted(select, exclude, families, depth)
    if families is not None:
        require_observable(wanted.families)
    return observing_value_and_grad(fun, signature, wanted, observe)


def gradients(
    function: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    ys: str | Sequence[str],
    xs: str | Sequence[str],
    grad_ys: Any = None,
    stop_gradients: str | Sequence[str] = (),
) -> list[Any]:
    """The gradients of the sum of some values of a function with respect to others: `tf.gradients`.

    A value is named by the path of an argument (`w1`, `params/head/kernel`), by the key or index of an output, by its
    layer or operation (`encoder/block[3]/mlp`), or by `jax.ad_checkpoint.checkpoint_name`. Composes with `jit`.

    Args:
        function: Returns a pytree of arrays.
        args: Its arguments, by position or by name.
        ys: What is differentiated; their gradients are summed.
        xs: With respect to what.
        grad_ys: For each y its initial gradient, of the y's shape; None for ones.
        stop_gradients: What counts as constant.

    Returns:
        For each x the gradient, of the x's shape; None, which is not zero, where no y depends on the x.

    Raises:
        UsageError: A name is unknown, an initial gradient does not fit, or a value cannot be differentiated.
        ModelError: Reverse mode cannot get from a y to an x.

    References:
        https://www.tensorflow.org/api_docs/python/tf/gradients
    """
    names = several(ys)
    initial = [None] * len(names) if grad_ys is None else [grad_ys] if isinstance(ys, str) else list(grad_ys)
    if len(initial) != len(names):
        raise UsageError(
            f"there are {len(initial)} initial gradients for {len(names)} values to differentiate",
            hint="give one for each y, None for ones",
        )
    question = Question(ys=names, xs=several(xs), grad_ys=initial, stops=several(stop_gradients))
    by_name = isinstance(args, Mapping)
    return gradients_of(function, () if by_name else args, args if by_name else {}, question)


def save(path: str | os.PathLike[str], what: Seen | Dump, *, force: bool = False) -> Manifest:
    """Write observations, or a dump in memory, to a file.

    Under `jax.distributed` every process has to call it, and the dump is a folder that all of them see: each writes
    what its own devices hold, and none needs memory for a whole tensor.

    Args:
        path: Where to.
        what: What `value_and_grad` or `capture` gave, off the device or on it.
        force: Whether a file that exists may be replaced.

    Raises:
        UsageError: The path cannot be used, a file exists there, the dump is in a file already, or the observations are
            those of several steps.
        MachineError: The folder is read-only, the disk full.
    """
    with dump_writer(path, force=force) as writer:
        if isinstance(what, Dump):
            return _save_dump(writer, what.source)
        session = what.session(reading_for(writer, TensorReading()))
        for record in session.records():
            writer.add(record)
        return writer.commit(
            RunFacts(
                layers=session.layers(),
                ledger=session.ledger(),
                loss=session.loss(),
                tier="core" if what.watching.statistics else "full",
                provenance=machine_provenance(),
            )
        )


def _save_dump(writer: Writer, source: DumpSource) -> Manifest:
    if not isinstance(source, MemoryDump):
        raise UsageError("the dump is in a file already", hint="copy the file")
    for record in source.records():
        writer.add(record)
    return writer.commit(source.manifest)


def _indices(argnums: SupportsIndex | Iterable[SupportsIndex]) -> int | tuple[int, ...]:
    """One index or several, of whatever type."""
    if isinstance(argnums, SupportsIndex):
        return operator.index(argnums)
    return tuple(map(operator.index, argnums))


def _wanted(
    select: str | Sequence[str], exclude: str | Sequence[str], families: str | Collection[str] | None, depth: int | None
) -> Wanted:
    chosen = EVERYTHING if families is None else family_set(families)
    return Wanted(selection=Selection.parse(select, exclude), families=chosen, depth=depth)
