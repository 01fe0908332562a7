"""Every dtype JAX computes with is stored in a dtype that NumPy reads back, bit for bit, or refused by its name."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.arrays import dtypes
from gradscope.arrays.widening import real_values
from gradscope.errors import DumpError, UsageError

PLAIN = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
FLOATS = {
    name: getattr(ml_dtypes, name)
    for name in dir(ml_dtypes)
    if name == "bfloat16" or (name.startswith("float") and name[5].isdigit())
}
INTEGERS = {name: getattr(ml_dtypes, name) for name in ("int1", "int2", "int4", "uint1", "uint2", "uint4")}


def test_all_of_ml_dtypes_but_its_half_complexes_is_storable() -> None:
    scalars = {name for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type)} - {"finfo", "iinfo"}
    assert {name for name in scalars if not dtypes.storable(name)} <= {"bcomplex32", "complex32"}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_dtype_is_stored_as_it_is(name: str) -> None:
    array = np.arange(4).astype(name)
    assert dtypes.dtype_name(array.dtype) == name
    assert dtypes.encode(array) is array


@pytest.mark.parametrize("name", PLAIN)
def test_the_values_of_a_plain_dtype_are_computed_with_in_a_float_of_a_few_bytes(name: str) -> None:
    found = real_values(np.arange(4).astype(name))
    assert found.dtype in (np.float32, np.float64)
    np.testing.assert_array_equal(found, [0, 1, 1, 1] if name == "bool" else [0, 1, 2, 3])


@pytest.mark.parametrize("name", FLOATS)
def test_a_small_float_is_a_void_view_of_its_bytes(name: str) -> None:
    every_code = np.arange(256, dtype=np.uint8).repeat(np.dtype(FLOATS[name]).itemsize).view(FLOATS[name])
    stored = dtypes.encode(every_code)
    assert stored.dtype.str in ("|V1", "|V2")
    assert stored.base is not None, "no copy"
    assert stored.tobytes() == every_code.tobytes()
    decoded = dtypes.decode(stored, name)
    assert decoded.dtype == every_code.dtype
    assert decoded.tobytes() == every_code.tobytes()


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_below_a_byte_is_widened_exactly(name: str) -> None:
    info = ml_dtypes.iinfo(INTEGERS[name])
    values = np.arange(info.min, info.max + 1)
    stored = dtypes.encode(values.astype(INTEGERS[name]))
    assert stored.dtype == (np.uint8 if name.startswith("u") else np.int8)
    assert stored.tolist() == values.tolist()
    assert dtypes.decode(stored, name).astype(np.int64).tolist() == values.tolist()


def test_a_value_that_does_not_fit_its_logical_dtype_is_refused() -> None:
    with pytest.raises(DumpError, match="int4"):
        dtypes.decode(np.array([7, 8], np.int8), "int4")


@pytest.mark.parametrize("name", ["float32", "int16", "complex128"])
def test_the_other_byte_order_becomes_the_native_one(name: str) -> None:
    array = np.arange(5).astype(name)
    swapped = array.astype(array.dtype.newbyteorder(">"))
    assert dtypes.dtype_name(swapped.dtype) == name
    assert dtypes.encode(swapped).tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert dtypes.decode(swapped, name).dtype == np.dtype(name)


def test_keys_are_stored_as_their_data() -> None:
    assert dtypes.storable("key<fry>")
    assert dtypes.is_key("key<fry>")
    assert not dtypes.is_key("keys")
    assert dtypes.as_numpy_dtype("key<fry>") == np.uint32


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.zeros(2, np.longdouble), np.dtype(np.longdouble).name),
        (np.array([None]), "object"),
        (np.array(["a"]), "str32"),
        (np.zeros(2, [("x", "f4")]), "void32"),
        (np.zeros(2, [("float0", "V")]), "float0"),
        (np.zeros(2, "M8[s]"), "datetime64"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(array: Any, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        dtypes.encode(array)


def test_a_masked_array_is_refused_instead_of_losing_its_mask() -> None:
    with pytest.raises(UsageError, match="masked"):
        dtypes.encode(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize("name", [*PLAIN, *FLOATS, *INTEGERS, "key<fry>", "float0", "nonsense"])
def test_each_name_is_of_one_kind(name: str) -> None:
    assert dtypes.is_floating(name) == (name in FLOATS or name in ("float16", "float32", "float64"))
    assert dtypes.is_complex(name) == name.startswith("complex")


@pytest.mark.parametrize(("name", "size"), [("bfloat16", 2), ("int4", 1), ("float64", 8), ("key<fry>", 4)])
def test_an_element_takes_as_many_bytes_as_its_stored_dtype(name: str, size: int) -> None:
    assert dtypes.itemsize(name) == size
