"""`value_and_grad` is a drop-in for `jax.value_and_grad` that observes inside the user's own training step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gradscope import naming
from gradscope.capturing.execution.function_call import Call, is_jax_array, is_traced, positions
from gradscope.capturing.in_steps.seen import Seen, Watching
from gradscope.capturing.in_steps.signature import Signature, of_modules
from gradscope.instrument.observing_program import Observed, observing_program
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.statistics.core_statistics import core_statistics
from gradscope.instrument.statistics.full_statistics import full_statistics
from gradscope.instrument.statistics.histogram_counts import statistics_and_histogram
from gradscope.instrument.taps import Observer, full_tensor
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal
from gradscope.tracing.leaves import Leaf, leaves_of, variable_leaves
from gradscope.tracing.tracer import Trace, trace_function

#: What is kept of each value: core statistics, those of the full tier, core ones with a histogram, or the value itself.
Keep: TypeAlias = Literal["stats", "full", "histograms", "tensors"]
OBSERVERS: Final[Mapping[Keep, Observer]] = MappingProxyType(
    {
        "stats": core_statistics,
        "full": full_statistics,
        "histograms": statistics_and_histogram,
        "tensors": full_tensor,
    }
)


#: Receives the trace of a function, the values of its inputs, arguments before constants, and its auxiliary outputs.
Ran: TypeAlias = Callable[[Trace, Sequence[Any], Sequence[Any]], None]


def observing_value_and_grad(
    function: Callable[..., Any], signature: Signature, spec: CaptureSpec, keep: Keep, *, ran: Ran | None = None
) -> Callable[..., tuple[tuple[Any, Any], Seen]]:
    """Returns a function that returns the result of `jax.value_and_grad(function, ...)`, and the observations.

    Args:
        function: Returns a scalar, or a pair of it and a pytree if `signature.has_aux`.
        signature: How it is differentiated.
        spec: The selection that is observed.
        keep: What is kept of each value.
        ran: Called after the function has been run.
    """

    @functools.wraps(function, updated=())
    def observing(*args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], Seen]:
        own, how = of_modules(function, signature, args, kwargs)
        differentiated = positions(how.argnums, len(args))
        call = Call(own.function, own.args, own.kwargs, differentiated, is_jax_array)
        try:
            out, seen = observed(call, own.function, how)
        except _NEEDS_ELEMENTS:
            if all(map(is_traced, jax.tree_util.tree_leaves(call.batch))):
                raise
            # JAX differentiates such a function, too: outside of `jit` it sees the elements of these arrays.
            call = Call(own.function, own.args, own.kwargs, differentiated, is_traced)
            out, seen = observed(call, own.function, how)
        return own.restored(out), seen

    def observed(call: Call, function: Callable[..., Any], signature: Signature) -> tuple[tuple[Any, Any], Seen]:
        leaves = _leaves(call, signature)
        returned = _Returned(function, call, signature)
        arrays = (call.variables, call.batch)
        trace = trace_function(returned.traced, arrays, leaves, holomorphic=signature.holomorphic)
        plan = make_plan(trace, spec, OBSERVERS[keep])
        program, reached = observing_program(trace, plan)
        values = jax.tree_util.tree_leaves(arrays)
        outputs = _with_arrays(program(values), trace.jaxpr.outvars)
        own = tuple(_gradients(call, leaves, outputs))
        if ran is not None:
            ran(trace, (*values, *trace.constants), outputs.auxiliary)
        # What is returned of a step must not keep the arrays in memory that the function closes over.
        watching = Watching(replace(trace, constants=()), plan, spec, reached)
        seen = _seen(watching, outputs, values)
        return (returned.restored(outputs), own[0] if isinstance(signature.argnums, int) else own), seen

    return observing


#: What JAX raises where a function needs the elements of what is traced.
_NEEDS_ELEMENTS: Final = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

#: Marks a leaf, among those that a traced function returned, whose value the program computes.
_COMPUTED: Final = object()


class _Returned:
    """A `_Returned` has the outputs of a function that do not depend on its arrays; the trace returns all others.

    Args:
        function: The function.
        call: A call of it.
        signature: How it is differentiated.

    Attributes:
        traced: The function of variables and batch that is traced: its value and the traced leaves of its aux.
    """

    def __init__(self, function: Callable[..., Any], call: Call, signature: Signature) -> None:
        self._call = call
        self._signature = signature
        self._kept: list[Any] = []
        self._tree: Any = None

        @functools.wraps(function, updated=())  # JAX's messages about what is traced name the user's function
        def traced(variables: Any, batch: Any) -> tuple[Any, list[Any]]:
            return self._split(variables, batch)

        self.traced = traced

    def _split(self, variables: Any, batch: Any) -> tuple[Any, list[Any]]:
        out = self._call.loss(variables, batch)
        value, aux = _pair(out) if self._signature.has_aux else (out, None)
        self._signature.require_value(value)
        leaves, self._tree = jax.tree_util.tree_flatten((value, aux))
        self._kept = [_COMPUTED if isinstance(leaf, Tracer) else leaf for leaf in leaves]
        return value, [leaf for leaf in leaves[1:] if isinstance(leaf, Tracer)]

    def restored(self, observed: Observed) -> Any:
        """Returns the function's own output, from the outputs of a run of the observing program."""
        auxiliary = iter(observed.auxiliary)
        kept, *leaves = self._kept
        computed = [next(auxiliary) if leaf is _COMPUTED else leaf for leaf in leaves]
        first = observed.loss if kept is _COMPUTED else kept
        value, aux = jax.tree_util.tree_unflatten(self._tree, [first, *computed])
        return (value, aux) if self._signature.has_aux else value


def _with_arrays(observed: Observed, atoms: Sequence[Atom]) -> Observed:
    """Returns outputs with arrays where a trace returns literals, which are values of JAX's own types (0.10)."""
    outputs = zip(atoms, [observed.loss, *observed.auxiliary], strict=True)
    loss, *auxiliary = (jnp.asarray(value) if is_literal(atom) else value for atom, value in outputs)
    return observed._replace(loss=loss, auxiliary=auxiliary)


def _pair(out: Any) -> tuple[Any, Any]:
    if isinstance(out, tuple | list) and len(out) == 2:
        return out[0], out[1]
    raise TypeError(f"with has_aux=True the function must return a pair (value, aux), not {type(out).__name__}")


def _leaves(call: Call, signature: Signature) -> list[Leaf]:
    """Returns the leaves of the variables and the batch.

    Variables are differentiated, whatever their collection; of a module with state, its parameters alone.
    """
    variables = variable_leaves(call.variables)
    if not signature.has_state:
        variables = [replace(leaf, differentiated=_is_inexact(leaf)) for leaf in variables]
    for leaf in variables:
        if leaf.family == naming.PARAM or not signature.has_state:
            signature.require_input(leaf)
    return [*variables, *leaves_of(call.batch, naming.INPUT)]


def _is_inexact(leaf: Leaf) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _gradients(call: Call, leaves: Sequence[Leaf], observed: Observed) -> list[Any]:
    """Returns the gradients with respect to each differentiated argument."""
    tree = jax.tree_util.tree_structure(call.variables)
    flat = [
        observed.gradients[number] if leaf.differentiated else np.zeros(leaf.shape, jax.dtypes.float0)
        for number, leaf in enumerate(leaves[: tree.num_leaves])
    ]
    return call.differentiated_in(jax.tree_util.tree_unflatten(tree, flat))


def _seen(watching: Watching, observed: Observed, values: Sequence[Any]) -> Seen:
    observe = watching.plan.observe
    chosen = {holder: {place.number for place in watching.indexes.values() if place.holder == holder}
              for holder in ("arguments", "gradients")}  # fmt: skip
    gradients = {number: observe(observed.gradients[number]) for number in sorted(chosen["gradients"])}
    arguments = {number: observe(jnp.asarray(values[number])) for number in sorted(chosen["arguments"])}
    captured = observed.captured
    if not watching.statistics:  # which are constants already
        # A second differentiation of a step takes values that it observed as constants.
        captured = captured._replace(values=jax.lax.stop_gradient(captured.values))
    return Seen(watching, observed._replace(auxiliary=[], captured=captured, gradients=gradients), arguments)
