"""Families: which of a site's tensors a member is, and the key `<family>/<name>` that names it in a dump.

A *term* is the part of a value's gradient that comes back from one use of it. It is named after the operation that uses
the value, and the number of the operand there: `block/add.0`.

The gradient with respect to a parameter is one of a whole batch. `example_grad` holds that of each example *alone*, a
batch of that one example, under the parameter's name: its leading axis is the example, the others are the parameter's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gradscope.errors import UsageError
from gradscope.naming.patterns import nearest_hint
from gradscope.naming.several import several

ACTIVATION: Final = "activation"
ACTIVATION_GRAD: Final = "activation_grad"
PARAM: Final = "param"
PARAM_GRAD: Final = "param_grad"
STATE: Final = "state"
INPUT: Final = "input"
INPUT_GRAD: Final = "input_grad"
TERM: Final = "term"
EXAMPLE_GRAD: Final = "example_grad"
AUX: Final = "aux"
UPDATE: Final = "update"
TENSOR: Final = "tensor"
SLOT_PREFIX: Final = "slot"

#: Every family of fixed name, in the order in which tables show them. `slot/<name>` is the one open family.
FAMILIES: Final = (
    INPUT,
    ACTIVATION,
    ACTIVATION_GRAD,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    EXAMPLE_GRAD,
    TERM,
    STATE,
    AUX,
    UPDATE,
    TENSOR,
)

_GRADIENTS: Final = {ACTIVATION: ACTIVATION_GRAD, PARAM: PARAM_GRAD, INPUT: INPUT_GRAD}
_VALUES: Final = {gradient: value for value, gradient in _GRADIENTS.items()}
#: The same, and of gradients that are not those of the loss of the whole batch.
_SUBJECTS: Final = {**_VALUES, EXAMPLE_GRAD: PARAM}


def key_of(family: str, name: str) -> str:
    """The key of one tensor: `activation` and `stage1/conv1` give `activation/stage1/conv1`."""
    return f"{family}/{name}"


def split_key(key: str) -> tuple[str, str]:
    """The family and name of a key; a key that starts with no known family is a foreign tensor's name."""
    head, _, rest = key.partition("/")
    if head == SLOT_PREFIX and "/" in rest:
        slot, _, name = rest.partition("/")
        return f"{SLOT_PREFIX}/{slot}", name
    if head in FAMILIES and rest:
        return head, rest
    return TENSOR, key


def family_set(names: str | Iterable[str]) -> frozenset[str]:
    """The families of some names; of a string the family of that one name.

    Raises:
        UsageError: There is no family of one of the names; the hint names the nearest.
    """
    families = several(names)
    for family in families:
        if family not in FAMILIES and not family.startswith(f"{SLOT_PREFIX}/"):
            raise UsageError(f"there is no family {family!r}", hint=nearest_hint(family, FAMILIES))
    return frozenset(families)


def gradient_family(family: str) -> str | None:
    """The family that holds the gradients of the loss with respect to `family`; None where there is none."""
    return _GRADIENTS.get(family)


def value_family(family: str) -> str | None:
    """The family whose gradients `family` holds; None where it does not hold the gradients of one family."""
    return _VALUES.get(family)


def subject_family(family: str) -> str | None:
    """The family with respect to which `family` holds gradients, of the batch or of each example; None for no such."""
    return _SUBJECTS.get(family)


def example_axes(family: str) -> int:
    """How many leading axes of a tensor of `family` are examples, and none of what it is a gradient with respect to."""
    return int(family == EXAMPLE_GRAD)


def is_gradient(family: str) -> bool:
    """Whether `family` holds gradients of the loss, those of each example, or terms of such."""
    return family in _SUBJECTS or family == TERM
