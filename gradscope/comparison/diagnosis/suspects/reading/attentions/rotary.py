"""`Rotary` is one way in which queries and keys are rotated by their positions (Su et al., 2021, RoFormer)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The bases of programs, the usual one first.
_BASES: Final = (1e4, 5e5, 1e6)


class Rotary(NamedTuple):
    """Rotary is a rotary position embedding.

    Attributes:
        pairs: Which features of a head are rotated together: one of each half, or neighbours.
        base: The base of the wavelengths: features `2 i` of `width` turn by `position * base ** (-2 i / width)`.
        backwards: Whether they turn the other way.
        of: What is rotated.
    """

    pairs: Literal["halves", "neighbours"] = "halves"
    base: float = _BASES[0]
    backwards: bool = False
    of: Literal["both", "query", "key", "all"] = "both"

    def rotated(self, value: Array, positions: Array) -> Array:
        """Returns a value `[..., positions, features]`, rotated.

        Args:
            value: The value.
            positions: Its positions.
        """
        width = value.shape[-1]
        angles = positions[:, None] * self.base ** (-np.arange(0, width, 2) / width) * (-1 if self.backwards else 1)
        cosine, sine = np.cos(angles), np.sin(angles)
        if self.pairs == "halves":
            one, two = value[..., : width // 2], value[..., width // 2 :]
        else:
            one, two = value[..., ::2], value[..., 1::2]
        turned = one * cosine - two * sine, two * cosine + one * sine
        return np.concatenate(turned, -1) if self.pairs == "halves" else np.stack(turned, -1).reshape(value.shape)

    def mistaken(self) -> Iterator[Rotary | None]:
        """Yields what it may be by a mistake: none, or one that differs in one way."""
        yield None
        yield from (self._replace(base=base) for base in _BASES if base != self.base)
        yield self._replace(pairs="neighbours" if self.pairs == "halves" else "halves")
        yield self._replace(backwards=not self.backwards)
        yield from (self._replace(of=of) for of in ("query", "key", "all"))

    @property
    def words(self) -> str:
        """What it is, in words."""
        rotated = {"both": "", "query": ", of queries alone", "key": ", of keys alone", "all": ", of values, too"}
        turning = ", turned backwards" if self.backwards else ""
        return f"rotary positions of {self.pairs} and base {brief(self.base)}{turning}{rotated[self.of]}"


def usual_rotaries(width: int) -> list[Rotary | None]:
    """Returns what programs have, the most usual first.

    Args:
        width: The number of features of a head.
    """
    if width % 2:
        return [None]
    return [None, Rotary(), Rotary("neighbours"), *(Rotary(base=base) for base in _BASES[1:])]
