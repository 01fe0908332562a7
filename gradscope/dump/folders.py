"""Folders of dumps: the steps of a run, each a file of its own."""

from __future__ import annotations

import re
from pathlib import Path

from gradscope.dump.inputfile import InputFile
from gradscope.dump.manifest import MEMBER
from gradscope.dump.processfiles import is_process_folder
from gradscope.dump.zipdirectory import read_directory
from gradscope.dump.zipformat import LOCAL_SIGNATURE


def dumps_in(folder: Path) -> dict[str, Path]:
    """The dumps that lie directly in a folder, by name without suffix, in the order of the numbers in their names.

    A dump of several processes is a folder, and one dump.

    Args:
        folder: Any path.

    Returns:
        The dumps; none where it is no folder, a dump itself, or one of files that gradscope did not write.

    Raises:
        DumpError: A file that begins like a dump is damaged.
        MachineError: A file cannot be read.
    """
    if not folder.is_dir() or is_process_folder(folder):
        return {}
    found = [path for path in folder.iterdir() if _is_dump(path)]
    return {path.stem: path for path in sorted(found, key=_by_numbers)}


def _is_dump(path: Path) -> bool:
    if path.is_dir():
        return is_process_folder(path)
    if path.suffix != ".npz" or not path.is_file():
        return False
    with InputFile(path) as file:
        start = file.read(0, min(file.size_bytes, len(LOCAL_SIGNATURE)))
        return start == LOCAL_SIGNATURE and MEMBER in read_directory(file).members


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """`step_9` before `step_10`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.stem)]
