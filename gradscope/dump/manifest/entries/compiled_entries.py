"""Decodes the entries of a long manifest with msgspec, where it is installed: their types are checked by compiled code.

msgspec decodes what Python's `json` does to the same values, and refuses some text that `json` reads (a lone surrogate,
a number that no float64 can hold). It ignores fields that a dataclass lacks, and the first of two fields of one name;
so entries are counted: where the text names more fields than they have, they are not used. Whoever calls this reads the
text in Python then, and has the error.

Histograms are most of a manifest in memory, and most readers look at none. Where they are not requested, their counts
stay text, and go with it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence, ValuesView
from dataclasses import MISSING, fields, make_dataclass
from functools import cache
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from gradscope.dump.manifest.entries.packed_statistics import EqualTexts, Packer, Values
from gradscope.dump.manifest.json_fields import LARGEST, MOST_AXES
from gradscope.dump.manifest.json_text import most_names, require_small
from gradscope.dump.manifest.manifest import Entry, Manifest, Stored
from gradscope.dump.record import Json, Shard, SiteFacts

if TYPE_CHECKING:
    import msgspec
    from _typeshed import DataclassInstance

#: Bytes of the text from which on it is faster: importing msgspec takes as long as reading half of this.
_LONG: Final = 1 << 20

#: The most bytes of text that are copied to be decoded at once.
_MOST_BYTES: Final = 4 << 20

#: The number of tensors of which the statistics are decoded at once.
_AT_ONCE: Final = 512

_ENTRIES: Final = "entries"
_HISTOGRAM: Final = "histogram"

#: The attribute of a type that msgspec made, with the names of its fields.
_FIELDS: Final = "__struct_fields__"


class Compiled(NamedTuple):
    """`Compiled` has the entries of a manifest, and its text without them."""

    entries: tuple[Entry, ...]
    rest: bytes


def compiled_entries(text: bytes | bytearray, *, histograms: bool = True) -> Compiled | None:
    """Returns the entries of a manifest, and the JSON text of its other fields, in which it has no entries.

    Args:
        text: The JSON text of the manifest.
        histograms: Whether the statistics have their histograms.

    Returns:
        The entries and the rest; None where msgspec is not installed, the text is short, or has anything in its entries
        that needs a closer look: that is then either valid and unusual, or not valid.

    Raises:
        DumpError: The text has more or deeper arrays and objects than the limits.
    """
    decoders = _decoders(histograms) if len(text) >= _LONG else None
    if decoders is None or not (histograms or text.isascii()):  # what stays text is not known to be UTF-8
        return None
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    require_small(text)
    try:
        parts = decoders.parts.decode(text)
        entries: tuple[Entry, ...] = getattr(parts, _ENTRIES)
        if not _within_limits(entries):
            return None
        named = _with_statistics(entries, decoders)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    others = {name: bytes(raw) for name in _others() if (raw := getattr(parts, name)) is not msgspec.UNSET}
    if named is None:
        return None
    if 1 + len(others) + sum(map(_most, others.values())) + _named(entries) + named != most_names(text):
        return None
    rest = b"".join(b'"%b":%b,' % (name.encode(), raw) for name, raw in others.items())
    return Compiled(entries, b'{%b"%b":[]}' % (rest, _ENTRIES.encode()))


def _with_statistics(entries: Sequence[Entry], decoders: _Decoders) -> int | None:
    """Decodes the statistics of entries, where these have their text, and packs them.

    Returns:
        How many fields they named; None where one is an integer larger than a size can be.
    """
    packer, names = Packer(), 0
    for start in range(0, len(entries), _AT_ONCE):
        part = entries[start : start + _AT_ONCE]
        found = _decoded([cast("bytes", entry.stats) for entry in part], decoders)
        names += sum(map(len, found)) + _histogram_names(found)
        _replace(part, "stats", packer.pack(found))
        _replace(part, "__class__", repeat(Entry))
        _share(part, ("family", "dtype", "shape"))
        _share([entry.site for entry in part], ("source", "layer", "primitive"))
        _share([entry.stored for entry in part if entry.stored is not None], ("dtype",))
    return names if all(map(_are_small, packer.columns())) else None


def _decoded(texts: Sequence[bytes], decoders: _Decoders) -> list[dict[str, Json]]:
    """Returns the statistics that each of some texts has."""
    if sum(memoryview(text).nbytes for text in texts) > _MOST_BYTES:  # as no writer's have
        return [decoders.statistics.decode(text) for text in texts]
    # All at once: a call for each takes as long as decoding it.
    return decoders.all_statistics.decode(b"[%b]" % b",".join(texts))


def _share(values: Sequence[object], names: Iterable[str]) -> None:
    """Makes equal attributes of some values one object: most tensors have the family, dtype and shape of others."""
    for name in names:
        own = [*map(attrgetter(name), values)]
        known = dict(zip(own, own, strict=True))
        if len(known) < len(own):
            _replace(values, name, map(known.__getitem__, own))


def _replace(values: Iterable[object], name: str, new: Iterable[object]) -> None:
    """Replaces an attribute of frozen values."""
    deque(map(object.__setattr__, values, repeat(name), new), maxlen=0)


def _histogram_names(statistics: Sequence[dict[str, Json]]) -> int:
    """Returns how many fields histograms name; takes those out of which the counts stayed text."""
    histograms = [each.get(_HISTOGRAM) for each in statistics]
    kinds = {*map(type, histograms)} - {type(None)}
    if any(hasattr(kind, _FIELDS) for kind in kinds):
        for each in statistics:
            each.pop(_HISTOGRAM, None)
    if len(kinds) == 1 and hasattr(kind := kinds.pop(), _FIELDS):
        return len(getattr(kind, _FIELDS)) * (len(histograms) - histograms.count(None))
    fields = (each if isinstance(each, dict) else getattr(each, _FIELDS, ()) for each in histograms)
    return sum(map(len, fields))


class _Decoders(NamedTuple):
    """_Decoders decode a manifest in which statistics stay text, such a text, and a list of them."""

    parts: msgspec.json.Decoder[Any]
    statistics: msgspec.json.Decoder[Any]
    all_statistics: msgspec.json.Decoder[Any]


@cache
def _decoders(histograms: bool) -> _Decoders | None:
    try:
        import msgspec  # noqa: PLC0415 - it takes 30 ms, and need not be installed
    except ImportError:
        return None
    others: list[tuple[str, Any, Any]] = [(name, msgspec.Raw, msgspec.UNSET) for name in _others()]
    # A dataclass that adds nothing, so that what it makes can become entries.
    entry = make_dataclass("_Entry", [("stats", msgspec.Raw)], bases=(Entry,), frozen=True, slots=True, kw_only=True)
    kind = msgspec.defstruct("_Parts", [(_ENTRIES, tuple[entry, ...]), *others], forbid_unknown_fields=True)
    statistics = dict[str, Any] if histograms else _statistics_without_counts()
    return _Decoders(*map(msgspec.json.Decoder, (kind, statistics, list[statistics])))


def _statistics_without_counts() -> Any:
    """Returns the type of statistics in which the counts of a histogram stay text."""
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    parts: list[tuple[str, Any]] = [("first", int), ("counts", msgspec.Raw)]
    histogram = msgspec.defstruct("_Histogram", parts, forbid_unknown_fields=True, gc=False)
    return dict[str, bool | int | float | str | list[int] | histogram | None]


def _others() -> list[str]:
    return [field.name for field in fields(Manifest) if field.name != _ENTRIES]


def _most(text: bytes) -> int:
    """Returns an upper bound of the fields that a part of the text names; -1 where it is not known."""
    found = most_names(text)
    return -1 if found is None else found


def _named(entries: Sequence[Entry]) -> int:
    """Returns how many fields entries have that are not at their default; a writer names no others."""
    stored = [entry.stored for entry in entries if entry.stored is not None]
    shards = [entry.shard for entry in entries if entry.shard is not None]
    return (
        _stated(Entry, entries)
        + _stated(SiteFacts, [entry.site for entry in entries])
        + _stated(Stored, stored)
        + _stated(Shard, shards)
    )


def _stated(kind: type[DataclassInstance], values: Sequence[object]) -> int:
    stated = 0
    for field in fields(kind):
        stated += len(values)
        if field.default is not MISSING:
            stated -= [*map(attrgetter(field.name), values)].count(field.default)
    return stated


def _within_limits(entries: Sequence[Entry]) -> bool:
    """Returns whether no count is larger than a size can be, none is negative, and no array has too many axes."""
    # Column by column, which takes a tenth of the time.
    sites = [entry.site for entry in entries]
    stored = [entry.stored for entry in entries if entry.stored is not None]
    shards = [entry.shard for entry in entries if entry.shard is not None]
    shapes = [*map(attrgetter("shape"), entries)]
    shapes += [shape for each in shards for shape in (each.whole, each.start)]
    counts = [
        *map(attrgetter("index"), sites),
        *chain.from_iterable(map(attrgetter("iteration"), sites)),
        *chain.from_iterable(shapes),
        *chain.from_iterable(map(attrgetter(name), stored) for name in ("crc32", "offset", "size_bytes")),
    ]
    axes = max(map(len, shapes), default=0)
    return axes <= MOST_AXES and min(counts, default=0) >= 0 and max(counts, default=0) <= LARGEST


def _are_small(column: Values | ValuesView[Json]) -> bool:
    """Returns whether no statistic is an integer larger than a size can be."""
    if isinstance(column, EqualTexts):
        return True
    if isinstance(column, array):
        return column.typecode != "q" or min(column, default=0) >= -LARGEST  # no array has a larger one
    numbers = [value for value in column if type(value) is int]
    return min(numbers, default=0) >= -LARGEST and max(numbers, default=0) <= LARGEST
