"""`Rotary` is one way in which queries and keys are rotated by their positions (Su et al., 2021, RoFormer)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.naming.wording import brief

#: The bases of programs, the usual one first, and those that they may have by a mistake.
_BASES: Final = (1e4, 5e5, 1e6)
_OTHER_BASES: Final = (1e2, 1e3, 1e5, 1e7)

#: The shares of the features of a head that are rotated where not all are.
_SHARES: Final[Mapping[float, str]] = MappingProxyType({0.5: "half", 0.25: "a quarter"})

#: By what positions may be multiplied, as to read longer texts.
_STRIDES: Final = (0.5, 0.25, 0.125, 2.0)


class Rotary(NamedTuple):
    """Rotary is a rotary position embedding.

    Attributes:
        pairs: Which features of a head are rotated together: one of each half, or neighbours.
        base: The base of the wavelengths: features `2 i` of `width` turn by `position * base ** (-2 i / width)`.
        backwards: Whether they turn the other way.
        of: What is rotated.
        share: The share of the features of a head that is rotated, the first ones.
        stride: By what positions are multiplied.
        ahead: By how many positions those of queries are ahead of those of keys.
    """

    pairs: Literal["halves", "neighbours"] = "halves"
    base: float = _BASES[0]
    backwards: bool = False
    of: Literal["both", "query", "key", "all"] = "both"
    share: float = 1.0
    stride: float = 1.0
    ahead: int = 0

    def rotated(self, value: Array, positions: Array) -> Array:
        """Returns a value `[..., positions, features]`, rotated.

        Args:
            value: The value.
            positions: Its positions.
        """
        width = max(2, 2 * int(value.shape[-1] * self.share / 2))
        turned, rest = value[..., :width], value[..., width:]
        frequencies = self.stride * self.base ** (-np.arange(0, width, 2) / width) * (-1 if self.backwards else 1)
        angles = positions[:, None] * frequencies
        cosine, sine = np.cos(angles), np.sin(angles)
        one, two = halves(turned) if self.pairs == "halves" else neighbours(turned)
        parts = one * cosine - two * sine, two * cosine + one * sine
        made = np.concatenate(parts, -1) if self.pairs == "halves" else np.stack(parts, -1).reshape(turned.shape)
        return np.concatenate((made, rest), -1) if rest.shape[-1] else made

    def mistaken(self) -> Iterator[Rotary | None]:
        """Yields what it may be by a mistake: none, or one that differs in one way."""
        yield None
        yield from (self._replace(base=base) for base in (*_BASES, *_OTHER_BASES) if base != self.base)
        yield from (self._replace(share=share) for share in (1.0, *_SHARES) if share != self.share)
        yield from (self._replace(stride=self.stride * stride) for stride in _STRIDES)
        yield from (self._replace(ahead=ahead) for ahead in (1, -1))
        yield self._replace(pairs="neighbours" if self.pairs == "halves" else "halves")
        yield self._replace(backwards=not self.backwards)
        yield from (self._replace(of=of) for of in ("query", "key", "all"))

    @property
    def words(self) -> str:
        """What it is, in words."""
        rotated = {"both": "", "query": ", of queries alone", "key": ", of keys alone", "all": ", of values, too"}
        told = [f"rotary positions of {self.pairs} and base {brief(self.base)}"]
        told += [f"of {_SHARES[self.share]} of the features"] if self.share in _SHARES else []
        told += [f"positions times {brief(self.stride)}"] if self.stride != 1 else []
        told += ["turned backwards"] if self.backwards else []
        told += [f"queries {abs(self.ahead)} {'ahead' if self.ahead > 0 else 'behind'}"] if self.ahead else []
        return ", ".join(told) + rotated[self.of]


def halves(value: Array) -> tuple[Array, Array]:
    """Returns both halves of the last axis."""
    first, second = np.split(value, 2, -1)
    return first, second


def neighbours(value: Array) -> tuple[Array, Array]:
    """Returns the elements of the last axis with even numbers, and those with odd ones."""
    return value[..., ::2], value[..., 1::2]


def usual_rotaries(width: int) -> list[Rotary | None]:
    """Returns what programs have, the most usual first.

    Args:
        width: The number of features of a head.
    """
    if width % 2:
        return [None]
    usual = [Rotary(), Rotary("neighbours"), *(Rotary(base=base) for base in _BASES[1:])]
    shares = [share for share in _SHARES if width * share % 2 == 0]
    return [None, *usual, *(each._replace(share=share) for share in shares for each in usual[:2])]
