"""Damages each file of a run in many ways, and looks at how the commands that read it end.

A file is cut, or has bits turned, zeros, or more bytes, or is another's, or none, a folder, a FIFO or a link to a
device without end. A command ends with a status that the reference documents, without a traceback, within a minute and,
where it only reads, in 256 MiB. The run is resumed where it needs that file to go on: the history, or the last state.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.integration.training.trained import write_files
from torture_attacks.commands import GRADSCOPE, finish
from torture_attacks.faults import DOCUMENTED
from torture_attacks.writers import copied

_MOST_MIB: Final = 256
_SECONDS: Final = 60

_TRAIN: Final = ("train", "net.py", "--data", "data.py:batches", "--every", "1", "--save-every", "5", "--quiet")
_READING: Final = (
    ("show", "run"), ("report", "run", "-o", "run.html", "--force"), ("watch", "run", "--once"),
    ("export", "run", "--to", "csv", "-o", "run.csv", "--force"), ("compare", "run", "whole"),
)  # fmt: skip
_RESUMING: Final = (*_TRAIN, "--steps", "25", "--resume", "-o", "run")


def damage(folder: Path, moments: random.Random, report: Callable[[str], None]) -> Counter[str]:
    """Returns how often a command ended as it should where a file of a run was damaged, and how often otherwise."""
    write_files(folder)
    finish([*_TRAIN, "--steps", "20", "-o", "whole"], folder)
    found: Counter[str] = Counter()
    files = sorted((folder / "whole").iterdir())
    for path in files:
        for name, change in _CHANGES.items():
            damaged = copied(folder / "whole", folder / "run") / path.name
            change(damaged, moments)
            for command in (*_READING, *[_RESUMING] * (path.suffix == ".sqlite" or path == files[-1])):
                wrong = _wrong(command, folder, None if command is _RESUMING else _MOST_MIB)
                found["commands"] += 1
                found["wrong" if wrong else "as they should"] += 1
                if wrong:
                    report(f"{path.name}, {name}: {command[0]}: {wrong}")
    return found


def _wrong(command: tuple[str, ...], folder: Path, most_mib: int | None) -> str:
    """Returns what is wrong with how a command ends; "" for nothing."""
    timed = ["/usr/bin/time", "-f", "%M", "-o", "memory", "-q", *GRADSCOPE, *command]
    try:
        done = subprocess.run(
            timed, cwd=folder, capture_output=True, check=False, timeout=_SECONDS, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {_SECONDS} s"
    if done.returncode not in DOCUMENTED or "Traceback" in done.stderr:
        return f"status {done.returncode}: {done.stderr.strip():.600}"
    mib = int((folder / "memory").read_text(encoding="utf-8").split()[-1]) >> 10
    return f"{mib} MiB" if most_mib is not None and mib > most_mib else ""


def _cut(path: Path, moments: random.Random) -> None:
    os.truncate(path, moments.randint(0, path.stat().st_size))


def _turn_bits(path: Path, moments: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(moments.choice((1, 8, 64)) if content else 0):
        content[moments.randrange(len(content))] ^= 1 << moments.randrange(8)
    path.write_bytes(content)


def _zero(path: Path, moments: random.Random) -> None:
    content = bytearray(path.read_bytes())
    begin = moments.randint(0, len(content))
    size = min(moments.choice((1, 100, 4096)), len(content) - begin)
    content[begin : begin + size] = bytes(size)
    path.write_bytes(content)


def _append(path: Path, moments: random.Random) -> None:
    path.write_bytes(path.read_bytes() + moments.randbytes(1000))


def _draw(path: Path, moments: random.Random) -> None:
    path.write_bytes(moments.randbytes(path.stat().st_size))


def _swap_halves(path: Path, _: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[len(content) // 2 :] + content[: len(content) // 2])


def _take_others(path: Path, moments: random.Random) -> None:
    shutil.copyfile(moments.choice([each for each in sorted(path.parent.iterdir()) if each != path]), path)


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


def _make_folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _make_fifo(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _make_link(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


_CHANGES: Final[dict[str, Callable[[Path, random.Random], None]]] = {
    "cut": _cut, "bits turned": _turn_bits, "zeros": _zero, "more": _append, "drawn": _draw, "halves": _swap_halves,
    "another's": _take_others, "removed": _remove, "a folder": _make_folder, "a FIFO": _make_fifo, "a link": _make_link,
}  # fmt: skip
