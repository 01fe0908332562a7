"""What a member says about itself beside its `.npy` header: its logical dtype, where the stored one is another."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from gradscope.arrays.dtypes import dtype_name, storable, stored_dtype
from gradscope.dump.manifest.json_text import dumps, loads
from gradscope.errors import DumpError

#: What stored dtypes stand for where nobody says: JAX saves bfloat16 as void, NumPy float8_e5m2 as one of its floats.
_UNSAID: Final = {"|V2": "bfloat16", "<V2": "bfloat16", "<f1": "float8_e5m2"}
_STORED_UNDER: Final = {"<f1": "|V1"}


@lru_cache(maxsize=64)
def member_facts(logical: str) -> bytes:
    """The JSON text for a member's extra field; b"" where its `.npy` header says everything."""
    return dumps({"dtype": logical}).encode("ascii") if logical != dtype_name(stored_dtype(logical)) else b""


def logical_dtype(facts: bytes, descriptor: str) -> str:
    """The logical dtype's name of a member.

    Args:
        facts: Content of its extra field.
        descriptor: NumPy's descriptor of its stored dtype.

    Raises:
        DumpError: It does not say, or says something else than its header.
    """
    if facts:
        return _said(facts, descriptor)
    if descriptor in ("|V1", "<V1"):
        raise DumpError(
            f"its dtype {descriptor!r} is that of every float8, and the file does not say which it is",
            hint="save it as float32, or as a dump",
        )
    return _UNSAID.get(descriptor) or np.dtype(descriptor).name


def stored_as(descriptor: str) -> np.dtype[Any]:
    """The dtype in which elements of a descriptor are read."""
    return np.dtype(_STORED_UNDER.get(descriptor, descriptor))


def _said(facts: bytes, descriptor: str) -> str:
    value = loads(facts)
    logical = value.get("dtype") if isinstance(value, dict) else None
    if not isinstance(logical, str) or not storable(logical) or stored_dtype(logical).str != descriptor:
        raise DumpError(f"it is said to hold {logical!r:.40}, which is not stored as {descriptor!r}")
    return logical
