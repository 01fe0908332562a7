"""`tf.gradients`: the gradients of any values of a function with respect to any others, by name.

A *y* is a value that is differentiated; the gradients of several are summed. An *x* is a value with respect to which;
the gradient is what arrives at it from everything that uses it. A *stop* is a value that counts as constant: what
arrives at it goes no further, so that gradients behind it are partial and not total derivatives. A value may be all of
them at once: with respect to a stop the gradient is what arrives there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.errors import ModelError, UsageError
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan, Seed, by_site
from gradscope.instrument.taps import whole_tensor
from gradscope.naming import printable
from gradscope.tracing.dataflow.reachability import Reach, reachability_from
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.named_values import NamedValue, NamedValues, throughout
from gradscope.tracing.tracer import Leaf, Trace, leaves_of, trace_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is differentiated, and with respect to what.

    Attributes:
        ys: Names of what is differentiated.
        xs: Names of what it is differentiated with respect to.
        grad_ys: For each of `ys` its initial gradient, None for ones.
        stops: Names of what counts as constant.
    """

    ys: Sequence[str]
    xs: Sequence[str]
    grad_ys: Sequence[Any]
    stops: Sequence[str] = ()


def gradients_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], question: Question
) -> list[Any]:
    """The gradients that a question asks for, in the order of its xs; None where nothing arrives.

    Args:
        function: Returns a pytree of arrays.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        question: What is asked.

    Raises:
        UsageError: A name is unknown, an initial gradient does not fit, or a value cannot be differentiated.
        ModelError: Reverse mode cannot get from a y to an x.
    """
    given = (tuple(args), dict(kwargs))
    trace = trace_values(lambda a, k: function(*a, **k), given, _leaves(function, *given))
    asked = _ask(trace, question)
    initial = [_initial(y, grad_y) for y, grad_y in zip(asked.ys, question.grad_ys, strict=True)]
    if not asked.plan.seeds:
        return [None] * len(asked.xs)  # every y is a constant
    program, reached = observing_program(trace, asked.plan)
    observed = jax.jit(program)(jax.tree_util.tree_leaves(given), {}, [each for each in initial if each is not None])
    return [
        observed.cotangents[x.seed.site][x.seed.turn] if x.seed is not None and x.seed.site in reached.sites else None
        for x in asked.xs
    ]


def _leaves(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """The leaves of the arguments, each by the argument's name and its path in it: `w1`, `params/head/kernel`."""
    parameters = inspect.signature(function).parameters.values()
    fixed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [fixed[at] if at < len(fixed) else str(at) for at in range(len(args))]
    named = [*zip(names, args, strict=True), *((name, kwargs[name]) for name in sorted(kwargs))]
    return [leaf for name, arg in named for leaf in _leaves_of_argument(name, arg)]


def _leaves_of_argument(name: str, arg: Any) -> list[Leaf]:
    leaves = leaves_of(arg, naming.INPUT)
    whole = jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(arg))
    return [replace(leaf, name=name if whole else f"{name}/{leaf.name}") for leaf in leaves]


class _Term(NamedTuple):
    """A y or an x: its name, its site, and where it is in the plan; without them if it is a constant."""

    name: str
    site: Site | None
    seed: Seed | None


class _Asked(NamedTuple):
    """A question about one trace, with the plan that answers it."""

    plan: Plan
    ys: list[_Term]
    xs: list[_Term]


def _ask(trace: Trace, question: Question) -> _Asked:
    known = NamedValues(trace, trace.layers)
    ys, xs, stops = ([known.find(name) for name in names] for names in (question.ys, question.xs, question.stops))
    keys = list(dict.fromkeys(named.value for named in (*ys, *xs, *stops) if named.value is not None))
    seeds = (named.value for named in ys if named.value is not None)
    trace = replace(trace, reachability=reachability_from(trace.root, seeds, throughout(trace.root, stops)))
    sites = tuple(map(trace.site_at, keys))
    numbers = {key: number for number, key in enumerate(keys)}

    def term(name: str, named: NamedValue) -> _Term:
        if named.value is None:
            return _Term(name, None, None)
        number = numbers[named.value]
        return _Term(name, sites[number], Seed(number, named.turn))

    y_terms = [_require_seedable(term(*each)) for each in zip(question.ys, ys, strict=True)]
    x_terms = [_require_observable(term(*each)) for each in zip(question.xs, xs, strict=True)]
    plan = Plan(
        sites=sites,
        gradients=frozenset(x.seed.site for x in x_terms if x.seed is not None and _arrives(sites[x.seed.site])),
        observe=whole_tensor,
        seeds=tuple(y.seed for y in y_terms if y.seed is not None),
        stopped=by_site((numbers[named.value], named.turn) for named in stops if named.value is not None),
    )
    return _Asked(plan, y_terms, x_terms)


def _arrives(site: Site) -> bool:
    return site.differentiable and site.reach is Reach.GRADIENT


def _require_observable(term: _Term) -> _Term:
    """A value that can be looked at, and that nothing bars the way to."""
    if term.site is not None and term.site.opaque:
        raise UsageError(
            f"{printable(term.name)} lies inside a custom rule, which runs as it stands",
            hint="name what goes into the rule or what comes out of it",
        )
    if term.site is not None and term.site.forward_only:
        raise ModelError(
            f"the gradient with respect to {printable(term.name)} would have to pass a while loop or a callback",
            hint="reverse mode cannot pass those; a fori_loop of a fixed length, or a scan, it can",
        )
    return term


def _require_seedable(term: _Term) -> _Term:
    """A value that can be differentiated."""
    site = _require_observable(term).site
    if site is not None and not site.differentiable:
        raise UsageError(
            f"{printable(term.name)} is {site.dtype} and cannot be differentiated",
            hint="only real and complex floating-point values have gradients",
        )
    return term


def _initial(y: _Term, grad_y: Any) -> Any:
    """The initial gradient of a y; None for a y that is a constant."""
    if y.site is None:
        return None
    if grad_y is None:
        return jnp.ones(y.site.shape, y.site.dtype)
    given = jnp.asarray(grad_y)
    if given.shape != y.site.shape:
        raise UsageError(
            f"the initial gradient of {printable(y.name)} has shape {given.shape}, expected {y.site.shape}",
            hint="an initial gradient has the shape of what is differentiated",
        )
    return given.astype(y.site.dtype)
