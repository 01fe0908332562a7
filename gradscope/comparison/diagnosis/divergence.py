"""Blame: what follows from the first divergence in either direction, and which layers made it.

First divergence: where two runs part, in the direction of computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.diagnosis.layer_graph import consequences, readers_of, sources_of
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, TENSOR, key_of

#: A foreign file knows no direction; its tensors count as computed in the file's order.
FORWARD: Final = (ACTIVATION, TENSOR)
BACKWARD: Final = (ACTIVATION_GRAD,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first row over tolerance in each direction; None where that direction agrees or was not compared."""

    forward: ComparisonRow | None = None
    backward: ComparisonRow | None = None

    @property
    def backward_only(self) -> bool:
        """Whether the forward pass is clean and the backward pass is not."""
        return self.forward is None and self.backward is not None


def first_divergence(rows: Sequence[ComparisonRow]) -> Divergence:
    """Where two runs part.

    Args:
        rows: All rows in the reference's order, which decides between rows of one execution index.

    Returns:
        The first divergence, forward in execution order and backward in reverse.
    """
    forward = [row for row in rows if row.family in FORWARD and row.status == "different"]
    backward = [row for row in rows if row.family in BACKWARD and row.status == "different"]
    return Divergence(
        forward=min(forward, key=lambda row: row.index, default=None),
        backward=max(backward, key=lambda row: row.index, default=None),
    )


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

    def following(row: ComparisonRow | None) -> frozenset[str]:
        return frozenset() if row is None else consequences(sources, owner(key_of(row.family, row.name)))

    backward = divergence.backward
    name = None if backward is None else owner(key_of(backward.family, backward.name)).partition("/")[2]
    return Blame(
        forward=following(divergence.forward),
        backward=following(backward),
        makers=() if name is None else readers_of(layers, name),
    )
