"""Growth: error made in a layer against error inherited by it.

What a value or gradient could inherit an error from, the graph of layers says. `growth` is its `rel_l2` over the
largest one among those, or over a floor where that is less: ratios of rounding errors say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.diagnosis.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Layer

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
    """The growth of every value and gradient that could inherit an error.

    Args:
        layers: The layers in execution order, composites before their parts.
        errors: Errors by key, as far as they are known; keys of owners, as layers name their values.

    Returns:
        Growth by key.
    """
    sources = sources_of(layers)
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
