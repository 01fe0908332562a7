"""Lines along depth as content have a number of each layer, in execution order."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradscope import naming
from gradscope.arrays.dtypes import is_complex, is_floating
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import Json
from gradscope.naming.paths import without_occurrence
from gradscope.presentation.page.content.json_values import Keys, rounded, shortened

#: The most scopes of a name; one from a file may have any number.
_MOST_SCOPES: Final = 64
#: What is shown along depth, by family, and how the direction is called.
DIRECTIONS: Final = {naming.ACTIVATION: "forward", naming.ACTIVATION_GRAD: "backward"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A `Measured` is a dump with a name.

    Attributes:
        name: Its file, or its step.
        manifest: Its manifest.
        counterparts: The keys of the tensors that have another key than in the first dump, by that key.
        made: Of each tensor of the first dump that is made of some of this one, how many times its norm that has, by
            its key; None where that is not known.
    """

    name: str
    manifest: Manifest
    counterparts: Mapping[str, str] = field(default_factory=dict[str, str])
    made: Mapping[str, float | None] = field(default_factory=dict[str, float | None])


def depth_content(title: str, dumps: Sequence[Measured], keys: Keys, families: Collection[str] = DIRECTIONS) -> Json:
    """Returns the rms of activations and of their gradients along depth, a line for each dump and direction.

    Args:
        title: The title of the chart.
        dumps: The dumps; the layers are those of the first.
        keys: Numbers the tensors.
        families: Which of the two.

    Returns:
        `title`; `unit`: what the numbers are; `names`: the layers; `lines`: each with its `label`, `direction`, `keys`
        and `values`; `marks`: of each dump and direction, the first layer with elements that are not finite, which its
        rms leaves out.
    """
    names = layers_along_depth(dumps[0].manifest)
    lines: list[Json] = []
    for dump in dumps:
        for family in DIRECTIONS:
            label = _LABELS[family] if len(dumps) == 1 else dump.name
            lines += _line(label, family, names, dump, keys, first=dumps[0]) if family in families else []
    marks = [
        mark
        for dump in dumps
        for family in DIRECTIONS if family in families
        for mark in _not_finite(family, names, dump, "" if len(dumps) == 1 else f" of {dump.name}")
    ]  # fmt: skip
    shown: list[Json] = [shortened(name) for name in names]
    return {"title": title, "unit": "rms", "names": shown, "lines": lines, "marks": marks}


_LABELS: Final = {naming.ACTIVATION: "activation rms", naming.ACTIVATION_GRAD: "gradient rms"}


def _not_finite(family: str, names: Sequence[str], dump: Measured, of: str) -> Iterator[Json]:
    """Yields the mark of the layer at which the first elements are not finite, in the order of the pass."""
    found = {naming.key_of(entry.family, entry.name) for entry in dump.manifest.entries
             if any(as_float(entry.stats.get(name, 0)) > 0 for name in ("nan", "inf"))}  # fmt: skip
    keys = [naming.key_of(family, name) for name in names]
    places = [at for at, key in enumerate(keys) if key not in dump.made and dump.counterparts.get(key, key) in found]
    for at in places[-1:] if family == naming.ACTIVATION_GRAD else places[:1]:
        yield {"at": at, "text": f"first not finite {DIRECTIONS[family]}{of}: {shortened(names[at])}"}


def innermost(names: Iterable[str]) -> list[str]:
    """Returns the names that are no scope of another one; nor is a further call of such a scope, as `layers#2` is."""
    found = list(names)
    around = {scope for name in found for scope in _scopes(name)}
    return [name for name in found if name not in around and without_occurrence(name) not in around]


def _scopes(name: str) -> Iterator[str]:
    components = name.split("/", _MOST_SCOPES)
    for number in range(1, len(components)):
        yield "/".join(components[:number])


def layers_along_depth(manifest: Manifest) -> list[str]:
    """Returns the names of the layers in execution order, without those around others, and those of whole numbers.

    A layer of whole numbers, such as an index, has no rms, and would cut the lines.
    """
    own = [entry for entry in manifest.entries
           if entry.family in DIRECTIONS and entry.alias_of is None and _has_rms(entry)]  # fmt: skip
    order: dict[str, int] = {}
    for entry in sorted(own, key=_position):
        order.setdefault(entry.name, len(order))
    return innermost(order)


def _has_rms(entry: Entry) -> bool:
    return not entry.dtype or is_floating(entry.dtype) or is_complex(entry.dtype)


def _position(entry: Entry) -> int:
    return entry.site.index


def _line(
    label: str, family: str, names: Sequence[str], dump: Measured, keys: Keys, *, first: Measured
) -> list[Json]:  # fmt: skip
    tensors = [naming.key_of(family, name) for name in names]
    counterparts = [dump.counterparts.get(key, key) for key in tensors]
    own, ours = _rms(dump.manifest, {*counterparts}), _rms(first.manifest, {*dump.made})
    found = [
        _times(ours.get(key), dump.made[key]) if key in dump.made else own.get(counterpart)
        for key, counterpart in zip(tensors, counterparts, strict=True)
    ]
    if all(each is None for each in found):
        return []
    values: list[Json] = [None if each is None else rounded(each) for each in found]
    numbers: list[Json] = [keys.number(key) for key in tensors]
    return [{"label": label, "direction": DIRECTIONS[family], "keys": numbers, "values": values}]


def _rms(manifest: Manifest, shown: Container[str]) -> dict[str, float]:
    """Returns the rms of each tensor that is shown and has one, by its key."""
    keyed = ((naming.key_of(entry.family, entry.name), entry) for entry in manifest.entries)
    return {key: as_float(entry.stats["rms"]) for key, entry in keyed if key in shown and "rms" in entry.stats}


def _times(rms: float | None, ratio: float | None) -> float | None:
    """Returns the rms of a tensor of as many elements, whose norm is so many times as large; None if not known."""
    return None if rms is None or ratio is None or not math.isfinite(rms * ratio) else rms * ratio
