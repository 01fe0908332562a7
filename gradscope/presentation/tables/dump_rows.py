"""Rows are the facts that a dump has about each of its tensors, one row per family and name, in execution order.

A row has all that any output format may show. Its *values* are named as in the table of statistics. A value that does
not apply is absent, and zero is never used for it. An *alias* (a composite layer's output that is the output of one of
its parts) has the numbers of the tensor that it is an alias of; a gain belongs to the layer and so to the name.

Execution order is: inputs, then layers from the first to the last with a composite before its parts and each gradient
after its value, then parameters in the order of the layers that use them, then the rest. The terms of one gradient are
next to each other. The tables of families have the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.record import Json
from gradscope.stats import LayerGains, gradient_ratios, layer_gains
from gradscope.stats.columns import base_of, column_kinds, columns_of, number

#: The rank of each family of values in execution order; a gradient has that of its value.
_RANKS: Final = {family: rank for rank, family in enumerate(naming.FAMILIES)}


def family_rank(family: str) -> int:
    """Returns the rank of a family in execution order; an unknown family is last."""
    return _RANKS.get(family, len(_RANKS))


#: Values that are the entry's own and not statistics, and the statistic that comes first.
_OF_ENTRY: Final = ("shape", "dtype")
_FIRST: Final = "size"

#: The types of numbers in JSON.
_PLAIN: Final = frozenset({bool, int, float})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A `Row` has the facts about one tensor.

    Attributes:
        family: Its family.
        name: Its name, unescaped.
        values: Its values by column name, without those that do not apply.
    """

    family: str
    name: str
    values: Mapping[str, Json]

    @property
    def key(self) -> str:
        """The tensor's key in the dump."""
        return naming.key_of(self.family, self.name)

    @property
    def own_key(self) -> str:
        """The key of the tensor whose numbers these are: its own, unless it is an alias."""
        return str(self.values.get("alias_of", self.key))

    def to_json(self) -> dict[str, Json]:
        """Returns name, family and values."""
        return {"name": self.name, "family": self.family, **self.values}


def value_family(family: str) -> str:
    """Returns the family whose table a family belongs to: that of the values for gradients, otherwise itself."""
    return naming.value_family(family) or family


def rows_of(manifest: Manifest) -> tuple[Row, ...]:
    """Returns the rows of a dump, in execution order.

    Raises:
        DumpError: A statistic in the manifest is not a number.
    """
    facts = _Facts(manifest)
    return tuple(Row(family=entry.family, name=entry.name, values=facts.values(entry)) for entry in facts.in_order())


class _Shown(NamedTuple):
    """_Shown has the names of statistics in the order of columns, those of numbers among them, and those of texts."""

    names: Sequence[str]
    numbers: Sequence[str]
    texts: Sequence[str]


class _Facts:
    """`_Facts` index a manifest, to find the facts that belong to an entry."""

    def __init__(self, manifest: Manifest) -> None:
        self._entries = manifest.entries
        self._by_key = {naming.key_of(entry.family, entry.name): entry for entry in manifest.entries}
        self._layers = {layer.path: layer for layer in manifest.layers}
        self._gains = layer_gains(manifest.layers)
        self._ratios = gradient_ratios(manifest)
        self._kinds = column_kinds()
        self._known: dict[tuple[str, ...], _Shown] = {}

    def in_order(self) -> list[Entry]:
        """Returns the entries in execution order; entries of one rank in the order written."""
        first: dict[tuple[str, str], int] = {}
        for position, entry in enumerate(self._entries):
            first.setdefault(_companions(entry), position)
        return sorted(self._entries, key=lambda entry: self._rank(entry, first))

    def _rank(self, entry: Entry, first: Mapping[tuple[str, str], int]) -> tuple[int, ...]:
        companions = _companions(entry)
        family, position = companions[0], first[companions]
        # The position in the file comes last, so that a gradient stays after its own value.
        behind = (entry.site.index, position, int(naming.is_gradient(entry.family)))
        if family == naming.TERM:
            return (family_rank(family), position, entry.site.index)
        if family != naming.ACTIVATION:
            return (family_rank(family), *behind)
        layer = self._layer(entry)
        # A composite layer computes its output last, but people read it first.
        return (family_rank(family), entry.site.index if layer is None else layer.index, entry.name.count("/"), *behind)

    def _layer(self, entry: Entry) -> Layer | None:
        """Returns the layer from which an activation has its name, with or without the index of one of its outputs."""
        path, _, output = entry.name.rpartition(".")
        return self._layers.get(entry.name) or (self._layers.get(path) if output.isdecimal() else None)

    def values(self, entry: Entry) -> dict[str, Json]:
        """Returns the values of an entry, in the order of columns."""
        stats = self._statistics(entry)
        shown = self._shown(tuple(stats))
        values: dict[str, Json] = {"shape": list(entry.shape), "dtype": entry.dtype}
        values.update(zip(shown.names, map(stats.__getitem__, shown.names), strict=True))
        # JSON has NaN and infinities as strings.
        for names, written in ((shown.numbers, number), (shown.texts, _text)):
            if not _PLAIN.issuperset(map(type, map(stats.__getitem__, names))):
                values |= {name: written(stats, name) for name in names if type(stats[name]) not in _PLAIN}
        values.update(self._ratios_of(entry))
        values.update(_origin(entry))
        return values

    def _shown(self, names: tuple[str, ...]) -> _Shown:
        """Returns which statistics rows have of those of some names, which most tensors share."""
        if names not in self._known:
            kinds = {name: self._kinds.get(base_of(name), "number") for name in names if name not in _OF_ENTRY}
            kinds = {name: kind for name, kind in kinds.items() if name == _FIRST or kind != "histogram"}
            converted = [name for name in kinds if name != _FIRST]
            self._known[names] = _Shown(
                names=sorted(kinds, key=lambda name: name != _FIRST),
                numbers=[name for name in converted if kinds[name] != "text"],
                texts=[name for name in converted if kinds[name] == "text"],
            )
        return self._known[names]

    def _statistics(self, entry: Entry) -> Mapping[str, Json]:
        target = self._by_key.get(entry.alias_of) if entry.alias_of is not None else None
        return entry.stats if target is None else target.stats

    def _ratios_of(self, entry: Entry) -> Iterator[tuple[str, Json]]:
        if entry.family == naming.PARAM_GRAD and entry.name in self._ratios:
            yield "g/w", self._ratios[entry.name]
        layer = self._layer(entry) if value_family(entry.family) == naming.ACTIVATION else None
        if layer is not None:
            yield from _gains(self._gains[layer.path], entry.family)


def _companions(entry: Entry) -> tuple[str, str]:
    """Returns the key that a value and its gradient share, and also the terms of one gradient."""
    return value_family(entry.family), entry.site.of or entry.name


def _gains(gains: LayerGains, family: str) -> Iterator[tuple[str, Json]]:
    """Yields the gains of a layer that belong to a family: forward to its activation, backward to the gradient."""
    found = ((spec.name, getattr(gains, spec.name)) for spec in columns_of("layer") if family in spec.families)
    yield from ((name, gain) for name, gain in found if gain is not None)


def _text(stats: Mapping[str, Json], name: str) -> str:
    return str(stats[name])


def _origin(entry: Entry) -> dict[str, Json]:
    facts: dict[str, Json] = {
        "source": entry.site.source,
        "of": entry.site.of,
        "layer": entry.site.layer,
        "primitive": entry.site.primitive,
        "iteration": [*entry.site.iteration] if entry.site.iteration else None,
        "alias_of": entry.alias_of,
        "absent": entry.absent,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
