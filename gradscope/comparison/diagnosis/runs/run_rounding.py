"""`RunRounding` finds what differs between two runs by rounding alone: gradients that are zero, and what follows them.

A gradient that is zero but for rounding has no direction, and an optimizer that normalises makes steps of ordinary size
of it. So the slots and updates of its parameter say nothing, the parameter moves at random, and so does the output that
it is added to. How far is bounded by the updates, those between two recorded steps taken to be as large as at these.
What is beyond is a difference.

A gradient counts as zero by the floor of a comparison of dumps (`judging/rounding/rounding_floors.py`). What a layer
reads is not in a history, so that only parameters have a floor whose gradients need nothing of it: what is added to the
output of a layer, or has one axis.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from gradscope import naming
from gradscope.comparison.default_tolerances import in_products
from gradscope.comparison.diagnosis.runs.run_tensors import RunTensor
from gradscope.comparison.judging.rounding.floor import Floor
from gradscope.comparison.judging.rounding.pair_floors import is_rounding
from gradscope.comparison.judging.rounding.rounding_floors import RoundingFloors
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.precision import coarser, dtype_class
from gradscope.dump.manifest.manifest import Layer, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.history.views.at_step import entries_of

#: The statistics of the tensors of a step, by their numbers.
_Statistics = Mapping[int, Mapping[str, float | int]]

#: What an optimizer makes of a gradient that has an error is off by up to twice as much: slots have squares.
_OF_SQUARES: Final = 2.0

#: How far two updates can be apart at most, as a multiple of the larger.
_OF_BOTH: Final = 2.0

#: The families that are computed from the gradient of one parameter.
_OF_GRADIENTS: Final = (naming.CLIPPED_GRAD, naming.SLOT_PREFIX, naming.UPDATE)


@dataclass(slots=True)
class _Motion:
    """A `_Motion` states what rounding does to a parameter.

    Attributes:
        slack: The largest relative error of what is computed from its gradient; inf where this is all rounding.
        update: How far an update can be from the other run's because of it.
        drift: How far the parameter can be from the other run's by now.
    """

    slack: float = 0.0
    update: float = 0.0
    drift: float = 0.0


class RunRounding:
    """A `RunRounding` follows two runs, one step after the other.

    Args:
        ref: The reference.
        tensors: The tensors of both runs.
        products: The coarser of the dtypes in which they multiplied float32 matrices.
    """

    def __init__(self, ref: History, tensors: Iterable[RunTensor], *, products: str) -> None:
        self._tensors = ref.tensors
        numbers = [(ref.tensors[each.ref].key, each.ref, each.cand) for each in tensors if each.ref is not None]
        self._numbers = (
            {key: number for key, number, _ in numbers},
            {key: number for key, _, number in numbers if number is not None},
        )
        outputs: defaultdict[str, list[TensorRow]] = defaultdict(list)
        for each in ref.tensors.values():
            if each.family == naming.ACTIVATION_GRAD and each.layer is not None:
                outputs[each.layer].append(each)
        self._params = {
            each.name: each
            for each in ref.tensors.values()
            if each.family == naming.PARAM_GRAD and _is_sum(each, outputs.get(each.layer or "", ()))
        }
        by_layer: defaultdict[str, list[str]] = defaultdict(list)
        for name, each in self._params.items():
            by_layer[each.layer or ""].append(name)
        self._by_layer: Mapping[str, list[str]] = by_layer
        self._layers = tuple(
            Layer(path=path, index=index, params=tuple(names), outputs=tuple(each.name for each in outputs[path]))
            for index, (path, names) in enumerate(by_layer.items())
        )
        self._dtypes = {
            name: _computed_in([each, *outputs[each.layer or ""]], products=products)
            for name, each in self._params.items()
        }
        self._motions = {name: _Motion() for name in self._params}
        self._before = 0

    def step(self, number: int, ref: _Statistics, cand: _Statistics) -> None:
        """Goes on to a step.

        Args:
            number: The step.
            ref: The reference's statistics at the step.
            cand: The candidate's.
        """
        floors: RoundingFloors | None = None
        for name, motion in self._motions.items():
            key = naming.key_of(naming.PARAM_GRAD, name)
            one, other = self._stats(key, ref, cand)
            slack = 0.0
            bound = least_rel_l2(one, other) if _are_finite(one, other) else None
            if bound is not None and (bound.rel_l2 > 0 or motion.slack > 0):
                floors = floors or self._floors(ref)
                floor = floors.floor(key, self._dtypes[name])
                slack = 0.0 if floor is None else _slack(bound.rel_l2, one["l2"], other["l2"], floor)
            before, motion.slack = motion.update, slack
            motion.update = self._apart(name, slack, ref, cand)
            if number > self._before:
                motion.drift += (number - self._before) * max(before, motion.update)
        self._before = number

    def explains(self, tensor: TensorRow, ref: Mapping[str, float | int], cand: Mapping[str, float | int]) -> str:
        """Returns the parameter whose gradient is zero but for rounding, and makes the difference; "" for none.

        Args:
            tensor: A tensor that both runs have.
            ref: The reference's statistics of it at the step.
            cand: The candidate's.
        """
        bound = least_rel_l2(ref, cand) if "l2" in ref and "l2" in cand and _are_finite(ref, cand) else None
        distance = math.inf if bound is None else _distance(bound.rel_l2, ref["l2"], cand["l2"])
        if bound is None or not math.isfinite(distance):
            return ""
        family = tensor.family.partition("/")[0]
        if family == naming.PARAM_GRAD or family in _OF_GRADIENTS:
            motion = self._motions.get(tensor.name, _Motion())
            # A gradient of the loss that has a slack is within its floor: so it is computed.
            is_so = motion.slack > 0 and (family == naming.PARAM_GRAD or bound.rel_l2 <= motion.slack)
            return tensor.name if is_so else ""
        for name in self._moving(family, tensor):
            motion = self._motions[name]
            drift = motion.drift + (motion.update if family == naming.AVERAGE else 0.0)
            if distance <= drift * self._copies(name, tensor):
                return name
        return ""

    def _moving(self, family: str, tensor: TensorRow) -> list[str]:
        """Returns the parameters whose drift a tensor may have: itself, what a layer adds, and means of its output."""
        if family in (naming.PARAM, naming.AVERAGE):
            return [tensor.name] if tensor.name in self._motions else []
        if family == naming.ACTIVATION:
            return self._by_layer.get(tensor.layer or "", [])
        if family in (naming.STATE, naming.AUX):
            return [name for name, each in self._params.items() if each.shape == tensor.shape]
        return []

    def _copies(self, name: str, tensor: TensorRow) -> float:
        """Returns how many times as large the difference of a tensor is, to each of whose rows a parameter is added."""
        size = math.prod(self._params[name].shape or ())
        return math.sqrt(max(1.0, math.prod(tensor.shape or ()) / max(1, size)))

    def _apart(self, name: str, slack: float, ref: _Statistics, cand: _Statistics) -> float:
        """Returns how far the updates of a parameter can be apart; inf where those of a random one are not known."""
        updates = self._stats(naming.key_of(naming.UPDATE, name), ref, cand)
        if not slack or not all("l2" in each for each in updates):
            return slack if slack == math.inf else 0.0
        return min(slack, _OF_BOTH) * max(each["l2"] for each in updates)

    def _stats(
        self, key: str, ref: _Statistics, cand: _Statistics
    ) -> tuple[Mapping[str, float | int], Mapping[str, float | int]]:
        one, other = (
            each.get(numbers.get(key, -1), {}) for each, numbers in zip((ref, cand), self._numbers, strict=True)
        )
        return one, other

    def _floors(self, stats: _Statistics) -> RoundingFloors:
        entries = entries_of(self._tensors, stats, (naming.PARAM_GRAD, naming.ACTIVATION_GRAD))
        return RoundingFloors(MemoryDump(Manifest(entries=entries, layers=self._layers, tier="core"), {}))


def _is_sum(gradient: TensorRow, outputs: list[TensorRow] | tuple[()]) -> bool:
    """Returns whether a parameter's gradient is a sum over that of a layer's output, without what the layer reads."""
    shape = gradient.shape
    if shape is None or not outputs:
        return False
    shapes = [each.shape or () for each in outputs]
    return len(shape) == 1 or any(len(each) > len(shape) and each[len(each) - len(shape) :] == shape for each in shapes)


def _computed_in(tensors: list[TensorRow], *, products: str) -> str:
    floats = [each.dtype for each in tensors if each.dtype is not None and dtype_class(each.dtype) == "float"]
    dtype = reduce(coarser, floats) if floats else "float32"
    return in_products(dtype, products)


def _are_finite(*sides: Mapping[str, float | int]) -> bool:
    return not any(each.get("nan") or each.get("inf") for each in sides)


def _distance(rel_l2: float, ref: float, cand: float) -> float:
    """Returns the least l2 of a difference whose least share of the reference is known."""
    return rel_l2 * ref if ref else abs(cand)


def _slack(rel_l2: float, ref: float, cand: float, floor: Floor) -> float:
    """Returns the largest relative error of what is computed from a gradient, by rounding; 0 where it is no zero."""
    if max(ref, cand) <= floor.l2:
        return math.inf
    if not is_rounding(_distance(rel_l2, ref, cand), ref, floor):
        return 0.0
    return _OF_SQUARES * floor.l2 / ref if ref else math.inf
