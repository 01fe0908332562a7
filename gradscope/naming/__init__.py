"""Names: families, layer paths, patterns over them, and how a name is shown.

A tensor in a dump has a *key*, `<family>/<name>`: the family says which tensor of a site it is (its activation, its
gradient, a parameter, ...), the name is a layer path or a parameter path. Names come from users' models and from
strangers' files; `printable` is what stands between them and a terminal.
"""

from gradscope.naming.families import (
    ACTIVATION,
    ACTIVATION_GRAD,
    AUX,
    EXAMPLE_GRAD,
    FAMILIES,
    INPUT,
    INPUT_GRAD,
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
    is_gradient,
    key_of,
    split_key,
    subject_family,
    value_family,
)
from gradscope.naming.paths import LayerPath
from gradscope.naming.patterns import Selection
from gradscope.naming.printable import printable
from gradscope.naming.several import several

__all__ = [
    "ACTIVATION",
    "ACTIVATION_GRAD",
    "AUX",
    "EXAMPLE_GRAD",
    "FAMILIES",
    "INPUT",
    "INPUT_GRAD",
    "PARAM",
    "PARAM_GRAD",
    "SLOT_PREFIX",
    "STATE",
    "TENSOR",
    "TERM",
    "UPDATE",
    "LayerPath",
    "Selection",
    "example_axes",
    "family_set",
    "gradient_family",
    "is_gradient",
    "key_of",
    "printable",
    "several",
    "split_key",
    "subject_family",
    "value_family",
]
