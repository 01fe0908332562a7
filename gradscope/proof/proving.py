"""`prove` checks a model's gradients and returns a `Proof`: one row per claim, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.preparation import Prepared, prepare
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.self_check import self_check
from gradscope.capturing.timings import Timings
from gradscope.errors import ModelError, UsageError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.proof.float64 import NarrowType, coarsest_epsilon, narrowest_type, own_types, wide_types, widened
from gradscope.proof.leaf_claims import LossOfLeaves, leaf_outcomes, loss_in_float64
from gradscope.proof.proof_rows import ProofRow, leaf_row, nested_rows, plain_row, rule_row, with_wrong_rules
from gradscope.proof.rules.operands.kept_data import calls_keeping_data, leaves_kept
from gradscope.proof.rules.rule_calls import calls_of_stated_rules, custom_rule_calls, gradients_made_through
from gradscope.proof.rules.rule_claims import rule_outcomes
from gradscope.proof.rules.same_programs import program_key
from gradscope.proof.solvers.hidden_solvers import hide_solvers
from gradscope.proof.solvers.solver_tolerance import tightenings
from gradscope.proof.surrogate import stopped_places, surrogate_loss, taken_as_right
from gradscope.proof.wide_programs import Widening, error_of_constants
from gradscope.tracing.jaxpr.derivatives.custom_rules import custom_rule
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import Trace, trace_loss, with_constant_inputs
from gradscope.tracing.user_frames import user_code

_NARROW: Final = "{} is too coarse for finite differences: what computes in it{} is checked in float64 in its place"


class _Rows(NamedTuple):
    """`_Rows` are the rows about custom rules, those about gradients, and how they were made."""

    rules: tuple[ProofRow, ...]
    gradients: tuple[ProofRow, ...]
    notes: tuple[str, ...]


#: The verdict of a proof.
Verdict: TypeAlias = Literal["correct", "wrong", "nothing checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Proof stores the outcomes of all claims.

    Attributes:
        rules: A row per custom rule, compared with finite differences of its function.
        gradients: A row per gradient, compared with finite differences of the loss.
        repetitions: A row per other way in which the gradients were computed again.
        notes: Sentences about how the claims were checked.
        stopped: Where the loss keeps values constant that parameters make: `file:line` of each `stop_gradient`.
    """

    rules: tuple[ProofRow, ...]
    gradients: tuple[ProofRow, ...]
    repetitions: tuple[ProofRow, ...]
    notes: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[ProofRow, ...]:
        """A row per claim."""
        return (*self.rules, *self.gradients, *self.repetitions)

    @property
    def verdict(self) -> Verdict:
        """`wrong` if any claim is wrong; `correct` if any was checked by finite differences and none is wrong."""
        if any(row.status == "wrong" for row in self.rows):
            return "wrong"
        by_differences = self.gradients or self.rules
        checked = any(row.status not in ("not checked", "excused") for row in by_differences)
        return "correct" if checked else "nothing checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions:
    """ProofOptions stores what a proof accepts.

    Attributes:
        seed: Seed of the random directions.
        tolerance: The relative error that a derivative may have in any case, such as the tolerance of a solver.
        allowed: Names of functions whose rule is meant to be no derivative.

    Raises:
        UsageError: The tolerance is no number.
    """

    seed: int = 0
    tolerance: float = 0.0
    allowed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.tolerance):
            raise UsageError("tol is nan, expected a number, zero or more")


def prove(model: Model, arguments: Arguments, timings: Timings, options: ProofOptions = ProofOptions()) -> Proof:
    """Checks a model's gradients against finite differences, `jax.grad` and a second run.

    Args:
        model: The model.
        arguments: Its arguments.
        timings: Receives the seconds of each phase.
        options: What is accepted.

    Raises:
        UsageError: No function of an allowed name has a rule; the hint has the nearest.
        ModelError: The user's code failed.
        MachineError: Memory ran out.
    """
    prepared = prepare(model, arguments, CaptureSpec(), TraceQuery(), timings)
    _require_known(prepared.resolved.trace, options.allowed)
    run = prepared.start()
    repetitions = tuple(_repetitions(model, prepared, run, timings))
    stopped = stopped_places(prepared.resolved.trace)
    notes = [*_on_loss(np.asarray(run.observed.loss)), *taken_as_right(prepared.resolved.trace, stopped)]
    with timings.phase("differences"), np.errstate(all="ignore"):  # non-finite differences are reported as not checked
        try:
            rows = _wide_rows(model, prepared, options)
        except ModelError as failure:
            reason = failure.message.partition("\n")[0]
            notes.append(
                f"the model does not run in float64 ({reason}): its operations are taken in float64 one by one"
            )
            rows = _rows_of_own_types(model, prepared, options)
    return Proof(
        rules=rows.rules,
        gradients=rows.gradients,
        repetitions=repetitions,
        notes=(*notes, *rows.notes),
        stopped=tuple(stopped),
    )


def _on_loss(loss: np.ndarray) -> Iterator[str]:
    if not np.isfinite(loss):
        yield f"the loss is {float(loss)} in its own precision: gradscope dump finds where that began"


def _repetitions(model: Model, prepared: Prepared, run: Run, timings: Timings) -> Iterator[ProofRow]:
    with timings.phase("self-check"):
        checked = self_check(model.loss, prepared, run)
        changes = bool(checked["beyond_rounding"]) and _is_another_each_time(model, prepared)
        yield plain_row(prepared.resolved.trace.arguments, checked, changes=changes)
    equal = _bits(run) == _bits(prepared.start())
    yield ProofRow(
        what="two runs, bit for bit", error=0.0 if equal else 1.0, expected=0.0, status="correct" if equal else "wrong"
    )


def _is_another_each_time(model: Model, prepared: Prepared) -> bool:
    """Returns whether two traces of a loss are not of one program."""
    with user_code(f"loss of {model.name}"):
        traces = (trace_loss(model.loss, prepared.variables, prepared.batch) for _ in range(2))
        return len({program_key(trace.root.jaxpr, trace.constants) for trace in traces}) > 1


def _bits(run: Run) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in (run.observed.loss, *run.observed.gradients.values()))


def _wide_rows(model: Model, prepared: Prepared, options: ProofOptions) -> _Rows:
    with wide_types():
        leaves, tree = jax.tree_util.tree_flatten((prepared.variables, prepared.batch))
        variables, batch = jax.tree_util.tree_unflatten(tree, [widened(leaf) for leaf in leaves])
        return _rows_at(model, prepared.resolved.trace, (variables, batch), options, Widening(always=True))


def _rows_of_own_types(model: Model, prepared: Prepared, options: ProofOptions) -> _Rows:
    widening = Widening(context=own_types(), always=True)
    with wide_types():
        return _rows_at(model, prepared.resolved.trace, (prepared.variables, prepared.batch), options, widening)


def _rows_at(
    model: Model, trace: Trace, arguments: tuple[Any, Any], options: ProofOptions, widening: Widening
) -> _Rows:
    leaves, tree = jax.tree_util.tree_flatten(arguments)

    def value(arguments: Sequence[Any]) -> Any:
        out = model.loss(*jax.tree_util.tree_unflatten(tree, arguments))
        return out[0] if isinstance(out, tuple) else out

    with user_code(f"loss of {model.name}"):
        with widening.context():
            here = _as_prepared(trace_loss(model.loss, *arguments), trace)
            calls = calls_keeping_data(here)
            surrogate = surrogate_loss(here, calls, leaves, options.allowed)
            excusing = surrogate is None
            surrogate = surrogate_loss(here, calls, leaves, ()) if excusing else surrogate
        frames, made_through = list(here.root.walk()), gradients_made_through(here, options.allowed)
        numbers = [number for number, leaf in enumerate(trace.arguments) if leaf.differentiated]
        epsilon, longer, hidden = coarsest_epsilon(frames, here.liveness), tightenings(frames), hide_solvers(frames)
        tolerance = max(options.tolerance, _own_rounding(trace))
        narrow, notes = narrowest_type(frames, here.liveness), ()
        if widening.counts_for(epsilon):
            of_leaves = loss_in_float64(
                value, surrogate, leaves, numbers, widening, tightenings=longer, hides_solvers=hidden
            )
            by_constants = error_of_constants(epsilon, calls_of_stated_rules(here))
        else:
            of_leaves = LossOfLeaves(
                value, surrogate, leaves, numbers, epsilon=epsilon, tightenings=longer, hides_solvers=hidden
            )
            by_constants = 0.0
        allowed_error, excused = max(tolerance, by_constants), made_through if excusing else {}
        outcomes = [*leaf_outcomes(of_leaves, options.seed, tolerance=allowed_error, excused=excused)]
        if narrow is not None and not Widening().counts_for(of_leaves.epsilon):
            notes, narrow = (_narrow_note(narrow),), None
        sources = _sources(trace)
        kept = leaves_kept(here, calls)
        gradients = tuple(
            leaf_row(
                [trace.arguments[each] for each in group],
                outcome,
                sources,
                narrow,
                excused=made_through.get(group[0]),
                kept_by=kept.get(group[0]),
            )
            for group, outcome in outcomes
        )
        kinks = any(row.status == "not smooth here" for row in gradients)
        checked = rule_outcomes(here, calls, leaves, options.seed, widening=widening, tolerance=tolerance, kinks=kinks)
        rules, other_values = list[ProofRow](), dict[str, None]()
        made, jumping = dict[str, Collection[int]](), dict[str, Collection[int]]()
        for each in checked:
            inside = narrow and narrowest_type(each.rule.call.frames_inside(), here.liveness)
            row = rule_row(each, options.allowed, inside)
            # The first wrong row is the one that the verdict names: what is inside may make the rest wrong.
            rules += [*(nested_rows(each) if row.status == "wrong" else ()), row]
            function = each.rule.call.rule.function
            if each.outcome.solved == "jumps":
                jumping[function] = gradients_made_through(here, [function])
            if row.status == "wrong":
                made[function] = gradients_made_through(here, [function])
                other_values |= {} if each.value is None else {function: None}
        gradients = tuple(
            with_wrong_rules(row, _of_some(made, group), [*other_values], _of_some(jumping, group))
            for row, (group, _) in zip(gradients, outcomes, strict=True)
        )
    return _Rows(tuple(rules), gradients, notes)


def _of_some(functions: Mapping[str, Collection[int]], group: Collection[int]) -> list[str]:
    """Returns the functions that some gradients of a group are made through."""
    return [name for name, numbers in functions.items() if not set(group).isdisjoint(numbers)]


def _narrow_note(narrow: NarrowType) -> str:
    return _NARROW.format(narrow.name, "" if narrow.source is None else f", as {narrow.source},")


def _own_rounding(trace: Trace) -> float:
    """Returns the relative error that counts for nothing: the rounding of float32, unless the loss is in float64.

    A model may state the constants of its rules with as many digits as its type has.
    """
    own = np.finfo(np.float64 if trace.jaxpr.outvars[0].aval.dtype == np.float64 else np.float32)
    return float(own.eps)


def _as_prepared(trace: Trace, prepared: Trace) -> Trace:
    """Returns a trace in which inputs are constants before derivative rules as in the one that was prepared."""
    leaves = zip(trace.arguments, prepared.arguments, strict=True)
    refused = any(leaf.differentiated and not other.differentiated for leaf, other in leaves)
    return (with_constant_inputs(trace) if refused else None) or trace


def _require_known(trace: Trace, allowed: Sequence[str]) -> None:
    # A linear solve's rule is never meant to be no derivative.
    rules = (custom_rule(call.equation) for call in custom_rule_calls(trace))
    known = dict.fromkeys(rule.function for rule in rules if rule is not None)
    for name in allowed:
        if name not in known:
            raise UsageError(f"the model calls no function {name} with a custom rule", hint=nearest_hint(name, known))


def _sources(trace: Trace) -> dict[str, str]:
    """Returns the source of the innermost layer that uses each parameter, by the parameter's name."""
    users = sorted(trace.layers, key=lambda layer: layer.depth, reverse=True)
    found: dict[str, str] = {}
    for layer in users:
        for name in layer.params:
            if layer.source is not None:
                found.setdefault(name, layer.source)
    return found
