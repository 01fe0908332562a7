"""Notes state how two runs differ: versions and options, one line each on a terminal, and the whole command lines.

A hash says that something differs and not how, and much that one run does not state may be the same: both are named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

from gradscope.dump.manifest.json_text import dumps
from gradscope.dump.record import Json
from gradscope.history.database.schema import RUN_OPTION
from gradscope.naming.wording import counted
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.for_ci.github import Annotation
from gradscope.presentation.render.screen import Screen, widest

_HASH: Final = re.compile(r"[0-9a-f]{32,}")
#: The field whose hash is a name that people use, in its short form.
_COMMIT: Final = "git_commit"
_COMMIT_DIGITS: Final = 12
#: The field of a run that has the hash of a file.
_FILE: Final = re.compile(rf"{RUN_OPTION}an? (.+ file) of SHA-256")
#: The field with the command line of a dump, and those that are only there where an option was given.
_COMMAND_LINE: Final = "argv"
_OPTIONS: Final = ("checkpoint", "data", "batch_index", "loss", "train", "dtype")
#: How the command line of a dump begins; a script that captures has its own.
_COMMAND: Final = "gradscope"
#: The fields in which two programs of different kinds differ whatever they compute.
_OF_PROGRAMS: Final = frozenset({_COMMAND_LINE, "model", "model_file", "target", "naming"})
_SIDES: Final = ("ref", "cand")
_SIDE_NAMES: Final = MappingProxyType({"ref": "reference", "cand": "candidate"})
#: How the fields begin that are first, and those that are last: they explain a difference least.
_CHOSEN: Final = (
    RUN_OPTION, "versions.", "model", "target", "seed", "batch_size", "dtype", "matmul_precision", "loss", "checkpoint",
    "data",
)  # fmt: skip
_OF_FILES: Final = ("git_", "model_file", "python", "platform", "host")
#: The most fields that one side does not state of which each has a line.
_FEW: Final = 3
_NOT_GIVEN: Final = "(not given)"
_UNKNOWN: Final = "(unknown)"
_ARROW: Final = " -> "
_GAP: Final = 2
_HASHES: Final = "hashes"
_UNSTATED: Final = "unknown"
_OTHERS: Final = "others"
_EXTENT: Final = "extent"


def extent_notes(sentences: Sequence[str]) -> tuple[Note, ...]:
    """Returns the notes on what one capture recorded and the other did not."""
    return tuple(Note(label=_EXTENT, text=text) for text in sentences)


def provenance_notes(differences: Sequence[Mapping[str, Json]], screen: Screen, *, verbose: bool) -> tuple[Note, ...]:
    """Returns the notes on the fields in which the provenance of two runs differs.

    Args:
        differences: `field`, `ref` and `cand` of each.
        screen: Where they are shown; a terminal has each in one line.
        verbose: Whether hashes, long texts and what one run does not state are shown in full.
    """
    differences = differences if verbose else _in_order(differences)
    if not verbose and _fields(differences) == []:
        return ()
    # A dump that states its command line states every option of it, as a run does.
    lines = next((each for each in differences if each["field"] == _COMMAND_LINE), {})
    stating = [side for side in _SIDES if _is_command(lines.get(side))]
    if not verbose and len(stating) == 1 and len(lines.keys() & set(_SIDES)) == len(_SIDES):
        return _of_two_kinds(differences, screen)
    hashes = [] if verbose else [str(each["field"]) for each in differences if _is_hash(each)]
    unknown = _unknown(differences, stating)
    if verbose or sum(map(len, unknown.values())) <= _FEW:
        unknown = {}
    shown = [each for each in differences if each["field"] not in {*hashes, *chain.from_iterable(unknown.values())}]
    labels = widest([*(_label(str(each["field"])) for each in shown), _HASHES, _UNSTATED, _EXTENT])
    room = None if screen.width is None or verbose else screen.width - labels - _GAP
    notes = _changes(shown, stating, room, screen, verbose=verbose)
    return (*notes, *_unstated(unknown), *_hashes([each for each in hashes if each not in chain(*unknown.values())]))


def _fields(differences: Sequence[Mapping[str, Json]]) -> list[str]:
    """Returns the names of fields but that of the command line, which alone says of nothing that it is another."""
    return [str(each["field"]) for each in differences if each["field"] != _COMMAND_LINE]


def _in_order(differences: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """Returns what the user chose first, and files last; an option once, whose own field differs, too."""
    fields = {str(each["field"]) for each in differences}
    told = {f"{RUN_OPTION}--{field.replace('_', '-')}" for field in fields}
    told |= {f"{RUN_OPTION}TARGET"} if "model" in fields else set()
    return sorted((each for each in differences if each["field"] not in told), key=_place)


def _place(difference: Mapping[str, Json]) -> int:
    field = str(difference["field"])
    return 2 if field.startswith(_OF_FILES) else 0 if field.startswith(_CHOSEN) else 1


def _is_command(line: Json) -> bool:
    return isinstance(line, list) and line[:1] == [_COMMAND]


def _of_two_kinds(differences: Sequence[Mapping[str, Json]], screen: Screen) -> tuple[Note, ...]:
    """Returns the notes on a dump and a capture of another program, as of PyTorch: what both state that may matter."""
    both = [each for each in differences if all(side in each for side in _SIDES)]
    shown = [each for each in both if each["field"] not in _OF_PROGRAMS and not _is_hash(each)]
    labels = widest([*(str(each["field"]) for each in shown), _OTHERS, _EXTENT])
    room = None if screen.width is None else screen.width - labels - _GAP
    names = ", ".join(_label(field) for field in _fields([each for each in both if each not in shown]))
    alone = len(differences) - len(both)
    counts = f"{counted(alone, 'fact')} that one side alone states" if alone else ""
    others = "; ".join(filter(None, [names, counts]))
    notes = [Note(label=_OTHERS, text=f"{others} (compare --verbose shows them)")] if others else []
    return (*_changes(shown, (), room, screen, verbose=False), *notes)


def _changes(
    differences: Sequence[Mapping[str, Json]], stating: Sequence[str], room: int | None, screen: Screen, *,
    verbose: bool,
) -> list[Note]:  # fmt: skip
    return [
        Note(label=_label(str(each["field"])), text=_change(each, stating, room, screen, verbose=verbose))
        for each in differences
    ]


def verdict_annotation(verdict: str, sentence: str, source: str | None = None) -> Annotation:
    """Returns the verdict of a comparison as an annotation, at the `file:line` of the first divergence."""
    level = "notice" if verdict == "same" else "error"
    return Annotation(level=level, title=f"gradscope: {verdict}", message=sentence, source=source)


def _hashes(fields: Sequence[str]) -> Iterator[Note]:
    if fields:
        yield Note(label=_HASHES, text=f"{', '.join(map(_label, fields))} (compare --verbose shows them)")


def _unknown(differences: Sequence[Mapping[str, Json]], stating: Sequence[str]) -> dict[str, list[str]]:
    """Returns the fields that one side does not state, by side."""
    return {
        side: [str(each["field"]) for each in differences if side not in each and not _is_option(each, side, stating)]
        for side in _SIDES
    }


def _is_option(difference: Mapping[str, Json], side: str, stating: Sequence[str]) -> bool:
    """Returns whether a field is an option that a side would state if it was given."""
    # A run states every option that it was given; what others do not state may have been given all the same.
    field = str(difference["field"])
    return field.startswith(RUN_OPTION) or (side in stating and field in _OPTIONS)


def _unstated(unknown: Mapping[str, Sequence[str]]) -> Iterator[Note]:
    named = {side: dict.fromkeys(_label(field).partition(".")[0] for field in each) for side, each in unknown.items()}
    clauses = [f"of the {_SIDE_NAMES[side]} {', '.join(each)}" for side, each in named.items() if each]
    if clauses:
        yield Note(label=_UNSTATED, text=f"{'; '.join(clauses)} (compare --verbose shows them)")


def _label(field: str) -> str:
    """Returns what a field is called: the file that a hash is of, and any other one as it is."""
    file = _FILE.fullmatch(field)
    return field if file is None else file[1]


def _is_hash(difference: Mapping[str, Json]) -> bool:
    values = [difference[side] for side in _SIDES if side in difference]
    return difference["field"] != _COMMIT and all(isinstance(each, str) and _HASH.fullmatch(each) for each in values)


def _change(
    difference: Mapping[str, Json], stating: Sequence[str], room: int | None, screen: Screen, *, verbose: bool
) -> str:
    ref, cand = (_side(difference, side, stating, verbose=verbose) for side in _SIDES)
    if room is None or difference["field"] == _COMMAND_LINE or len(ref) + len(_ARROW) + len(cand) <= room:
        return f"{ref}{_ARROW}{cand}"
    # A short side leaves its room to the other one.
    half = (room - len(_ARROW)) // 2
    for_ref = max(half, room - len(_ARROW) - len(cand))
    for_cand = max(half, room - len(_ARROW) - len(ref))
    return f"{screen.elide(ref, for_ref)}{_ARROW}{screen.elide(cand, for_cand)}"


def _side(difference: Mapping[str, Json], side: str, stating: Sequence[str], *, verbose: bool) -> str:
    if side not in difference:
        return _NOT_GIVEN if _is_option(difference, side, stating) else _UNKNOWN
    value = difference[side]
    if isinstance(value, list):  # a command line
        return shlex.join(map(str, value))
    text = value if isinstance(value, str) else dumps(value)
    return text[:_COMMIT_DIGITS] if difference["field"] == _COMMIT and not verbose else text
