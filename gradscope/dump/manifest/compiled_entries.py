"""Decodes the entries of a long manifest with msgspec, where it is installed: their types are checked by compiled code.

msgspec decodes what Python's `json` does to the same values, and refuses some text that `json` reads (a lone surrogate,
a number that no float64 can hold). It ignores fields that a dataclass lacks, and the first of two fields of one name;
so entries are counted: where the text names more fields than they have, they are not used. Whoever calls this reads the
text in Python then, and has the error.

Histograms are most of a manifest in memory, and most readers look at none. Where they are not asked for, their counts
stay text, and go with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, make_dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

from gradscope.dump.manifest.json_fields import LARGEST
from gradscope.dump.manifest.json_text import most_names, require_small
from gradscope.dump.manifest.manifest import Entry, Manifest, Stored
from gradscope.dump.record import Json, Shard, SiteFacts

if TYPE_CHECKING:
    import msgspec
    from _typeshed import DataclassInstance

#: Bytes of the text from which on it is faster: importing msgspec takes as long as reading half of this.
_LONG: Final = 1 << 20

_ENTRIES: Final = "entries"
_HISTOGRAM: Final = "histogram"


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
    decoder = _decoder(histograms) if len(text) >= _LONG else None
    if decoder is None or not (histograms or text.isascii()):  # what stays text is not known to be UTF-8
        return None
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    require_small(text)
    try:
        parts = decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    entries: tuple[Entry, ...] = getattr(parts, _ENTRIES)
    others = {name: bytes(raw) for name in _others() if (raw := getattr(parts, name)) is not msgspec.UNSET}
    names = 1 + len(others) + sum(map(_most, others.values())) + _named(entries)
    if not histograms:
        names += _without_histograms(entries)
    if names != most_names(text) or not _within_limits(entries) or (histograms and not _are_small(entries)):
        return None
    rest = b"".join(b'"%b":%b,' % (name.encode(), raw) for name, raw in others.items())
    return Compiled(entries, b'{%b"%b":[]}' % (rest, _ENTRIES.encode()))


def _without_histograms(entries: Sequence[Entry]) -> int:
    """Takes the histograms out of statistics, and returns how many fields these had."""
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    taken = [cast("dict[str, Json]", entry.stats).pop(_HISTOGRAM, None) for entry in entries]
    return sum(len(each.__struct_fields__) for each in taken if isinstance(each, msgspec.Struct))


@cache
def _decoder(histograms: bool) -> msgspec.json.Decoder[Any] | None:
    try:
        import msgspec  # noqa: PLC0415 - it takes 30 ms, and need not be installed
    except ImportError:
        return None
    others: list[tuple[str, Any, Any]] = [(name, msgspec.Raw, msgspec.UNSET) for name in _others()]
    entry = Entry if histograms else _entry_without_counts()
    kind = msgspec.defstruct("_Parts", [(_ENTRIES, tuple[entry, ...]), *others], forbid_unknown_fields=True)
    return msgspec.json.Decoder(kind)


def _entry_without_counts() -> type[Entry]:
    """Returns a kind of entry in whose statistics the counts of a histogram stay text."""
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    parts: list[tuple[str, Any]] = [("first", int), ("counts", msgspec.Raw)]
    histogram = msgspec.defstruct("_Histogram", parts, forbid_unknown_fields=True, gc=False)
    integer = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
    stats = Mapping[str, bool | integer | float | str | list[int] | histogram | None]
    return make_dataclass("_Entry", [("stats", stats)], bases=(Entry,), frozen=True, slots=True, kw_only=True)


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
    histograms = [each for entry in entries if isinstance(each := entry.stats.get("histogram"), dict)]
    return (
        sum(map(len, chain((entry.stats for entry in entries), histograms)))
        + _given(Entry, entries)
        + _given(SiteFacts, [entry.site for entry in entries])
        + _given(Stored, stored)
        + _given(Shard, shards)
    )


def _given(kind: type[DataclassInstance], values: Sequence[object]) -> int:
    given = 0
    for field in fields(kind):
        given += len(values)
        if field.default is not MISSING:
            given -= [*map(attrgetter(field.name), values)].count(field.default)
    return given


def _within_limits(entries: Sequence[Entry]) -> bool:
    """Returns whether no count is larger than a size can be, and none is negative."""
    # Column by column, which takes a tenth of the time.
    sites = [entry.site for entry in entries]
    stored = [entry.stored for entry in entries if entry.stored is not None]
    shards = [entry.shard for entry in entries if entry.shard is not None]
    counts = [
        *map(attrgetter("index"), sites),
        *chain.from_iterable(map(attrgetter("iteration"), sites)),
        *chain.from_iterable(map(attrgetter("shape"), entries)),
        *(count for each in stored for count in (each.crc32, each.offset, each.size_bytes)),
        *(count for each in shards for count in (*each.whole, *each.start)),
    ]
    return min(counts, default=0) >= 0 and max(counts, default=0) <= LARGEST


def _are_small(entries: Sequence[Entry]) -> bool:
    """Returns whether no statistic is an integer larger than a size can be."""
    numbers = [value for entry in entries for value in entry.stats.values() if type(value) is int]
    return min(numbers, default=0) >= -LARGEST and max(numbers, default=0) <= LARGEST
