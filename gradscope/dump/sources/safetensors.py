"""Finds the tensors of a foreign `.safetensors` file: eight bytes of length, a JSON header, and one gapless buffer.

References:
    https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from gradscope.arrays.dtypes import itemsize, stored_dtype
from gradscope.dump.manifest.json_scan import MemoryBudget, parsed_bytes
from gradscope.dump.manifest.json_text import loads
from gradscope.dump.record import Json
from gradscope.dump.sources.foreign import ForeignTensor
from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.npy_header import checked_shape
from gradscope.dump.storage.storage_errors import located
from gradscope.dump.storage.stored_tensor import StoredTensor
from gradscope.dump.storage.streams import PlainStream
from gradscope.errors import DumpError

_LENGTH_BYTES: Final = 8
_HEADER_LIMIT: Final = 100_000_000

#: The memory that a header may take when it is read. That of 100,000 tensors takes less than half.
_HEADER_MEMORY: Final = 256 << 20
_METADATA: Final = "__metadata__"
_DTYPES: Final = {
    "BOOL": "bool",
    **{f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """The header's description of a tensor; its bytes are at `begin:end`, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def safetensors_tensors(file: InputFile) -> Iterator[ForeignTensor]:
    """Yields the tensors of a `.safetensors` file, in the order of their bytes.

    Raises:
        DumpError: The file is damaged, or has an unknown dtype.
    """
    header_bytes = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    if header_bytes > _HEADER_LIMIT:
        raise DumpError(f"its header claims {header_bytes} bytes, more than {_HEADER_LIMIT}")
    text = file.read(_LENGTH_BYTES, header_bytes)
    MemoryBudget(_HEADER_MEMORY).spend(parsed_bytes(text))
    header = loads(text)
    if not isinstance(header, dict):
        raise DumpError("its header is not an object")
    position = _LENGTH_BYTES + header_bytes
    descriptions = [_description(name, facts) for name, facts in header.items() if name != _METADATA]
    for each in sorted(descriptions, key=_extent):
        with located(each.name):
            if position != _LENGTH_BYTES + header_bytes + each.begin:
                raise DumpError("its bytes do not follow those of the tensor before it")
            yield _foreign(file, each, position)
        position += each.end - each.begin
    if position != file.size_bytes:
        raise DumpError(f"its tensors end at byte {position}, the file at byte {file.size_bytes}")


def _extent(description: _Description) -> tuple[int, int]:
    return description.begin, description.end


def _description(name: str, facts: Json) -> _Description:
    with located(name):
        match facts:
            case {"dtype": str(dtype), "shape": list(sizes), "data_offsets": [int(begin), int(end)]} if len(facts) == 3:
                shape = checked_shape(map(_size, sizes))
                return _Description(name=name, dtype=dtype, shape=shape, begin=begin, end=end)
            case _:
                raise DumpError(f"its description {facts!r:.60} is malformed")


def _size(value: Json) -> int:
    if type(value) is not int or value < 0:
        raise DumpError(f"its shape has a size of {value!r:.40}")
    return value


def _foreign(file: InputFile, described: _Description, offset: int) -> ForeignTensor:
    if described.dtype not in _DTYPES:
        raise DumpError(f"its dtype {described.dtype!r:.20} is not one of {', '.join(_DTYPES)}")
    logical = _DTYPES[described.dtype]
    size_bytes = math.prod(described.shape) * itemsize(logical)
    if size_bytes != described.end - described.begin:
        raise DumpError(f"its shape {described.shape} and its {described.end - described.begin} bytes do not agree")
    if offset + size_bytes > file.size_bytes:
        raise DumpError(
            f"it ends at byte {offset + size_bytes}, the file at byte {file.size_bytes}: the rest is missing"
        )
    tensor = StoredTensor(
        shape=described.shape,
        logical=logical,
        stored=stored_dtype(logical),
        fortran=False,
        header_bytes=0,
        open_stream=partial(PlainStream, file, offset=offset, size_bytes=size_bytes, crc32=None),
    )
    return ForeignTensor(name=described.name, crc32=0, offset=offset, tensor=tensor)
