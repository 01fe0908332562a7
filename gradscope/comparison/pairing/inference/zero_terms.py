"""`zero_terms` recognises biases of zeros that are added to others, as one of the two biases of PyTorch's LSTM may be.

The sum of both is then the other one, which alone has a counterpart. That the bias of zeros is a term of the sum, its
gradient shows: it is that of the other bias, and of a gate that has both terms apart, as in a GRU, that of a bias of
zeros which the other program has for it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.arrays.widening import wide_values
from gradscope.comparison.default_tolerances import default_tolerance
from gradscope.comparison.layout.layouts import Shape
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key

#: The most biases of zeros of the other program that are looked at for one: a file may have thousands.
_MOST_APART: Final = 64


def zero_terms(dumps: Dumps, pairing: Pairing) -> dict[str, str]:
    """Returns why parameters of zeros need no counterpart that are added to parameters which have one.

    Args:
        dumps: The dumps.
        pairing: Their pairing.

    Returns:
        Sentences by key, also of the gradients with respect to them.

    Raises:
        DumpError: One of the dumps is damaged.
    """
    found: dict[str, str] = {}
    sides = ((dumps.ref, pairing.only_ref), (dumps.cand, pairing.only_cand))
    zeros = [_zeros(*side) for side in sides]
    for (own, keys), terms, apart in zip(sides, zeros, reversed(zeros), strict=True):
        beside = _paired_in_layers(own, keys) if terms else {}
        for key, gradient in terms.items():
            alone = dict(islice(((each, apart[each]) for each in apart if each not in found), _MOST_APART))
            for one in beside.get((_layer(key), own.entry(key).shape), ()):
                parts = None if key in found else _parts(gradient, _gradient(own, one), alone)
                if parts is not None:
                    names = " and ".join(split_key(each)[1] for each in (one, *parts))
                    found |= _reasons([key], f"zero, and its gradient is that of {names}")
                    found |= _reasons(parts, f"zero, and its gradient is a part of that of {split_key(key)[1]}")
    return found


def _reasons(keys: Sequence[str], why: str) -> dict[str, str]:
    """Returns why some parameters and their gradients need no counterpart."""
    return dict.fromkeys((each for key in keys for each in (key, key_of(PARAM_GRAD, split_key(key)[1]))), why)


def _zeros(source: DumpSource, keys: Sequence[str]) -> dict[str, Array]:
    """Returns the gradients of parameters of zeros that have one."""
    found: dict[str, Array] = {}
    for key in keys:
        entry = source.entry(key)
        if entry.family != PARAM or not entry.shape or dtype_class(entry.dtype) != "float":
            continue
        if not source.has_tensor(key) or np.any(source.array(key)):
            continue
        gradient = _gradient(source, key)
        if gradient is not None and np.any(gradient):
            found[key] = gradient
    return found


def _paired_in_layers(source: DumpSource, alone: Sequence[str]) -> Mapping[tuple[str, Shape], Sequence[str]]:
    """Returns the parameters that have a counterpart by the layer that has them and their shape."""
    found: defaultdict[tuple[str, Shape], list[str]] = defaultdict(list)
    unpaired = frozenset(alone)
    for entry in source.manifest.entries:
        key = key_of(entry.family, entry.name)
        if entry.family == PARAM and key not in unpaired:
            found[_layer(key), entry.shape].append(key)
    return found


def _layer(key: str) -> str:
    return re.split(r"[/.](?=[^/.]*$)", key)[0]


def _parts(gradient: Array, one: Array | None, apart: Mapping[str, Array]) -> tuple[str, ...] | None:
    """Returns the parameters that a gradient is in part of, where the rest of it is another's; None where it is not."""
    if one is None:
        return None
    if _is_close(gradient, one):
        return ()
    for size in {len(each) for each in apart.values() if each.shape[1:] == gradient.shape[1:]}:
        if len(gradient) % size:
            continue
        found: list[str] = []
        free = {key: each for key, each in apart.items() if each.shape == (size, *gradient.shape[1:])}
        for own, others in zip(*(np.split(each, len(each) // size) for each in (gradient, one)), strict=True):
            if not _is_close(own, others):
                found += [key for key, each in free.items() if key not in found and _is_close(own, each)][:1] or [""]
        if "" not in found and found:
            return tuple(found)
    return None


def _gradient(source: DumpSource, key: str) -> Array | None:
    gradient = key_of(PARAM_GRAD, split_key(key)[1])
    return wide_values(source.array(gradient)) if source.has_tensor(gradient) else None


def _is_close(one: Array, other: Array) -> bool:
    tolerance = default_tolerance(PARAM_GRAD, "float32", "float32")
    return one.shape == other.shape and bool(np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one))
