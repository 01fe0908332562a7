"""Maps logical dtypes, those of JAX, to the plain NumPy dtypes in which files store them, and converts arrays.

The *logical* dtype is the one that the model computed with, by JAX's name: `float32`, `bfloat16`, `int4`, `key<fry>`.
The *stored* dtype is a little-endian one that every NumPy can read:

- a plain dtype (bool, integers, float16 to float64, complex) is stored unchanged;
- bfloat16 and every smaller float is *viewed* as `|V2` or `|V1`: the same bytes, on which arithmetic raises an error
  (with an integer view it would return wrong numbers). This includes float8_e5m2, because NumPy cannot read the header
  that it writes for it;
- an integer of less than a byte is *widened* to int8 or uint8, exactly;
- a typed PRNG key is stored as its key data (uint32, one axis more), which also represents it in memory.

Every other dtype is refused by name: longdouble, objects, strings, structs and more.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any, Final, cast

import ml_dtypes
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.errors import DumpError, UsageError

_PLAIN: Final = {
    np.dtype(scalar).name: np.dtype(scalar)
    for scalar in (
        *(np.bool_, np.float16, np.float32, np.float64, np.complex64, np.complex128),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    )
}


def _known_to_ml_dtypes(*names: str) -> dict[str, np.dtype[Any]]:
    """Returns the named dtypes that the installed ml_dtypes defines; each of its releases adds some."""
    return {name: np.dtype(getattr(ml_dtypes, name)) for name in names if hasattr(ml_dtypes, name)}


_VIEWED: Final = _known_to_ml_dtypes(
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)
_WIDENED: Final = _known_to_ml_dtypes("int1", "int2", "int4", "uint1", "uint2", "uint4")
_IN_MEMORY: Final = {**_PLAIN, **_VIEWED, **_WIDENED}
_KEY: Final = re.compile(r"key<[^<>]+>")


@lru_cache(maxsize=64)  # NumPy builds the name on each access, which takes as long as reducing a small block
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the logical name of an array's dtype, without byte order. The dtype need not be storable."""
    return "float0" if dtype.names == ("float0",) else dtype.name


def storable(name: str) -> bool:
    """Returns whether tensors of a logical dtype can be stored."""
    return name in _IN_MEMORY or is_key(name)


def is_key(name: str) -> bool:
    """Returns whether a logical dtype is that of typed PRNG keys, whose key data has one axis more than the keys."""
    return _KEY.fullmatch(name) is not None


def is_floating(name: str) -> bool:
    """Returns whether a logical dtype is a real floating-point one."""
    return name in _VIEWED or (name in _PLAIN and _PLAIN[name].kind == "f")


def is_complex(name: str) -> bool:
    """Returns whether a logical dtype is a complex one."""
    return name in _PLAIN and _PLAIN[name].kind == "c"


def smallest_normal(dtype: np.dtype[Any]) -> float:
    """Returns the smallest normal number of a floating-point dtype."""
    return float(cast("Any", ml_dtypes.finfo(dtype)).smallest_normal)


def as_numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy or ml_dtypes dtype of an array in memory with elements of a logical dtype.

    Raises:
        UsageError: The logical dtype cannot be stored.
    """
    if is_key(name):
        return _PLAIN["uint32"]
    if name not in _IN_MEMORY:
        raise UsageError(
            f"a tensor of dtype {name} cannot be stored",
            hint=f"convert it to one of {', '.join(sorted(_IN_MEMORY))}, or leave it out",
        )
    return _IN_MEMORY[name]


@lru_cache(maxsize=64)
def stored_dtype(name: str) -> np.dtype[Any]:
    """Returns the plain little-endian NumPy dtype in which files store elements of a logical dtype.

    Raises:
        UsageError: The logical dtype cannot be stored.
    """
    in_memory = as_numpy_dtype(name)
    if name in _VIEWED:
        return np.dtype(f"V{in_memory.itemsize}")
    if name in _WIDENED:
        return np.dtype(np.uint8 if name.startswith("u") else np.int8)
    return in_memory.newbyteorder("<")


def itemsize(name: str) -> int:
    """Returns the bytes of one stored element of a logical dtype (of a PRNG key: of one word of its key data).

    Raises:
        UsageError: The logical dtype cannot be stored.
    """
    return stored_dtype(name).itemsize


def encode(array: Array) -> Array:
    """Converts an array to its stored dtype.

    Args:
        array: Any shape, strides and byte order.

    Returns:
        The same elements in the stored dtype; a view wherever the bytes are the same.

    Raises:
        UsageError: The dtype cannot be stored, or the array is masked, and its mask would be lost.
    """
    if _is_masked(array):
        raise UsageError("a masked array cannot be stored", hint="fill it first: array.filled(value)")
    name = dtype_name(array.dtype)
    target = stored_dtype(name)
    return array.view(target) if name in _VIEWED else array.astype(target, copy=False)


def _is_masked(array: Array) -> bool:
    # Without the module there is no masked array. Accessing `np.ma` would import it, which takes 35 ms.
    return "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray)


def decode(stored: Array, name: str) -> Array:
    """Converts an array from its stored dtype to its logical one. It is the inverse of `encode`.

    Args:
        stored: An array of `stored_dtype(name)`, or of that dtype in the other byte order.
        name: The logical dtype's name.

    Returns:
        The same elements in `as_numpy_dtype(name)`; a view wherever the bytes are the same.

    Raises:
        UsageError: `name` is not a dtype that can be stored.
        DumpError: `name` is an integer dtype of less than a byte, and a value does not fit in it.
    """
    in_memory = as_numpy_dtype(name)
    if name in _VIEWED:
        return stored.view(in_memory)
    decoded = stored.astype(in_memory, copy=False)
    if name in _WIDENED and not np.array_equal(decoded.astype(stored.dtype), stored):
        raise DumpError(f"a value of dtype {stored.dtype} is out of the range of {name}")
    return decoded
