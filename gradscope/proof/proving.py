"""`prove` checks a model's gradients and returns a `Proof`: one row per claim, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from gradscope import naming
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.execution.preparation import Prepared, prepare
from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.self_check import rounding, self_check
from gradscope.capturing.timings import Timings
from gradscope.dump.record import Json
from gradscope.errors import ModelError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.proof.claims import Outcome, Status
from gradscope.proof.float64 import coarsest_epsilon, wide_types, widened
from gradscope.proof.leaf_claims import LossOfLeaves, leaf_outcomes
from gradscope.proof.rule_claims import CustomRuleCall, rule_outcomes
from gradscope.proof.stopped_gradients import stopped_loss
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import Leaf, Trace, trace_loss
from gradscope.tracing.user_frames import user_code

#: The rows about custom rules, and those about gradients.
_Rows: TypeAlias = "tuple[tuple[ProofRow, ...], tuple[ProofRow, ...]]"

#: The verdict of a proof.
Verdict: TypeAlias = Literal["correct", "wrong", "nothing checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRow:
    """ProofRow stores the outcome of one claim.

    Attributes:
        what: The subject: the key of a gradient, or a function with a custom rule.
        error: The relative error; None where it is unknown.
        expected: The largest error that the method explains; None where it is unknown.
        status: The outcome.
        source: `file:line` of the subject; None where there is none.
    """

    what: str
    error: float | None
    expected: float | None
    status: Status
    source: str | None = None

    def to_json(self) -> dict[str, Json]:
        """Returns the columns of the row, without those that do not apply."""
        facts: dict[str, Json] = {
            "what": self.what,
            "error": self.error,
            "expected": self.expected,
            "status": self.status,
            "source": self.source,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Proof stores the outcomes of all claims.

    Attributes:
        rules: A row per custom rule, compared with finite differences of its function.
        gradients: A row per gradient, compared with finite differences of the loss.
        repetitions: A row per other way in which the gradients were computed again.
        notes: Sentences about how the claims were checked.
    """

    rules: tuple[ProofRow, ...]
    gradients: tuple[ProofRow, ...]
    repetitions: tuple[ProofRow, ...]
    notes: tuple[str, ...] = ()

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
        return "correct" if any(row.status != "not checked" for row in by_differences) else "nothing checked"


def prove(model: Model, arguments: Arguments, timings: Timings, *, seed: int = 0) -> Proof:
    """Checks a model's gradients against finite differences, `jax.grad` and a second run.

    Args:
        model: The model.
        arguments: Its arguments.
        timings: Receives the seconds of each phase.
        seed: Seed of the random directions.

    Raises:
        ModelError: The user's code failed.
        MachineError: Memory ran out.
    """
    prepared = prepare(model, arguments, CaptureSpec(), TraceQuery(), timings)
    run = prepared.start()
    repetitions = tuple(_repetitions(model, prepared, run, timings))
    notes = list(_on_loss(np.asarray(run.observed.loss)))
    with timings.phase("differences"), np.errstate(all="ignore"):  # non-finite differences are reported as not checked
        try:
            rules, gradients = _wide_rows(model, prepared, seed)
        except ModelError as failure:
            notes.append(f"the model does not run in float64 ({failure.message}): differences are in its own precision")
            rules, gradients = _difference_rows(model, prepared, seed)
    return Proof(rules=rules, gradients=gradients, repetitions=repetitions, notes=tuple(notes))


def _on_loss(loss: np.ndarray) -> Iterator[str]:
    if not np.isfinite(loss):
        yield f"the loss is {float(loss)}, so differences show nothing: gradscope dump finds where that began"


def _repetitions(model: Model, prepared: Prepared, run: Run, timings: Timings) -> Iterator[ProofRow]:
    with timings.phase("self-check"):
        yield _against_plain(prepared, self_check(model.loss, prepared, run))
    equal = _bits(run) == _bits(prepared.start())
    yield ProofRow(
        what="two runs, bit for bit", error=0.0 if equal else 1.0, expected=0.0, status="correct" if equal else "wrong"
    )


def _against_plain(prepared: Prepared, checked: Mapping[str, Any]) -> ProofRow:
    """Returns the row of the observed gradients against `jax.grad`, with the numbers of the worst parameter."""
    errors: Mapping[str, float] = checked["rel_l2"]
    leaves = {leaf.name: leaf for leaf in prepared.resolved.trace.arguments if leaf.family == naming.PARAM}
    allowed = {name: rounding(np.dtype(leaves[name].dtype), checked["noise"][name]) for name in errors}
    worst = max(errors, key=lambda name: errors[name] / allowed[name], default=None)
    return ProofRow(
        what="observed gradients against jax.grad",
        error=0.0 if worst is None else errors[worst],
        expected=0.0 if worst is None else allowed[worst],
        status="wrong" if checked["beyond_rounding"] else "correct",
    )


def _bits(run: Run) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in (run.observed.loss, *run.observed.gradients.values()))


def _wide_rows(model: Model, prepared: Prepared, seed: int) -> _Rows:
    with wide_types():
        leaves, tree = jax.tree_util.tree_flatten((prepared.variables, prepared.batch))
        variables, batch = jax.tree_util.tree_unflatten(tree, [widened(leaf) for leaf in leaves])
        return _rows_at(model, prepared.resolved.trace, variables, batch, seed)


def _difference_rows(model: Model, prepared: Prepared, seed: int) -> _Rows:
    return _rows_at(model, prepared.resolved.trace, prepared.variables, prepared.batch, seed)


def _rows_at(model: Model, trace: Trace, variables: Any, batch: Any, seed: int) -> _Rows:
    leaves, tree = jax.tree_util.tree_flatten((variables, batch))

    def value(arguments: Sequence[Any]) -> Any:
        out = model.loss(*jax.tree_util.tree_unflatten(tree, arguments))
        return out[0] if isinstance(out, tuple) else out

    with user_code(f"loss of {model.name}"):
        here = trace_loss(model.loss, variables, batch)
        rules = tuple(_rule_row(call, outcome) for call, outcome in rule_outcomes(here, leaves, seed))
        numbers = [number for number, leaf in enumerate(trace.arguments) if leaf.differentiated]
        epsilon = coarsest_epsilon(here.root.walk(), here.liveness)
        differentiated = LossOfLeaves(value, stopped_loss(here, leaves), leaves, numbers, epsilon)
        sources = _sources(trace)
        gradients = tuple(
            _leaf_row([trace.arguments[number] for number in group], outcome, sources)
            for group, outcome in leaf_outcomes(differentiated, seed)
        )
    return rules, gradients


def _rule_row(call: CustomRuleCall, outcome: Outcome) -> ProofRow:
    used = "" if call.source is None or call.source == call.rule.source else f", used at {call.source}"
    return _row(f"custom rule of {call.rule.function}{used}", outcome, call.rule.source)


def _leaf_row(leaves: list[Leaf], outcome: Outcome, sources: Mapping[str, str]) -> ProofRow:
    if len(leaves) > 1:
        return _row(f"{len(leaves)} gradients together, {_key(leaves[0])} to {_key(leaves[-1])}", outcome, None)
    source = sources.get(leaves[0].name) if leaves[0].family == naming.PARAM else None
    return _row(_key(leaves[0]), outcome, source)


def _row(what: str, outcome: Outcome, source: str | None) -> ProofRow:
    known = math.isfinite(outcome.expected)
    return ProofRow(
        what=what,
        error=None if math.isnan(outcome.error) and not known else outcome.error,
        expected=outcome.expected if known else None,
        status=outcome.status,
        source=source,
    )


def _key(leaf: Leaf) -> str:
    return naming.key_of(naming.gradient_family(leaf.family) or leaf.family, leaf.name)


def _sources(trace: Trace) -> dict[str, str]:
    """Returns the source of the innermost layer that uses each parameter, by the parameter's name."""
    users = sorted(trace.layers, key=lambda layer: len(layer.path.components), reverse=True)
    found: dict[str, str] = {}
    for layer in users:
        for name in layer.params:
            if layer.source is not None:
                found.setdefault(name, layer.source)
    return found
