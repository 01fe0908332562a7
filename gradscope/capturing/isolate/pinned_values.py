"""Pinned values are the values and cotangents of a reference that replace those of an isolated candidate's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import as_numpy_dtype, is_key
from gradscope.comparison.follow_ups.isolation import LeftOut
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.interfaces import DumpSource
from gradscope.instrument.isolating import PinnedValue
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.between_known_values import SegmentsBetween
from gradscope.tracing.jaxpr.frames import Frame, ValueKey, iterations
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.tracer import Trace

_LACKING: Final = "the reference has no such activation"
_NEVER_MADE: Final = "it did not run in the reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedValues:
    """`PinnedValues` are the values and cotangents that replace those of a candidate's layers.

    Attributes:
        arrays: The pinned arrays, by value.
        keys: The candidate's key of each value in each iteration in which it is pinned.
        sites: The sites of the values.
        with_cotangent: The pinned values whose gradient the reference has.
        without_cotangent: The pinned values that have a gradient which the reference does not have.
        never_made: The values that the reference did not compute, as in a branch that was not taken.
        left_out: The values that are not pinned, and why.
    """

    arrays: dict[ValueKey, PinnedValue] = field(default_factory=dict[ValueKey, PinnedValue])
    keys: dict[ValueAt, str] = field(default_factory=dict[ValueAt, str])
    sites: dict[ValueKey, Site] = field(default_factory=dict[ValueKey, Site])
    with_cotangent: set[ValueAt] = field(default_factory=set[ValueAt])
    without_cotangent: set[ValueAt] = field(default_factory=set[ValueAt])
    never_made: set[ValueAt] = field(default_factory=set[ValueAt])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])

    def name(self, value_at: ValueAt) -> str:
        """Returns the path of the layer whose output a pinned value is."""
        return str(self.sites[value_at.value].names[0].path.at(value_at.iteration))

    def segments(self, root: Frame, further: Iterable[ValueAt] = ()) -> SegmentsBetween:
        """Returns the segments of a trace between the pinned values.

        Args:
            root: The trace's root frame.
            further: Further values at which segments end.
        """
        return SegmentsBetween(root, {*self.keys, *further}, self.never_made)


def pinned_values(
    trace: Trace, cand: DumpSource, placing: ReversePairing, *, computed: Callable[[ValueAt], bool] = lambda _: False
) -> PinnedValues:
    """Returns every output of a layer that a reference has.

    Args:
        trace: The candidate's loss.
        cand: The candidate's dump.
        placing: The reference's tensors by the candidate's keys.
        computed: Whether a value is to be computed although the reference has it.

    Returns:
        The values.
    """
    return _PinnedValuesBuilder(cand, placing, computed).of(trace)


class _PinnedValuesBuilder:
    """A `_PinnedValuesBuilder` collects pinned values."""

    def __init__(self, cand: DumpSource, placing: ReversePairing, computed: Callable[[ValueAt], bool]) -> None:
        self._cand = cand
        self._computed = computed
        self._placing = placing
        self._known = frozenset(cand.keys())
        self._found = PinnedValues()

    def of(self, trace: Trace) -> PinnedValues:
        for site in trace.sites:
            if site.names and not site.eliminated:
                reason = why_unreachable(site)
                if reason:
                    self._leave_out(site.names[0].template, reason)
                else:
                    self._pin(site)
        return self._found

    def _pin(self, site: Site) -> None:
        values: dict[IterationIndex, Array] = {}
        for iteration in iterations(site.loops):
            key = None if self._computed(ValueAt(site.value, iteration)) else self._key(site, iteration)
            array = None if key is None else self._array(key, site)
            if key is None or array is None:
                never = key is not None and self._placing.absent(key) == "not-executed"
                self._leave_out(str(site.names[0].at(iteration)), _NEVER_MADE if never else _LACKING)
                self._found.never_made.update({ValueAt(site.value, iteration)} if never else ())
            else:
                values[iteration] = array
                self._found.keys[ValueAt(site.value, iteration)] = key
        if values:
            self._found.sites[site.value] = site
            cotangents = dict(self._cotangents(site, values))
            self._found.arrays[site.value] = PinnedValue(
                values=_stacked(site, values),
                iterations=frozenset(values),
                cotangents=_stacked(site, cotangents) if cotangents else None,
            )

    def _cotangents(self, site: Site, iterations: Mapping[IterationIndex, Array]) -> Iterator[tuple[Any, Array]]:
        for iteration in iterations if site.differentiable else ():
            value_at = ValueAt(site.value, iteration)
            key = gradient_key(self._found.keys[value_at])
            array = self._array(key, site) if key in self._known else None
            if array is not None:
                self._found.with_cotangent.add(value_at)
                yield iteration, array
            elif key not in self._known or self._placing.absent(key) not in ("disconnected", "not-executed"):
                self._found.without_cotangent.add(value_at)

    def _key(self, site: Site, iteration: IterationIndex) -> str | None:
        """Returns the candidate's key of a value in one iteration."""
        keys = (naming.key_of(naming.ACTIVATION, str(name.at(iteration))) for name in site.names)
        return next((self._cand.resolve(key) for key in keys if key in self._known), None)

    def _array(self, key: str, site: Site) -> Array | None:
        array = self._placing.array(key)
        return array if array is not None and array.shape == site.shape else None

    def _leave_out(self, name: str, why: str) -> None:
        self._found.left_out.append(LeftOut(name=name, why=why))


def gradient_key(key: str) -> str:
    """Returns the key of the gradient with respect to an activation."""
    return naming.key_of(naming.ACTIVATION_GRAD, naming.split_key(key)[1])


def why_unreachable(site: Site) -> str:
    """Returns why no value can be pinned or watched at a site; "" where it can."""
    if site.opaque or site.beside:
        return "it is inside a custom rule, which runs unchanged"
    if any(loop.length is None for loop in site.loops):
        return "it is inside a while loop, of which only the last iteration is known"
    if is_key(str(site.dtype)):
        return "it is a random key"
    return ""


def _stacked(site: Site, iterations: Mapping[IterationIndex, Array]) -> Array:
    """Returns the values of some iterations under the axes of the loops, with zeros for the others."""
    lengths = tuple(loop.length or 1 for loop in site.loops)
    stacked = np.zeros((*lengths, *site.shape), as_numpy_dtype(str(site.dtype)))
    for iteration, array in iterations.items():
        stacked[iteration] = array
    return stacked
