"""Checks, before any work is done, that a dump can be written to a path."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradscope.dump.storage.storage_errors import machine_error, machine_errors
from gradscope.dump.storage.writing.read_files import remembered_reads
from gradscope.errors import MachineError, UsageError
from gradscope.naming import printable

#: Suffixes of what gradscope makes of a dump or a run, and does not read.
_MADE: Final = frozenset({".csv", ".html"})


@dataclass(frozen=True, slots=True)
class FileKind:
    """A `FileKind` is a format of files, by whose suffix programs and folders of steps know them.

    Attributes:
        name: The format in a sentence, with its article.
        suffixes: The suffixes that names have; the first is the usual one.
    """

    name: str
    suffixes: tuple[str, ...]


DUMP: Final = FileKind("a dump", (".npz",))
PAGE: Final = FileKind("a page", (".html", ".htm"))

#: The suffixes of the formats that a dump or a page may be mistaken for.
_FORMATS: Final = frozenset(
    {".npz", ".npy", ".safetensors", ".msgpack", ".pt", ".pth", ".ckpt", ".h5", ".pkl", ".zip", ".py",
     ".txt", ".log", ".csv", ".json", ".jsonl", ".md", ".html", ".htm", ".svg", ".png", ".pdf"}
)  # fmt: skip

#: What a user writes for standard output in place of a path.
_STANDARD_OUTPUT: Final = "-"


def checked_target(
    path: Path, *, force: bool | None, inputs: Iterable[Path] = (), kind: FileKind | None = None
) -> Path:
    """Returns the regular file, existing or not, that a path refers to; symbolic links are followed.

    Args:
        path: The path as the user wrote it.
        force: Whether a file that exists may be replaced; None where the user cannot say so.
        inputs: Files that are read, which are not replaced in any case. The sources of imported modules never are, nor
            what a model's code has opened to read (see `read_files`).
        kind: What is written, which gets no name that has the suffix of another format; None for any name.

    Raises:
        UsageError: The path exists (without `force`), is an input, is not a regular file, has the name of another kind
            of file, or has no parent folder.
        MachineError: The folder is not writable, or may not be entered.
    """
    shown = printable(str(path))
    if shown == _STANDARD_OUTPUT:
        raise UsageError("cannot write to standard output, but to a file alone", hint="give a path")
    try:
        target = Path(os.path.realpath(path))
        mode = _mode(path)  # not of `target`: /dev/stdout may resolve to a pipe, which has no path
        parent = _mode(target.parent)
    except PermissionError as error:
        raise MachineError(
            f"cannot write to {shown}: {error.strerror}", hint="choose a folder you may enter"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write to {shown}: {error.strerror}") from error
    except ValueError as error:  # a NUL character
        raise UsageError(f"cannot write to {shown}: {error}") from error
    # The rename replaces whatever is at the path: run as root, even a device node.
    if mode is not None and not stat.S_ISREG(mode):
        raise UsageError(f"cannot write to {shown}: it is {_kind(mode)}, not a regular file")
    if mode is not None:
        require_no_input(target, path, inputs)
    if kind is not None:
        _require_suffix(target, path, kind)
    if mode is not None and not force:
        instead = (
            "give another path"
            if force is None
            else "give another path, or replace it with --force (in Python, force=True)"
        )
        raise UsageError(f"{shown} exists", hint=instead)
    if parent is None or not stat.S_ISDIR(parent):
        raise UsageError(f"cannot write to {shown}: there is no folder {printable(str(target.parent))}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise MachineError(f"cannot write to {shown}: its folder is read-only", hint="choose a folder you may write to")
    return target


def _require_suffix(target: Path, path: Path, kind: FileKind) -> None:
    """Raises an error where the name of a path, and of its file, is that of another kind of file."""
    if path.suffix.lower() in _FORMATS.difference(kind.suffixes) and target.suffix not in kind.suffixes:
        suffix = kind.suffixes[0]
        raise UsageError(
            f"cannot write to {printable(str(path))}: the name of {kind.name} ends in {suffix}",
            hint=f"name it {printable(path.with_suffix(suffix).name)}",
        )


def require_no_input(target: Path, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raises an error where a file that exists has to be kept.

    Args:
        target: The file.
        path: Its path as the user wrote it.
        inputs: As for `checked_target`.

    Raises:
        UsageError: It is one of the files that are read.
    """
    try:
        role = _role(target, inputs)
    except OSError:
        return  # there is none
    if role:
        raise UsageError(f"cannot write to {printable(str(path))}: it is {role}", hint="give another path")


def is_folder(path: Path) -> bool | None:
    """Returns whether a path is that of a folder; None where there is nothing.

    Raises:
        UsageError: There can be nothing, because a name is too long, or has a NUL character.
        MachineError: A folder on the way may not be entered.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if getattr(error, "errno", None) in {None, errno.ENAMETOOLONG, errno.ELOOP}:
            raise UsageError(f"cannot write to {printable(str(path))}: {reason}") from error
        raise MachineError(f"cannot write to {printable(str(path))}: {reason}") from error
    return path.is_dir()  # a link to nowhere is none


def is_stream(path: Path) -> bool:
    """Returns whether what is written to a path goes on at once, and replaces nothing: a FIFO, or a terminal."""
    try:
        mode = _mode(path)
    except (OSError, ValueError):
        return False  # `checked_target` says why it cannot be written to
    return mode is not None and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))


def is_standard_output(path: Path) -> bool:
    """Returns whether standard output goes to a path: to `-`, or to /dev/stdout, which may be a regular file."""
    if str(path) == _STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except (OSError, ValueError):
        return False


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the files that are read of some paths: of a folder, as that of a run, all but pages and tables."""
    for path in paths:
        if path.is_dir():
            yield from (each for each in path.rglob("*") if each.suffix not in _MADE)
        else:
            yield path


def is_one_of(path: Path, files: Iterable[Path]) -> bool:
    """Returns whether a path is one of some files, whatever their names are."""
    facts = path.stat()
    return any(_is_same(each, facts) for each in files)


def checked_file(path: Path, *, force: bool | None, inputs: Iterable[Path] = ()) -> Path:
    """Returns the path of a file other than a dump; a symbolic link is refused. See `checked_target`."""
    # A dump's path is the user's own. A file with a fixed name in a folder of others may be a link that they made.
    if path.is_symlink():
        shown = printable(str(path))
        raise UsageError(
            f"cannot write to {shown}: it is a symbolic link", hint="give another path, or remove the link"
        )
    return checked_target(path, force=force, inputs=inputs)


def require_space(target: Path, predicted_bytes: int) -> None:
    """Raises an error where the target's disk has less free space than the dump will take.

    Raises:
        MachineError: It has less.
    """
    with machine_errors("look up the free space for", target):
        free = shutil.disk_usage(target.parent).free
    if free < predicted_bytes:
        shown = printable(str(target))
        raise MachineError(
            f"{shown} would take {_gigabytes(predicted_bytes)}, and its disk has {_gigabytes(free)} free",
            hint="free some space, write to another disk, or select fewer layers",
        )


def incomplete_target(target: Path, inputs: Iterable[Path] = ()) -> Path:
    """Returns the path next to a target for the incomplete dump of a failed run: NAME.incomplete.npz.

    Args:
        target: The target.
        inputs: Files that the run read, which are not replaced.

    Raises:
        MachineError: Something other than a regular file is there, or a file that is kept.
    """
    path = target.with_name(target.name.removesuffix(".npz") + ".incomplete.npz")
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise MachineError(f"cannot write to {printable(str(path))}: it is not a regular file")
        if role := _role(path, inputs):
            raise MachineError(f"cannot write to {printable(str(path))}: it is {role}")
    except FileNotFoundError:
        return path
    except OSError as error:
        raise machine_error("write to", path, error) from error
    return path


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _role(target: Path, inputs: Iterable[Path]) -> str:
    """Returns what a file is that has to be kept; "" for any other one."""
    facts = target.stat()
    if any(_is_same(path, facts) for path in inputs):
        return "one of the files that are read"
    sources = (getattr(module, "__file__", None) for module in tuple(sys.modules.values()))
    if any(path and _is_same(path, facts) for path in sources):
        return "the source of a module"
    return "one of the files that are read" if any(_is_same(path, facts) for path in remembered_reads()) else ""


def _is_same(path: str | Path, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), facts)  # noqa: PTH116 - a Path for each module takes longer
    except OSError:
        return False


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes:,} bytes ({size_bytes / 2**30:.2f} GiB)"
