"""Growth: error made in a layer against error inherited by it.

Forward, a value is made by a layer from that layer's inputs. Backward, the gradient with respect to a value is made by
the layers that read the value, from the gradients with respect to their outputs, and from what they read. In both
directions `growth` is the value's `rel_l2` over the largest one it could inherit, or over a floor where that is less:
ratios of rounding errors say nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.dump.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, INPUT, INPUT_GRAD, key_of

#: Growth above which a layer is said to have made the error itself.
FLAGGED: Final = 10.0

#: The floor below which an inherited error is taken for rounding, as a share of the value's default tolerance.
_FLOOR: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """The error of one value: its `rel_l2`, and the tolerance that its dtype and family have by default."""

    rel_l2: float
    tolerance: float


def growths(layers: Sequence[Layer], errors: Mapping[str, Error]) -> dict[str, float]:
    """The growth of every activation and activation gradient that could inherit an error.

    Args:
        layers: The layers in execution order, composites before their parts.
        errors: Errors by key, as far as they are known; keys of owners, as layers name their values.

    Returns:
        Growth by key.
    """
    sources = _sources(layers)
    found: dict[str, float] = {}
    for key, error in errors.items():
        inherited = [errors[source].rel_l2 for source in sources.get(key, ()) if source in errors]
        floor = error.tolerance * _FLOOR
        if inherited and floor > 0:
            found[key] = _quotient(error.rel_l2, max(floor, *inherited))
    return found


def _quotient(own: float, inherited: float) -> float:
    # Infinity over infinity is an error that was handed on as it came.
    return 1.0 if own == inherited else own / inherited


def _sources(layers: Sequence[Layer]) -> dict[str, list[str]]:
    """For each key of a value or gradient the keys that it is computed from."""
    sources: dict[str, list[str]] = {}
    for layer in layers:
        # A part comes after the composite around it, and is nearer to what its output is made of.
        sources |= {key_of(ACTIVATION, name): _value_keys(layer.inputs) for name in layer.outputs}
    backward: defaultdict[str, list[str]] = defaultdict(list)
    for layer in layers:
        cotangents = [key_of(ACTIVATION_GRAD, name) for name in layer.outputs]
        for key in _gradient_keys(layer.inputs):
            backward[key] += [source for source in cotangents + _value_keys(layer.inputs) if source != key]
    return sources | backward


def _value_keys(names: Sequence[str]) -> list[str]:
    return [key_of(family, name) for name in names for family in (ACTIVATION, INPUT)]


def _gradient_keys(names: Sequence[str]) -> list[str]:
    return [key_of(family, name) for name in names for family in (ACTIVATION_GRAD, INPUT_GRAD)]
