"""Families group tensors, and keys `<family>/<name>` identify tensors in a dump.

A *term* is the part of a value's gradient that comes from one use of the value. Its name is that of the operation that
uses the value, and the number of the operand: `block/add.0`.

`param_grad` is the gradient over the full batch. `example_grad` stores the gradients of each example by itself, that
is, of a batch of this one example: its leading axis is the example, the other axes are the parameter's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from gradscope.errors import UsageError
from gradscope.naming.one_or_many import as_tuple
from gradscope.naming.selecting.nearest_names import nearest_hint

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
CLIPPED_GRAD: Final = "clipped_grad"
UPDATE: Final = "update"
AVERAGE: Final = "average"
TENSOR: Final = "tensor"
SLOT_PREFIX: Final = "slot"

#: The name of what an inspection counts outside of all layers.
OUTSIDE: Final = "(outside layers)"

#: What the tensors of each family of fixed name are, in the order in which tables show them. `slot/<name>` is the one
#: open family.
MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INPUT: "a leaf of the batch",
        ACTIVATION: "the output of a layer in the forward pass; with `--ops`, also of every operation",
        ACTIVATION_GRAD: "the gradient of the loss with respect to that output",
        INPUT_GRAD: "the gradient with respect to a leaf of the batch",
        PARAM: "a parameter",
        PARAM_GRAD: "the gradient with respect to a parameter",
        EXAMPLE_GRAD: "with `--per-example`, the gradient of each example alone; the leading axis is the example",
        TERM: "with `--terms` or `--ops inputs`, the part of a gradient that comes from one use of a value",
        STATE: "a collection of variables that is not differentiated, such as batch statistics",
        AUX: "an auxiliary output of the loss",
        CLIPPED_GRAD: "in a training step, the gradient as the optimizer gets it: multiplied and clipped",
        UPDATE: "in a training step, what is added to a parameter",
        AVERAGE: "in a training step, the moving average of a parameter",
        TENSOR: "a tensor of a file that gradscope did not write, under its own name",
    }
)
#: What the tensors of the families `slot/<name>` are.
SLOT_MEANING: Final = "in a training step, a variable that the optimizer keeps for a parameter: `slot/mu`"
FAMILIES: Final = tuple(MEANINGS)
_KNOWN: Final = frozenset(FAMILIES)  # in which a family is found in a fifth of the time

_GRADIENTS: Final = {ACTIVATION: ACTIVATION_GRAD, PARAM: PARAM_GRAD, INPUT: INPUT_GRAD}
_VALUES: Final = {gradient: value for value, gradient in _GRADIENTS.items()}
#: The value families of all gradients, including those that are not of the loss of the full batch.
_SUBJECTS: Final = {**_VALUES, EXAMPLE_GRAD: PARAM}


def key_of(family: str, name: str) -> str:
    """Returns the key of one tensor: `activation/stage1/conv1` for `activation` and `stage1/conv1`."""
    return f"{family}/{name}"


def split_key(key: str) -> tuple[str, str]:
    """Returns the family and name of a key; a key without a known family is the name of a foreign tensor."""
    head, _, rest = key.partition("/")
    if head == SLOT_PREFIX and "/" in rest:
        slot, _, name = rest.partition("/")
        return f"{SLOT_PREFIX}/{slot}", name
    if head in _KNOWN and rest:
        return head, rest
    return TENSOR, key


def family_set(names: str | Iterable[str]) -> frozenset[str]:
    """Returns names of families as a set, after a check that they exist; a string is a list of one name.

    Raises:
        UsageError: There is no family of one of the names; the hint has the nearest names.
    """
    families = as_tuple(names)
    for family in families:
        if family not in (*FAMILIES, SLOT_PREFIX) and not family.startswith(f"{SLOT_PREFIX}/"):
            raise UsageError(f"there is no family {family!r}", hint=nearest_hint(family, FAMILIES))
    return frozenset(families)


def gradient_family(family: str) -> str | None:
    """Returns the family of gradients of the loss with respect to `family`; None where there is none."""
    return _GRADIENTS.get(family)


def gradient_key(key: str) -> str:
    """Returns the key of the gradient with respect to a tensor; its own where there is none."""
    family, name = split_key(key)
    return key_of(gradient_family(family) or family, name)


def value_family(family: str) -> str | None:
    """Returns the family that `family` has the gradients of; None where it has no gradients of one family."""
    return _VALUES.get(family)


def subject_family(family: str) -> str | None:
    """Returns the family that `family` has gradients with respect to, of the batch or per example; None otherwise."""
    return _SUBJECTS.get(family)


def example_axes(family: str) -> int:
    """Returns the number of leading axes that are examples and not axes of the parameter: 1 for `example_grad`."""
    return int(family == EXAMPLE_GRAD)


def is_gradient(family: str) -> bool:
    """Returns whether `family` has gradients of the loss, per-example gradients, or terms of gradients."""
    return family in _SUBJECTS or family == TERM
