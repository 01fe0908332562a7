"""Opening a dump, whoever wrote it: one of ours, of one process or several; a foreign `.npz`, `.npy` or `.safetensors`
file, or a folder of those.

Dumps come from strangers. Nothing in one is executed, no name in one leads out of it, nothing is allocated by its word
alone; what is not whole and consistent is refused with one line that says what is wrong where.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from gradscope.dump.archive import read_archive
from gradscope.dump.dumpfile import Contents, DumpFile
from gradscope.dump.faults import located
from gradscope.dump.foreign import ForeignTensor, foreign_contents
from gradscope.dump.foreignarrays import archive_note, archive_tensors, array_sequence, array_tensor
from gradscope.dump.inputfile import InputFile
from gradscope.dump.manifest import MEMBER
from gradscope.dump.npyheader import MAGIC as NPY_MAGIC
from gradscope.dump.processfiles import is_process_folder, process_contents
from gradscope.dump.safetensors import safetensors_tensors
from gradscope.dump.zipdirectory import Directory, read_directory
from gradscope.dump.zipformat import LOCAL_SIGNATURE
from gradscope.errors import DumpError

_PICKLE_STARTS: Final = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_SUFFIXES: Final = frozenset({".npy", ".npz", ".safetensors"})


def open_dump(path: str | os.PathLike[str]) -> DumpFile:
    """Open a dump, its structure checked before any tensor is read.

    Args:
        path: A dump, the folder of a dump of several processes, a foreign file (its tensors become entries without
            statistics; the manifest's note says so), or a folder of foreign files.

    Raises:
        DumpError: There is none, it is damaged, or of a kind that is refused.
        MachineError: It cannot be read.
    """
    path = Path(path)
    with located(str(path)), _collection_paused(), ExitStack() as opened:
        if _is_folder(path) and is_process_folder(path):
            contents = process_contents(path, opened)
        elif _is_folder(path):
            contents = foreign_contents(_folder_tensors(path, opened))
        else:
            contents = _contents(opened.enter_context(InputFile(path)))
        return DumpFile(path, contents, opened.pop_all())


@contextmanager
def _collection_paused() -> Generator[None]:
    """Keep the garbage collector from looking, again and again, through the many objects that opening makes.

    A third of the time it took to open a dump of 10,000 tensors was the collector's.
    """
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


def _contents(file: InputFile) -> Contents:
    directory = _directory(file)
    if directory is None:
        return foreign_contents(_bare_tensors(file, file.path.stem))
    if MEMBER in directory.members:
        manifest, tensors = read_archive(file, directory)
        return Contents(manifest=manifest, tensors=tensors)
    return foreign_contents(archive_tensors(file, directory), note=archive_note(directory))


def _folder_tensors(folder: Path, opened: ExitStack) -> Iterator[ForeignTensor]:
    """The tensors of all files below a folder: that of a `.npy` file under its path there, others under their names."""
    for path in _files_below(folder):
        name = path.relative_to(folder)
        with located(str(name)):
            file = opened.enter_context(InputFile(path))
            directory = _directory(file)
            if directory is None:
                yield from _bare_tensors(file, name.with_suffix("").as_posix())
            elif MEMBER in directory.members:
                raise DumpError("it is a dump of its own", hint="name the dump instead of its folder")
            else:
                yield from archive_tensors(file, directory)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(parent, name)).suffix in _SUFFIXES)


def _directory(file: InputFile) -> Directory | None:
    """The directory of a zip file; None for another."""
    return read_directory(file) if _start(file).startswith(LOCAL_SIGNATURE) else None


def _bare_tensors(file: InputFile, name: str) -> Iterator[ForeignTensor]:
    """The tensors of a file that is not a zip, under a name where it has none of its own."""
    start = _start(file)
    if start.startswith(NPY_MAGIC) and file.path.suffix == ".eqx":
        yield from array_sequence(file)
    elif start.startswith(NPY_MAGIC):
        yield array_tensor(file, name)
    elif file.path.suffix == ".safetensors":
        yield from safetensors_tensors(file)
    else:
        raise DumpError(
            f"it is {_impression(start)}", hint="expected a dump, or an .npz, .npy, .safetensors or .eqx file"
        )


def _start(file: InputFile) -> bytes:
    return file.read(0, min(file.size_bytes, len(NPY_MAGIC)))


def _impression(start: bytes) -> str:
    if not start:
        return "empty"
    return "a pickle, which is never read: it could run any code" if start.startswith(_PICKLE_STARTS) else "not a dump"
