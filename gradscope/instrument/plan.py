"""The plan states which sites of a trace are observed, and where the interpreter finds them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.instrument.saturation_observer import observer_of, observer_of_noise
from gradscope.instrument.taps import Observer, full_tensor
from gradscope.naming import IterationIndex
from gradscope.tracing.jaxpr.frames import FrameKey, Loop, ValueKey
from gradscope.tracing.jaxpr.sharding import under_leading_axes
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.layers.uses import Use, UseKey
from gradscope.tracing.lookup.functions.bounded_functions import BoundedFunction
from gradscope.tracing.lookup.functions.softmax_neighbours import NoisySum


class Seed(NamedTuple):
    """A `Seed` is a value that is differentiated: a site in one iteration of the loops around it."""

    site: int
    iteration: IterationIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A `Term` is a use of a value whose term of the gradient is observed.

    Attributes:
        use: The use.
        of: The iterations in which it is shown, each with the key of the value that it is a term of; None for a value
            without a key.
    """

    use: Use
    of: Mapping[IterationIndex, str | None]


#: Iterations of the loops around sites, by site number.
IterationsBySite: TypeAlias = Mapping[int, frozenset[IterationIndex]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A `Plan` states the sites and terms to observe.

    They are numbered, sites before terms, and the results of a run use the same numbers.

    At one site the steps are, in this order: the value is fed, the path back is stopped, its gradient is observed, it
    is returned to be differentiated, the path back from its uses is severed. At an *isolated* site the computed value
    is observed and returned; then it is fed, and its gradient is that of the injected value.

    Attributes:
        sites: The observed sites, in program order; behind them, bounded functions and sums.
        gradients: Numbers of those whose gradients are observed too.
        observe: The observer of each value and cotangent.
        bounded: By number, the sites that are results of bounded functions, of which only the saturation is observed;
            a value that is observed as it is has another number for that.
        noisy: By number, the sums with noise that those functions receive, of which the spreads are observed.
        terms: The observed terms, which have cotangents and no values.
        seeds: The values that are differentiated in place of the loss; empty for the loss.
        fed: The iterations of sites whose values are injected and not computed.
        stopped: The iterations of sites that count as constant: a cotangent arrives there and goes no further.
        gradient_fed: The iterations of sites at which no cotangent arrives from the uses of the value, but only that of
            its own seed.
        isolated: Numbers of the fed sites that are isolated; nothing is stopped or severed there.
        used: By frame the equations that anything requested depends on; None for all. The others are not run.
        outputs: For each of the function's outputs, whether it is returned; None for all.
    """

    sites: tuple[Site, ...]
    gradients: frozenset[int]
    observe: Observer
    bounded: Mapping[int, BoundedFunction] = field(default_factory=dict[int, BoundedFunction])
    noisy: Mapping[int, NoisySum] = field(default_factory=dict[int, NoisySum])
    terms: tuple[Term, ...] = ()
    seeds: tuple[Seed, ...] = ()
    fed: IterationsBySite = field(default_factory=dict[int, frozenset[IterationIndex]])
    stopped: IterationsBySite = field(default_factory=dict[int, frozenset[IterationIndex]])
    gradient_fed: IterationsBySite = field(default_factory=dict[int, frozenset[IterationIndex]])
    isolated: frozenset[int] = frozenset()
    used: Mapping[FrameKey, Collection[int]] | None = None
    outputs: tuple[bool, ...] | None = None
    _taps: dict[FrameKey, dict[tuple[int, int], int]] = field(init=False, default_factory=dict[Any, Any])
    _bounded: dict[FrameKey, dict[tuple[int, int], int]] = field(init=False, default_factory=dict[Any, Any])
    _noisy: dict[tuple[FrameKey, int], int] = field(init=False, default_factory=dict[Any, Any])
    _uses: dict[tuple[FrameKey, int], dict[int, int]] = field(init=False, default_factory=dict[Any, Any])
    _inside: dict[FrameKey, list[int]] = field(init=False, default_factory=dict[Any, Any])
    _observers: dict[int, Observer] = field(init=False, default_factory=dict[int, Observer])
    _observations: dict[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self._observers.update((number, observer_of(each)) for number, each in self.bounded.items())
        self._observers.update((number, observer_of_noise(each)) for number, each in self.noisy.items())
        for number in self.numbers:
            frame, equation, position = self.key_of(number)
            if number in self.bounded:
                self._bounded.setdefault(frame, {})[equation, position] = number
            elif number in self.noisy:
                self._noisy[frame, equation] = number
            elif self.is_site(number):
                self._taps.setdefault(frame, {})[equation, position] = number
            else:
                self._uses.setdefault((frame, equation), {})[position] = number
            for depth in range(len(frame) + 1):
                self._inside.setdefault(frame[:depth], []).append(number)

    @property
    def numbers(self) -> range:
        """The numbers of all sites and terms."""
        return range(len(self.sites) + len(self.terms))

    def key_of(self, number: int) -> ValueKey | UseKey:
        """Returns the location of a site or a term's use: a frame, its equation, and an output or operand of that."""
        return self.sites[number].value if self.is_site(number) else self.term(number).use.key

    @property
    def is_of_loss(self) -> bool:
        """Whether the loss is differentiated and no value is fed, no gradient injected and none stopped."""
        return not (self.seeds or self.fed or self.stopped or self.gradient_fed)

    @property
    def sinks(self) -> Sequence[int]:
        """The numbers of all sites and terms whose cotangents are observed."""
        return [*sorted(self.gradients), *range(len(self.sites), len(self.sites) + len(self.terms))]

    def is_site(self, number: int) -> bool:
        """Returns whether a number is that of a site, and not of a term."""
        return number < len(self.sites)

    def tap_point(self, number: int) -> Site | Use:
        """Returns the site of a number; of a term, the use."""
        return self.sites[number] if self.is_site(number) else self.term(number).use

    def term(self, number: int) -> Term:
        """Returns the term of a number."""
        return self.terms[number - len(self.sites)]

    def is_seed(self, number: int) -> bool:
        """Returns whether a site is differentiated in place of the loss, in any iteration."""
        return any(seed.site == number for seed in self.seeds)

    def runs(self, frame: FrameKey, equation: int) -> bool:
        """Returns whether an equation is run."""
        return self.used is None or equation in self.used.get(frame, ())

    def bytes_of(self, number: int) -> int:
        """Returns the bytes that are observed for a term, or at a site, including its gradient if that is observed."""
        one = self.observed(number)
        extended = jnp.issubdtype(one.dtype, jax.dtypes.extended)
        return 0 if extended else math.prod(one.shape) * one.dtype.itemsize * (1 + (number in self.gradients))

    def parts(self, budget: int) -> list[Plan]:
        """Returns plans that observe the same in groups of at most `budget` bytes; a larger site or term has its own.

        Args:
            budget: Bytes. A plan that feeds, stops or differentiates other values than the loss has no parts.
        """
        groups: list[list[int]] = [[]]
        room = budget
        for number in self.numbers:
            size = self.bytes_of(number)
            aside = number in self.bounded or number in self.noisy  # a few numbers each, which are read together
            if groups[-1] and size > room and not aside:
                groups.append([])
                room = budget
            groups[-1].append(number)
            room -= size
        return [self.part(group) for group in groups]

    def part(self, group: Sequence[int]) -> Plan:
        """Returns the plan that observes only some of the same sites and terms, by their numbers in ascending order."""
        sites, first = [number for number in group if self.is_site(number)], len(self.sites)
        return Plan(
            sites=tuple(self.sites[number] for number in sites),
            gradients=frozenset(at for at, number in enumerate(sites) if number in self.gradients),
            observe=self.observe,
            bounded={at: self.bounded[number] for at, number in enumerate(sites) if number in self.bounded},
            noisy={at: self.noisy[number] for at, number in enumerate(sites) if number in self.noisy},
            terms=tuple(self.terms[number - first] for number in group[len(sites) :]),
        )

    @property
    def shown(self) -> Sequence[int]:
        """The numbers of the sites that are observed as they are."""
        return [number for number in range(len(self.sites)) if number not in self.bounded and number not in self.noisy]

    def taps(self, frame: FrameKey) -> Mapping[tuple[int, int], int]:
        """Returns the sites of one frame that are observed as they are, by equation and position."""
        return self._taps.get(frame, {})

    def bounded_in(self, frame: FrameKey) -> Mapping[tuple[int, int], int]:
        """Returns the results of bounded functions in one frame, by equation and position."""
        return self._bounded.get(frame, {})

    def noisy_at(self, frame: FrameKey, equation: int) -> int | None:
        """Returns the sum with noise that an equation is; None where it is none."""
        return self._noisy.get((frame, equation))

    def observer(self, number: int) -> Observer:
        """Returns the observer of a site's value or a term."""
        return self._observers.get(number, self.observe)

    def uses(self, frame: FrameKey, equation: int) -> Mapping[int, int]:
        """Returns the terms of one equation of a frame, by operand; behind the last, of the frame's outputs."""
        return self._uses.get((frame, equation), {})

    def inside(self, frame: FrameKey) -> Sequence[int]:
        """Returns the numbers of the sites and terms in a frame and in all frames inside it."""
        return self._inside.get(frame, ())

    def observed(self, number: int, *, below: int = 0) -> jax.ShapeDtypeStruct:
        """Returns shape, dtype and sharding of the observation of a site or term.

        Args:
            number: The site or term.
            below: How many of the loops around it are not to count: 0 for the full program's outputs.
        """
        tap_point = self.tap_point(number)
        return _per_iteration(self._observation(number, _one(tap_point)), tap_point.loops[below:])

    def marks(self, which: IterationsBySite) -> dict[int, Any]:
        """Returns for each site a boolean per iteration: whether it is one of those chosen."""
        return {number: _marked(self.sites[number].loops, chosen) for number, chosen in which.items()}

    def value(self, number: int, *, below: int = 0) -> jax.ShapeDtypeStruct:
        """Returns shape, dtype and sharding of one site's value; `below` as for `observed`."""
        return _per_iteration(_one(self.sites[number]), self.sites[number].loops[below:])

    def _observation(self, number: int, value: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Returns the observation of one iteration, cached by type because tracing the observer is slow."""
        if number in self.bounded:
            return jax.eval_shape(self.observer(number), value)
        if number in self.noisy:
            return jax.eval_shape(self.observer(number), [value, value])
        if value not in self._observations:
            self._observations[value] = jax.eval_shape(self.observe, value)
        return self._observations[value]


def by_site(observed: Iterable[tuple[int, IterationIndex]]) -> IterationsBySite:
    """Groups pairs of site number and iteration by site number."""
    found: dict[int, frozenset[IterationIndex]] = {}
    for number, iteration in observed:
        found[number] = found.get(number, frozenset()) | {iteration}
    return found


def _marked(loops: Sequence[Loop], chosen: frozenset[IterationIndex]) -> np.ndarray:
    marked = np.zeros(iterations(loops), np.bool_)
    for iteration in chosen:
        marked[iteration] = True
    return marked


def _one(tap_point: Site | Use) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tap_point.shape, tap_point.dtype, sharding=tap_point.sharding)


def _per_iteration(one: jax.ShapeDtypeStruct, loops: Sequence[Loop]) -> jax.ShapeDtypeStruct:
    leading = iterations(loops)
    sharding = under_leading_axes(one.sharding, len(leading))
    return jax.ShapeDtypeStruct((*leading, *one.shape), one.dtype, sharding=sharding)


#: Observes nothing: a program run under it is the program.
EMPTY_PLAN: Final = Plan(sites=(), gradients=frozenset(), observe=full_tensor)


def iterations(loops: Sequence[Loop]) -> tuple[int, ...]:
    """Returns the leading axes of observations inside loops; a `while` keeps only its last iteration."""
    return tuple(loop.length for loop in loops if loop.length is not None)
