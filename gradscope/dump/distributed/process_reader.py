"""Opening a dump of several processes: the files of all, their shards assembled into whole tensors.

With its index the dump is whole, or it is refused: every file there and the one that the index speaks of, every tensor
tiled by its shards. Without the index the processes did not finish together, and the dump reads as incomplete: it holds
the tensors whose shards are all there, and its note says what it lacks.
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
from gradscope.dump.record import INDEX, ProcessPlace
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
    """The file of one process, opened.

    Attributes:
        facts: By what it is known.
        manifest: Its manifest.
        tensors: The tensors in it, by its own keys.
    """

    facts: FileFacts
    manifest: Manifest
    tensors: Mapping[str, StoredTensor]


#: A shard's entry, and how to read it; None where only its statistics are there.
_Part: TypeAlias = tuple[Entry, StoredTensor | None]


def is_process_folder(folder: Path) -> bool:
    """Whether a folder is a dump of several processes, whole or not."""
    return (folder / INDEX).is_file() or next(_places(folder), None) is not None


def process_contents(folder: Path, opened: ExitStack) -> Contents:
    """What is in a dump of several processes.

    Args:
        folder: Its folder.
        opened: Receives the files that stay open.

    Raises:
        DumpError: A file of it is missing, damaged or of another run, or the shards of a tensor do not make up a whole.
    """
    if (folder / INDEX).exists():
        return _whole(folder, opened)
    return _incomplete(folder, opened)


def open_process_file(path: Path, opened: ExitStack) -> ProcessFile:
    """The file of one process.

    Raises:
        DumpError: It is missing, damaged, or not a dump.
    """
    with located(path.name):
        file = opened.enter_context(InputFile(path))
        if file.read(0, min(file.size_bytes, len(LOCAL_SIGNATURE))) != LOCAL_SIGNATURE:
            raise DumpError("it is not a dump")
        directory = read_directory(file)
        if MEMBER not in directory.members:
            raise DumpError("it was not written by gradscope")
        manifest, tensors = read_archive(file, directory)
        facts = FileFacts(size_bytes=file.size_bytes, manifest_crc32=directory.members[MEMBER].crc32)
        return ProcessFile(facts=facts, manifest=manifest, tensors=tensors)


def _whole(folder: Path, opened: ExitStack) -> Contents:
    with located(INDEX):
        index = read_index(folder / INDEX)
        named = entries_by_key(index.manifest)
    places = [ProcessPlace(index=number, count=len(index.files)) for number in range(len(index.files))]
    files: list[ProcessFile] = []
    for place, facts in zip(places, index.files, strict=True):
        file = open_process_file(folder / place.file_name, opened)
        if file.facts != facts:
            raise DumpError(f"{place.file_name} is of another run than {INDEX}", hint="dump again, with --force")
        files.append(file)
    shards = _shards(files)
    if unknown := shards.keys() - named.keys():
        raise DumpError(f"{INDEX} does not name {min(unknown)!r}, of which there are shards")
    tensors: dict[str, TensorReader] = {}
    entries = tuple(_of_index(key, entry, shards.get(key, ()), tensors) for key, entry in named.items())
    return Contents(manifest=replace(index.manifest, entries=entries), tensors=tensors)


def _of_index(key: str, entry: Entry, parts: Sequence[_Part], tensors: dict[str, TensorReader]) -> Entry:
    with located(key):
        if entry.stored is not None or entry.shard is not None:
            raise DumpError(f"{INDEX} says where its bytes lie, which the processes' files do")
        if parts and (entry.alias_of is not None or entry.absent is not None):
            raise DumpError(f"{INDEX} says that it has no tensor of its own, and there are shards of it")
        return _with_tensor(entry, parts, tensors) if parts else entry


def _incomplete(folder: Path, opened: ExitStack) -> Contents:
    places = sorted(_places(folder), key=lambda place: place.index)
    counts = {place.count for place in places}
    if len(counts) > 1:
        raise DumpError(f"it holds files of runs of {' and of '.join(map(str, sorted(counts)))} processes")
    files = [open_process_file(folder / place.file_name, opened) for place in places]
    entries: list[Entry] = []
    tensors: dict[str, TensorReader] = {}
    shards = _shards(files)
    for parts in shards.values():
        try:
            entries.append(_with_tensor(_entry_of_shards(parts), parts, tensors))
        except DumpError:
            continue  # what is lost is counted
    first = files[0].manifest
    note = f"{INDEX} is missing, so the run did not finish: {len(files)} of {counts.pop()} processes' files are there"
    if lost := len(shards) - len(entries):
        note += f", and {lost} tensors lack a part"
    layers = tuple(replace(layer, rms={}, elements={}) for layer in first.layers)
    manifest = replace(first, entries=tuple(entries), layers=layers, complete=False, note=note)
    return Contents(manifest=manifest, tensors=tensors)


def _places(folder: Path) -> Iterator[ProcessPlace]:
    return (place for path in folder.iterdir() if (place := ProcessPlace.of_file(path.name)) is not None)


def _shards(files: Iterable[ProcessFile]) -> dict[str, list[_Part]]:
    """The shards of all files, by the key of their whole."""
    shards: dict[str, list[_Part]] = {}
    for file in files:
        for entry in file.manifest.entries:
            if entry.shard is not None:
                reader = file.tensors.get(key_of(entry.family, entry.name))
                shards.setdefault(key_of(entry.family, entry.shard.of), []).append((entry, reader))
    return shards


def _with_tensor(entry: Entry, parts: Sequence[_Part], tensors: dict[str, TensorReader]) -> Entry:
    """The entry of a whole, its shards assembled into `tensors`; as it is where none of them has a tensor."""
    found = [(entry.shard.start, reader) for entry, reader in parts if entry.shard is not None and reader is not None]
    whole = {(part.dtype, part.shard.whole) for part, _ in parts if part.shard is not None}
    if whole != {(entry.dtype, entry.shape)}:
        raise DumpError(f"its shards do not agree on its dtype {entry.dtype} and shape {list(entry.shape)}")
    if not found:
        return entry
    tensors[key_of(entry.family, entry.name)] = assembled(entry.shape, entry.dtype, found)
    places = [part.stored for part, _ in parts if part.stored is not None]
    return replace(entry, stored=replace(places[0], size_bytes=sum(place.size_bytes for place in places)))


def _entry_of_shards(parts: Sequence[_Part]) -> Entry:
    """The entry of a whole as its shards tell it; with statistics where one shard is all of it."""
    first, _ = parts[0]
    assert first.shard is not None, "only shards have been gathered"
    stats = first.stats if first.shape == first.shard.whole else {}
    return replace(first, name=first.shard.of, shape=first.shard.whole, stats=stats, stored=None, shard=None)
