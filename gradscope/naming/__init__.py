"""Names identify tensors by family and layer path; this package parses, selects and prints names, and prints numbers.

A tensor in a dump has a *key*, `<family>/<name>`. The family states what the tensor is (an activation, a gradient, a
parameter, ...); the name is a layer path or a parameter path. Names come from users' models and from untrusted files:
`printable` makes them safe to print on a terminal. `selecting` finds those that a user means.
"""

from gradscope.naming.families import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    AVERAGE,
    CLIPPED_GRAD,
    EXAMPLE_GRAD,
    FAMILIES,
    INPUT,
    INPUT_GRAD,
    OUTSIDE,
    PARAM,
    PARAM_GRAD,
    SLOT_PREFIX,
    STATE,
    TENSOR,
    TERM,
    UPDATE,
    example_axes,
    family_set,
    gradient_family,
    gradient_key,
    is_gradient,
    key_of,
    split_key,
    subject_family,
    value_family,
)
from gradscope.naming.one_or_many import as_tuple
from gradscope.naming.paths import IterationIndex, LayerPath
from gradscope.naming.printable import printable, spreadsheet_text
from gradscope.naming.selecting.patterns import Selection

__all__ = [
    "ACTIVATION",
    "ACTIVATION_GRAD",
    "AUX",
    "AVERAGE",
    "CLIPPED_GRAD",
    "EXAMPLE_GRAD",
    "FAMILIES",
    "INPUT",
    "INPUT_GRAD",
    "OUTSIDE",
    "PARAM",
    "PARAM_GRAD",
    "SLOT_PREFIX",
    "STATE",
    "TENSOR",
    "TERM",
    "UPDATE",
    "IterationIndex",
    "LayerPath",
    "Selection",
    "as_tuple",
    "example_axes",
    "family_set",
    "gradient_family",
    "gradient_key",
    "is_gradient",
    "key_of",
    "printable",
    "split_key",
    "spreadsheet_text",
    "subject_family",
    "value_family",
]
