"""NumPy reads the `.npy` headers written here; those that NumPy writes are read, and hostile ones are refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from gradscope.dump.storage.npy_header import HEADER_LIMIT, npy_header, parse_npy_header
from gradscope.errors import DumpError
from tests.support.dumps import npy


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1,) * 32, (2, 0, 10**13)])
@pytest.mark.parametrize("dtype", ["<f4", "|b1", "|V2", "<c16"])
def test_numpy_reads_what_is_written(shape: tuple[int, ...], dtype: str) -> None:
    header = npy_header(np.dtype(dtype), shape)
    assert len(header) % 64 == 0
    buffer = io.BytesIO(header)
    assert np.lib.format.read_magic(buffer) == (1, 0)
    assert np.lib.format.read_array_header_1_0(buffer) == (shape, False, np.dtype(dtype))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array", [np.zeros((2, 3)), np.zeros((2, 3), ">i2", order="F"), np.zeros(()), np.zeros(5, "V2")]
)
def test_what_numpy_writes_is_read(array: Any, version: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version)
    header = parse_npy_header(buffer.getvalue())
    assert header.shape == array.shape
    assert np.dtype(header.descriptor) == array.dtype
    assert header.fortran == (array.ndim > 1 and not array.flags.c_contiguous)
    assert header.header_bytes + header.data_bytes == len(buffer.getvalue())


def with_dictionary(text: str) -> bytes:
    encoded = text.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded


def described(descr: str = "'<f4'", fortran: str = "False", shape: str = "(3,)") -> bytes:
    return with_dictionary(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n")


def test_the_hostile_cases_below_differ_from_a_sound_header() -> None:
    assert parse_npy_header(described()).shape == (3,)


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [
        (b"", "does not start"),
        (b"\x80\x04pickle", "does not start"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "version"),
        (b"\x93NUMPY\x02\x00" + (2**30).to_bytes(4, "little") + b" " * 100, f"more than {HEADER_LIMIT}"),
        (described()[:-3], "malformed"),
        (with_dictionary("(" * 3000), "malformed"),
        (with_dictionary("{'descr': __import__('os').system('true')}"), "malformed"),
        (described(shape="(-1,)"), "malformed"),
        (described(shape="(True, 4)"), "malformed"),
        (described(shape="3"), "malformed"),
        (described(fortran="1"), "malformed"),
        (described(descr="[('a', '<f4')]"), "malformed"),
        (described(descr="'|O'"), "never unpickled"),
        (described(descr="'|S0'"), "refused"),
        (described(descr="'|V0'"), "refused"),
        (described(descr="'<f16'"), "refused"),
        (described(descr="'<M8[s]'"), "refused"),
        (described(shape=f"({2**32}, {2**32})"), "larger than any memory"),
        (described(shape="(" + "1, " * 33 + ")"), "33 axes"),
        (described(shape=f"({'9' * 20},)"), "malformed"),
    ],
)
def test_what_is_hostile_or_damaged_is_refused(prefix: bytes, problem: str) -> None:
    with pytest.raises(DumpError, match=problem):
        parse_npy_header(prefix)


def test_an_object_array_of_numpy_is_refused() -> None:
    with pytest.raises(DumpError, match="never unpickled"):
        parse_npy_header(npy(np.array([None])))
