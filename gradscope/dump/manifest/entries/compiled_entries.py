"""Decodes entries of a manifest with msgspec, where it is installed: their types are checked by compiled code.

msgspec decodes what Python's `json` does to the same values, and refuses some text that `json` reads (a lone surrogate,
a number that no float64 can hold). It ignores fields that a dataclass lacks, and the first of two fields of one name;
so entries are counted: where the text names more fields than they have, they are not used. Whoever calls this reads the
text in Python then, and has the error.

Histograms are most of a manifest in memory, and most readers look at none. Where they are not requested, their counts
stay text, and go with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields, make_dataclass
from functools import cache
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from gradscope.dump.manifest.entries.packed_values import HISTOGRAM
from gradscope.dump.manifest.json_fields import LARGEST, MOST_AXES
from gradscope.dump.manifest.json_scan import most_names
from gradscope.dump.manifest.manifest import Entry, Stored
from gradscope.dump.record import Json, Shard, SiteFacts

if TYPE_CHECKING:
    import msgspec
    from _typeshed import DataclassInstance

#: The attribute of a type that msgspec made, with the names of its fields.
_FIELDS: Final = "__struct_fields__"


def compiled_entries(text: bytes, *, histograms: bool = True) -> list[Entry] | None:
    """Returns some entries of a manifest.

    Args:
        text: Their JSON text, with a comma between two.
        histograms: Whether the statistics have their histograms.

    Returns:
        The entries; None where msgspec is not installed, or the text has anything that needs a closer look: that is
        then either valid and unusual, or not valid.
    """
    decoders = _decoders(histograms)
    if decoders is None or not (histograms or text.isascii()):  # what stays text is not known to be UTF-8
        return None
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    try:
        entries: list[Entry] = decoders.entries.decode(b"[%b]" % text)
        if not _within_limits(entries):
            return None
        # All at once: a call for each takes as long as decoding it.
        stated = b",".join([cast("bytes", entry.stats) for entry in entries])
        found: list[dict[str, Json]] = decoders.all_statistics.decode(b"[%b]" % stated)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if sum(map(len, found)) + _histogram_names(found) + _named(entries) != most_names(text):
        return None
    replace(entries, "stats", found)
    replace(entries, "__class__", repeat(Entry))
    return entries


def replace(values: Iterable[object], name: str, new: Iterable[object]) -> None:
    """Replaces an attribute of frozen values by new ones."""
    deque(map(object.__setattr__, values, repeat(name), new), maxlen=0)


def _histogram_names(statistics: Sequence[dict[str, Json]]) -> int:
    """Returns how many fields histograms name; takes those out of which the counts stayed text."""
    histograms = [each.get(HISTOGRAM) for each in statistics]
    kinds = {*map(type, histograms)} - {type(None)}
    if any(hasattr(kind, _FIELDS) for kind in kinds):
        for each in statistics:
            each.pop(HISTOGRAM, None)
    if len(kinds) == 1 and hasattr(kind := kinds.pop(), _FIELDS):
        return len(getattr(kind, _FIELDS)) * (len(histograms) - histograms.count(None))
    fields = (each if isinstance(each, dict) else getattr(each, _FIELDS, ()) for each in histograms)
    return sum(map(len, fields))


class _Decoders(NamedTuple):
    """_Decoders decode entries in which statistics stay text, and a list of such texts."""

    entries: msgspec.json.Decoder[Any]
    all_statistics: msgspec.json.Decoder[Any]


@cache
def _decoders(histograms: bool) -> _Decoders | None:
    try:
        import msgspec  # noqa: PLC0415 - it takes 30 ms, and need not be installed
    except ImportError:
        return None
    # A dataclass that adds nothing, so that what it makes can become entries.
    entry = make_dataclass("_Entry", [("stats", msgspec.Raw)], bases=(Entry,), frozen=True, slots=True, kw_only=True)
    statistics = dict[str, Any] if histograms else _statistics_without_counts()
    return _Decoders(*map(msgspec.json.Decoder, (list[entry], list[statistics])))


def _statistics_without_counts() -> Any:
    """Returns the type of statistics in which the counts of a histogram stay text."""
    import msgspec  # noqa: PLC0415 - it takes 30 ms

    parts: list[tuple[str, Any]] = [("first", int), ("counts", msgspec.Raw)]
    histogram = msgspec.defstruct("_Histogram", parts, forbid_unknown_fields=True, gc=False)
    return dict[str, bool | int | float | str | list[int] | histogram | None]


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
