"""`REASONS` has the reasons why a tensor is not in a dump, for the ledger, the reference page and `explain`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gradscope.dump.record import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonSpec:
    """A `ReasonSpec` describes one reason.

    Attributes:
        name: Its name in the ledger.
        phrase: What such tensors are, in a few words.
        sentence: Why the tensor is not in the dump.
        remedy: What to do where the tensor is wanted.
    """

    name: Reason
    phrase: str
    sentence: str
    remedy: str


#: Every reason.
REASONS: Final[tuple[ReasonSpec, ...]] = (
    ReasonSpec(
        name="filtered",
        phrase="left out by the options",
        sentence="The options exclude it.",
        remedy="Dump again with a wider --select, --exclude, --families or --depth.",
    ),
    ReasonSpec(
        name="frozen",
        phrase="not differentiated by the model itself",
        sentence="A capture of PyTorch does not differentiate the parameter, as `requires_grad` is False, nor an input "
        "that is no tensor, nor what is computed from such values alone. A dump of a JAX model differentiates all that "
        "the loss takes as parameters.",
        remedy="Set requires_grad, or give the input as a tensor, where its gradient is wanted.",
    ),
    ReasonSpec(
        name="non-differentiable",
        phrase="of a dtype without gradients",
        sentence="Its dtype has no gradient: integers, booleans, keys.",
        remedy="Nothing is wrong: there is no gradient to see.",
    ),
    ReasonSpec(
        name="disconnected",
        phrase="the loss does not depend on them",
        sentence="The loss does not depend on the value, or gradients go around it: inside a linear solver, or as its "
        "initial guess; or it is a constant before a derivative rule that may notice.",
        remedy="If it should reach the loss, look for a stop_gradient, an integer, or a value that is computed and not "
        "used.",
    ),
    ReasonSpec(
        name="opaque",
        phrase="inside functions with derivative rules of their own",
        sentence="It is a gradient inside a function with a derivative rule of its own, which makes the gradients of "
        "what goes in alone; or a value in a function that is not looked into: a kernel, or one with such a rule that "
        "has side effects or calls no layers.",
        remedy="Check the rule with 'gradscope check', or dump without the rule to see inside: diffrax with "
        "adjoint=diffrax.DirectAdjoint().",
    ),
    ReasonSpec(
        name="forward-only",
        phrase="before or in a while loop, or another operation that reverse mode cannot pass",
        sentence="Reverse mode cannot pass: it is in a `while` loop, or before one, or before an operation that JAX "
        "cannot differentiate, as a callback or `pmax`.",
        remedy="Use lax.scan, or fori_loop with a fixed number of iterations, where its gradient is needed.",
    ),
    ReasonSpec(
        name="not-executed",
        phrase="in branches or iterations that did not run",
        sentence="It is in a branch of a `cond`, or an iteration, that did not run, as in a loop of no iterations.",
        remedy="Dump with a batch that takes the other branch, or goes through the loop.",
    ),
    ReasonSpec(
        name="eliminated",
        phrase="not needed",
        sentence="Nothing that the loss returns depends on it, so it was not computed.",
        remedy="Return it as an auxiliary output, or ask for it with --fetch.",
    ),
)

#: The phrase of each reason, by name.
PHRASES: Final[Mapping[str, str]] = MappingProxyType({reason.name: reason.phrase for reason in REASONS})
