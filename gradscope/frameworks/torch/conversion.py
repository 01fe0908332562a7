"""Values of PyTorch become gradscope's: tensors NumPy arrays, and nested containers paths and leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.dump.manifest.provenance import content_hash
from gradscope.errors import UsageError

#: Integers of the same width, by which elements are copied whose dtype NumPy does not have.
_AS_INTEGERS: Final = {1: torch.uint8, 2: torch.int16}

#: The dtypes of NumPy's arrays and numbers that are written as inputs.
_OF_NUMPY: Final = frozenset(
    {"float16", "float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "uint8", "bool"}
)


def dtype_name(tensor: Tensor) -> str:
    """Returns the logical dtype's name, which is the same in PyTorch and gradscope."""
    return str(tensor.dtype).removeprefix("torch.")


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Returns the shape of a tensor.

    Raises:
        UsageError: It has rows of different lengths.
    """
    if tensor.is_nested:
        raise UsageError(
            "a nested tensor cannot be stored, as its rows have different lengths",
            hint="have the module pad it with to_padded_tensor()",
        )
    return tuple(tensor.shape)


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Returns a copy of a tensor on the host, in C order; a sparse one as a dense array.

    Raises:
        UsageError: A dump cannot store its dtype, or rows of different lengths.
    """
    shape_of(tensor)
    dtype = as_numpy_dtype(dtype_name(tensor))
    host = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    host = host.resolve_conj().resolve_neg().cpu()
    try:
        return np.array(host.numpy(), order="C")
    except TypeError:  # bfloat16 and float8, which NumPy does not know
        return np.array(host.contiguous().view(_AS_INTEGERS[dtype.itemsize]).numpy()).view(dtype)


def digest_of(tensor: Tensor) -> str:
    """Returns the hash of a tensor's contents."""
    return content_hash([to_numpy(tensor)])


def changes_of(tensor: Tensor) -> int:
    """Returns how often operations have changed a tensor in place."""
    return tensor._version  # noqa: SLF001 - PyTorch has no public name for it


def is_transformed(tensor: Tensor) -> bool:
    """Returns whether a tensor is inside of `torch.vmap`, `torch.func.grad` and the like, and has no numbers there."""
    return cast("Any", torch)._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001 - there is no public one


def tensors_in(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yields every tensor in nested tuples, lists, mappings and dataclasses, with the path that leads to it."""
    yield from ((at, leaf) for at, leaf in leaves_in(value, path) if isinstance(leaf, Tensor))


def leaves_in(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields what is in nested containers and none itself, with the path that leads to it."""
    if not _is_container(value):
        yield path, value
    for name, child in _children(value):
        yield from leaves_in(child, (*path, name))


def numbers_in(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yields what nested inputs have as numbers of Python and as arrays of NumPy, as tensors, with their paths.

    Integers and booleans of Python are most often switches and sizes, and none of them.
    """
    for path, leaf in leaves_in(value):
        if isinstance(leaf, float | complex):
            yield path, torch.tensor(leaf, dtype=torch.complex128 if isinstance(leaf, complex) else torch.float64)
        elif isinstance(leaf, np.ndarray | np.generic) and cast("Any", leaf).dtype.name in _OF_NUMPY:
            yield path, torch.from_numpy(np.array(leaf))


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Returns nested tuples, lists, mappings and dataclasses with a function applied to each tensor, others unchanged.

    They are copies of their own classes, as a module may read an item of a dictionary by an attribute of its class.
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        children = [mapped(function, child) for child in cast("tuple[Any, ...]", value)]
        return type(value)(*children) if hasattr(value, "_fields") else tuple(children)
    if isinstance(value, MutableMapping | list):
        copied: Any = copy(cast("Any", value))
        for at in list(copied) if isinstance(value, MutableMapping) else range(len(copied)):
            copied[at] = mapped(function, copied[at])
        return copied
    if isinstance(value, Mapping):
        return {name: mapped(function, child) for name, child in cast("Mapping[Any, Any]", value).items()}
    if _is_dataclass_instance(value):
        copied = copy(value)
        for name, child in _children(value):
            object.__setattr__(copied, name, mapped(function, child))  # also where it is frozen
        return copied
    return value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), child) for name, child in cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, list | tuple):
        yield from ((str(at), child) for at, child in enumerate(cast("list[Any]", value)))
    elif _is_dataclass_instance(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value) if hasattr(value, field.name))


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) or _is_dataclass_instance(value)


def _is_dataclass_instance(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
