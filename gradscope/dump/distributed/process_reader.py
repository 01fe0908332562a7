"""Opens a dump of several processes: the files of all processes, with their shards joined into global arrays.

With an index, the dump is complete or it is refused: every file has to exist and match the index, and the shards of
every tensor have to tile it. Without an index, the dump reads as incomplete: it contains the tensors whose shards are
all present, and its note states what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from gradscope.dump.distributed.assembled_tensor import assembled
from gradscope.dump.distributed.index import FileFacts, read_index
from gradscope.dump.manifest.manifest import MEMBER, Entry, Manifest
from gradscope.dump.record import INDEX, Process
from gradscope.dump.sources.archive import entries_by_key, read_archive
from gradscope.dump.sources.dump_file import Contents, TensorReader
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.zip.directory import read_directory
from gradscope.dump.zip.structures import LOCAL_SIGNATURE
from gradscope.errors import DumpError
from gradscope.naming import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFile:
    """A `ProcessFile` is the opened file of one process.

    Attributes:
        facts: The facts that identify it.
        manifest: Its manifest.
        tensors: The readers of its tensors, by the keys of its own manifest.
    """

    facts: FileFacts
    manifest: Manifest
    tensors: Mapping[str, StoredTensor]


#: A shard's entry and its reader; None where the file holds its statistics only.
_ShardEntry: TypeAlias = tuple[Entry, StoredTensor | None]


def is_process_folder(folder: Path) -> bool:
    """Returns whether a folder is a dump of several processes, complete or not."""
    return (folder / INDEX).is_file() or next(_processes(folder), None) is not None


def process_contents(folder: Path, opened: ExitStack) -> Contents:
    """Returns the manifest and the tensor readers of a multi-process dump.

    Args:
        folder: The dump's folder.
        opened: Receives the files that stay open.

    Raises:
        DumpError: A file is missing, damaged or of another run, or the shards of a tensor do not tile it.
    """
    if (folder / INDEX).exists():
        return _complete(folder, opened)
    return _incomplete(folder, opened)


def open_process_file(path: Path, opened: ExitStack) -> ProcessFile:
    """Opens the file of one process.

    Raises:
        DumpError: The file is missing, damaged, or not a dump.
    """
    with located(path.name):
        file = opened.enter_context(InputFile(path))
        if file.read(0, min(file.size_bytes, len(LOCAL_SIGNATURE))) != LOCAL_SIGNATURE:
            raise DumpError("it is not a dump")
        directory = read_directory(file)
        if MEMBER not in directory.members:
            raise DumpError("it was not written by gradscope")
        contents = read_archive(file, directory)
        facts = FileFacts(size_bytes=file.size_bytes, manifest_crc32=directory.members[MEMBER].crc32)
        return ProcessFile(facts=facts, manifest=contents.manifest, tensors=contents.tensors)


def _complete(folder: Path, opened: ExitStack) -> Contents:
    with located(INDEX):
        index = read_index(folder / INDEX)
        named = entries_by_key(index.manifest)
    processes = [Process(index=number, count=len(index.files)) for number in range(len(index.files))]
    files: list[ProcessFile] = []
    for process, facts in zip(processes, index.files, strict=True):
        file = open_process_file(folder / process.file_name, opened)
        if file.facts != facts:
            raise DumpError(f"{process.file_name} is of another run than {INDEX}", hint="dump again, with --force")
        files.append(file)
    shards = _shards(files)
    if unknown := shards.keys() - named.keys():
        raise DumpError(f"{INDEX} does not name {min(unknown)!r}, of which there are shards")
    tensors: dict[str, TensorReader] = {}
    entries = tuple(_of_index(key, entry, shards.get(key, ()), tensors) for key, entry in named.items())
    return Contents(manifest=replace(index.manifest, entries=entries), tensors=tensors)


def _of_index(key: str, entry: Entry, shards: Sequence[_ShardEntry], tensors: dict[str, TensorReader]) -> Entry:
    with located(key):
        if entry.stored is not None or entry.shard is not None:
            raise DumpError(f"{INDEX} states the location of its bytes, which only the processes' files may do")
        if shards and (entry.alias_of is not None or entry.absent is not None):
            raise DumpError(f"{INDEX} states that it has no tensor of its own, and there are shards of it")
        return _with_tensor(entry, shards, tensors) if shards else entry


def _incomplete(folder: Path, opened: ExitStack) -> Contents:
    processes = sorted(_processes(folder), key=lambda process: process.index)
    counts = {process.count for process in processes}
    if len(counts) > 1:
        raise DumpError(f"it holds files of runs of {' and of '.join(map(str, sorted(counts)))} processes")
    files = [open_process_file(folder / process.file_name, opened) for process in processes]
    entries: list[Entry] = []
    tensors: dict[str, TensorReader] = {}
    shards = _shards(files)
    for of_one in shards.values():
        try:
            entries.append(_with_tensor(_entry_of_shards(of_one), of_one, tensors))
        except DumpError:
            continue  # the note counts the tensors that are missing
    first = files[0].manifest
    note = f"{INDEX} is missing, so the run did not finish: {len(files)} of {counts.pop()} processes' files are there"
    if lost := len(shards) - len(entries):
        note += f", and {lost} tensors lack a shard"
    layers = tuple(replace(layer, rms={}, elements={}) for layer in first.layers)
    manifest = replace(first, entries=tuple(entries), layers=layers, complete=False, note=note)
    return Contents(manifest=manifest, tensors=tensors)


def _processes(folder: Path) -> Iterator[Process]:
    return (process for path in folder.iterdir() if (process := Process.of_file(path.name)) is not None)


def _shards(files: Iterable[ProcessFile]) -> dict[str, list[_ShardEntry]]:
    """Returns the shards in all files, by the key of their global array."""
    shards: dict[str, list[_ShardEntry]] = {}
    for file in files:
        for entry in file.manifest.entries:
            if entry.shard is not None:
                reader = file.tensors.get(key_of(entry.family, entry.name))
                shards.setdefault(key_of(entry.family, entry.shard.of), []).append((entry, reader))
    return shards


def _with_tensor(entry: Entry, shards: Sequence[_ShardEntry], tensors: dict[str, TensorReader]) -> Entry:
    """Returns the entry of a global array with its location, and adds its reader to `tensors`.

    The entry is returned unchanged where no shard has a tensor.
    """
    readers = [(each.shard.start, reader) for each, reader in shards if each.shard is not None and reader is not None]
    declared = {(each.dtype, each.shard.whole) for each, _ in shards if each.shard is not None}
    if declared != {(entry.dtype, entry.shape)}:
        raise DumpError(f"its shards do not agree on its dtype {entry.dtype} and shape {list(entry.shape)}")
    if not readers:
        return entry
    tensors[key_of(entry.family, entry.name)] = assembled(entry.shape, entry.dtype, readers)
    locations = [each.stored for each, _ in shards if each.stored is not None]
    return replace(entry, stored=replace(locations[0], size_bytes=sum(each.size_bytes for each in locations)))


def _entry_of_shards(shards: Sequence[_ShardEntry]) -> Entry:
    """Returns the entry of a global array, made from its first shard; with statistics where that shard is all of it."""
    first, _ = shards[0]
    assert first.shard is not None, "only shards have been gathered"
    stats = first.stats if first.shape == first.shard.whole else {}
    return replace(first, name=first.shard.of, shape=first.shard.whole, stats=stats, stored=None, shard=None)
