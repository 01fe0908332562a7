"""`capture` captures one call of any function, forward and backward, into a dump in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp

from gradscope.api.reading import Dump
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.function_call import (
    Call,
    indices,
    is_array_or_real,
    loss_of,
    positions,
    require_untraced,
)
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.timings import Timings
from gradscope.dump.sources.memory_dump import MemoryWriter
from gradscope.errors import ArgumentTypeError, UsageError
from gradscope.frameworks.functions_of_modules import position_of_state
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.naming import as_tuple
from gradscope.tracing.debug_flags import debug_flags_off
from gradscope.tracing.loading.model import Model
from gradscope.tracing.loading.module_models import with_array_variables
from gradscope.typed_arguments import typed


@typed("fun", "argnums")
@debug_flags_off()
def capture(
    fun: Callable[..., Any],
    *args: Any,
    argnums: SupportsIndex | Sequence[SupportsIndex] = 0,
    has_aux: bool = False,
    select: str | Sequence[str] | None = (),
    exclude: str | Sequence[str] | None = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
    ops: bool | Literal["outputs", "inputs"] = False,
    terms: bool = False,
    per_example: bool = False,
    stop_gradients: str | Sequence[str] | None = (),
    feed: Mapping[str, Any] | None = None,
    fetch: str | Sequence[str] | None = (),
    stats_only: bool = False,
    self_check: bool = False,
    origins: bool = True,
) -> Dump:
    """Runs a function forward and backward once, and returns what `gradscope dump` would write as a dump in memory.

    The differentiated arguments are parameters (`param/...`, gradients `param_grad/...`); the arrays and floating-point
    numbers of all others are inputs (`input/...`), whose gradients are taken too (`input_grad/...`). A leaf has the
    name of its path in its argument, `param/head/kernel`; where several arguments are parameters, or several have
    inputs, the argument's own name comes first, `input/images/left`. An array that is an argument of its own is called
    `value`, or by the argument's name. Of Flax's variables, `{"params": ..., "batch_stats": ...}`, only the collection
    `params` is differentiated; the others are `state/...`, and so is the `State` of an Equinox module, which may be an
    argument of its own.

    Args:
        fun: Returns a real scalar, the loss, or a pair of it and a pytree (`aux/...`).
        args: Its arguments, which are pytrees. The usual two are parameters, or an NNX or Equinox module, and a batch.
            Leaves that are neither differentiated nor arrays or numbers are passed unchanged, and so are booleans and
            integers.
        argnums: The position of the argument that is differentiated, or those of several; negative ones count from the
            last.
        has_aux: Whether `fun` has to return a pair. A returned pair is treated as one either way.
        select: Patterns of names to keep; all where empty. Here and below, a string is a list of one.
        exclude: Patterns of names to leave out.
        families: Families to keep; all where None.
        depth: Only layers of at most so many scopes.
        ops: Every operation in addition to every layer; with "inputs" also the gradient with respect to each of its
            inputs, as only that operation sees it.
        terms: For every value that is used several times, the gradient from each use; these sum to its gradient.
        per_example: Also the gradients of the loss of each single example, a batch of one: `example_grad`, each of the
            parameter's shape behind a leading axis of examples. The inputs that have a leading axis then must have one
            of the same size, which is the example axis.
        stop_gradients: Names of values that count as constant.
        feed: Values in place of computed ones, by name, of their shapes; under `gradient/NAME`, of the gradient
            that arrives there.
        fetch: Names of the only values to compute; operations that they do not need are not run. All where empty.
        stats_only: Keep statistics and no tensors.
        self_check: Run the plain program too, and record how far observing changed the gradients.
        origins: Run the function again where there is something to explain: where a NaN or an infinity began
            (`Dump.origins`), and why a gradient is zero (`Dump.causes`). It costs a few compilations.

    Returns:
        The dump. Each tensor has the shape and dtype that it has in the program, of one iteration where it is computed
        in a loop: `activation/stack[3]/dense`.

    Raises:
        ModelError: The function failed, or does not return a scalar that can be differentiated.
        UsageError: It is called inside a transformation; a pattern selects nothing; there is no such family, or nothing
            requests that it is made; `ops` or `depth` is none of its values; a name is unknown; a tensor does not fit;
            or the batch's examples are not known.
        TypeError: `fun` is no function, `argnums` is not a position of an argument, or a differentiated argument has
            something else than arrays and numbers.
        ValueError: A negative position is before the first argument.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradscope as gs
        >>> def loss(params, x):
        ...     with jax.named_scope("dense"):
        ...         out = jnp.tanh(x @ params["w"])
        ...     return (out**2).mean()
        >>> dump = gs.capture(loss, {"w": jnp.ones((3, 2))}, jnp.ones((4, 3)), select=["dense", "w"])
        >>> for key, tensor in dump.items():
        ...     print(key, tensor.shape)
        param/w (3, 2)
        param_grad/w (3, 2)
        activation/dense (4, 2)
        activation_grad/dense (4, 2)
    """
    if not callable(fun):
        raise ArgumentTypeError(f"fun is {fun!r}, expected a function")
    # Inside `jit` even an array that depends on nothing is traced.
    require_untraced((*jax.tree_util.tree_leaves(args), jnp.zeros(())))
    if ops not in (False, True, "outputs", "inputs"):
        raise UsageError(f"ops is {ops!r}", hint='it is True, "outputs" or "inputs"')
    differentiated = positions(indices(argnums), len(args))
    state = position_of_state(args, differentiated[0]) if len(differentiated) == 1 else None
    call = Call(fun, args, {}, differentiated, is_array_or_real, state=state)
    name = getattr(fun, "__name__", "loss")
    model = with_array_variables(Model.of_values(name, loss_of(call, has_aux=has_aux), call.variables, call.batch))
    request = DumpRequest(
        spec=replace(
            CaptureSpec.of(select, exclude, families, depth),
            operations=bool(ops),
            operands=ops == "inputs",
            terms=terms,
            per_example=per_example,
        ),
        reading=TensorReading(keep=not stats_only),
        query=TraceQuery(stops=as_tuple(stop_gradients), feeds=feed or {}, fetches=as_tuple(fetch)),
        self_check=self_check,
        explain=origins,
    )
    writer = MemoryWriter()
    arguments = Arguments.of(model.init(None), call.batch)  # a model of values needs no key
    return Dump(writer.dump(dump_model(model, arguments, request, writer, Timings())))
