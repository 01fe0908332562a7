"""`turned_parameters` returns the parameters that are read in another layout than the others of a port.

A port keeps the kernels of a kind in one layout. One that has the shape of its counterpart, and its elements in another
order than most others, may have been transposed or flipped by mistake, whatever it is called. So may a kernel of any
shape that is flipped as few others are (`flipped_kernels`), but for that of a transposed convolution, which libraries
keep either way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from gradscope.comparison.layout.recipe_steps import Flip
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, PARAM, key_of, split_key


def turned_parameters(dumps: Dumps, matches: Sequence[Match]) -> frozenset[str]:
    """Returns the names of parameters that have one shape in both programs, and a layout that few others have.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """
    unlike = _unlike_most(dumps, matches)
    flipped = flipped_kernels(dumps, matches)
    return flipped | {split_key(match.ref)[1] for match in unlike if is_turned(dumps, match)}


def flipped_kernels(dumps: Dumps, matches: Sequence[Match]) -> frozenset[str]:
    """Returns the names of kernels that are flipped in the candidate as few others are, and enlarge no image.

    Args:
        dumps: The dumps.
        matches: Their pairs.
    """
    found: set[str] = set()
    for match in _unlike_most(dumps, matches):
        flipped = [axis for step in match.recipe.steps if isinstance(step, Flip) for axis in step.axes]
        name, shape = split_key(match.ref)[1], dumps.ref.entry(match.ref).shape
        channels = [size for axis, size in enumerate(shape) if axis not in flipped]
        uses = [layer for layer in dumps.ref.manifest.layers if name in layer.params]
        if flipped and uses and not any(_may_enlarge(dumps, layer, channels) for layer in uses):
            found.add(name)
    return frozenset(found)


def _unlike_most(dumps: Dumps, matches: Sequence[Match]) -> Iterator[Match]:
    """Yields the pairs of parameters in a layout that few others of as many axes have."""
    params = [match for match in matches if split_key(match.ref)[0] == PARAM]
    ranks = {match.ref: len(dumps.ref.entry(match.ref).shape) for match in params}
    of_rank = Counter(ranks.values())
    alike = Counter((ranks[match.ref], match.recipe.description()) for match in params)
    for match in params:
        if 2 * alike[ranks[match.ref], match.recipe.description()] < of_rank[ranks[match.ref]]:
            yield match


def _may_enlarge(dumps: Dumps, layer: Layer, channels: Sequence[int]) -> bool:
    """Returns whether a layer may make more positions than it reads, as a transposed convolution does.

    Args:
        dumps: The dumps.
        layer: The layer in the reference.
        channels: The sizes of the axes of its kernel that are not flipped.
    """
    read, made = layer.elements.get("in", 0), layer.elements.get("out", 0)
    known = frozenset(dumps.ref.keys())
    keys = known.intersection(key_of(ACTIVATION, name) for name in layer.outputs)
    sizes = {size for key in keys for size in dumps.ref.entry(key).shape[1:]}
    pairs = [(one, other) for one, other in itertools.permutations(channels, 2) if one * other and other in sizes]
    return not pairs or any(made // other > read // one for one, other in pairs)


def is_turned(dumps: Dumps, match: Match) -> bool:
    """Returns whether a pair has one shape, and elements in another order.

    Args:
        dumps: The dumps.
        match: The pair.
    """
    if len(match.recipe.keys) != 1 or not match.recipe.steps:
        return False
    return dumps.ref.entry(match.ref).shape == dumps.cand.entry(match.cand).shape
