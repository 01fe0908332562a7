"""`ZERO_REASONS` has the reasons why a gradient is zero or cut off, by the words with which they begin or end.

The reasons themselves are sentences with numbers and places; `Cause` and the ledger have them.
`factor_in` and `places_in` read the names in them, each in time linear in its length: a file may have any reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gradscope import naming

#: What precedes a parameter of zeros in a reason, where it is not itself the factor, but a product of it with a matrix.
PRODUCT_OF: Final = "the product of "
#: How the reason of dead units ends where what comes to the rectifier is zero already, as behind a dead layer.
RECEIVES_ZEROS: Final = ", and what it receives is 0 in every element"
#: What follows a factor that is named, at the end of a reason.
_IS_ZERO: Final = " is 0"
_FACTOR: Final = re.compile(rf": ((?:{PRODUCT_OF})?(?:{naming.PARAM}|{naming.INPUT})/)")
#: What precedes a place, and the place, a file and a line.
_AT: Final = " at "
_PLACE: Final = re.compile(r".*?:\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroReason:
    """A `ZeroReason` is one kind of reason.

    Attributes:
        name: The words that every reason of this kind has, and no other.
        sentence: What it says of the gradient.
        remedy: What to do where the gradient is wanted.
    """

    name: str
    sentence: str
    remedy: str


#: Every kind of reason. Of two that fit, the first is the kind.
ZERO_REASONS: Final = (
    ZeroReason(
        name="zero but for rounding",
        sentence="The loss does not change with the value, whatever the gradient's small numbers say: an operation "
        "behind it takes out what it adds. It is no finding where other parameters learn.",
        remedy="Remove the parameter, or leave it: nothing is wrong, and nothing is learned.",
    ),
    ZeroReason(
        name="zero by construction",
        sentence="The gradient is exactly zero whatever the parameters are: the loss does not change with the value.",
        remedy="Remove the parameter, or use the value where it counts.",
    ),
    ZeroReason(
        name="dead units",
        sentence="The output of a rectifier is constant wherever the loss depends on it, so that it passes no "
        "gradient.",
        remedy="Look at the biases before the rectifier and at the learning rate, or use one that passes a gradient "
        "below zero.",
    ),
    ZeroReason(
        name="satisfied",
        sentence="The loss, or a term of it, is max(c, .), with a constant c such as 0, and exactly c for this batch: "
        "every margin is kept.",
        remedy="Nothing is wrong: there is nothing to learn from this batch. Choose harder examples, or a larger "
        "margin.",
    ),
    ZeroReason(
        name="masked",
        sentence="What comes back is multiplied by exact zeros, or the value is never the one that is taken: by a "
        "mask, a `where`, a slice, a maximum, a softmax with one entry left.",
        remedy="Look at the mask at the line that is named; a parameter that starts at zero goes away with the next "
        "step.",
    ),
    ZeroReason(
        name="underflow",
        sentence="The gradient, or the derivative that it is multiplied by, is so small that it rounds to zero.",
        remedy="Scale the loss up, use a wider dtype, or scale what goes into the function that saturates.",
    ),
    ZeroReason(
        name="cancellation",
        sentence="The terms that come back from several uses, or in one sum, add up to exactly zero.",
        remedy="See the terms with --terms; a sum with its own negative has no gradient.",
    ),
    ZeroReason(
        name="outside the clip range",
        sentence="The value is beyond the limits of a clip, whose output is constant there.",
        remedy="Widen the limits, or scale the value.",
    ),
    ZeroReason(
        name="branch not taken",
        sentence="Only a branch of a `cond` that did not run uses the value.",
        remedy="Dump with a batch that takes the other branch.",
    ),
    ZeroReason(
        name="disconnected",
        sentence="Nothing that the loss depends on is made from the value, or only auxiliary outputs are.",
        remedy="Use the value in the loss, or remove it.",
    ),
    ZeroReason(
        name="stop_gradient",
        sentence="Every path to the loss passes a `stop_gradient`; applied to the argument itself, or to what counts "
        "as data behind it, it is a choice, and no finding.",
        remedy="Remove it where the parameter is to be trained.",
    ),
    ZeroReason(
        name="integer path",
        sentence="The value reaches the loss only as integers or booleans: a conversion, an index, a comparison.",
        remedy="Use a differentiable relaxation, or a straight-through gradient.",
    ),
    ZeroReason(
        name="constant wherever it has a derivative",
        sentence="A step function such as `floor` or `sign` is on the path, whose derivative is zero.",
        remedy="Use a straight-through gradient: x + stop_gradient(round(x) - x).",
    ),
    ZeroReason(
        name="own rule may pass no gradient on",
        sentence="A function with a custom differentiation rule is on the path, which returns no gradient.",
        remedy="Check the rule with 'gradscope check'.",
    ),
    ZeroReason(
        name="takes no gradient of its initial guess",
        sentence="A solver that is differentiated implicitly starts at the value, or is steered by it.",
        remedy="Nothing is wrong: the solution does not depend on the value.",
    ),
    ZeroReason(
        name="derivative is another solve",
        sentence="The value is inside a solver that is differentiated implicitly, by a solve of its own.",
        remedy="Nothing is wrong: the gradient goes around the solver.",
    ),
    ZeroReason(
        name="a loop that reverse mode cannot run backwards",
        sentence="A `while` loop is on the path to the loss.",
        remedy="Use lax.scan, or fori_loop with a fixed number of iterations.",
    ),
    ZeroReason(
        name="is exactly zero for every element",
        sentence="The derivative of the function that is named is zero for every element, for no reason known.",
        remedy="Check its rule with 'gradscope check'.",
    ),
    ZeroReason(
        name="not followed",
        sentence="The search for the reason ended at an operation whose operands were not observed.",
        remedy="Dump with --ops to see the values around it.",
    ),
    ZeroReason(
        name="not looked into",
        sentence="The path to the loss does not fit into the memory of the search.",
        remedy="Dump a smaller batch, or allow more with --max-memory.",
    ),
)


def kind_of(reason: str) -> ZeroReason | None:
    """Returns the kind of a reason; None for words that no gradient's reason has."""
    starting = (kind for kind in ZERO_REASONS if reason.removeprefix("is ").startswith(kind.name))
    return next(starting, next((kind for kind in ZERO_REASONS if kind.name in reason), None))


def factor_in(reason: str) -> str:
    """Returns what a reason says is zero throughout: `param/b`, or `the product of param/b`; "" where it names none."""
    named = reason.removesuffix(_IS_ZERO)
    start = max((found.start(1) for found in _FACTOR.finditer(named)), default=len(named))
    return named[start:] if named != reason else ""


def places_in(reason: str) -> tuple[str, ...]:
    """Returns the lines that a reason names, as `model.py:3`, in its order."""
    found = (_PLACE.match(rest) for rest in reason.split(_AT)[1:])
    return tuple(dict.fromkeys(each[0] for each in found if each is not None))
