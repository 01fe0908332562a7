"""`spread_shapes` returns in which shapes an array can be added to a larger value."""

from __future__ import annotations

from typing import Final

from gradscope.comparison.layout.layouts import Shape

#: The number of axes of a vector for each example.
_OF_VECTORS: Final = 2


def spread_shapes(own: Shape, shape: Shape) -> list[Shape]:
    """Returns the shapes of an array in which it can be added to a value of another shape; none where it cannot.

    It is as large, or the same for all examples, or, as the embedding of a time, has a vector of channels for each.

    Args:
        own: The array's shape.
        shape: The value's shape.
    """
    if own in (shape, shape[1:], (1, *shape[1:])):
        return [own]
    if len(own) != _OF_VECTORS or len(shape) <= len(own):
        return []
    ones = (1,) * (len(shape) - len(own))
    return [
        spread
        for channels, spread in ((shape[1], (*own, *ones)), (shape[-1], (own[0], *ones, own[1])))
        if own == (shape[0], channels)
    ]
