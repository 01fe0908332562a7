"""The tracer turns a loss and the shapes of its arguments into a `Trace`, without running the loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from gradscope import naming
from gradscope.errors import ModelError
from gradscope.frameworks.detect import naming_calls
from gradscope.tracing.dataflow.constants_before_rules import constants_before_rules
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.dataflow.liveness import Liveness, liveness_of
from gradscope.tracing.dataflow.reachability import Reach, Reachability, reachability_of
from gradscope.tracing.jaxpr import jaxcompat
from gradscope.tracing.jaxpr.fingerprint import fingerprint
from gradscope.tracing.jaxpr.frames import Frame, ValueKey, frame_tree, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.source_lines import definition_of
from gradscope.tracing.layers.layers import LayerCall, find_layers
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.layers.sites import Site, find_sites, site_at
from gradscope.tracing.leaves import Leaf, as_reached, leaves_of, variable_leaves
from gradscope.tracing.references.without_references import traced_without_references


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A `Trace` is a traced loss with its frames, layers and sites.

    Attributes:
        jaxpr: The open jaxpr of `loss(*leaves) -> (loss, *aux leaves)`.
        constants: Values of its constant variables.
        computed_constants: The numbers of those that a program around it computes, as a step of training does which is
            being traced; the others are the same whenever that is called. None where there is no program around it.
        arguments: Its inputs, in order.
        outputs: The names of its outputs, in order.
        auxiliary: Its outputs other than the loss, in order.
        aux_tree: The pytree the auxiliary outputs were flattened from; None where the loss returns none.
        root: Its frames.
        liveness: Which equations are needed, for the loss's outputs or for the values that a query selects.
        reachability: Where cotangents arrive in the backward pass, from the loss or from the values that a query
            differentiates.
        constants_before_rules: Variables without a gradient: they are constant, and a derivative rule may notice.
        layers: Its layers, composites before their parts, otherwise in execution order.
        sites: Its observable values, in program order.
        fingerprint: Equal for equal programs.
        operations: Whether operations count as layers.
    """

    jaxpr: jaxcompat.Jaxpr
    constants: tuple[Any, ...]
    computed_constants: frozenset[int] | None
    arguments: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    auxiliary: tuple[Leaf, ...]
    aux_tree: Any
    root: Frame
    liveness: Liveness
    reachability: Reachability
    constants_before_rules: frozenset[FrameVariable]
    layers: tuple[LayerCall, ...]
    sites: tuple[Site, ...]
    fingerprint: str
    operations: bool

    def reaches(self, value_at: ValueAt) -> bool:
        """Returns whether a gradient of what a query differentiates arrives at a value in one iteration."""
        frames = {frame.key: frame for frame in self.root.walk()}
        frame = frames[value_at.value.frame]
        arriving = self.reachability.at(frame, variable_of(frame, value_at.value), value_at.iteration)
        return arriving is Reach.GRADIENT

    def site_at(self, value: ValueKey) -> Site:
        """Returns the site of one value, whether or not a layer returns it; the site has no names."""
        return site_at(self.root, value, self.liveness, self.reachability)


def trace_loss(loss: Callable[[Any, Any], Any], variables: Any, batch: Any, *, operations: bool = False) -> Trace:
    """Traces a model's loss on its arguments or their shapes, and runs nothing.

    Args:
        loss: `loss(variables, batch) -> scalar` or `-> (scalar, aux)`.
        variables: Pytree of arrays or `jax.ShapeDtypeStruct`; Flax's `{"params": ..., ...}` or only parameters.
        batch: Pytree of arrays or `jax.ShapeDtypeStruct`.
        operations: Whether operations count as layers.

    Raises:
        ModelError: The loss does not return a real scalar.
    """
    arguments = (*variable_leaves(variables), *leaves_of(batch, naming.INPUT, differentiated=True))
    return trace_function(loss, (variables, batch), arguments, operations=operations)


def trace_function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    arguments: Sequence[Leaf],
    *,
    operations: bool = False,
    holomorphic: bool = False,
) -> Trace:
    """Traces a scalar function of any arguments.

    Args:
        function: Returns a real scalar, or a pair of it and a pytree.
        args: Its arguments or their shapes.
        arguments: What each leaf of `args` is.
        operations: Whether operations count as layers.
        holomorphic: Whether the scalar is complex instead of real.

    Raises:
        ModelError: The function does not return such a scalar.
    """
    jaxpr, constants, out = traced_without_references(_anew(function, arguments), *args)
    _, aux = loss_and_auxiliary(out, function, jnp.complexfloating if holomorphic else jnp.floating)
    auxiliary = leaves_of(aux, naming.AUX)
    trace = _analysed(jaxpr, constants, arguments, ["loss", *(leaf.name for leaf in auxiliary)], operations=operations)
    computed = frozenset(number for number, constant in enumerate(constants) if isinstance(constant, Tracer))
    is_part = computed or any(isinstance(leaf, Tracer) for leaf in jax.tree_util.tree_leaves(args))
    return replace(
        trace, auxiliary=auxiliary, aux_tree=jax.tree_util.tree_structure(aux),
        computed_constants=computed if is_part else None,
    )  # fmt: skip


def with_constant_inputs(trace: Trace) -> Trace | None:
    """Returns a trace whose inputs are constants before derivative rules that may refuse to differentiate them.

    In the user's own step nothing differentiates an input. Returns None where no input leads to such a rule.

    Args:
        trace: The trace of a loss, in which inputs are differentiated.
    """
    as_constants = [replace(x, differentiated=False) if x.family == naming.INPUT else x for x in trace.arguments]
    found = _analysed(trace.jaxpr, trace.constants, as_constants, trace.outputs, operations=trace.operations)
    if found.constants_before_rules == trace.constants_before_rules:
        return None
    refused = [FrameVariable(found.root, each) in found.constants_before_rules for each in found.root.jaxpr.invars]
    leaves = zip(trace.arguments, as_constants, refused, strict=True)
    arguments = tuple(new if is_refused else leaf for leaf, new, is_refused in leaves)
    return replace(
        found, arguments=arguments, auxiliary=trace.auxiliary, aux_tree=trace.aux_tree,
        computed_constants=trace.computed_constants,
    )  # fmt: skip


def trace_values(function: Callable[..., Any], args: tuple[Any, ...], arguments: Sequence[Leaf]) -> Trace:
    """Traces any function of any arguments, operations included.

    Args:
        function: Returns a pytree of arrays. All of them are outputs, and none is a loss.
        args: Its arguments or their shapes.
        arguments: What each leaf of `args` is.
    """
    jaxpr, constants, out = traced_without_references(_anew(function, arguments), *args)
    is_leaf = jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(out))
    names = ["0"] if is_leaf else [leaf.name for leaf in leaves_of(out, naming.AUX)]
    return _analysed(jaxpr, constants, arguments, names, operations=True)


def _anew(function: Callable[..., Any], arguments: Sequence[Leaf]) -> Callable[..., Any]:
    """Returns a function whose modules open scopes, and misses JAX's trace cache; it keeps the name, for messages."""

    @functools.wraps(function, updated=())
    def anew(*args: Any) -> Any:
        with naming_calls(args, [leaf.name for leaf in arguments]):
            return function(*args)

    return anew


def _analysed(
    jaxpr: jaxcompat.Jaxpr,
    constants: tuple[Any, ...],
    arguments: Sequence[Leaf],
    outputs: Sequence[str],
    *,
    operations: bool,
) -> Trace:
    root = frame_tree(jaxpr)
    constants_before = constants_before_rules(root, (at for at, leaf in enumerate(arguments) if leaf.differentiated))
    liveness, reachability = liveness_of(root), reachability_of(root, constants_before)
    layers = find_layers(root, liveness, ParameterOrigins(_parameter_names(arguments)), operations=operations)
    return Trace(
        jaxpr=jaxpr,
        constants=constants,
        computed_constants=None,
        arguments=tuple(map(as_reached, arguments, reachability.arguments)),
        outputs=tuple(outputs),
        auxiliary=(),
        aux_tree=None,
        root=root,
        liveness=liveness,
        reachability=reachability,
        constants_before_rules=constants_before,
        layers=tuple(layers),
        sites=tuple(find_sites(root, layers, liveness, reachability)),
        fingerprint=fingerprint(root),
        operations=operations,
    )


def _parameter_names(arguments: Sequence[Leaf]) -> dict[int, str]:
    return {at: leaf.name for at, leaf in enumerate(arguments) if leaf.family == naming.PARAM}


def loss_and_auxiliary(out: Any, function: Callable[..., Any], kind: Any = jnp.floating) -> tuple[Any, Any]:
    """Returns the scalar that a loss returned, and what it returned in addition; None for a bare scalar.

    Args:
        out: What it returned, or the shapes of that.
        function: The loss, whose place a message has.
        kind: The kind of its dtype.

    Raises:
        ModelError: It did not return such a scalar.
    """
    place = definition_of(function)
    of = f"the loss at {place}" if place else "the loss"
    loss, aux = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    try:
        scalar = loss if isinstance(loss, jax.ShapeDtypeStruct) else jax.typeof(loss)
    except TypeError as error:
        first = "return the loss first, and everything else in one pytree after it"
        raise ModelError(
            f"{of} must return a scalar or (scalar, aux), and returned {type(loss).__name__}",
            hint="end it with 'return' and the loss" if out is None else first,
        ) from error
    if scalar.shape != ():
        raise ModelError(
            f"{of} must be a scalar, and has shape {scalar.shape}",
            hint="reduce it over the batch, with .mean() or .sum()",
        )
    if not jnp.issubdtype(scalar.dtype, kind):
        raise ModelError(
            f"{of} must be a real floating-point number to be differentiated, and is {scalar.dtype.name}",
            hint="return the loss itself, not a count or an index",
        )
    return loss, aux
