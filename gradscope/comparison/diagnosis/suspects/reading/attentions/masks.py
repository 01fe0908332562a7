"""`masks_of` has the masks that the scores of an attention may have, by their words.

A mask that a program is given may be joined with a causal one, and either may be mistaken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming import printable, split_key

#: What may be done to scores, by its words: where a position may be read, or what is added; None for nothing.
Scored: TypeAlias = Mapping[str, Array | None]

#: The words of no mask, of a causal one, and of what it may be by a mistake.
UNMASKED: Final = "no mask"
_CAUSAL: Final = "a causal mask"
_MISTAKEN: Final = (
    "a causal mask without each position itself",
    "a causal mask that shows the next position, too",
    "a mask of later positions alone",
)

#: The words of a causal mask that shows so many positions, and the most positions of a sequence that may have one.
_WINDOW: Final = "a causal mask of a window of "
_MOST_POSITIONS: Final = 128

#: How the words of a mask that is given are joined with those of another.
_AND: Final = ", and "


def masks_of(examples: int, queries: int, keys: int, given: Mapping[str, Array]) -> Scored:
    """Returns the masks that positions may be read through, those that are given among them.

    Args:
        examples: The number of examples.
        queries: The number of queries of each.
        keys: The number of keys of each.
        given: Inputs that may be masks, by keys.
    """
    everywhere = np.ones((queries, keys), np.bool_)
    causal = np.tril(everywhere)
    of_mistakes = (np.tril(everywhere, -1), np.tril(everywhere, 1), np.triu(everywhere))
    own = {_CAUSAL: causal, **dict(zip(_MISTAKEN, of_mistakes, strict=True))}
    found: dict[str, Array | None] = {UNMASKED: None, **own}
    for key, array in given.items():
        is_mask = array.shape == (examples, keys) and array.dtype.kind in "biuf" and np.isin(array, (0, 1)).all()
        if is_mask:
            name = f"`{printable(split_key(key)[1])}`"
            kept = array.astype(np.bool_)[:, None, None, :]
            for words, mask in ((f"{name} as the mask", kept), (f"the inverse of {name} as the mask", ~kept)):
                found[words] = mask
                found |= {f"{words}{_AND}{others}": mask & other for others, other in own.items()}
    windows = range(2, keys) if queries == keys <= _MOST_POSITIONS else ()
    return found | {f"{_WINDOW}{width}": causal & ~np.tril(everywhere, -width) for width in windows}


def is_window(mask: str) -> bool:
    """Returns whether a mask shows a number of the last positions."""
    return mask.startswith(_WINDOW)


def is_mistaken(mask: str) -> bool:
    """Returns whether a mask is what a causal one may be by a mistake."""
    return mask.endswith(_MISTAKEN)


def mistaken(mask: str) -> Iterator[str]:
    """Yields what a mask may be by a mistake."""
    if mask.endswith(_CAUSAL):
        yield from (mask.removesuffix(_CAUSAL) + words for words in _MISTAKEN)


def mask_in_words(mask: str, other: str) -> str:
    """Returns what a mask is that another is not, in words: of one that is given, only what is joined with it differs.

    Args:
        mask: The mask.
        other: The other one.
    """
    (given, _, own), (its_given, _, its) = mask.rpartition(_AND), other.rpartition(_AND)
    return own if given == its_given and its else mask
