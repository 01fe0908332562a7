"""The plan: which sites of a trace are observed, and where the interpreter finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax

from gradscope.instrument.taps import Observer, whole_tensor
from gradscope.tracing.frames import FrameKey, Loop
from gradscope.tracing.meshes import under_leading_axes
from gradscope.tracing.sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sites to observe. A site's number here is its number in everything that a run hands back.

    Attributes:
        sites: The observed sites, in program order.
        gradients: Numbers of those whose gradients are observed too.
        observe: What is kept of each value and cotangent.
    """

    sites: tuple[Site, ...]
    gradients: frozenset[int]
    observe: Observer
    _taps: dict[FrameKey, dict[tuple[int, int], int]] = field(default_factory=dict[Any, Any])
    _inside: dict[FrameKey, list[int]] = field(default_factory=dict[Any, Any])
    _observations: dict[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        for number, site in enumerate(self.sites):
            frame, equation, position = site.value
            self._taps.setdefault(frame, {})[equation, position] = number
            for depth in range(len(frame) + 1):
                self._inside.setdefault(frame[:depth], []).append(number)

    def taps(self, frame: FrameKey) -> Mapping[tuple[int, int], int]:
        """The sites of one frame, by equation and position."""
        return self._taps.get(frame, {})

    def inside(self, frame: FrameKey) -> Sequence[int]:
        """The numbers of the sites in a frame and in all frames inside it."""
        return self._inside.get(frame, ())

    def observed(self, number: int, *, below: int = 0) -> jax.ShapeDtypeStruct:
        """Shape, dtype and sharding of one site's observation.

        Args:
            number: The site.
            below: How many of the loops around the site are not to count: 0 for the whole program's outputs.
        """
        site = self.sites[number]
        one = self._observation(jax.ShapeDtypeStruct(site.shape, site.dtype, sharding=site.sharding))
        leading = turns(site.loops[below:])
        sharding = under_leading_axes(one.sharding, len(leading))
        return jax.ShapeDtypeStruct((*leading, *one.shape), one.dtype, sharding=sharding)

    def _observation(self, value: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """The observation of one turn; models have many sites of few types, and tracing the observer is slow."""
        if value not in self._observations:
            self._observations[value] = jax.eval_shape(self.observe, value)
        return self._observations[value]


#: Observes nothing: a program run under it is the program.
EMPTY_PLAN: Final = Plan(sites=(), gradients=frozenset(), observe=whole_tensor)


def turns(loops: Sequence[Loop]) -> tuple[int, ...]:
    """The leading axes that loops give to what is observed inside them; a `while` keeps its last turn alone."""
    return tuple(loop.length for loop in loops if loop.length is not None)
