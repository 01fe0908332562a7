"""Writes and parses `.npy` headers: a magic string, a version, a length, and the text of a Python dictionary.

The dictionary is never evaluated. NumPy parses it with Python's own parser, which a hostile header can keep busy for
seconds and make raise a dozen different exceptions. This module matches a regular expression on at most `HEADER_LIMIT`
bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from gradscope.errors import DumpError

#: Longest dictionary that is read, in bytes; NumPy writes 118 for anything but dozens of axes.
HEADER_LIMIT: Final = 4096
#: Every accepted header fits in this many bytes from the start of a member.
PREFIX_LIMIT: Final = HEADER_LIMIT + 12
#: Most axes a tensor may have.
AXES_LIMIT: Final = 32

#: The bytes of almost every header.
USUAL_HEADER: Final = 128

MAGIC: Final = b"\x93NUMPY"
_ALIGNMENT: Final = 64
_DICTIONARY: Final = re.compile(
    rb"\{\s*'descr':\s*'([^']{1,16})',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([0-9, ]*)\)\s*,?\s*\}\s*"
)
_SHAPE: Final = re.compile(rb"(?:\d{1,19}(?:,\s*|\Z))*")
_DESCRIPTOR: Final = re.compile(r"[<>|=](?:b1|[iu][1248]|f[248]|c8|c16)|[<|]V[12]|<f1")
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHeader:
    """An `NpyHeader` has the parsed contents of a `.npy` header.

    Attributes:
        descriptor: NumPy's descriptor of the elements' dtype: that of a number, such as `<f4`, or `|V1`, `|V2`.
        fortran: Whether the first axis varies fastest; False for an array of at most one axis.
        shape: The shape.
        header_bytes: Bytes before the first element.
    """

    descriptor: str
    fortran: bool
    shape: tuple[int, ...]
    header_bytes: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.descriptor[2:])

    @property
    def data_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Returns the header of an array in C order; its length is a multiple of 64 bytes."""
    dictionary = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    padding = -(len(MAGIC) + 4 + len(dictionary) + 1) % _ALIGNMENT
    text = dictionary + b" " * padding + b"\n"
    return MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text


def npy_prefix(read: Callable[[int, int], bytes], offset: int, size_bytes: int) -> bytes:
    """Returns as many first bytes of a `.npy` file or member as `parse_npy_header` needs.

    Args:
        read: Returns a number of bytes from an offset on.
        offset: The offset of the first byte.
        size_bytes: The bytes of the file or member.
    """
    start = read(offset, min(USUAL_HEADER, size_bytes))
    length = int.from_bytes(start[8:10], "little") + 10
    usual = start[6:7] == b"\x01" and length <= len(start)
    return start if usual else read(offset, min(PREFIX_LIMIT, size_bytes))


def parse_npy_header(prefix: bytes) -> NpyHeader:
    """Parses the header at the start of `prefix`.

    Args:
        prefix: The first `PREFIX_LIMIT` bytes of a `.npy` file or member, or all of it where it is shorter.

    Raises:
        DumpError: `prefix` does not start with a `.npy` header, or its dtype or shape is refused.
    """
    start, length = _extent(prefix)
    return _parsed(prefix[start : start + length], start, length)


#: What to do about an array of objects, in which a tree of arrays is where `numpy.savez` was given the tree.
_OBJECTS: Final = (
    "write the arrays in it by name, in Python: import jax, numpy; saved = numpy.load(FILE, allow_pickle=True); "
    "tree = saved.tolist() if isinstance(saved, numpy.ndarray) else {name: each.tolist() if each.dtype == object "
    "else each for name, each in saved.items()}; numpy.savez('NEW.npz', "
    "**{jax.tree_util.keystr(path, simple=True, separator='/'): leaf "
    "for path, leaf in jax.tree_util.tree_leaves_with_path(tree)})"
)


@lru_cache(maxsize=256)  # tensors of one shape have one header
def _parsed(dictionary: bytes, start: int, length: int) -> NpyHeader:
    match = _DICTIONARY.fullmatch(dictionary) if length == len(dictionary) else None
    if match is None:
        raise DumpError("its npy header is malformed, or of a structured dtype")
    descriptor, shape = match[1].decode("latin-1"), _parse_shape(match[3])
    if _DESCRIPTOR.fullmatch(descriptor) is None:
        if "O" in descriptor:
            raise DumpError(f"its dtype {descriptor!r} (Python objects, never unpickled) is refused", hint=_OBJECTS)
        raise DumpError(f"its dtype {descriptor!r} is refused")
    fortran = match[2] == b"True" and len(shape) > 1
    return NpyHeader(descriptor=descriptor, fortran=fortran, shape=shape, header_bytes=start + length)


def _extent(prefix: bytes) -> tuple[int, int]:
    """Returns the offset of the dictionary and its length in bytes."""
    if prefix[:6] != MAGIC:
        raise DumpError("it does not start like an npy array")
    version, width = prefix[6:8], 2 if prefix[6:7] == b"\x01" else 4
    if version not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise DumpError(f"its npy version {version.hex('.')} is unknown")
    length = int.from_bytes(prefix[8 : 8 + width], "little")
    if length > HEADER_LIMIT:
        raise DumpError(f"its npy header claims {length} bytes, more than {HEADER_LIMIT}")
    return 8 + width, length


def _parse_shape(text: bytes) -> tuple[int, ...]:
    if _SHAPE.fullmatch(text) is None:
        raise DumpError("the shape in its npy header is malformed")
    return checked_shape(int(size) for size in text.split(b",") if size.strip())


def checked_shape(sizes: Iterable[int]) -> tuple[int, ...]:
    """Returns the shape from an untrusted file as a tuple, if NumPy can make an array of that shape.

    Raises:
        DumpError: The shape has too many axes, or is too large.
    """
    shape = tuple(sizes)
    if len(shape) > AXES_LIMIT:
        raise DumpError(f"its shape has {len(shape)} axes, more than {AXES_LIMIT}")
    # NumPy multiplies the sizes that are not zero even where one is.
    if math.prod(size for size in shape if size) > _LARGEST // 16:
        raise DumpError(f"its shape {shape} is larger than any memory")
    return shape
