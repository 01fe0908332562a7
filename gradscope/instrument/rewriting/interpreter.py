"""The interpreter runs a traced loss again, equation by equation, and observes the planned sites.

The loop is `docs/autodidax`'s `eval_jaxpr`: an environment, `read`, `write`, and for every equation a rule. Equations
that run sub-jaxprs have their rules in `frame_rules`; all others are bound unchanged, but for the derivatives of maxima
and minima (`extrema`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.instrument.plan import EMPTY_PLAN, Plan
from gradscope.instrument.rewriting.cached_equations import run_cached
from gradscope.instrument.rewriting.extrema import in_memory, is_extremum, run_extremum
from gradscope.instrument.rewriting.observed_values import Captured, InjectedValues
from gradscope.instrument.taps import Observer, full_tensor, tap, tap_aside
from gradscope.tracing.jaxpr.derivatives.vjp import pulled_back
from gradscope.tracing.jaxpr.frames import OPERAND, FrameKey
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, FrameKind, Jaxpr, is_literal, kind_of
from gradscope.tracing.jaxpr.sharding import in_any, of_first, once, same_axes, sharded_as, varying, zeros_of
from gradscope.tracing.jaxpr.source_lines import user_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A `Context` states where the interpreter is, and what it observes and injects there.

    Attributes:
        plan: What to observe.
        rules: How equations with sub-jaxprs are run.
        frame: The frame it is in.
        depth: Number of loops around that frame.
        axes: Mesh axes that the `shard_map`s around that frame split over.
        in_place: Whether that frame and those around it are run in place, so that its observations are auxiliary
            outputs of what is differentiated.
        injected: The injected values for the sites in this frame and inside it, for the current iteration.
        reached: Numbers of sites and terms that a cotangent arrived at; grows while the backward pass is traced.
    """

    plan: Plan
    rules: Mapping[FrameKind, Rule]
    frame: FrameKey = ()
    depth: int = 0
    axes: tuple[str, ...] = ()
    in_place: bool = True
    injected: InjectedValues = field(default_factory=InjectedValues.nothing)
    reached: set[int] = field(default_factory=set[int])

    def enter(self, equation: int, branch: int = 0, *, in_place: bool = False) -> Context:
        """Returns the context in one of an equation's frames, which may be run in place."""
        return replace(self, frame=(*self.frame, (equation, branch)), in_place=in_place and self.in_place)

    def with_injected(self, injected: InjectedValues) -> Context:
        """Returns the same context, with the injected values as the enclosing function received them."""
        return replace(self, injected=injected)

    def iteration(self, injected: InjectedValues, axes: tuple[str, ...] = ()) -> Context:
        """Returns the context in one iteration of the loop whose body is this frame, with its injected values.

        For a `shard_map`, whose iterations are the shards, `axes` are the mesh axes that it splits over.
        """
        return replace(self, depth=self.depth + 1, axes=(*self.axes, *axes), injected=injected)

    @property
    def inside(self) -> Sequence[int]:
        """The numbers of the sites and terms in this frame and in the frames inside it."""
        return self.plan.inside(self.frame)

    @property
    def observe(self) -> Observer:
        """The plan's observer, for values that may differ between shards: branches and iterations agree on the type."""
        # A partial and not a method: the backward rules that keep it must not keep this context, which holds tracers.
        return partial(_observed_in_shards, self.plan.observe, self.axes)

    def own_injected(self) -> InjectedValues:
        """Returns the injected values for the sites and terms in this frame and inside it."""
        return InjectedValues(
            *({number: each[number] for number in self.inside if number in each} for each in self.injected)
        )


#: Runs one equation: context, its number, the equation, its operands' values; returns outputs and observations.
Rule: TypeAlias = Callable[[Context, int, Equation, Sequence[Any]], tuple[Sequence[Any], Captured]]


def interpret(
    context: Context, jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]
) -> tuple[list[Any], Captured]:
    """Runs one frame's jaxpr.

    Args:
        context: The frame and what to observe in it.
        jaxpr: The open jaxpr.
        constants: Values of its constant variables.
        arguments: Values of its inputs.

    Returns:
        The values of its outputs, and what was observed in it and in the frames inside it.
    """
    evaluation = Evaluation(context, jaxpr, constants)
    evaluation.write(OPERAND, jaxpr.invars, arguments)
    evaluation.run(range(len(jaxpr.eqns)))
    return evaluation.handed_out(), evaluation.captured


class Evaluation:
    """An `Evaluation` runs one frame's jaxpr.

    Args:
        context: Where it is and what to observe.
        jaxpr: The open jaxpr.
        constants: Values of its constant variables.

    Attributes:
        context: The context that it was made with.
        values: The values of the variables so far.
        captured: The observations so far, including those in the frames inside it.
    """

    def __init__(self, context: Context, jaxpr: Jaxpr, constants: Sequence[Any]) -> None:
        self.context = context
        self._jaxpr = jaxpr
        self._taps = context.plan.taps(context.frame)
        self._bounded = context.plan.bounded_in(context.frame)
        self.values: dict[Atom, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        self.captured = Captured.nothing()

    def write(self, equation: int, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Writes the values of variables, and observes those that are planned.

        Args:
            equation: The equation that makes them; `OPERAND` for the variables that the frame receives.
            variables: The variables.
            values: Their values.
        """
        for position, (variable, value) in enumerate(zip(variables, values, strict=True)):
            site, bounded = self._taps.get((equation, position)), self._bounded.get((equation, position))
            if bounded is not None:
                _note(self.context, bounded, value, self.captured)
            self.values[variable] = value if site is None else _observe(self.context, site, value, self.captured)

    def run(self, numbers: range) -> None:
        """Runs some equations, after all equations before them have been run."""
        for number in numbers:
            equation = self._jaxpr.eqns[number]
            if self.context.plan.runs(self.context.frame, number):
                self._run(number, equation)
            elif any((number, position) in self._taps for position in range(len(equation.outvars))):  # it is fed
                self.write(number, equation.outvars, [zeros_of(v.aval) for v in equation.outvars])

    def handed_out(self) -> list[Any]:
        """Returns the values of the frame's outputs, tapped for the terms that flow back from there."""
        context, values = self.context, [self.read(atom) for atom in self._jaxpr.outvars]
        # From the last to the first, so that cotangents of one value are added up in the same order as in JAX.
        uses = context.plan.uses(context.frame, len(self._jaxpr.eqns))
        for at, term in sorted(uses.items(), reverse=True):
            values[at] = _tapped(context, term, values[at])
        return values

    def _run(self, number: int, equation: Equation) -> None:
        rule = self.context.rules.get(kind_of(equation) or "opaque", _as_it_stands)
        values = [self.read(atom) for atom in equation.invars]
        if (noisy := self.context.plan.noisy_at(self.context.frame, number)) is not None:
            _note(self.context, noisy, values, self.captured)
        with _noting_line(equation):
            outputs, observed = rule(self.context, number, equation, values)
        self.captured.take(observed)
        self.write(number, equation.outvars, _with_terms(self.context, number, equation, values, outputs))

    def read(self, atom: Atom) -> Any:
        """Returns the value of an atom."""
        if is_literal(atom):
            return atom.val
        # Nothing reads the outputs of equations that were not run, so zeros replace them.
        return self.values[atom] if atom in self.values else zeros_of(atom.aval)


@contextmanager
def _noting_line(equation: Equation) -> Generator[None]:
    """Notes the user's line on an error of `jax_debug_nans`, which JAX raises anew without the cause that has it."""
    try:
        yield
    except FloatingPointError as error:
        is_noted = any(note.startswith("File ") for note in getattr(error, "__notes__", ()))  # JAX has notes, too
        if not is_noted and (frame := user_frame(equation)) is not None:
            error.add_note('File "{}", line {}, in {}'.format(*frame))
        raise


def _as_it_stands(
    context: Context, _number: int, equation: Equation, values: Sequence[Any]
) -> tuple[Sequence[Any], Captured]:
    run = run_extremum if is_extremum(equation) and context.plan is not EMPTY_PLAN else run_cached
    return run(equation, values), Captured.nothing()


def _observe(context: Context, site: int, value: Any, captured: Captured) -> Any:
    """Observes one value, and returns the value to continue with."""
    injected = context.injected
    if site in context.plan.isolated:
        _note(context, site, value, captured)
        # A cotangent is injected in each shard, and shards that have the same value hand it out together.
        _hand_out(context, site, once(value, same_axes(value, context.axes)), captured)
        return _tapped(context, site, _fed(context, site, value))
    value = _fed(context, site, value)
    _note(context, site, value, captured)
    value = _tapped(context, site, _constant_where(context, injected.stopped.get(site), value))
    _hand_out(context, site, value, captured)
    return _constant_where(context, injected.gradient_fed.get(site), value)


def _fed(context: Context, site: int, value: Any) -> Any:
    if site not in context.injected.feeds:
        return value
    here, feed = context.injected.fed[site], sharded_as(value, context.injected.feeds[site])
    same = same_axes(value, context.axes)
    return _where(in_any(here, same), of_first(feed, here, same), value) if same else _where(here, feed, value)


def _note(context: Context, site: int, value: Any, captured: Captured) -> None:
    observe = context.plan.observer(site)
    # Without `stop_gradient` a scan would carry a tangent for every observation and transpose it from zeros, and what
    # an observer computes would have one. An auxiliary output leaves its tangent behind by itself, and sooner: for a
    # deep network `stop_gradient` took a fifth of tracing (2026-11).
    plain = value if context.in_place and observe is full_tensor else jax.lax.stop_gradient(value)
    captured.values[site] = _observed_in_shards(observe, context.axes, plain)


def _hand_out(context: Context, site: int, value: Any, captured: Captured) -> None:
    if context.plan.is_seed(site):
        captured.seeds[site] = value


def _tapped(context: Context, number: int, value: Any) -> Any:
    """Returns the value, tapped where its cotangent is observed."""
    sink = context.injected.sinks.get(number)
    return value if sink is None else tap(value, sink, context.observe, partial(context.reached.add, number))


def _with_terms(
    context: Context, number: int, equation: Equation, operands: Sequence[Any], outputs: Sequence[Any]
) -> Sequence[Any]:
    """Returns an operation's outputs, tapped for the terms that flow back to each of its operands."""
    terms = context.plan.uses(context.frame, number)
    if not terms:
        return outputs
    tapped = {at: outputs[at] for term in terms.values() for at in context.plan.term(term).use.outputs}
    sinks = {operand: context.injected.sinks[term] for operand, term in terms.items()}
    observe, reached = context.observe, partial(context.reached.update, terms.values())

    def pulled(operands: Sequence[Any], cotangents: Mapping[int, Any]) -> dict[int, Any]:
        reached()
        if is_extremum(equation):
            operands = [in_memory(each) for each in operands]
        gradients = pulled_back(equation, operands, list(terms), cotangents)
        return {term: observe(gradient) for term, gradient in zip(terms, gradients, strict=True)}

    tapped = tap_aside(tapped, jax.lax.stop_gradient(list(operands)), sinks, pulled)
    return [tapped.get(at, output) for at, output in enumerate(outputs)]


def _constant_where(context: Context, condition: Any, value: Any) -> Any:
    """Returns the value, constant where a condition holds; a condition of None never holds."""
    if condition is None:
        return value
    same = same_axes(value, context.axes)
    return _where(in_any(condition, same) if same else condition, jax.lax.stop_gradient(value), value)


def _where(condition: Any, one: Any, other: Any) -> Any:
    """Returns one value or the other, chosen while tracing where the condition is known by then."""
    if isinstance(condition, np.ndarray):
        return one if condition else other
    return jax.lax.select(jnp.broadcast_to(condition, one.shape), one, other)


def _observed_in_shards(observe: Observer, axes: tuple[str, ...], value: Any) -> Any:
    return varying(observe(value), axes)
