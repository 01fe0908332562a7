"""Mismatches are sentences about tensors that a file lacks, has in addition, or has otherwise than a model expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.arrays.dtypes import as_numpy_dtype, is_key
from gradscope.frameworks.modules.own_format import Described
from gradscope.naming import printable

_KINDS: Final = (
    (jnp.bool_, "boolean"),
    (jnp.integer, "integer"),
    (jnp.floating, "floating-point"),
    (jnp.complexfloating, "complex"),
)


def dtype_in_words(dtype: Any) -> str:
    """Returns the kind of numbers of a dtype in words; the dtype's own name where it is not of numbers."""
    return next((kind for general, kind in _KINDS if jnp.issubdtype(dtype, general)), str(dtype))


def mismatches(
    expected: Mapping[str, Described], found: Mapping[str, Described], *, exact: bool = False
) -> Iterator[str]:
    """Yields a sentence for each tensor that is not as expected.

    Args:
        expected: The model's tensors, by path.
        found: The file's tensors, by the same paths.
        exact: Whether numbers of the same kind and another width are a mismatch.
    """
    for path, needed in expected.items():
        if path in found:
            yield from _differences(printable(path), needed, found[path], exact=exact)
        else:
            yield f"it lacks {_described(path, needed)}"
    for path in sorted(found.keys() - expected.keys()):
        yield f"the model has no {_described(path, found[path])}"


def _differences(path: str, needed: Described, found: Described, *, exact: bool) -> Iterator[str]:
    if tuple(found.shape) != tuple(needed.shape):
        yield f"{path} has shape {list(found.shape)}, expected {list(needed.shape)}"
    if is_key(str(found.dtype)) or is_key(str(needed.dtype)):
        if str(found.dtype) != str(needed.dtype):
            yield f"{path} is {found.dtype}, expected {needed.dtype}"
        return
    dtypes = [_as_read(found.dtype), _as_read(needed.dtype)]
    if len(set(dtypes if exact else map(dtype_in_words, dtypes))) > 1:
        yield f"{path} is {found.dtype}, expected {needed.dtype}"


def _as_read(dtype: Any) -> Any:
    """Returns the dtype with which JAX reads a tensor: 32 bits in place of 64 unless 64-bit types are enabled."""
    known = as_numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    return jax.dtypes.canonicalize_dtype(known, allow_extended_dtype=True)


def _described(path: str, tensor: Described) -> str:
    return f"{printable(path)} {tensor.dtype}{list(tensor.shape)}"
