"""A term of a value is in it once for each device where every device adds it, before what adds them up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Final, NamedTuple

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import as_reals
from gradscope.comparison.follow_ups.mesh_relations import factor_between
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, INPUT, PARAM, printable, split_key

#: The most values before a row that are looked at: a residual sum is not far from the layer that it passes.
_NEAREST: Final = 8


class RepeatedTerm(NamedTuple):
    """A `RepeatedTerm` is what is in a value several times: a parameter, a value, or the sum of two, in words.

    Attributes:
        words: The names.
        more: How many times more than once.
    """

    words: str
    more: float


def repeated_parameters(source: DumpSource, rest: Array) -> Iterator[RepeatedTerm]:
    """Yields parameters of which a multiple is what a value has in addition, the same for all examples.

    Args:
        source: The dump of one device.
        rest: What the value has in addition on several.
    """
    offset = rest.reshape(-1, rest.shape[-1])[0] if rest.ndim else rest
    for key in source.keys():  # noqa: SIM118 - no mapping
        entry = source.entry(key)
        if entry.family != PARAM or entry.shape != offset.shape or not source.has_tensor(key):
            continue
        if (more := factor_between(as_reals(source.array(key)), offset)) is not None:
            yield RepeatedTerm(_quoted([entry.name]), more)


def repeated_values(source: DumpSource, row: ComparisonRow, rest: Array) -> Iterator[RepeatedTerm]:
    """Yields values before a row, and sums of two, of which a multiple is what it has in addition: residual streams.

    Args:
        source: The dump of one device.
        row: The row.
        rest: What its value has in addition on several devices.
    """
    before = [
        (entry.site.index, key)
        for key, entry in ((key, source.entry(key)) for key in source.keys())  # noqa: SIM118 - no mapping
        if entry.family in (ACTIVATION, INPUT) and entry.site.index < row.index and entry.name != row.name
        and entry.shape == rest.shape and source.has_tensor(key)
    ]  # fmt: skip
    layers = source.manifest.layers
    read = {name for layer in layers if row.name in layer.outputs for name in (*layer.inputs, *layer.sources)}
    # What the row is computed from comes first: operations of a branch may be between it and the stream.
    ordered = sorted(before, key=lambda each: (not {*split_key(each[1])[1:], each[1]} & read, -each[0]))
    nearest = [key for _, key in ordered[:_NEAREST]]
    place = {key: at for at, key in before}
    arrays = {key: as_reals(source.array(key)) for key in nearest}
    for keys in chain(combinations(nearest, 1), combinations(nearest, 2)):
        if (more := factor_between(np.sum([arrays[key] for key in keys], axis=0), rest)) is not None:
            yield RepeatedTerm(_quoted([source.entry(key).name for key in sorted(keys, key=place.__getitem__)]), more)


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f"`{printable(name)}`" for name in names)
