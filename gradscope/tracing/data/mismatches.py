"""Disagreements: what a file lacks, has too much, or has otherwise than a model expects, in words and all at once.

Kinds of numbers in words: what has to agree where a width of numbers does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.frameworks.modules.own_format import Described
from gradscope.naming import printable

_KINDS: Final = (
    (jnp.bool_, "boolean"),
    (jnp.integer, "integer"),
    (jnp.floating, "floating-point"),
    (jnp.complexfloating, "complex"),
)


def dtype_in_words(dtype: Any) -> str:
    """Returns what sort of numbers a dtype holds, in words; the dtype's own name where it holds none."""
    return next((kind for general, kind in _KINDS if jnp.issubdtype(dtype, general)), str(dtype))


def disagreements(
    expected: Mapping[str, Described], found: Mapping[str, Described], *, exact: bool = False
) -> Iterator[str]:
    """A sentence for each tensor that is not as expected.

    Args:
        expected: What a model has, by path.
        found: What a file has, by the same paths.
        exact: Whether numbers of the same kind and another width are a disagreement.
    """
    for path, wanted in expected.items():
        if path in found:
            yield from _differences(printable(path), wanted, found[path], exact=exact)
        else:
            yield f"it lacks {_described(path, wanted)}"
    for path in sorted(found.keys() - expected.keys()):
        yield f"the model has no {_described(path, found[path])}"


def _differences(path: str, wanted: Described, found: Described, *, exact: bool) -> Iterator[str]:
    if tuple(found.shape) != tuple(wanted.shape):
        yield f"{path} has shape {list(found.shape)}, expected {list(wanted.shape)}"
    dtypes = [_as_read(found.dtype), _as_read(wanted.dtype)]
    if len(set(dtypes if exact else map(dtype_in_words, dtypes))) > 1:
        yield f"{path} is {found.dtype}, expected {wanted.dtype}"


def _as_read(dtype: Any) -> Any:
    """The dtype that JAX has a tensor in: 32 bits in place of 64 unless 64-bit types are enabled."""
    known = as_numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    return jax.dtypes.canonicalize_dtype(known, allow_extended_dtype=True)


def _described(path: str, tensor: Described) -> str:
    return f"{printable(path)} {tensor.dtype}{list(tensor.shape)}"
