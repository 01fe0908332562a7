"""Parameters move by the updates that a step records, unless the loop makes something else of them.

Updates that are added twice, or subtracted, are a multiple of what parameters move by; a parameter that is written over
behind the optimizer, as the second copy of a tied weight, moves by something else. So does one that is clipped or
projected on purpose, and all of them where what is recorded is not yet scaled by the learning rate.

As statistics, the distances are computed by NumPy where the CPU is the device: a kernel for each parameter would take
XLA as long to compile as half of a small step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.history.history_rows import LossFault
from gradscope.instrument.host_calls import made_on_host
from gradscope.naming import printable
from gradscope.naming.wording import counted
from gradscope.tracing.jaxpr.sharding import varying, varying_axes
from gradscope.training.probing.returned.alike import alike, outline_of

#: The recorded steps that say so: all of those that there are, and as many at least.
_FEWEST: Final = 3
#: How far from its update a parameter moves that does not move by it, and how near to a multiple of it one is that
#: moves by that, as shares of the update.
_APART: Final = 0.1
_NEAR: Final = 0.02
#: The most elements of a parameter that are looked at, all over it: passes over all of them would cost a step of a
#: small batch half as much again.
_LOOKED_AT: Final = 4096
#: What `moves` returns.
_MOVES: Final = jax.ShapeDtypeStruct((3,), jnp.float32)
#: The most names of parameters in a sentence.
_NAMED: Final = 3


def new_params(params: Any, names: Any, given: Mapping[str, Any], returned: Any) -> list[dict[str, Any]]:
    """Returns the parameters by name that a step returns, those at the place of the ones that it was given first.

    Args:
        params: The pytree that its loss was given.
        names: The names of its leaves, likewise.
        given: The arguments of the step by name, before it ran.
        returned: What it returned.

    Returns:
        All pytrees of that structure; none where the step was given none, or another number of them.
    """
    outline, leaves = outline_of(params), jax.tree_util.tree_leaves(params)
    before, after = list(alike(outline, tuple(given.values()))), list(alike(outline, returned))
    own = [at for at, tree in enumerate(before) if _are(jax.tree_util.tree_leaves(tree), leaves)]
    if len(own) != 1 or len(before) != len(after):
        return []
    after.insert(0, after.pop(own[0]))
    of_leaves, trees = jax.tree_util.tree_leaves(names), list(map(jax.tree_util.tree_leaves, after))
    if any(len(tree) != len(of_leaves) for tree in trees):  # with leaves that are no arrays
        return []
    return [dict(zip(of_leaves, tree, strict=True)) for tree in trees]


def _are(leaves: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(leaves) == len(others) and all(one is other for one, other in zip(leaves, others, strict=True))


def moves(param: Any, update: Any, new: Sequence[Any]) -> Any:
    """Returns how a parameter moves by its update: a factor, and how far from once and from so many times the update.

    Args:
        param: The parameter before the step.
        update: What the step records as its update.
        new: What the parameter may be after it: the nearest to what the update makes of it counts.

    Returns:
        The three, float32[3]; the distances are shares of the norm of the update, without the rounding of the sum. Of
        an update of zeros, by which nothing moves, and of one that is not finite, the distances are negative.
    """
    return jax.lax.platform_dependent(param, update, *new, cpu=_moves_from_host, default=partial(_moves, jnp))


def _moves_from_host(*arrays: Any) -> Any:
    return varying(made_on_host(_moves_of_arrays, _MOVES, *arrays), varying_axes(arrays))


def _moves_of_arrays(*arrays: Array) -> Array:
    # NumPy only: any JAX operation in a callback may wait for the step that runs the callback.
    with np.errstate(all="ignore"):
        return _moves(np, *arrays)


def _moves(numpy: Any, param: Any, update: Any, *new: Any) -> Any:
    """Returns what `moves` does, by NumPy or by JAX's `numpy`."""
    places = tuple(slice(None, None, stride) for stride in _strides(param.shape))
    param, update, *after = (each[places] for each in (param, update, *new))
    wide = np.promote_types(param.dtype, np.float32)  # that of JAX refuses bfloat16 where a program is strict
    update = update.astype(wide)
    size = numpy.square(numpy.abs(update)).sum()
    is_none = size == 0
    size = numpy.where(is_none, 1, size)
    found: list[Any] = []
    for each in after:
        moved = each.astype(wide) - param.astype(wide)
        largest = numpy.maximum(numpy.abs(each), numpy.abs(param)).astype(wide)
        rounding = float(jnp.finfo(param.dtype).eps) * largest
        factor = numpy.real((moved * numpy.conj(update)).sum()) / size
        apart = [
            numpy.square(numpy.maximum(numpy.abs(moved - times * update) - numpy.abs(rounding), 0)).sum() / size
            for times in (1, factor.astype(wide))
        ]  # fmt: skip
        stays = is_none & (numpy.abs(moved).max(initial=0) == 0)
        distances = numpy.where(stays, -1, numpy.sqrt(numpy.stack(apart)) + numpy.where(is_none, _APART + 1, 0))
        found.append(numpy.stack([factor, *distances]).astype(numpy.float32))
    stacked = numpy.nan_to_num(numpy.stack(found), nan=-1.0)  # a probe stops no program that looks for NaN
    return stacked[numpy.argmin(stacked[:, 1])]


def _strides(shape: Sequence[int]) -> list[int]:
    """Returns the distances along each axis at which so many elements are taken as are looked at."""
    strides = [1] * len(shape)
    while math.prod(counts := [-(-size // stride) for size, stride in zip(shape, strides, strict=True)]) > _LOOKED_AT:
        strides[counts.index(max(counts))] *= 2
    return strides


class Misapplied:
    """A `Misapplied` finds parameters that do not move by their updates at any recorded step.

    Attributes:
        faults: What is to be said of them.
    """

    def __init__(self) -> None:
        self._wrong: dict[str, _Moved] = {}
        self._right: set[str] = set()
        self.faults: tuple[LossFault, ...] = ()

    def after(self, applied: Mapping[str, Any]) -> Callable[[], None]:
        """Returns the function that learns from a recorded step, and may wait for the device.

        Args:
            applied: What `moves` returned, by parameter.
        """

        def learn() -> None:
            for name, row in jax.device_get(dict(applied)).items():
                factor, apart, left = map(float, row)
                if apart < 0 or name in self._right:  # below 0 where a step only adds up gradients, or breaks
                    continue
                if apart <= _APART:
                    self._right.add(name)
                    self._wrong.pop(name, None)
                else:
                    self._wrong[name] = self._wrong.get(name, _Moved()).again(factor if left <= _NEAR else None)
            self.faults = tuple(self._found())

        return learn

    def _found(self) -> Iterator[LossFault]:
        wrong = {name: each for name, each in self._wrong.items() if each.steps >= _FEWEST}
        if not wrong:
            return
        low, high = min(each.low for each in wrong.values()), max(each.high for each in wrong.values())
        if low == high == 0:  # of parameters that stay as they are there is an alarm
            return
        are_all = len(wrong) == len(self._wrong) and not self._right
        if are_all and math.isfinite(low) and high - low <= _NEAR * abs(low):
            yield LossFault("misapplied", _multiple((low + high) / 2))
        else:
            yield LossFault("misapplied", _otherwise(list(wrong)))


class _Moved(NamedTuple):
    """_Moved is by how many times its updates a parameter moved at some steps; by any number where by none."""

    steps: int = 0
    low: float = math.inf
    high: float = -math.inf

    def again(self, factor: float | None) -> _Moved:
        least, most = (-math.inf, math.inf) if factor is None else (factor, factor)
        return _Moved(self.steps + 1, min(self.low, least), max(self.high, most))


def _multiple(factor: float) -> str:
    what = f"the parameters move by {factor:.2g} times the updates that the step records, at every recorded step"
    if abs(factor - round(factor)) <= _NEAR and round(factor) > 1:
        return f"{what}, as where these are added {'twice' if round(factor) == 2 else f'{round(factor)} times'}"
    if abs(factor + 1) <= _NEAR:
        return f"{what}, as where these are subtracted in place of added"
    return f"{what}: give probe.record what is added to them"


def _otherwise(names: Sequence[str]) -> str:
    shown = [printable(each) for each in names[:_NAMED]]
    more = f" and {counted(len(names) - _NAMED, 'other')}" if len(names) > _NAMED else ""
    these, move, them = ("its", "moves", "it") if len(names) == 1 else ("their", "move", "them")
    return (
        f"{', '.join(shown)}{more} {move} by something else than {these} recorded update, at every recorded step: "
        "where that is not meant, as of a clip or a projection, the step writes over what the optimizer made of "
        f"{them}, or records something else than it adds"
    )
