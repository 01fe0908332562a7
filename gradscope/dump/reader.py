"""Opens dumps: those that gradscope wrote, and foreign `.npz`, `.npy`, `.safetensors` or `.eqx` files and folders.

`dumps_in` lists the dumps of a run that wrote one for each step.

Dumps are untrusted files. The reader executes nothing in them, follows no name out of them, and allocates no memory for
bytes that they do not have. A file that is not complete and consistent is refused, with one line that states what is
wrong and where.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from gradscope.dump.manifest.manifest import MEMBER
from gradscope.dump.sources.archive import read_archive
from gradscope.dump.sources.dump_file import Contents, DumpFile
from gradscope.dump.sources.foreign import ForeignTensor, foreign_contents
from gradscope.dump.sources.numpy_files import archive_note, archive_tensors, array_sequence, array_tensor
from gradscope.dump.sources.safetensors import safetensors_tensors
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.npy_header import MAGIC as NPY_MAGIC
from gradscope.dump.storage.storage_errors import located, machine_error, permitted
from gradscope.dump.zip.directory import Directory, read_directory
from gradscope.dump.zip.structures import END_SIGNATURE, LOCAL_SIGNATURE
from gradscope.errors import DumpError
from gradscope.naming import printable

#: How an SQLite database starts, as the history of a training run does.
_SQLITE_START: Final = b"SQLite"
_PICKLE_STARTS: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_SUFFIXES: Final = frozenset({".npy", ".npz", ".safetensors"})
#: The folder of a run's alarm has this file, and a dump beside state and batch, which are in the format of a dump, too.
_ALARM: Final = "alarm.json"
_ALARM_DUMP: Final = "dump.npz"


def open_dump(path: str | os.PathLike[str], *, histograms: bool = True) -> DumpFile:
    """Opens a dump and checks its structure. Tensors are read later, when they are accessed.

    Args:
        path: A dump, the folder of a multi-process dump, a foreign file, or a folder of foreign files. Tensors of
            foreign files become entries without statistics, and the manifest's note states that. The folder of a run's
            alarm stands for the dump in it.
        histograms: Whether the statistics need their histograms; without them, a dump of many tensors takes less
            memory.

    Returns:
        The opened dump, which has to be closed; it is a context manager.

    Raises:
        DumpError: The path does not exist, or its contents are damaged or of a kind that is refused.
        MachineError: The path cannot be read.
    """
    if not os.fspath(path):  # `Path` would make the current folder of it
        raise DumpError("the path is empty", hint="name a file or folder")
    path = Path(path)
    if is_alarm_folder(path):
        path = path / _ALARM_DUMP
    with permitted(path), located(str(path)), _collection_paused(), ExitStack() as opened:
        if _is_folder(path) and _is_process_folder(path):
            from gradscope.dump.distributed.process_reader import process_contents  # noqa: PLC0415 - as below

            contents = process_contents(path, opened)
        elif _is_folder(path):
            contents = foreign_contents(_folder_tensors(path, opened))
        else:
            contents = _contents(opened.enter_context(InputFile(path)), histograms=histograms)
        return DumpFile(path, contents, opened.pop_all())


@contextmanager
def _collection_paused() -> Generator[None]:
    """Pauses Python's garbage collector while the block runs."""
    # Opening makes many objects at once, which the collector would traverse repeatedly: a third of the time of opening
    # a dump of 10,000 tensors.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_folder(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir()
    return False


def _is_process_folder(folder: Path) -> bool:
    # Imported on use: most dumps are one file, and importing it takes 15 ms.
    from gradscope.dump.distributed.process_reader import is_process_folder  # noqa: PLC0415

    return is_process_folder(folder)


def is_alarm_folder(path: Path) -> bool:
    """Returns whether a path is the folder of a run's alarm, with a dump, a state and a batch."""
    with suppress(OSError, ValueError):  # ValueError: a NUL character
        return (path / _ALARM).is_file() and (path / _ALARM_DUMP).is_file()
    return False


def _contents(file: InputFile, *, histograms: bool) -> Contents:
    directory = _directory(file)
    if directory is None:
        return foreign_contents(_bare_tensors(file, file.path.stem))
    if MEMBER in directory.members:
        return read_archive(file, directory, histograms=histograms)
    return foreign_contents(archive_tensors(file, directory), note=archive_note(directory))


def _folder_tensors(folder: Path, opened: ExitStack) -> Iterator[ForeignTensor]:
    """Yields the tensors of all files below a folder; the tensor of a `.npy` file is named by the file's path."""
    for path in _files_below(folder):
        name = path.relative_to(folder)
        with located(str(name)):
            file = opened.enter_context(InputFile(path))
            directory = _directory(file)
            if directory is None:
                yield from _bare_tensors(file, name.with_suffix("").as_posix())
            elif MEMBER in directory.members:
                hint = f"name the dump instead of its folder: {printable(str(path))}"
                raise DumpError("it is a dump of its own", hint=hint)
            else:
                yield from archive_tensors(file, directory)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_refuse_unreadable):
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(parent, name)).suffix in _SUFFIXES)


def _refuse_unreadable(error: OSError) -> NoReturn:
    """Raises for a folder that cannot be listed: without it, the files in it would be missing silently."""
    raise machine_error("open", Path(error.filename), error) from error


def _directory(file: InputFile) -> Directory | None:
    """Returns the directory of a zip file; None for any other file."""
    return read_directory(file) if _start(file).startswith(LOCAL_SIGNATURE) else None


def _bare_tensors(file: InputFile, name: str) -> Iterator[ForeignTensor]:
    """Yields the tensors of a file that is not a zip; `name` is that of an array that has no name in the file."""
    start = _start(file)
    if start.startswith((NPY_MAGIC, b"{")) and file.path.suffix == ".eqx":
        yield from array_sequence(file)
    elif start.startswith(NPY_MAGIC):
        yield array_tensor(file, name)
    elif file.path.suffix == ".safetensors":
        yield from safetensors_tensors(file)
    elif start == _SQLITE_START:
        hint = f"name the folder of a training run, {printable(str(file.path.parent))}, and not its history"
        raise DumpError("it is an SQLite database", hint=hint)
    else:
        raise DumpError(
            f"it is {_guessed_kind(start)}", hint="expected a dump, or an .npz, .npy, .safetensors or .eqx file"
        )


def _start(file: InputFile) -> bytes:
    return file.read(0, min(file.size_bytes, len(NPY_MAGIC)))


def _guessed_kind(start: bytes) -> str:
    if not start:
        return "empty"
    if start.startswith(END_SIGNATURE):
        return "an archive without any tensor"  # a zip file that has no members starts with the end of its directory
    return "a pickle, which is never read: it could run any code" if start.startswith(_PICKLE_STARTS) else "not a dump"


def dumps_in(folder: Path) -> dict[str, Path]:
    """Returns the dumps directly in a folder, such as those of a run that wrote one for each step.

    The folder of a multi-process dump counts as one dump.

    Args:
        folder: Any path.

    Returns:
        The paths by file name without suffix, in the order of the numbers in their names. It is empty where the path is
        not a folder, is a multi-process dump itself or of a run's alarm, or holds no dump that gradscope wrote.

    Raises:
        DumpError: A file that starts like a dump is damaged.
        MachineError: A file cannot be read.
    """
    with permitted(folder):
        if not folder.is_dir() or _is_process_folder(folder) or is_alarm_folder(folder):
            return {}
        found = [path for path in folder.iterdir() if _is_dump(path)]
    return {path.stem: path for path in sorted(found, key=_by_numbers)}


def _is_dump(path: Path) -> bool:
    if path.is_dir():
        return _is_process_folder(path)
    if path.suffix != ".npz" or not path.is_file():
        return False
    with located(str(path)), InputFile(path) as file:
        start = file.read(0, min(file.size_bytes, len(LOCAL_SIGNATURE)))
        return start == LOCAL_SIGNATURE and MEMBER in read_directory(file).members


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """Returns a sort key that puts `step_9` before `step_10`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", path.stem)]
