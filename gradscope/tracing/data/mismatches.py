"""Mismatches are sentences about tensors that a file lacks, has in addition, or has otherwise than a model expects.

Tensors that are missing together are one item, named by what their paths have in common.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.dtypes import as_numpy_dtype, is_key
from gradscope.frameworks.modules.adapter import Described
from gradscope.naming import printable

_KINDS: Final = (
    (jnp.bool_, "boolean"),
    (jnp.integer, "integer"),
    (jnp.floating, "floating-point"),
    (jnp.complexfloating, "complex"),
)

_SEPARATOR: Final = re.compile(r"[/.]")

#: What differs in the paths of layers that are the same otherwise.
_NUMBER: Final = re.compile(r"\d+")
#: The digits of a number that counts no layers.
_LONG: Final = 7

#: The number of items that a sentence lists; the others are counted.
_MOST: Final = 8

#: The number of tensors below one path, or of such in paths that differ by numbers, that become one item.
_GROUPED: Final = 3


def dtype_in_words(dtype: Any) -> str:
    """Returns the kind of numbers of a dtype in words; the dtype's own name where it is not of numbers."""
    return next((kind for general, kind in _KINDS if jnp.issubdtype(dtype, general)), str(dtype))


def mismatches(
    expected: Mapping[str, Described], found: Mapping[str, Described], *, exact: bool = False
) -> Iterator[str]:
    """Yields sentences about the tensors that are not as expected: each that differs, those that lack, and others.

    Args:
        expected: The model's tensors, by path.
        found: The file's tensors, by the same paths.
        exact: Whether numbers of the same kind and another width are a mismatch.
    """
    both = [path for path in expected if path in found]
    lacking = {path: each for path, each in expected.items() if path not in found}
    extra = {path: found[path] for path in sorted(found.keys() - expected.keys())}
    yield from shortened(
        [each for path in both for each in _differences(path, expected[path], found[path], exact=exact)]
    )
    for what, tensors, present in (("it lacks", lacking, found), ("the model has no", extra, expected)):
        if tensors:
            yield f"{what} {', '.join(shortened(in_groups(tensors, present)))}"


def in_groups(tensors: Mapping[str, Described], others: Iterable[str]) -> list[str]:
    """Returns tensors as items of a list; several below one path are one item: `head (3 tensors)`, `scale float32[3]`.

    Items that differ by numbers alone are one: `layers.{0..11}.index (12 tensors)`.

    Args:
        tensors: The tensors, by path.
        others: The paths of the tensors that the list is not about; no item has one of them below its path.
    """
    groups = _groups(tensors, others)
    items: list[str] = []
    for pattern, members in in_ranges(groups).items():
        paths = [path for group in members for path in groups[group]]
        whole = len(paths) >= _GROUPED
        items += [_counted(pattern, len(paths))] if whole else [_described(path, tensors[path]) for path in paths]
    return items


def listed(names: Iterable[str]) -> str:
    """Returns the first few names of tensors in a sentence; those that differ by numbers alone are one."""
    items = in_ranges(names).items()
    return ", ".join(
        shortened([_counted(each, len(members)) if len(members) > 1 else printable(each) for each, members in items])
    )


def in_ranges(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns names by what they are called together: `h.{0..11}.fc` for three or more that differ by numbers alone.

    Numbers of which not all from the first to the last are there are a star.
    """
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[_NUMBER.sub("0", name)].append(name)
    found: dict[str, list[str]] = {}
    for members in alike.values():
        found |= {_range_of(members): members} if len(members) >= _GROUPED else {name: [name] for name in members}
    return found


def _range_of(names: Sequence[str]) -> str:
    columns = [sorted(set(column), key=lambda number: (len(number), number))
               for column in zip(*map(_NUMBER.findall, names), strict=True)]  # fmt: skip
    complete = math.prod(map(len, columns)) == len(names)
    numbers = [
        column[0] if len(column) == 1 else f"{{{column[0]}..{column[-1]}}}" if complete and _is_dense(column) else "*"
        for column in columns
    ]
    texts = _NUMBER.split(names[0])
    return "".join(text + number for text, number in zip(texts, [*numbers, ""], strict=True))


def _is_dense(numbers: Sequence[str]) -> bool:
    """Returns whether sorted numbers are all from the first to the last, as they are counted."""
    # Python reads no number of thousands of digits.
    return len(numbers[-1]) < _LONG and [*map(str, range(int(numbers[0]), int(numbers[-1]) + 1))] == [*numbers]


def _counted(name: str, count: int) -> str:
    return f"{printable(name)} ({count} tensors)"


def patterns_of(paths: Iterable[str], others: Iterable[str]) -> list[str]:
    """Returns globs that match some paths and no others: `head/*` for all below one path, else the path itself."""
    return [
        f"{members[0][: len(group) + 1]}*" if len(members) > 1 else members[0]
        for group, members in _groups(paths, others).items()
    ]


def shortened(items: Sequence[str]) -> list[str]:
    """Returns the first few items, and the number of the others."""
    return [*items[:_MOST], *([f"{len(items) - _MOST} more"] if len(items) > _MOST else [])]


def _groups(paths: Iterable[str], others: Iterable[str]) -> dict[str, list[str]]:
    """Returns paths by the shortest path above them that is above none of the others; without one, by themselves."""
    taken = {above for path in others for above in _above(path)}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        groups[next((above for above in _above(path) if above not in taken), path)].append(path)
    return groups


def _above(path: str) -> Iterator[str]:
    """Yields the beginnings of a path that are paths, the shortest first."""
    yield from (path[: separator.start()] for separator in _SEPARATOR.finditer(path))


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


def dtype_notes(expected: Sequence[Described], arrays: Sequence[np.ndarray]) -> Iterator[str]:
    """Yields a sentence about each dtype that arrays have in place of that of the variables which they are."""
    kept = Counter(
        (str(jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)), str(leaf.dtype))
        for leaf, array in zip(expected, arrays, strict=True)
    )
    for (saved, made), count in kept.items():
        if saved != made:
            # JAX promotes no such type, and operations on it end with an error.
            converted = f"; --dtype {made} converts them" if saved.startswith("float8") else ""
            yield f"kept as in the checkpoint: {count} of {saved}, where init makes {made}{converted}"


def is_coarser(found: Described, needed: Described) -> bool:
    """Returns whether a tensor has whole numbers in place of fractions."""
    return (
        jnp.issubdtype(needed.dtype, jnp.floating)
        and found.shape != ()
        and str(found.dtype).startswith(("int", "uint"))
    )
