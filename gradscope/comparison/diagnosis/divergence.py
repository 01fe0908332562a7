"""`first_divergence` returns the first rows over tolerance, `blame_of` their consequences and the layers at fault.

The first divergence is the first row over tolerance in the direction of computation: in execution order for values, in
reverse order for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.layer_graph import consequences, readers_of, sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, TENSOR, key_of

#: The families with a direction. Tensors of a foreign file have none and count as computed in the file's order.
FORWARD: Final = (ACTIVATION, TENSOR)
BACKWARD: Final = (ACTIVATION_GRAD,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Divergence stores the first row over tolerance of each direction; None where it agrees or was not compared."""

    forward: ComparisonRow | None = None
    backward: ComparisonRow | None = None

    @property
    def backward_only(self) -> bool:
        """Whether only the backward pass has rows over tolerance."""
        return self.forward is None and self.backward is not None


def first_divergence(rows: Sequence[ComparisonRow]) -> Divergence:
    """Returns the first divergence, forward in execution order and backward in reverse order.

    Args:
        rows: All rows in the reference's order, which decides between rows of one execution index.
    """
    forward = [row for row in rows if row.family in FORWARD and row.status == "different"]
    backward = [row for row in rows if row.family in BACKWARD and row.status == "different"]
    return Divergence(
        forward=min(forward, key=lambda row: row.index, default=None),
        backward=max(backward, key=lambda row: row.index, default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Blame stores the consequences of a divergence in the graph of layers; empty where a dump has no layers.

    Attributes:
        forward: Keys that are computed from the first value over tolerance.
        backward: Keys that are computed from the first gradient over tolerance.
        makers: Paths of the layers that computed that gradient: the innermost that read its value.
    """

    forward: frozenset[str] = frozenset()
    backward: frozenset[str] = frozenset()
    makers: tuple[str, ...] = ()


def blame_of(divergence: Divergence, layers: Sequence[Layer], owner: Callable[[str], str]) -> Blame:
    """Returns the consequences of a divergence, and the layers that made it.

    Args:
        divergence: The first divergence of two runs.
        layers: The layers of one of the runs.
        owner: Maps a key to its owner's key, by which layers name values.
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
