"""Observing inside the user's own training step: a drop-in for `jax.value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.seen import Seen, Watching
from gradscope.instrument.observing_program import Observed, observing_program
from gradscope.instrument.query.capture_spec import Wanted
from gradscope.instrument.query.planning import make_plan
from gradscope.instrument.rewriting.core_statistics import core_statistics
from gradscope.instrument.taps import whole_tensor
from gradscope.tracing.tracer import Leaf, leaves_of, trace_function, variable_leaves

#: What is kept of each value: core statistics, or the value itself.
Keep: TypeAlias = Literal["stats", "tensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How a function is differentiated, in `jax.value_and_grad`'s terms."""

    argnums: int | Sequence[int] = 0
    has_aux: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """The positions of the differentiated arguments."""
        return (self.argnums,) if isinstance(self.argnums, int) else tuple(self.argnums)

    def like(self, gradients: Sequence[Any]) -> Any:
        """Gradients per differentiated argument in the shape that `jax.value_and_grad` returns them."""
        return gradients[0] if isinstance(self.argnums, int) else tuple(gradients)


def observing_value_and_grad(
    function: Callable[..., Any], signature: Signature, wanted: Wanted, keep: Keep
) -> Callable[..., tuple[tuple[Any, Any], Seen]]:
    """A function that returns what `jax.value_and_grad(function, ...)` returns, and what was seen on the way.

    Args:
        function: Returns a real scalar, or a pair of it and a pytree if `signature.has_aux`.
        signature: Which arguments are differentiated.
        wanted: What is observed.
        keep: What is kept of it.
    """

    def observing(*args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], Seen]:
        leaves = _leaves(signature, args, kwargs)
        trace = trace_function(lambda a, k: function(*a, **k), (args, kwargs), leaves)
        _require_aux(trace.aux_tree, signature)
        plan = make_plan(trace, wanted, core_statistics if keep == "stats" else whole_tensor)
        program, reached = observing_program(trace, plan)
        values = jax.tree_util.tree_leaves((args, kwargs))
        observed = program(values)
        value = observed.loss
        if signature.has_aux:
            value = (value, jax.tree_util.tree_unflatten(trace.aux_tree, observed.auxiliary))
        seen = _seen(Watching(trace, plan, wanted, reached), observed, values)
        return (value, _gradients(signature, args, observed)), seen

    return observing


def _leaves(signature: Signature, args: Sequence[Any], kwargs: Any) -> list[Leaf]:
    leaves: list[Leaf] = []
    for number, arg in enumerate(args):
        if number in signature.numbers:
            leaves += [_differentiated(leaf) for leaf in variable_leaves(arg)]
        else:
            leaves += leaves_of(arg, naming.INPUT)
    return [*leaves, *leaves_of(kwargs, naming.INPUT)]


def _differentiated(leaf: Leaf) -> Leaf:
    """The leaf as `jax.value_and_grad` treats it: differentiated whatever collection it is in."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        raise TypeError(f"gradients need real or complex arguments, and {leaf.name} is {leaf.dtype}")
    return Leaf(family=leaf.family, name=leaf.name, shape=leaf.shape, dtype=leaf.dtype, differentiated=True)


def _require_aux(aux_tree: Any, signature: Signature) -> None:
    if aux_tree != jax.tree_util.tree_structure(None) and not signature.has_aux:
        raise TypeError("the function returns a pair: pass has_aux=True")


def _gradients(signature: Signature, args: Sequence[Any], observed: Observed) -> Any:
    sizes = [len(jax.tree_util.tree_leaves(arg)) for arg in args]
    gradients: list[Any] = []
    for number in signature.numbers:
        first = sum(sizes[:number])
        own = [observed.gradients[n] for n in range(first, first + sizes[number])]
        gradients.append(jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(args[number]), own))
    return signature.like(gradients)


def _seen(watching: Watching, observed: Observed, values: Sequence[Any]) -> Seen:
    observe = watching.plan.observe
    chosen = {holder: {place.number for place in watching.places.values() if place.holder == holder}
              for holder in ("arguments", "gradients")}  # fmt: skip
    gradients = {number: observe(observed.gradients[number]) for number in sorted(chosen["gradients"])}
    arguments = {number: observe(values[number]) for number in sorted(chosen["arguments"])}
    return Seen(watching, observed._replace(auxiliary=[], gradients=gradients), arguments)
