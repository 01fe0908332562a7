"""A row shows the statistics of a tensor: those of the table of columns, as numbers where JSON has strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from gradscope.dump.manifest.entries.packed_statistics import PackedStatistics, StatisticsTable, Values
from gradscope.dump.manifest.entries.packed_values import EqualTexts, Histograms
from gradscope.dump.record import Json
from gradscope.primitive_groups import ADDITIONS, MATRIX_PRODUCTS
from gradscope.stats.columns import base_of, column_kinds, number

#: Values that are the entry's own and not statistics, and the statistic that comes first.
OF_ENTRY: Final = ("shape", "dtype")
_FIRST: Final = "size"

#: Writes the statistic of a name.
_Written: TypeAlias = Callable[[Mapping[str, Json], str], Json]

#: The types of numbers in JSON.
_PLAIN: Final = frozenset({bool, int, float})
#: Primitives whose results are zero only where what they add up is.
_LINEAR: Final = ADDITIONS | MATRIX_PRODUCTS


class _Shown(NamedTuple):
    """_Shown has the names of statistics in the order of columns, those of numbers among them, and those of texts."""

    names: Sequence[str]
    numbers: Sequence[str]
    texts: Sequence[str]


@lru_cache(maxsize=256)  # most tensors have statistics of the same names
def shown(names: tuple[str, ...]) -> _Shown:
    """Returns which statistics rows have of those of some names."""
    known = column_kinds()
    kinds = {name: known.get(base_of(name), "number") for name in names if name not in OF_ENTRY}
    kinds = {name: kind for name, kind in kinds.items() if name == _FIRST or kind != "histogram"}
    converted = [name for name in kinds if name != _FIRST]
    return _Shown(
        names=sorted(kinds, key=lambda name: name != _FIRST),
        numbers=[name for name in converted if kinds[name] != "text"],
        texts=[name for name in converted if kinds[name] == "text"],
    )


def all_numbers(statistics: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """Returns statistics with numbers where JSON has strings: for NaN and infinities."""
    # Asked once for all of a table that has only numbers where it should, and else for all that have the same names and
    # types, as most have.
    plain: dict[StatisticsTable, bool] = {}
    written: dict[tuple[tuple[str, ...], tuple[type, ...]], Mapping[str, _Written]] = {}
    found: list[Mapping[str, Json]] = []
    for each in statistics:
        if isinstance(each, PackedStatistics):
            table = each.table
            if plain[table] if table in plain else plain.setdefault(table, _is_plain(table)):
                found.append(each)
                continue
        kind = (tuple(each), tuple(map(type, each.values())))
        convert = written.get(kind)
        if convert is None:
            convert = written[kind] = _converted(*kind)
        found.append({**each, **{name: convert[name](each, name) for name in convert}} if convert else each)
    return found


def _is_plain(table: StatisticsTable) -> bool:
    """Returns whether the statistics of a table are all written as they are."""
    kinds = {name: _kinds_in(values) for name, values in table.columns.items()}
    own = shown(tuple(kinds))
    numbers, texts = (set[type]().union(*(kinds[name] for name in names)) for names in (own.numbers, own.texts))
    return numbers <= _PLAIN and texts <= (_PLAIN | {str})


def _kinds_in(values: Values) -> set[type]:
    """Returns the types of values."""
    if isinstance(values, list):
        return {*map(type, values)}
    if isinstance(values, Histograms):
        return {dict}
    return {str} if isinstance(values, EqualTexts) else {float}


def _converted(names: tuple[str, ...], types: tuple[type, ...]) -> dict[str, _Written]:
    """Returns what writes the statistics that are not written as they are, by their names."""
    own, kinds = shown(names), dict(zip(names, types, strict=True))
    numbers = {name: number for name in own.numbers if kinds[name] not in _PLAIN}
    return {**numbers, **{name: _text for name in own.texts if kinds[name] not in (_PLAIN | {str})}}


def _text(stats: Mapping[str, Json], name: str) -> str:
    return str(stats[name])


def are_units_dead(dead: object, least: object, lost: object, primitive: object) -> bool:
    """Returns whether units that are never positive are dead: a rectifier made the value, or passes no gradient to it.

    A linear output of zeros is what it is; a rectifier has none of its own.

    Args:
        dead: The share of units that are never positive.
        least: The least finite element; None where there is none, as of a value that is all infinite.
        lost: The share of elements whose gradient is zero; None where there is none.
        primitive: What made the value, as far as that is known.
    """
    if least == 0:
        return primitive not in _LINEAR
    return least is not None and isinstance(dead, int | float) and isinstance(lost, int | float) and lost >= dead > 0
