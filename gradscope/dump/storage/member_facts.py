"""Stores the logical dtype of a zip member in its extra field, where the `.npy` header cannot name that dtype.

The `.npy` header of a bfloat16 tensor only says `|V2`: two bytes per element. The extra field adds `{"dtype":
"bfloat16"}`, so that a member can be read without the manifest (see `recover`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from gradscope.arrays.dtypes import dtype_name, storable, stored_dtype
from gradscope.dump.manifest.json_text import dumps, loads
from gradscope.errors import DumpError

#: Logical dtypes of descriptors in files without extra fields: JAX saves bfloat16 as void, NumPy saves float8_e5m2 as a
#: float of one byte.
_CONVENTIONAL: Final = {"|V2": "bfloat16", "<V2": "bfloat16", "<f1": "float8_e5m2"}
_STORED_UNDER: Final = {"<f1": "|V1"}


@lru_cache(maxsize=64)
def member_facts(logical: str) -> bytes:
    """Returns the JSON text for a member's extra field; b"" where the `.npy` header is sufficient."""
    return dumps({"dtype": logical}).encode("ascii") if logical != dtype_name(stored_dtype(logical)) else b""


def logical_dtype(facts: bytes, descriptor: str) -> str:
    """Returns the name of a member's logical dtype.

    Args:
        facts: Content of its extra field; b"" where there is none.
        descriptor: NumPy's descriptor of its stored dtype, from its `.npy` header.

    Raises:
        DumpError: The dtype is ambiguous, or the extra field contradicts the header.
    """
    if facts:
        return _declared_dtype(facts, descriptor)
    if descriptor in ("|V1", "<V1"):
        raise DumpError(
            f"its dtype {descriptor!r} is that of every float8, and the file does not state which",
            hint="save it as float32, or as a dump",
        )
    return _CONVENTIONAL.get(descriptor) or np.dtype(descriptor).name


def stored_as(descriptor: str) -> np.dtype[Any]:
    """Returns the dtype with which NumPy can read elements of a descriptor."""
    return np.dtype(_STORED_UNDER.get(descriptor, descriptor))


def _declared_dtype(facts: bytes, descriptor: str) -> str:
    value = loads(facts)
    logical = value.get("dtype") if isinstance(value, dict) else None
    if not isinstance(logical, str) or not storable(logical) or stored_dtype(logical).str != descriptor:
        raise DumpError(f"its extra field declares dtype {logical!r:.40}, which is not stored as {descriptor!r}")
    return logical
