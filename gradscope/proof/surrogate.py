"""`surrogate_loss` returns a loss whose finite differences see what automatic differentiation sees.

Automatic differentiation treats the values of `stop_gradient` as constants, and a function with a rule that is meant to
be no derivative as if the rule were right. Finite differences follow the values. So before a gradient is reported as
wrong, the loss is computed again with a surrogate: a stopped value stays as it is at the point of differentiation, and
a function whose rule is allowed is linear around its operands there, with the slope that its rule states. What a rule
keeps constant of the batch stays as it is there, too.

So is a draw of a gamma distribution, of which those of beta, Dirichlet and t distributions are made: JAX differentiates
it for a fixed quantile, as is right on average over draws, and for a fixed random key the draw moves otherwise.

The loss is evaluated at both points in one pass, equation by equation, because a surrogate needs the operands at the
point of differentiation, those of every iteration included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import jax

from gradscope.naming import PARAM
from gradscope.naming.wording import counted
from gradscope.proof.rules.operands.kept_data import kept_operands
from gradscope.proof.rules.rule_calls import CustomRuleCall, custom_rule_calls, distinct_variables
from gradscope.proof.rules.stopped_operands import STOP, stopped_operands
from gradscope.proof.solvers.evaluation import evaluated_inside, is_while
from gradscope.tracing.dataflow.reachability import Reach, is_inexact, reachability_from, reachability_of
from gradscope.tracing.jaxpr.derivatives.custom_rules import constants_of_functions, custom_rule
from gradscope.tracing.jaxpr.frames import Frame, frame_tree, resolve, source_in
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, Jaxpr, bind, is_literal, opened
from gradscope.tracing.jaxpr.source_lines import is_traced_by_rule, library_function
from gradscope.tracing.jaxpr.transfers import solve_operands
from gradscope.tracing.tracer import Trace

#: Primitives that draw numbers, whose derivative is that of a quantile of the distribution.
_DRAWS: Final = frozenset({"random_gamma"})

#: What arrives at a value that counts in a derivative; nothing passes a `while` loop, of which it may be a constant.
_ARRIVES: Final = (Reach.GRADIENT, Reach.BARRED)

#: The largest number of places in one note.
_SOME: Final = 3

_DRAWN: Final = (
    "the derivative of draws of gamma distributions counts as right: it is that of a quantile, and not of the draw for "
    "this random key"
)

#: What JAX raises where a rule is not linear in the cotangent, such as one that clips it.
_NOT_LINEAR = (NotImplementedError, TypeError, ValueError, AssertionError)

#: A function of the flat arguments at a point of differentiation, and of those at which the loss is asked for.
Surrogate: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Any]


class _Pair(NamedTuple):
    """A `_Pair` is a value at the point of differentiation and at the point that differences ask for."""

    here: Any
    there: Any


def surrogate_loss(
    trace: Trace, calls: Sequence[CustomRuleCall], leaves: Sequence[Any], allowed: Collection[str]
) -> Surrogate | None:
    """Returns the loss as a function of two points, with surrogates around the first.

    Args:
        trace: The traced loss.
        calls: Its calls of functions with a rule, with the data that these keep constant.
        leaves: Flat arguments, for their types.
        allowed: The names of the functions whose rule is meant to be no derivative.

    Returns:
        A pure function; None where nothing has a surrogate, or an allowed rule is not linear in the cotangent.
    """
    kept = kept_operands(calls)
    differing = any(call.rule.function in allowed or stopped_operands(call.equation) for call in calls)
    if not (kept or differing or _has(trace, {STOP, *_DRAWS})):
        return None

    def loss(here: Sequence[Any], arguments: Sequence[Any]) -> Any:
        pairs = [_Pair(one, other) for one, other in zip(here, arguments, strict=True)]
        return _PairedEvaluation(allowed, kept).of(trace.jaxpr, trace.constants, pairs)[0].there

    try:
        jax.eval_shape(loss, list(leaves), list(leaves))
    except _NOT_LINEAR:
        return None
    return loss


def taken_as_right(trace: Trace, places: Sequence[str]) -> Iterator[str]:
    """Yields sentences about what a proof takes as right without proving it: draws, and what is kept constant.

    Args:
        trace: The traced loss.
        places: Where it keeps values constant, as `stopped_places` returns them.
    """
    if _has(trace, _DRAWS):
        yield _DRAWN
    if places:
        more = f" and {counted(len(places) - _SOME, 'other place')}" if len(places) > _SOME else ""
        yield f"the values of stop_gradient count as constant: {', '.join(places[:_SOME])}{more}"


def stopped_places(trace: Trace) -> list[str]:
    """Returns where the loss keeps values constant that parameters make: `file:line` of each `stop_gradient`, once.

    What libraries keep constant changes no derivative, such as the maximum that a softmax subtracts, and what nothing
    behind it makes a derivative of, such as a number that is only compared.
    """
    arriving = reachability_of(trace.root)
    found: dict[str, None] = {}
    for frame in trace.root.walk():
        if frame.bypassed:
            continue
        for number in sorted(trace.liveness.live(frame)):
            equation = frame.jaxpr.eqns[number]
            if equation.primitive.name != STOP or library_function(equation) or is_traced_by_rule(equation, STOP):
                continue
            counts = arriving.of(frame, equation.outvars[0]) in _ARRIVES
            source = source_in(frame, equation)
            if counts and source not in (None, *found) and _is_made_of_parameters(trace, frame, equation.invars[0]):
                found[str(source)] = None
    return list(found | dict.fromkeys(_calls_that_stop(trace)))


def _calls_that_stop(trace: Trace) -> Iterator[str]:
    """Yields where functions with a rule are called that keep constant what they are given and parameters make."""
    for call in custom_rule_calls(trace):
        atoms = [call.equation.invars[at] for at in sorted(stopped_operands(call.equation))]
        if call.source is not None and any(_is_made_of_parameters(trace, call.frame, atom) for atom in atoms):
            yield call.source


def _is_made_of_parameters(trace: Trace, frame: Frame, atom: Atom) -> bool:
    value = resolve(frame, atom)
    reached = () if value is None else reachability_from(trace.root, [value]).arguments
    return any(
        reach in _ARRIVES and leaf.family == PARAM for reach, leaf in zip(reached, trace.arguments, strict=False)
    )


def _has(trace: Trace, primitives: Collection[str]) -> bool:
    return any(
        frame.jaxpr.eqns[number].primitive.name in primitives
        for frame in trace.root.walk()
        if not (frame.beside or frame.opaque)
        for number in trace.liveness.live(frame)
    )


class _PairedEvaluation:
    """A `_PairedEvaluation` evaluates jaxprs at two points at once.

    Args:
        allowed: The names of the functions whose rule is meant to be no derivative.
        kept: The positions of the operands that rules keep constant, by the identity of their equation.
    """

    def __init__(self, allowed: Collection[str], kept: Mapping[int, Collection[int]]) -> None:
        self._allowed = allowed
        self._kept = kept

    def of(self, jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[_Pair]) -> list[_Pair]:
        """Returns the outputs of a jaxpr."""
        known = dict(zip(jaxpr.invars, arguments, strict=True))
        known |= {variable: _Pair(value, value) for variable, value in zip(jaxpr.constvars, constants, strict=True)}

        def value(atom: Any) -> _Pair:
            return _Pair(atom.val, atom.val) if is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            made = self._through(equation, [value(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, made, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _through(self, equation: Equation, values: list[_Pair]) -> list[_Pair]:
        if all(each.here is each.there for each in values):
            return [_Pair(value, value) for value in bind(equation, [each.here for each in values])]
        # Where both points take different branches, the other point's counts: the loss is to be computed there.
        inside = evaluated_inside(equation, values, self.of, index=lambda pair: pair.there)
        return self._operation(equation, values) if inside is None else [_Pair(*each) for each in inside]

    def _operation(self, equation: Equation, values: list[_Pair]) -> list[_Pair]:
        if equation.primitive.name == STOP:
            return [_Pair(values[0].here, values[0].here)]
        if is_while(equation):
            return _loop(equation, values)
        if constants_of_functions(equation):
            stopped = _stopped_in_system(equation)
            values = [
                _Pair(each.here, each.here) if not is_literal(atom) and atom in stopped else each
                for atom, each in zip(equation.invars, values, strict=True)
            ]
        rule = custom_rule(equation)
        if equation.primitive.name in _DRAWS or (rule is not None and rule.function in self._allowed):
            return _linear(equation, values)
        stopped = () if rule is None else stopped_operands(equation).union(self._kept.get(id(equation), ()))
        read = [_Pair(each.here, each.here) if at in stopped else each for at, each in enumerate(values)]
        made = (bind(equation, list(at)) for at in zip(*read, strict=True))
        return [_Pair(*each) for each in zip(*made, strict=True)]


def _loop(equation: Equation, values: Sequence[_Pair]) -> list[_Pair]:
    """Returns the outputs of a `while`, which JAX differentiates by nothing: what leads into it is stopped inside."""
    here, there = (bind(equation, list(at)) for at in zip(*values, strict=True))
    return [
        _Pair(one, one if is_inexact(variable) else other)
        for one, other, variable in zip(here, there, equation.outvars, strict=True)
    ]


def _stopped_in_system(equation: Equation) -> set[Atom]:
    """Returns what the system of a linear solve reads that is stopped inside of it."""
    system, _ = opened(equation.params["jaxprs"].matvec)
    root = frame_tree(system)
    outputs = filter(None, (resolve(root, atom) for atom in system.outvars if not is_literal(atom)))
    reached = reachability_from(root, outputs).arguments
    read = solve_operands(equation, equation.invars).matvec
    return {
        atom
        for atom, reach in zip(read, reached, strict=False)
        if reach is Reach.NOTHING and not is_literal(atom) and is_inexact(atom)
    }


def _linear(equation: Equation, values: Sequence[_Pair]) -> list[_Pair]:
    """Returns the outputs of a function that is linear around its operands, with the slope that its rule states.

    The rule multiplies a cotangent with a matrix; the transpose of that map multiplies a displacement.
    """
    variables = distinct_variables(equation, lambda _, at: values[at].here is values[at].there)
    operands = [values[positions[0]] for positions in variables]

    def run(moved: Sequence[Any]) -> list[Any]:
        operands_here = [each.here for each in values]
        for positions, operand in zip(variables, moved, strict=True):
            for at in positions:
                operands_here[at] = operand
        made = bind(equation, operands_here)
        return [value for value, variable in zip(made, equation.outvars, strict=True) if is_inexact(variable)]

    outputs, pull_back = jax.vjp(run, [each.here for each in operands])
    push_forward = jax.linear_transpose(lambda cotangents: pull_back(cotangents)[0], outputs)
    (slopes,) = push_forward([each.there - each.here for each in operands])
    smooth = iter([_Pair(output, output + slope) for output, slope in zip(outputs, slopes, strict=True)])
    there = bind(equation, [each.there for each in values])
    return [
        next(smooth) if is_inexact(variable) else _Pair(value, value)
        for value, variable in zip(there, equation.outvars, strict=True)
    ]
