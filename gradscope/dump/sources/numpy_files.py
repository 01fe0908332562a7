"""Finds the tensors of foreign `.npz` and `.npy` files, and of files that concatenate several `.npy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gradscope.dump.sources.foreign import NOTE, ForeignTensor
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.member_facts import logical_dtype, stored_as
from gradscope.dump.storage.npy_header import PREFIX_LIMIT, parse_npy_header
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.storage.streams import ByteStream, PlainStream
from gradscope.dump.zip.directory import Directory, ZipMember
from gradscope.dump.zip.members import data_offset, member_stream
from gradscope.errors import DumpError

_SUFFIX = ".npy"


def archive_note(directory: Directory) -> str:
    """Returns the manifest's note for a foreign `.npz`."""
    ignored = directory.trailing_bytes
    return f"{NOTE}; {ignored} bytes behind its end are ignored" if ignored else NOTE


def archive_tensors(file: InputFile, directory: Directory) -> Iterator[ForeignTensor]:
    """Yields the tensors of a foreign `.npz`.

    Raises:
        DumpError: A member is damaged, or is not an array of numbers; or the archive has none, as PyTorch's and Keras'.
    """
    if not any(name.endswith(_SUFFIX) for name in directory.members):
        raise DumpError(
            "it is an archive without arrays of NumPy, as files of PyTorch and Keras are",
            hint="expected a dump, or an .npz, .npy, .safetensors or .eqx file; where it has a model's variables, "
            "dump the model with --checkpoint",
        )
    for name, member in directory.members.items():
        with located(name):
            yield _member_tensor(file, member, directory.limit(name))


def array_tensor(file: InputFile, name: str) -> ForeignTensor:
    """Returns the tensor of a `.npy` file, under a name.

    Raises:
        DumpError: The file is damaged, or does not hold an array of numbers.
    """
    stream = partial(PlainStream, file, offset=0, size_bytes=file.size_bytes, crc32=None)
    tensor = _tensor(stream, file.size_bytes, b"")
    return ForeignTensor(name=name, crc32=0, offset=tensor.header_bytes, tensor=tensor)


def array_sequence(file: InputFile) -> Iterator[ForeignTensor]:
    """Yields the tensors of concatenated `.npy` files, as Equinox saves pytree leaves; their names are their positions.

    A line of JSON may be before them, in which many write what the model is built of.

    Raises:
        DumpError: The file is damaged, or does not hold arrays of numbers.
    """
    begin, number = leaves_begin(file.read(0, min(file.size_bytes, PREFIX_LIMIT))), 0
    while begin < file.size_bytes:
        with located(f"array {number}"):
            header = parse_npy_header(file.read(begin, min(PREFIX_LIMIT, file.size_bytes - begin)))
            size_bytes = header.header_bytes + header.data_bytes
            if begin + size_bytes > file.size_bytes:
                raise DumpError(f"its shape {header.shape} and the bytes left in the file do not agree")
            stream = partial(PlainStream, file, offset=begin, size_bytes=size_bytes, crc32=None)
            tensor = _tensor(stream, size_bytes, b"")
        yield ForeignTensor(name=str(number), crc32=0, offset=begin + header.header_bytes, tensor=tensor)
        begin, number = begin + size_bytes, number + 1


def leaves_begin(start: bytes) -> int:
    """Returns where the leaves of a file begin: behind a line of JSON, if it has one.

    Args:
        start: Its first bytes.
    """
    return start.find(b"\n") + 1 if start.startswith(b"{") else 0


def _member_tensor(file: InputFile, member: ZipMember, limit: int) -> ForeignTensor:
    if not member.name.endswith(_SUFFIX):
        raise DumpError("it is not an array, and an npz holds nothing else")
    offset = data_offset(file, member, limit)
    tensor = _tensor(partial(member_stream, file, member, offset), member.size_bytes, member.facts)
    return ForeignTensor(name=member.name.removesuffix(_SUFFIX), crc32=member.crc32, offset=offset, tensor=tensor)


def _tensor(open_stream: Callable[[], ByteStream], size_bytes: int, facts: bytes) -> StoredTensor:
    prefix = bytearray(min(PREFIX_LIMIT, size_bytes))
    open_stream().fill(memoryview(prefix))
    header = parse_npy_header(bytes(prefix))
    if header.header_bytes + header.data_bytes != size_bytes:
        raise DumpError(f"its shape {header.shape} and its {size_bytes} bytes do not agree")
    return StoredTensor(
        shape=header.shape,
        logical=logical_dtype(facts, header.descriptor),
        stored=stored_as(header.descriptor),
        fortran=header.fortran,
        header_bytes=header.header_bytes,
        open_stream=open_stream,
    )
