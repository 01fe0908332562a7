"""`gradients_of` is `tf.gradients` for JAX: the gradients of any values of a function with respect to any others.

A *y* is a value that is differentiated; the gradients of several are summed. An *x* is a value with respect to which
the ys are differentiated; the gradient is the sum over everything that uses the x. A *stop* is a value that counts as
constant: a gradient that arrives at it goes no further, so that gradients behind it are partial and not total
derivatives. A value may be all of them at once: the gradient with respect to a stop is the one that arrives there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from gradscope.capturing.execution.function_call import argument_leaves, is_traceable
from gradscope.errors import ModelError, UsageError
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan
from gradscope.instrument.query.planning import has_gradient
from gradscope.instrument.query.query_names import find_names, values_at, values_of
from gradscope.instrument.query.resolve import as_queried, initial_gradients, with_query
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.instrument.taps import full_tensor
from gradscope.naming import printable
from gradscope.tracing.jaxpr.frames import ValueKey
from gradscope.tracing.lookup.named_values import NamedValue, NamedValues
from gradscope.tracing.tracer import Trace, trace_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A `Question` states which values are differentiated, and with respect to which.

    Attributes:
        ys: Names of the values that are differentiated.
        xs: Names of the values with respect to which they are differentiated.
        grad_ys: For each of `ys` its initial gradient, None for ones.
        stops: Names of the values that count as constant.
    """

    ys: Sequence[str]
    xs: Sequence[str]
    grad_ys: Sequence[Any]
    stops: Sequence[str] = ()


def gradients_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], question: Question
) -> list[Any]:
    """Returns the gradients that a question requests, in the order of its xs; None where nothing arrives.

    Args:
        function: Returns a pytree of arrays.
        args: Its positional arguments. Truth values, strings and functions are passed as they are.
        kwargs: Its keyword arguments, likewise.
        question: The ys, xs, initial gradients and stops.

    Raises:
        UsageError: A name is unknown, an initial gradient does not fit, or a value cannot be differentiated.
        ModelError: Reverse mode cannot get from a y to an x.
    """
    flat, structure = jax.tree_util.tree_flatten((tuple(args), dict(kwargs)))
    traced = [is_traceable(leaf) and not isinstance(leaf, bool) for leaf in flat]
    arrays_only = structure.unflatten(
        [leaf if is_traced else None for leaf, is_traced in zip(flat, traced, strict=True)]
    )

    def called(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        arrays = iter(jax.tree_util.tree_leaves((args, kwargs)))
        leaves = [next(arrays) if is_traced else leaf for leaf, is_traced in zip(flat, traced, strict=True)]
        args, kwargs = structure.unflatten(leaves)
        return function(*args, **kwargs)

    leaves = argument_leaves(function, *arrays_only)
    trace = trace_values(called, arrays_only, [each.leaf for each in leaves])
    known = NamedValues(trace, trace.layers, [each.path for each in leaves])
    query = TraceQuery(of=tuple(question.ys), cotangents=tuple(question.grad_ys), stops=tuple(question.stops))
    names, xs = find_names(known, query), [known.find(name) for name in question.xs]
    # The xs are requested by name, also where the function itself does not differentiate them.
    trace = replace(trace, constants_before_rules=frozenset())
    trace = as_queried(trace, names, names.of, [True] * len(trace.outputs))
    for name, value in (*((y.name, y.value) for y in names.of), *zip(question.xs, (x.value for x in xs), strict=True)):
        _require_observable(trace, name, value)
    plan = with_query(_plan(trace, xs), trace, names, names.of)
    initial = initial_gradients(plan, names.of)
    if not plan.seeds:
        return [None] * len(xs)  # every y is a constant
    program, reached = observing_program(trace, plan)
    observed = jax.jit(program)(jax.tree_util.tree_leaves(arrays_only), {}, initial)
    arrived = {plan.sites[number].value: observed.cotangents[number] for number in plan.gradients & reached.sites}
    reached_xs = [x.value in arrived and all(map(trace.reaches, values_at([x]))) for x in xs]
    return [
        arrived[x.value][x.iteration] if x.value is not None and reached_x else None
        for x, reached_x in zip(xs, reached_xs, strict=True)
    ]


def _plan(trace: Trace, xs: Sequence[NamedValue]) -> Plan:
    """Returns the plan that observes the gradients at some values, where any arrive."""
    sites = tuple(map(trace.site_at, values_of(xs)))
    gradients = frozenset(number for number, site in enumerate(sites) if has_gradient(site))
    return Plan(sites=sites, gradients=gradients, observe=full_tensor)


def _require_observable(trace: Trace, name: str, value: ValueKey | None) -> None:
    """Refuses a value that cannot be observed, or that reverse mode cannot get to."""
    site = None if value is None else trace.site_at(value)
    if site is not None and site.bypassed:
        raise UsageError(
            f"{printable(name)} is inside a custom rule or a linear solve, and gradients go around it",
            hint="name a value that goes in or comes out",
        )
    if site is not None and site.forward_only:
        raise ModelError(
            f"the gradient with respect to {printable(name)} would have to pass a while loop, or an operation "
            "without a derivative",
            hint="reverse mode cannot pass those; a fori_loop of a fixed length, or a scan, it can",
        )
