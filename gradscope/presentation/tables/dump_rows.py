"""Rows are the facts that a dump has about each of its tensors, one row per family and name, in execution order.

A row has all that any output format may show. Its *values* are named as in the table of statistics. A value that does
not apply is absent, and zero is never used for it. An *alias* (a composite layer's output that is the output of one of
its parts) has the numbers of the tensor that it is an alias of; a gain belongs to the layer and so to the name.

Execution order is: inputs, then layers from the first to the last with a composite before its parts and each gradient
after its value, then parameters in the order of the layers that use them, then the rest. The terms of one gradient are
next to each other. The tables of families have the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Final, NamedTuple, cast

from gradscope import naming
from gradscope.dump.manifest.entries.packed_statistics import StatisticsColumns
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import Json
from gradscope.presentation.tables.shown_statistics import OF_ENTRY, all_numbers, shown
from gradscope.stats import gradient_ratios, layer_gains
from gradscope.stats.columns import columns_of

#: The rank of each family of values in execution order; a gradient has that of its value.
_RANKS: Final = {family: rank for rank, family in enumerate(naming.FAMILIES)}


def family_rank(family: str) -> int:
    """Returns the rank of a family in execution order; an unknown family is last."""
    return _RANKS.get(family, len(_RANKS))


#: The facts that are computed from several entries: those of layers, and of parameters with gradients.
_OF_LAYERS: Final = {spec.name: frozenset(spec.families) for spec in columns_of("layer")}
_OF_PARAMETERS: Final = frozenset(spec.name for spec in columns_of("parameter"))

#: The names of a row's facts.
FACTS: Final = (
    frozenset({*OF_ENTRY, "source", "of", "layer", "primitive", "iteration", "alias_of", "absent"})
    | frozenset(_OF_LAYERS)
    | _OF_PARAMETERS
)


@dataclass(kw_only=True)  # not frozen, because that takes three times as long
class Row:
    """A `Row` has what is known about one tensor.

    Attributes:
        family: Its family.
        name: Its name, unescaped.
        facts: Its shape, dtype, gains and origin, by the names in `FACTS`, without those that do not apply.
        statistics: Its statistics by column name, and possibly more, which is not shown.
    """

    family: str
    name: str
    facts: Mapping[str, Json]
    statistics: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def values(self) -> Mapping[str, Json]:
        """Facts and statistics by column name, in the order of columns."""
        # Merged anew each time: a dump may have a hundred thousand rows, and most are read once, or a few columns are.
        facts, statistics = self.facts, dict(self.statistics.items())
        own = {name: facts[name] for name in OF_ENTRY if name in facts}
        return {**own, **{name: statistics[name] for name in shown(tuple(statistics)).names}, **facts}

    def value(self, name: str) -> Json:
        """Returns one of the values; None where it does not apply."""
        if name not in FACTS and name in self.statistics:
            return self.statistics[name]
        return self.facts.get(name)

    @property
    def key(self) -> str:
        """The tensor's key in the dump."""
        return naming.key_of(self.family, self.name)

    @property
    def own_key(self) -> str:
        """The key of the tensor whose numbers these are: its own, unless it is an alias."""
        return str(self.facts.get("alias_of", self.key))

    @property
    def is_measured(self) -> bool:
        """Whether there is something to say of its elements; of none that is finite, the rms is not."""
        return "rms" in self.statistics or bool(self.value("nan") or self.value("inf"))

    def to_json(self) -> dict[str, Json]:
        """Returns name, family and values."""
        return {"name": self.name, "family": self.family, **self.values}


class _EntryRow(Row):
    """_EntryRow is the row of an entry, whose facts are looked up when they are requested: a table shows few of them.

    Args:
        entry: The entry.
        statistics: Its statistics.
        known: What knows its facts.
    """

    def __init__(self, entry: Entry, statistics: Mapping[str, Json], known: _Facts) -> None:
        self.family = entry.family
        self.name = entry.name
        self.statistics = statistics
        self.entry = entry
        self.known = known

    @property
    def facts(self) -> Mapping[str, Json]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.known.of(self.entry)

    @property
    def own_key(self) -> str:
        return self.entry.alias_of or self.key


#: What reads a fact of an entry's row.
_OF_ROW: Final = {
    **{name: attrgetter(f"entry.{name}") for name in ("shape", "dtype", "alias_of", "absent")},
    **{name: attrgetter(f"entry.site.{name}") for name in ("source", "of", "layer", "primitive")},
}


def facts_of(rows: Sequence[Row], name: str) -> Sequence[Json | tuple[int, ...]]:
    """Returns one fact of some rows; None where it does not apply."""
    if rows and {*map(type, rows)} == {_EntryRow}:
        if name in _OF_ROW:
            return [*map(_OF_ROW[name], rows)]
        own = cast("Sequence[_EntryRow]", rows)
        return own[0].known.values([row.entry for row in own], name)  # rows of one dump are known to one
    return [row.facts.get(name) for row in rows]


class RowColumns:
    """`RowColumns` read the values of rows column by column, in little of the time and memory of each row's values.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._statistics = StatisticsColumns([row.statistics for row in rows])

    def values(self, name: str) -> Sequence[Json | tuple[int, ...]]:
        """Returns one value of each row; None where it does not apply."""
        return facts_of(self._rows, name) if name in FACTS else self._statistics.values(name)


def value_family(family: str) -> str:
    """Returns the family whose table a family belongs to: that of the values for gradients, otherwise itself."""
    return naming.value_family(family) or family


def rows_of(manifest: Manifest) -> tuple[Row, ...]:
    """Returns the rows of a dump, in execution order.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    facts = _Facts(manifest)
    entries = facts.in_order()
    statistics = all_numbers([*map(facts.statistics, entries)] if facts.has_aliases else [*map(_STATS, entries)])
    return tuple(map(_EntryRow, entries, statistics, repeat(facts)))


_STATS: Final = attrgetter("stats")


class Companions(NamedTuple):
    """`Companions` has what the entries of a family share with those next to them: see `_Facts.in_order`."""

    family: str
    rank: int
    is_gradient: bool


@cache
def companions(family: str) -> Companions:
    """Returns the family of the values, its rank in execution order, and whether a family has gradients."""
    shared = value_family(family)
    return Companions(shared, family_rank(shared), naming.is_gradient(family))


class _Facts:
    """`_Facts` index a manifest, to find the facts that belong to an entry."""

    def __init__(self, manifest: Manifest) -> None:
        self._entries = manifest.entries
        self._aliased = {entry.alias_of for entry in manifest.entries if entry.alias_of is not None}
        keyed = ((naming.key_of(entry.family, entry.name), entry) for entry in manifest.entries if self._aliased)
        self._by_key = {key: entry for key, entry in keyed if key in self._aliased}
        self._layers = {layer.path: layer for layer in manifest.layers}
        self._depths: dict[str, int] = {}
        for layer in manifest.layers:  # each is behind the one around it
            self._depths[layer.path] = 1 + self._depths.get(layer.parent or "", -1)
        self._gains = layer_gains(manifest.layers)
        self._ratios = gradient_ratios(manifest)
        self.has_aliases = bool(self._aliased)

    def values(self, entries: Sequence[Entry], name: str) -> list[Json]:
        """Returns one fact of some entries, as `of` has it; None where it does not apply."""
        if name in _OF_PARAMETERS:
            known = self._ratios
            return [known.get(each.name) if each.family == naming.PARAM_GRAD else None for each in entries]
        if name in _OF_LAYERS:
            return [self._gain(each, name) for each in entries] if self._layers else [None] * len(entries)
        return [self.of(each).get(name) for each in entries]

    def _gain(self, entry: Entry, name: str) -> Json:
        """Returns the gain of the layer that an entry is of, where it belongs to its family."""
        families = _OF_LAYERS[name]
        layer = self._layer(entry) if entry.family in families else None
        return None if layer is None else getattr(self._gains[layer.path], name)

    def in_order(self) -> list[Entry]:
        """Returns the entries in execution order; entries of one rank in the order written."""
        first: dict[tuple[str, str], int] = {}
        ranks = [self._rank(entry, first, position) for position, entry in enumerate(self._entries)]
        return [self._entries[position] for *_, position in sorted(ranks)]

    def _rank(self, entry: Entry, first: dict[tuple[str, str], int], own: int) -> tuple[int, ...]:
        """Returns what sorts an entry; its position is the last of it."""
        family, rank, is_gradient = companions(entry.family)
        site = entry.site
        # A value and its gradient have one key, and so have the terms of one gradient.
        position = first.setdefault((family, (site.of if family == naming.TERM else None) or entry.name), own)
        if family == naming.TERM:
            return (rank, position, site.index, own)
        # The position in the file comes last, so that a gradient stays after its own value.
        if family != naming.ACTIVATION:
            return (rank, site.index, position, is_gradient, own)
        layer = self._layer(entry) if self._layers else None
        # A composite layer computes its output last, but people read it first.
        index = site.index if layer is None else layer.index
        # A layer in a root need not have its name.
        depth = max(entry.name.count("/"), 0 if layer is None else self._depths[layer.path])
        return (rank, index, depth, site.index, position, is_gradient, own)

    def _layer(self, entry: Entry) -> Layer | None:
        """Returns the layer from which an activation has its name, with or without the index of one of its outputs."""
        path, _, output = entry.name.rpartition(".")
        return self._layers.get(entry.name) or (self._layers.get(path) if output.isdecimal() else None)

    def statistics(self, entry: Entry) -> Mapping[str, Json]:
        """Returns the statistics of an entry, or those of the tensor that it is an alias of."""
        target = self._by_key.get(entry.alias_of) if entry.alias_of is not None else None
        return entry.stats if target is None else target.stats

    def of(self, entry: Entry) -> dict[str, Json]:
        """Returns the facts of an entry, in the order of columns."""
        facts: dict[str, Json] = {"shape": list(entry.shape), "dtype": entry.dtype}
        if entry.family == naming.PARAM_GRAD and entry.name in self._ratios:
            facts["g/w"] = self._ratios[entry.name]
        if self._layers:
            gains = ((name, self._gain(entry, name)) for name in _OF_LAYERS)
            facts.update((name, gain) for name, gain in gains if gain is not None)
        _add_origin(facts, entry)
        return facts


def _add_origin(facts: dict[str, Json], entry: Entry) -> None:
    # One by one, in a fifth of the time of a loop over names.
    site = entry.site
    if site.source is not None:
        facts["source"] = site.source
    if site.of is not None:
        facts["of"] = site.of
    if site.layer is not None:
        facts["layer"] = site.layer
    if site.primitive is not None:
        facts["primitive"] = site.primitive
    if site.iteration:
        facts["iteration"] = [*site.iteration]
    if entry.alias_of is not None:
        facts["alias_of"] = entry.alias_of
    if entry.absent is not None:
        facts["absent"] = entry.absent
