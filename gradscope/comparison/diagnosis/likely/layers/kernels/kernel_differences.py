"""`KernelDifferences` tells in what two layers with a kernel differ: padding, flips, a bias, a function, the kernel.

Both layers may read anything: how each uses its kernel shows in what it makes of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.clauses import OF_KERNEL
from gradscope.comparison.diagnosis.likely.layers.kernels.kernel_uses import ROUNDING, KernelUse, Work, kernel_uses
from gradscope.comparison.diagnosis.likely.layers.kernels.sampled_products import Places
from gradscope.comparison.diagnosis.likely.layers.kernels.scaled_reads import scaled_values
from gradscope.comparison.diagnosis.likely.layers.read_values import ReadValue, read_values
from gradscope.comparison.diagnosis.likely.layers.unpaired_vectors import UnpairedVectors
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, PARAM, key_of, printable, split_key

#: The largest number of elements of a tensor that is looked at.
_MOST_ELEMENTS: Final = 1 << 22

#: The most pairs of values whose layers are looked at, and of parameters that another may be.
_MOST_PAIRS: Final = 12
_MOST_OTHERS: Final = 32

#: What lies behind the edges, in words.
_BEHIND: Final = {"constant": "zeros", "edge": "the values at the edges"}

#: Of a layer that applies no function, in words.
_NONE: Final = "no function"

#: Both tensors of a pair, in the layout of the reference.
_Both: TypeAlias = tuple[Array, Array]

#: The name of a parameter, and its elements in both programs.
_Vector: TypeAlias = tuple[str, _Both]


class KernelDifferences:
    """KernelDifferences finds in what the layers differ that make the values of a pair.

    Args:
        dumps: The dumps.
        matches: Their pairs.
        unpaired: What the layer of one program has beyond that of the other.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match], unpaired: UnpairedVectors) -> None:
        self._dumps, self._left, self._work = dumps, _MOST_PAIRS, Work()
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        params = [each for each in matches if split_key(each.ref)[0] == PARAM]
        self._sources, self._unpaired = sources_of(dumps.ref.manifest.layers), unpaired
        self._read = _read_by_layers(dumps.ref), _read_by_layers(dumps.cand)
        self._kernels = [each for each in params if len(self._shape(each)) > 1]
        self._vectors = [each for each in params if len(self._shape(each)) == 1]

    def words(self, match: Match, read: Sequence[Match]) -> str:
        """Returns a clause about how the candidate's layer differs; "" where that is not known.

        Args:
            match: The pair of the values.
            read: The pairs of what they are computed from, parameters among them.
        """
        kernels = [each for each in read if each in self._kernels]
        if not kernels or self._left <= 0 or (values := self._both(match)) is None:
            return ""
        self._left -= 1
        own = [each for each in read if split_key(each.ref)[0] == PARAM and each not in kernels]
        vectors = [*self._named(own), *self._of_one_program(match)]
        arguments = dict(self._named(each for each in read if split_key(each.ref)[0] != PARAM))
        shapes = {one.shape[1:] for one, _ in arguments.values()}
        tables = dict(self._named(each for each in kernels if self._shape(each) in shapes))  # as of positions
        with np.errstate(all="ignore"):  # functions are applied to values that they are not made for
            roundings = self._ref.rounding(match.ref, ROUNDING), self._cand.rounding(match.cand, ROUNDING)
            for kernel, reads in itertools.product(kernels, read_values(arguments | tables, self._steps(match, read))):
                layers = _Layers(reads, values, self._work, roundings, self._are_read(match))
                words = self._of_kernel(kernel, own, vectors, layers)
                if words is not None or self._work.left < 0:
                    return words or ""
            return self._of_scaled(arguments, kernels, own, vectors, values)

    def _are_read(self, match: Match) -> tuple[bool, bool]:
        """Returns whether a layer of each program reads its value of a pair, and no step outside of layers alone."""
        owners = self._dumps.ref.resolve(match.ref), self._dumps.cand.resolve(match.cand)
        return owners[0] in self._read[0], owners[1] in self._read[1]

    def _of_scaled(
        self,
        arguments: Mapping[str, _Both],
        kernels: Sequence[Match],
        own: Sequence[Match],
        vectors: Sequence[_Vector],
        values: _Both,
    ) -> str:
        """Returns in what uses of a kernel differ of which the reference's reads a value that it scales first."""
        biases = [both for _, both in vectors]
        for read, kernel in itertools.product(arguments.items() if len(arguments) == 1 else (), kernels):
            both = self._both(kernel)
            reads = [] if both is None else scaled_values(read, both, values, biases, self._work)
            if reads and (words := self._of_kernel(kernel, own, vectors, _Layers(reads, values, self._work))):
                return words
        return ""

    def _of_kernel(
        self, kernel: Match, own: Sequence[Match], vectors: Sequence[_Vector], layers: _Layers
    ) -> str | None:
        """Returns in what the uses of a kernel differ; None where the reference does not use it so."""
        kernels = self._both(kernel)
        biases = [both for _, both in vectors]
        one = None if kernels is None else layers.own(kernels[0], biases)
        if kernels is None or one is None:
            return None
        if (other := layers.nearest(one, kernels[1], biases)) is not None:
            return " and ".join(self._told(one, other, vectors, layers.are_read))
        for read in layers.reads[1:]:
            if (other := layers.nearest(one, kernels[1], biases, read)) is not None:
                reads = f"{read.words}, and the reference {layers.reads[0].words}"
                return " and ".join((reads, *self._told(one, other, vectors, layers.are_read)))
        vectors = [*vectors, *self._named(self._like(self._vectors, own))]
        biases = [both for _, both in vectors]
        for name, (_, array) in (("", kernels), *self._named(self._like(self._kernels, [kernel]))):
            if (other := layers.nearest(one, array, biases, places=[one.places])) is not None:
                told = [f"multiplies by `{name}`"] if name else []
                return " and ".join((*told, *self._told(one, other, vectors, layers.are_read)))
        return ""

    def _told(
        self, ref: KernelUse, cand: KernelUse, vectors: Sequence[_Vector], are_read: tuple[bool, bool]
    ) -> list[str]:
        """Returns in what two uses differ, without a bias that one program adds outside of the layer."""
        names = [name for name, _ in vectors]
        if (ref.bias is None) is not (cand.bias is None):
            lacks = cand if cand.bias is None else ref
            name = names[(ref.bias if cand.bias is None else cand.bias) or 0]
            match = next((each for each in self._vectors if printable(split_key(each.ref)[1]) == name), None)
            if match is not None and self._unpaired.is_used(match, in_ref=lacks is ref):
                cand = replace(cand, bias=ref.bias)
        return _differences(ref, cand, names, are_read)

    def _steps(self, match: Match, read: Sequence[Match]) -> dict[str, Array]:
        """Returns what the reference's layer reads that is no pair, by its name."""
        paired = {self._dumps.ref.resolve(each.ref) for each in read}
        keys = self._sources.get(self._dumps.ref.resolve(match.ref), ())
        steps = {each: self._ref.tensor(each) for each in keys if split_key(each)[0] == ACTIVATION}
        return {
            printable(split_key(key)[1]): step
            for key, step in steps.items()
            if step is not None and step.size <= _MOST_ELEMENTS and self._dumps.ref.resolve(key) not in paired
        }

    def _of_one_program(self, match: Match) -> list[_Vector]:
        """Returns what the layer of one program may add that has no counterpart, which the other cannot add."""
        return [
            (name, (own, np.full_like(own, np.nan)) if in_ref else (np.full_like(own, np.nan), own))
            for name, own, in_ref in self._unpaired.of(match)
        ]

    def _like(self, params: Sequence[Match], own: Sequence[Match]) -> list[Match]:
        """Returns other parameters of the shapes of some."""
        shapes = {self._shape(each) for each in own}
        return [each for each in params if self._shape(each) in shapes and each not in own][:_MOST_OTHERS]

    def _named(self, params: Iterable[Match]) -> list[_Vector]:
        """Returns parameters by their names in the reference."""
        return [(printable(split_key(each.ref)[1]), both) for each in params if (both := self._both(each)) is not None]

    def _both(self, match: Match) -> _Both | None:
        """Returns both tensors of a pair in the layout of the reference; None where one is not known, or too large."""
        if np.prod(self._dumps.ref.entry(match.ref).shape) > _MOST_ELEMENTS:
            return None
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        return None if one is None or other is None or one.shape != other.shape else (one, other)

    def _shape(self, match: Match) -> tuple[int, ...]:
        return self._dumps.ref.entry(match.ref).shape


class _Layers(NamedTuple):
    """_Layers has what the layers of both programs multiply by a kernel, and what they compute.

    Attributes:
        reads: What they multiply, and what the candidate's may in its place.
        values: What they compute.
        work: What is left to do.
        roundings: The relative errors of what they compute.
        are_read: Whether a layer reads what they compute as it is.
    """

    reads: Sequence[ReadValue]
    values: _Both
    work: Work
    roundings: tuple[float, float] = (ROUNDING, ROUNDING)
    are_read: tuple[bool, bool] = (True, True)

    def own(self, kernel: Array, biases: Sequence[_Both]) -> KernelUse | None:
        """Returns the use of a kernel by the layer of the reference; None for no use."""
        vectors = [each[0] for each in biases]
        read, value = self.reads[0].own, self.values[0]
        return next(kernel_uses(read, kernel, value, vectors, work=self.work, rounding=self.roundings[0]), None)

    def nearest(
        self,
        use: KernelUse,
        kernel: Array,
        biases: Sequence[_Both],
        read: ReadValue | None = None,
        *,
        places: Sequence[Places] | None = None,
    ) -> KernelUse | None:
        """Returns the use of a kernel by the candidate's layer that is nearest to another one; None for no use."""
        value = (read or self.reads[0]).other
        vectors = [each[1] for each in biases]
        found = kernel_uses(
            value, kernel, self.values[1], vectors, places=places, work=self.work, rounding=self.roundings[1]
        )
        return min(found, key=use.distance, default=None)


def _read_by_layers(source: DumpSource) -> frozenset[str]:
    """Returns the owners of the values that layers read."""
    known = frozenset(source.keys())
    read = (key_of(ACTIVATION, name) for layer in source.manifest.layers for name in layer.inputs)
    return frozenset(source.resolve(key) for key in read if key in known)


def _differences(ref: KernelUse, cand: KernelUse, biases: Sequence[str], are_read: tuple[bool, bool]) -> list[str]:
    """Returns in what the use of the candidate differs, given the names of what both may add.

    A layer that differs otherwise may be around the function that the other program applies behind it, and so may one
    whose value in the other program no layer reads as it is.
    """
    found = [*_of_products(ref, cand, biases)]
    applied_behind = any(
        each.function == _NONE and (found or not is_read) for each, is_read in zip((ref, cand), are_read, strict=True)
    )
    if ref.function != cand.function and not applied_behind:
        found.append(f"applies {cand.function} to its product, and the reference {ref.function}")
    return found


def _of_products(ref: KernelUse, cand: KernelUse, biases: Sequence[str]) -> Iterator[str]:
    """Yields in what the products differ of two uses, and what is added to them."""
    moved = sorted({own for own, its in zip(ref.axes, cand.axes, strict=True) if own != its})
    if moved:
        how = "transposed" if not ref.space else f"with its axes {moved} swapped"
        yield f"takes {OF_KERNEL} {how}"
    if ref.flipped != cand.flipped:
        own, its = ([*each.flipped] for each in (ref, cand))
        if not its:
            yield f"does not flip {OF_KERNEL} along {own}, and the reference does"
        else:
            yield f"flips {OF_KERNEL} along {its}" + (f", and the reference along {own}" if own else "")
    for what, own, its in (
        ("has the strides", ref.places.strides, cand.places.strides),
        ("spreads its values by", ref.places.spreads, cand.places.spreads),
        ("has the dilations", ref.places.dilations, cand.places.dilations),
    ):
        if own != its:
            yield f"{what} {[*its]}, and the reference {[*own]}"
    if ref.places.begins != cand.places.begins:
        own, its = ([*each.places.begins] for each in (ref, cand))
        yield f"pads the beginnings of the axes {[*ref.space]} by {its}, and the reference by {own}"
    if ref.padding != cand.padding:
        own, its = (_BEHIND.get(each.padding, f"`{each.padding}`") for each in (ref, cand))
        yield f"pads with {its}, and the reference with {own}"
    if ref.bias != cand.bias:
        own, its = ("no bias" if each.bias is None else f"`{biases[each.bias]}`" for each in (ref, cand))
        yield f"adds {its}, and the reference {own}"
