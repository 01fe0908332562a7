"""`mixed_dtype` tells whether a program is meant to compute in fewer digits than float32, by most of its kernels.

One layer of many that reads and returns float32, and rounds to bfloat16 inside, is rather a mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

from gradscope.comparison.judging.rounding.innermost_layers import layers_by_name
from gradscope.comparison.precision import coarser
from gradscope.dump.manifest.manifest import Layer


def mixed_dtype(layers: Sequence[Layer], kernels: Collection[str]) -> str | None:
    """Returns the dtype of the fewest digits in which layers compute that use most kernels; None where float32 is that.

    Args:
        layers: The layers of a program.
        kernels: The names of its parameters of several axes.
    """
    if all(layer.narrowest is None for layer in layers):  # most programs
        return None
    composites, known = {layer.parent for layer in layers}, frozenset(kernels)
    users = layers_by_name(layers, composites, lambda layer: known.intersection(layer.params))
    narrow = [{each.narrowest for each in found if each.narrowest is not None} for found in users.values()]
    used = [dtype for each in narrow for dtype in each]
    return reduce(coarser, used) if 2 * sum(map(bool, narrow)) > len(narrow) else None
