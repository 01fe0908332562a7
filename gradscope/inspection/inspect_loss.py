"""`inspect_loss` returns an `Inspection`: facts about each layer, parameter and input, and totals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from gradscope import naming
from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.dump.record import Json
from gradscope.inspection.layer_costs import Cost, Costs, costs_of
from gradscope.inspection.operation_links import Links, stands_for_others
from gradscope.instrument.query.planning import CaptureSpec
from gradscope.instrument.query.resolve import resolve_query
from gradscope.instrument.query.trace_query import PrunedProgram, ResolvedQuery, TraceQuery
from gradscope.tracing.dataflow.backward import Marks
from gradscope.tracing.dataflow.liveness import needed_for
from gradscope.tracing.dataflow.reachability import Reach
from gradscope.tracing.jaxpr.frames import Frame, Loop
from gradscope.tracing.jaxpr.jaxcompat import is_literal, trace
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.tracer import Trace, trace_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Fact stores the numbers of one layer, parameter or input.

    Attributes:
        family: `activation` for a layer, else the family of the argument.
        name: Its name; that of a layer in a loop has `[*]` for the iteration.
        values: Numbers and strings by name, without those that do not apply.
    """

    family: str
    name: str
    values: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Inspection stores the facts and totals of a model.

    Attributes:
        facts: Inputs, then layers, composites before their parts, then parameters in the order of first use.
        totals: Numbers about the full model.
        fragment: The part of the model that a query needs; None without a query.
    """

    facts: tuple[Fact, ...]
    totals: Mapping[str, Json]
    fragment: PrunedProgram | None


def inspect_loss(
    loss: Callable[[Any, Any], Any],
    variables: Any,
    batch: Any,
    *,
    operations: bool = False,
    query: TraceQuery | None = None,
) -> Inspection:
    """Returns the inspection of a loss, from its trace.

    Args:
        loss: `loss(variables, batch) -> scalar` or `-> (scalar, aux)`.
        variables: Pytree of `jax.ShapeDtypeStruct`.
        batch: Pytree of `jax.ShapeDtypeStruct`.
        operations: Whether operations have facts in addition to layers.
        query: A query; the facts then include how many operations of each layer a run of the query needs.

    Raises:
        ModelError: The loss does not return a real scalar.
        UsageError: The query cannot be resolved.
    """
    found = trace_loss(loss, variables, batch, operations=operations or bool(query))
    resolved = resolve_query(found, CaptureSpec(), query) if query else None
    return _Inspector(found, _residual_bytes(loss, variables, batch, found), resolved, operations).inspection()


class _Inspector:
    """_Inspector collects the facts and totals of one trace.

    Args:
        trace: The traced loss.
        residual_bytes: Bytes that the forward pass keeps for the backward pass; None where there is no backward pass.
        resolved: The resolved query; None without a query.
        operations: Whether operations have facts in addition to layers.
    """

    def __init__(
        self, trace: Trace, residual_bytes: int | None, resolved: ResolvedQuery | None, operations: bool
    ) -> None:
        self._trace = trace
        self._residual_bytes = residual_bytes
        self._fragment = None if resolved is None else resolved.fragment
        shown = (layer for layer in trace.layers if operations or not layer.operation)
        self._layers = [layer for layer in shown if not layer.frame.opaque]
        self._sites = {site.value: site for site in trace.sites}
        self._leaves = {leaf.name: leaf for leaf in trace.arguments if leaf.family == naming.PARAM}
        self._links = Links(trace) if operations else None
        self._costs = _with_nested(costs_of(trace), operations=operations)
        self._needed = {} if resolved is None else _with_nested(costs_of(resolved.trace), operations=operations)
        self._total = sum((cost for owner, cost in self._costs.items() if _is_outermost(owner)), Cost())
        self._parameters = sum(math.prod(leaf.shape) for leaf in self._leaves.values())

    def inspection(self) -> Inspection:
        """Returns the inspection."""
        arguments = [leaf for leaf in self._trace.arguments if leaf.family != naming.PARAM]
        facts = (
            *(Fact(family=leaf.family, name=leaf.name, values=_array(leaf)) for leaf in arguments),
            *(self._layer(layer) for layer in self._layers),
            *self._outside(),
            *(self._parameter(self._leaves[name]) for name in self._in_order_of_use()),
        )
        return Inspection(facts=facts, totals=self._totals(), fragment=self._fragment)

    def _layer(self, layer: LayerCall) -> Fact:
        outputs = [self._sites[value] for value in layer.outputs if value in self._sites]
        iterations = _iteration_count(layer.frame.loops)
        values: dict[str, Json] = (
            {} if not outputs else {"shape": list(outputs[0].shape), "dtype": str(outputs[0].dtype)}
        )
        if iterations > 1:
            values["iterations"] = iterations
        values |= self._cost(layer)
        own = sum(math.prod(self._leaves[name].shape) for name in layer.params)
        values |= {"parameters": own, "parameter_share": own / self._parameters if self._parameters else 0.0}
        values["activation_bytes"] = sum(map(_site_bytes, outputs))
        values |= {} if layer.primitive is None else {"primitive": layer.primitive}
        if self._links is not None and layer.operation and not stands_for_others(layer):
            values |= {"inputs": list(self._links.inputs(layer)), "layers": list(self._links.layers(layer))}
        values |= {} if layer.source is None else {"source": layer.source}
        return Fact(family=naming.ACTIVATION, name=layer.path.template, values=values)

    def _outside(self) -> Iterator[Fact]:
        if None in self._costs:
            yield Fact(family=naming.ACTIVATION, name=naming.OUTSIDE, values=self._cost(None))

    def _cost(self, owner: LayerCall | None) -> dict[str, Json]:
        cost = self._costs.get(owner, Cost())
        share = cost.flops / self._total.flops if self._total.flops else 0.0
        values: dict[str, Json] = {"flops": cost.flops, "flops_share": share}
        if self._residual_bytes is not None:
            values["backward_flops"] = cost.backward_flops
        needed = {} if self._fragment is None else {"needed": self._needed.get(owner, Cost()).operations}
        return {**values, "operations": cost.operations, **needed}

    def _in_order_of_use(self) -> list[str]:
        used = (name for layer in self._layers for name in layer.params)
        return list(dict.fromkeys((*used, *self._leaves)))

    def _parameter(self, leaf: Leaf) -> Fact:
        size = math.prod(leaf.shape)
        values = _array(leaf) | {"parameters": size, "parameter_share": size / self._parameters if size else 0.0}
        values["used_by"] = list(self._users(leaf.name))
        return Fact(family=naming.PARAM, name=leaf.name, values=values)

    def _users(self, name: str) -> tuple[str, ...]:
        """Returns the layers that use a parameter themselves, and not only through a layer inside them."""
        users = [layer for layer in self._layers if name in layer.params]
        through = {id(layer.parent) for layer in users}
        return tuple(layer.path.template for layer in users if id(layer) not in through)

    def _totals(self) -> dict[str, Json]:
        layers = [layer for layer in self._layers if not layer.operation]
        outputs = {value for layer in layers for value in layer.outputs if value in self._sites}
        unused = self._unused()
        totals: dict[str, Json] = {
            "parameters": self._parameters,
            "parameter_bytes": self._bytes_of(naming.PARAM),
            "state_bytes": self._bytes_of(naming.STATE),
            "input_bytes": self._bytes_of(naming.INPUT),
            "flops": self._total.flops,
            "operations": self._total.operations,
            "layers": len(layers),
            "activation_bytes": sum(_site_bytes(self._sites[value]) for value in outputs),
            "unused_parameters": list(unused),
        }
        if self._residual_bytes is not None:
            totals |= {"backward_flops": self._total.backward_flops, "residual_bytes": self._residual_bytes}
        loops = sum(_is_unbounded(frame) for frame in self._trace.root.walk())
        return totals | ({"loops_counted_once": loops} if loops else {})

    def _unused(self) -> Iterator[str]:
        """Yields the parameters that the loss does not depend on, not even through integers."""
        only_loss = [number == 0 for number in range(len(self._trace.root.jaxpr.outvars))]
        needed = needed_for(self._trace.root, only_loss, Marks()).arguments
        for leaf, is_needed in zip(self._trace.arguments, needed, strict=True):
            if leaf.family == naming.PARAM and not is_needed:
                yield leaf.name

    def _bytes_of(self, family: str) -> int:
        return sum(_bytes(leaf.shape, leaf.dtype) for leaf in self._trace.arguments if leaf.family == family)


def _with_nested(costs: Costs, *, operations: bool) -> dict[LayerCall | None, Cost]:
    """Returns each layer's cost including that of the layers inside it; operations count by themselves if selected."""
    found: dict[LayerCall | None, Cost] = {}
    for owner, cost in costs.items():
        at = owner if owner is None or operations or not owner.operation else owner.parent
        found[at] = found.get(at, Cost()) + cost
        while at is not None and at.parent is not None:
            at = at.parent
            found[at] = found.get(at, Cost()) + cost
    return found


def _is_outermost(owner: LayerCall | None) -> bool:
    return owner is None or owner.parent is None


def _array(leaf: Leaf) -> dict[str, Json]:
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "bytes": _bytes(leaf.shape, leaf.dtype)}


def _site_bytes(site: Site) -> int:
    """Returns the bytes of a site's values in all iterations."""
    return _bytes(site.shape, site.dtype) * _iteration_count(site.loops)


def _iteration_count(loops: Sequence[Loop]) -> int:
    return math.prod(1 if loop.length is None else loop.length for loop in loops)


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    return math.prod(shape) * as_numpy_dtype(str(dtype)).itemsize


def _is_unbounded(frame: Frame) -> bool:
    return frame.transfer.unbounded


def _residual_bytes(loss: Callable[[Any, Any], Any], variables: Any, batch: Any, found: Trace) -> int | None:
    """Returns the bytes that the forward pass keeps for the gradients of the parameters, in addition to the arguments.

    None where reverse mode cannot reach a parameter from the loss.
    """
    numbers = [n for n, leaf in enumerate(found.arguments) if leaf.family == naming.PARAM and leaf.differentiated]
    if any(found.reachability.arguments[number] is Reach.BARRED for number in numbers):
        return None
    leaves, tree = jax.tree_util.tree_flatten((variables, batch))

    def kept(arguments: list[Any]) -> list[Any]:
        def value(*chosen: Any) -> Any:
            replaced = dict(zip(numbers, chosen, strict=True))
            out = loss(*jax.tree_util.tree_unflatten(tree, [replaced.get(n, leaf) for n, leaf in enumerate(arguments)]))
            return out[0] if isinstance(out, tuple) else out

        _, pull_back = jax.vjp(value, *(arguments[number] for number in numbers))
        return [leaf for leaf in jax.tree_util.tree_leaves(pull_back) if isinstance(leaf, jax.Array)]

    jaxpr, _, _ = trace(kept, leaves)
    residuals = {atom for atom in jaxpr.outvars if not is_literal(atom)} - set(jaxpr.invars)
    return sum(_bytes(atom.aval.shape, atom.aval.dtype) for atom in residuals)
