"""Axes of size one are added to a tensor of a file, or left out, where it differs from its variable by nothing else.

Equinox has the bias of a convolution as (outputs, 1, 1), which PyTorch and Flax have as (outputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.mismatches import listed
from gradscope.tracing.data.variable_names import Matches
from gradscope.tracing.leaves import Leaf


def but_for_axes_of_one(
    found: Matches, leaves: Sequence[Leaf], tensors: Mapping[str, SavedTensor]
) -> dict[str, SavedTensor]:
    """Returns the tensors that have the shape of their variable but for axes of size one, in that shape.

    Args:
        found: Where the variables are.
        leaves: The variables.
        tensors: The tensors by name.
    """
    return {
        name: tensors[name].in_shape(tuple(leaf.shape))
        for name, leaf in zip(found.names, leaves, strict=True)
        if name is not None and not tensors[name].exact and _fits(tensors[name].shape, tuple(leaf.shape))
    }


def axes_notes(reshaped: Mapping[str, SavedTensor]) -> Iterator[str]:
    """Yields the sentence that names the tensors which have other axes of size one in the file."""
    if reshaped:
        yield f"axes of size one added or left out: {listed(each.origin or name for name, each in reshaped.items())}"


def _fits(shape: tuple[int, ...], needed: tuple[int, ...]) -> bool:
    """Returns whether the numbers of a tensor can be in one order alone in a shape of another rank.

    Of one rank, `axes` puts axes into another order; and two axes of one size could be either.
    """
    sizes = [size for size in shape if size != 1]
    return len(shape) != len(needed) and sizes == [size for size in needed if size != 1] and len({*sizes}) == len(sizes)
