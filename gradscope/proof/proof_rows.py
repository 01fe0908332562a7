"""A `ProofRow` stores the outcome of one claim, and `rule_row`, `plain_row` and `leaf_row` make it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gradscope import naming
from gradscope.capturing.explain.self_check import rounding
from gradscope.dump.record import Json
from gradscope.naming.wording import counted, some_of
from gradscope.proof.claims import Outcome, Status
from gradscope.proof.float64 import NarrowType
from gradscope.proof.rules.distinct_rules import DistinctRule
from gradscope.proof.rules.faults.wrong_factors import rounded_factor
from gradscope.proof.rules.rule_claims import RuleOutcome
from gradscope.tracing.leaves import Leaf

#: Why a rule is not checked by itself, though the gradients that are made by it are.
_NEEDS_MESH: Final = "it runs inside its shard_map alone"

#: What a correct row leaves open.
_AT_ZERO: Final = "{} is zero at all its calls: what the rule does with other values is not checked"

#: What a correct row takes as right.
_KEPT: Final = "it returns no gradient for {}, which is data"
_KEPT_BY: Final = "constant in {}, whose rule returns no gradient for data"

#: Why finite differences show nothing of a rule, and of a gradient.
_JUMPS: Final = "what its solver returns jumps, as where it halves an interval: finite differences do not show it"
_JUMPING: Final = "made through the rule of {}, whose results jump: finite differences do not show it"

#: Why a wrong rule may be right by itself, and where such a one is.
_CALLS_WRONG: Final = "its function calls {}, whose rule is wrong"
_INSIDE: Final = "inside {}"

#: A relative error that is allowed from which on a row says why it is, and how it does.
_UNUSUAL: Final = 1e-3
_SENSITIVE: Final = "rounding counts for much here: the last bit of every argument changes this gradient by {:.2g}"
#: What is wrong with a loss that computes something else for the plain program than for the observed one.
_CHANGES: Final = (
    "the loss is another program each time it is traced, as one that reads numpy.random, the time or a counter; take "
    "random numbers from the batch, or from a key of jax.random"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRow:
    """ProofRow stores the outcome of one claim.

    Attributes:
        what: The subject: the key of a gradient, or a function with a custom rule.
        error: The relative error; None where it is unknown.
        expected: The largest error that the method explains; None where it is unknown.
        status: The outcome.
        source: `file:line` of the subject; None where there is none.
        arguments: The arguments for which a rule is wrong.
        factor: What a wrong claim is as a multiple of the derivative; None where it is no multiple.
        why: What is known about the error, or why it is excused.
        allow: The name that excuses a wrong rule, where it may be meant to be no derivative: its function returns an
            argument as it is, or has a derivative of zero.
    """

    what: str
    error: float | None
    expected: float | None
    status: Status
    source: str | None = None
    arguments: tuple[str, ...] = ()
    factor: float | None = None
    why: str | None = None
    allow: str | None = None

    def to_json(self) -> dict[str, Json]:
        """Returns the columns of the row, without those that do not apply."""
        facts: dict[str, Json] = {
            "what": self.what,
            "error": self.error,
            "expected": self.expected,
            "status": self.status,
            "source": self.source,
            "arguments": list(self.arguments) or None,
            "factor": self.factor,
            "why": self.why,
            "allow": self.allow,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


def rule_row(found: RuleOutcome, allowed: Sequence[str], narrow: NarrowType | None) -> ProofRow:
    """Returns the row of a custom rule.

    Args:
        found: How the rule compares with its function.
        allowed: The names of functions whose rule is meant to be no derivative.
        narrow: The narrow type that its function computes in; None where there is none.
    """
    rule, outcome, wrong, function = found.rule, found.outcome, found.arguments, found.rule.call.rule
    # Of what JAX defines, such as `custom_root`, the program states the rule where it calls the function.
    source = rule.call.source if function.of_jax else function.source
    row = _row(f"custom rule of {function.function}{_uses(rule)}", outcome, source)
    factors = {each.factor for each in wrong}
    chosen = f"where {rule.chosen}" if rule.chosen else None
    row = replace(
        row,
        arguments=tuple(each.name for each in wrong),
        factor=factors.pop() if len(factors) == 1 else None,
        why="; ".join(map(str, filter(None, [chosen, found.value, *wrong]))) or None,
    )
    if rule.needs_mesh:
        return replace(row, why=_NEEDS_MESH)
    if row.status == "not checked" and row.why is None and not math.isnan(outcome.expected):
        return replace(row, why=_unclear(outcome, narrow, "the function"))
    if row.status == "correct" and found.zero:
        return replace(row, why=_AT_ZERO.format(" and ".join(found.zero)))
    if row.status == "correct" and found.kept:
        return replace(row, why=_KEPT.format(" and ".join(found.kept)))
    if row.status == "wrong" and found.inside:
        names = some_of([each.rule.call.rule.function for each in found.inside])
        row = replace(row, why="; ".join(filter(None, [row.why, _CALLS_WRONG.format(names)])))
    if row.status == "wrong" and function.function in allowed:
        return replace(row, status="excused", why=f"allowed; {row.why}" if row.why else "allowed")
    meant = any(each.may_be_meant for each in wrong)
    return replace(row, allow=function.function) if meant else row


def nested_rows(found: RuleOutcome) -> Iterator[ProofRow]:
    """Yields the rows of the wrong rules of functions that the function of a wrong rule calls, the innermost first.

    Args:
        found: How the outer rule compares with its function.
    """
    outer = found.rule.call.rule.function
    for each in found.inside:
        row = rule_row(each, (), None)
        yield from nested_rows(each)
        yield replace(row, why="; ".join(filter(None, [_INSIDE.format(outer), row.why])), allow=None)


def _uses(rule: DistinctRule) -> str:
    """Returns where a rule is used first, and how often besides."""
    source = rule.call.source
    line = "" if source is None or source == rule.call.rule.source else f" at {source}"
    turn = "" if rule.turn is None else f" (call {rule.turn}{' there' if line else ''})"
    more = "" if rule.uses == 1 else f" and in {rule.uses - 1:,} more call{'s' if rule.uses > 2 else ''}"
    return f", used{line}{turn}{more}" if line or turn else ""


def plain_row(arguments: Sequence[Leaf], checked: Mapping[str, Any], *, changes: bool) -> ProofRow:
    """Returns the row of the observed gradients against `jax.grad`, with the numbers of the worst parameter.

    The relative error of a gradient that is zero but for rounding means nothing.

    Args:
        arguments: The arguments of the loss.
        checked: What the self-check has measured.
        changes: Whether the loss is another program each time that it is traced.
    """
    zero: Sequence[str] = checked["zero_but_rounding"]
    errors = {name: error for name, error in checked["rel_l2"].items() if name not in zero}
    leaves = {leaf.name: leaf for leaf in arguments if leaf.family == naming.PARAM}
    allowed = {name: rounding(np.dtype(leaves[name].dtype), checked["noise"][name]) for name in errors}
    worst = max(errors, key=lambda name: errors[name] / allowed[name], default=None)
    sensitive = () if worst is None or allowed[worst] < _UNUSUAL else (_SENSITIVE.format(checked["noise"][worst]),)
    # Zero but for rounding, or of a chaotic function, which the last bit of an argument changes altogether.
    without = f"without {counted(len(zero), 'gradient')} that rounding alone decides"
    return ProofRow(
        what="observed gradients against jax.grad",
        error=0.0 if worst is None else errors[worst],
        expected=0.0 if worst is None else allowed[worst],
        status="wrong" if checked["beyond_rounding"] else "correct",
        why="; ".join([*([_CHANGES] if changes else []), *sensitive, *([without] if zero else [])]) or None,
    )


def leaf_row(
    leaves: list[Leaf],
    outcome: Outcome,
    sources: Mapping[str, str],
    narrow: NarrowType | None,
    *,
    excused: str | None,
    kept_by: str | None,
) -> ProofRow:
    """Returns the row of the gradients with respect to some leaves.

    Args:
        leaves: The leaves.
        outcome: The outcome of the claim.
        sources: `file:line` of parameters by name.
        narrow: The narrow type that the loss computes in; None where there is none.
        excused: The function through whose allowed rule the gradients are made; None where there is none.
        kept_by: The function whose rule keeps the leaves constant, as they are data; None where there is none.
    """
    if len(leaves) > 1:
        row = _row(f"{len(leaves)} gradients together, {_key(leaves[0])} to {_key(leaves[-1])}", outcome, None)
    else:
        source = sources.get(leaves[0].name) if leaves[0].family == naming.PARAM else None
        row = _row(_key(leaves[0]), outcome, source)
    if taken := _taken_as_right(row.status, excused, kept_by if len(leaves) == 1 else None):
        return replace(row, why=taken)
    if row.status == "not checked":
        return replace(row, why=_unclear(outcome, narrow, "the loss"))
    if outcome.zero:
        return replace(row, why="zero but for rounding; the error is relative to the loss")
    if outcome.not_finite:
        return replace(row, why=f"the gradient is {outcome.not_finite}")
    if row.status != "wrong" or math.isnan(outcome.factor):
        return row
    factor = rounded_factor(outcome.factor)
    return replace(row, factor=factor, why=f"{factor:.12g} times the derivative")


def _taken_as_right(status: Status, excused: str | None, kept_by: str | None) -> str:
    """Returns what a gradient that is not wrong takes as right; "" for nothing."""
    if excused is not None and status in ("correct", "excused"):
        taken = "is no derivative" if status == "excused" else "counts as right"
        return f"made through the rule of {excused}, which {taken}"
    return _KEPT_BY.format(kept_by) if kept_by is not None and status == "correct" else ""


def with_wrong_rules(
    row: ProofRow, functions: Sequence[str], of_value: Sequence[str], jumping: Sequence[str]
) -> ProofRow:
    """Returns the row of a wrong gradient with the functions of wrong rules that it is made through.

    Args:
        row: The row of a gradient.
        functions: The functions.
        of_value: The functions whose rules return another value, from which the loss is computed, whatever its
            gradients are made through.
        jumping: The functions that it is made through whose results jump: finite differences of the loss have none of
            their derivatives, so that they prove nothing wrong where no rule is.
    """
    if row.status != "wrong" or not (functions or of_value or jumping):
        return row
    if functions:
        through = f"made through the wrong rule{'s' * (len(functions) > 1)} of {some_of(functions)}"
    elif of_value:
        through = f"made with the wrong value that the rule of {some_of(of_value)} returns"
    else:
        return replace(row, status="not checked", factor=None, why=_JUMPING.format(some_of(jumping)))
    return replace(row, why=f"{row.why}; {through}" if row.why else through)


def _unclear(outcome: Outcome, narrow: NarrowType | None, what: str) -> str:
    """Returns why finite differences do not say whether a derivative is right, and what may."""
    if not math.isfinite(outcome.expected):
        return f"{what} is not finite near these values"
    if outcome.solved == "jumps":
        return _JUMPS
    if outcome.solved:
        return "the error may be an iterative solver's: a smaller tolerance or step of it tells; --tol allows for it"
    if narrow is None:
        part = f"{outcome.expected:.0%}" if outcome.expected >= 0.01 else f"{outcome.expected:.1%}"
        return f"finite differences may err by {part} of it here; another --seed or --batch-size may tell"
    where = "" if narrow.source is None else f" at {narrow.source}"
    return (
        f"{what} is computed in {narrow.name}{where}, whose rounding makes finite differences err by up to "
        f"{outcome.expected:.0%}; check it with float32 there"
    )


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
