"""Blame: what follows from the first divergence in either direction, and which layers made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradscope.compare.divergence import Divergence
from gradscope.compare.graph import consequences, readers_of, sources_of
from gradscope.compare.rows import Row
from gradscope.dump.manifest import Layer
from gradscope.naming import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What the graph of layers says about a divergence; nothing where there are no layers.

    Attributes:
        forward: Keys of what is computed from the first value over tolerance.
        backward: Keys of what is computed from the first gradient over tolerance.
        makers: Paths of the layers that handed that gradient back: the innermost that read its value.
    """

    forward: frozenset[str] = frozenset()
    backward: frozenset[str] = frozenset()
    makers: tuple[str, ...] = ()


def blame_of(divergence: Divergence, layers: Sequence[Layer], owner: Callable[[str], str]) -> Blame:
    """What follows from a divergence, and who made it.

    Args:
        divergence: Where two runs part.
        layers: The layers of one of them.
        owner: The key under which layers name the value of a key.

    Returns:
        The blame.
    """
    if not layers or (divergence.forward is None and divergence.backward is None):
        return Blame()
    sources = sources_of(layers)

    def following(row: Row | None) -> frozenset[str]:
        return frozenset() if row is None else consequences(sources, owner(key_of(row.family, row.name)))

    backward = divergence.backward
    name = None if backward is None else owner(key_of(backward.family, backward.name)).partition("/")[2]
    return Blame(
        forward=following(divergence.forward),
        backward=following(backward),
        makers=() if name is None else readers_of(layers, name),
    )
