"""A checkpoint of Orbax is a folder, and a training run writes several of them into one.

Orbax marks the folder of a tree with `_METADATA`. Above it may be a folder of several items, marked with
`_CHECKPOINT_METADATA`, of which the only tree is meant, or the one called `default`, `state` or `model`; where one is
called `params`, all are meant: the others are collections beside it. Above that may be the folder of a run, with one
checkpoint for each step, `7` or `checkpoint_7`, of which the last is meant. A run of ours has `state-000007.npz`, and
in the folder of an alarm the state before it.

A folder of safetensors files may have an index, which names the file of each tensor.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from gradscope.dump.reader import is_alarm_folder
from gradscope.errors import DumpError
from gradscope.naming import printable

#: How the name of an index of safetensors files ends.
SHARDED: Final = ".safetensors.index.json"

_TREE: Final = "_METADATA"
_MARKS: Final = (_TREE, "_CHECKPOINT_METADATA")
_STEP: Final = re.compile(r"(?:.*[_-])?(\d+)")
#: The states in the folder of our own runs, and the one in the folder of an alarm.
_STATE: Final = re.compile(r"state-(\d{6,})\.npz")
_ALARM_STATE: Final = "state.npz"

#: Files that are read together, with all in a folder, and suffixes of files that are read by themselves or refused.
_TOGETHER: Final = (".npz", ".npy", ".safetensors")
_ALONE: Final = frozenset({".bin", ".ckpt", ".eqx", ".h5", ".keras", ".msgpack", ".pickle", ".pkl", ".pt", ".pth"})
#: The most of them that a message names.
_MOST: Final = 3

#: Items of a checkpoint that are the state of a training run, where it has other items, too.
_ITEMS: Final = ("default", "state", "model")
_COLLECTION: Final = "params"


def is_orbax(path: Path) -> bool:
    """Returns whether a folder is a checkpoint of Orbax."""
    return any((path / mark).exists() for mark in _MARKS)


def checkpoint_in(location: Path) -> Path:
    """Returns the checkpoint that a path stands for: itself, or the last of those in a folder.

    Args:
        location: Any path.

    Returns:
        The file or the folder.

    Raises:
        DumpError: It is a checkpoint of several items, and nothing tells which is meant.
    """
    if not location.is_dir() or (location / _TREE).exists():
        return location
    if is_alarm_folder(location):
        return location / _ALARM_STATE
    if is_orbax(location):
        return _item_of(location)
    steps = _steps_in(location)
    return checkpoint_in(steps[max(steps)]) if steps else location


def choice_note(location: Path) -> Iterator[str]:
    """Yields sentences about which of several checkpoints in a folder, and which of several items, is read."""
    chosen = checkpoint_in(location)
    steps = {} if chosen == location or is_orbax(location) else _steps_in(location)
    if len(steps) > 1:
        name = printable(location.name)
        yield f"{name}: step {max(steps)} is read, the last of {len(steps)}; {name}/NAME is another"
    others = [] if chosen == location or not is_orbax(chosen.parent) else trees_in(chosen.parent)
    if len(others) > 1:
        rest = ", ".join(printable(each.name) for each in others if each != chosen)
        yield f"{printable(chosen.parent.name)}: {printable(chosen.name)} is read, and not {rest}"


def require_tensors(folder: Path) -> None:
    """Raises where a folder has none of the files that are read together, and says which others it has.

    Raises:
        DumpError: It has none.
    """
    below = (name for _, _, names in os.walk(folder) for name in names)
    if not folder.is_dir() or any(name.endswith(_TOGETHER) for name in below):
        return
    alone = sorted(each.name for each in folder.iterdir() if each.suffix in _ALONE)
    more = f", or one of {len(alone) - _MOST} more" if len(alone) > _MOST else ""
    names = " or ".join(printable(str(folder / name)) for name in alone[:_MOST])
    hint = f"name a file in it: {names}{more}" if alone else None
    raise DumpError(f"{printable(str(folder))}: it holds no tensors that are read from a folder", hint=hint)


def require_complete(folder: Path) -> None:
    """Raises where an index names files beside those that a folder has.

    Raises:
        DumpError: Some of them are missing, as after a download that was interrupted.
    """
    for index in sorted(folder.glob(f"*{SHARDED}")):
        named = _files_of(index)
        missing = sorted(name for name in named if not (folder / name).exists())
        if len(missing) < len(named):
            for name in missing[:1]:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                which = f"{printable(name)}{more}, of {len(named)} files that {printable(index.name)} names"
                raise DumpError(f"{printable(str(folder))} lacks {which}", hint="complete the folder")


def _files_of(index: Path) -> frozenset[str]:
    """Returns the files that an index names; none where it cannot be read: what it says is in the files, too."""
    try:
        content: Any = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError):
        return frozenset()
    names: Any = cast("Mapping[str, Any]", content).get("weight_map") if isinstance(content, Mapping) else None
    values: Iterable[Any] = cast("Mapping[str, Any]", names).values() if isinstance(names, Mapping) else ()
    # A name with a folder in it would be looked for outside.
    return frozenset(name for name in values if isinstance(name, str) and Path(name).name == name)


def _steps_in(folder: Path) -> dict[int, Path]:
    return {int(found[1]): path for path in folder.iterdir() if (found := _step_of(path))}


def _step_of(path: Path) -> re.Match[str] | None:
    """Returns the match of a step in the name of a checkpoint of Orbax, Flax or a run; None for another path."""
    if not path.is_dir() and (state := _STATE.fullmatch(path.name)):
        return state
    written = is_orbax(path) if path.is_dir() else path.name.startswith("checkpoint_")
    return _STEP.fullmatch(path.name) if written else None


def trees_in(folder: Path) -> list[Path]:
    """Returns the trees in a checkpoint of several items; none where it is a tree itself."""
    return sorted(path for path in folder.iterdir() if (path / _TREE).exists())


def _item_of(folder: Path) -> Path:
    """Returns the tree in a checkpoint of several items, or the folder of all, where they are collections."""
    trees = trees_in(folder)
    if len(trees) < 2:
        return trees[0] if trees else folder
    known = [folder / name for name in _ITEMS if folder / name in trees]
    if not known and folder / _COLLECTION in trees:
        return folder
    if not known:
        raise DumpError(
            f"{printable(str(folder))} has {len(trees)} items: {', '.join(printable(path.name) for path in trees)}",
            hint=f"name one of them: {printable(str(trees[0]))}",
        )
    return known[0]
