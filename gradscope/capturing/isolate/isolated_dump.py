"""An isolated run is compared with the reference as if it were a dump of the candidate's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.isolate.boundaries import Boundaries
from gradscope.capturing.isolate.pinned_arguments import PinnedArguments
from gradscope.capturing.isolate.pinned_values import gradient_key
from gradscope.capturing.isolate.places import Places
from gradscope.capturing.isolate.segment_precision import SegmentPrecision
from gradscope.comparison.compare_dumps import judged
from gradscope.comparison.diagnosis.refuting.apart.functions_between import function_between
from gradscope.comparison.follow_ups.isolation import LeftOut, LocalFinding
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.limits.noise import DefaultLimits
from gradscope.comparison.judging.rounding.inherited_precision import InheritedPrecision
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.instrument.isolating import IsolatedRun
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.jaxpr.iterations import ValueAt

#: The relative error up to which a value is a function of another.
_FUNCTION: Final = 1e-4


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A `_Tensor` is one tensor of the isolated candidate, with the boundaries of the segments that made it.

    Attributes:
        array: Its value; None where no gradient arrives.
        boundaries: The boundaries.
        gradient_of: The value or argument with respect to which it is the gradient; None for other tensors.
        argument: Whether that is an argument.
    """

    array: Array | None
    boundaries: tuple[ValueAt, ...]
    gradient_of: ValueAt | None = None
    argument: bool = False


class IsolatedDump:
    """An `IsolatedDump` presents an isolated run as a dump of the candidate, and knows which layers made each tensor.

    Args:
        dumps: The reference's dump and the candidate's.
        arguments: The candidate's loss and arguments.
        run: What its layers computed.
        boundaries: The ends of the segments between the values that the reference has.
        places: What errors are assigned to.
        placing: The reference's tensors by the candidate's keys.

    Attributes:
        left_out: The values that were not compared, and why.
    """

    def __init__(
        self,
        dumps: Dumps,
        arguments: PinnedArguments,
        run: IsolatedRun,
        *,
        boundaries: Boundaries,
        places: Places,
        placing: ReversePairing,
    ) -> None:
        self._dumps = dumps
        self._placing = placing
        self._trace = arguments.trace
        self._pinned = boundaries.pinned
        self._run = run
        self._boundaries = boundaries
        self._places = places
        self.left_out: list[LeftOut] = []
        known = frozenset(dumps.cand.keys())
        self._tensors = {key: each for key, each in self._made() if key in known}

    def findings(self, matches: Iterable[Match], options: CompareOptions) -> Iterator[LocalFinding]:
        """Yields the judgement of each tensor that the reference has, too."""
        mine = self._of_owners(matches)
        dumps = Dumps(ref=self._dumps.ref, cand=self._dump())
        made_by = {key: tensor.boundaries for key, tensor in self._tensors.items()}
        is_mixed = InheritedPrecision(self._dumps.cand).is_mixed  # one layer that rounds inside is rather a mistake
        own = SegmentPrecision(
            self._trace, self._boundaries, made_by, is_mixed=is_mixed, at_most=options.cand_dtype
        )  # fmt: skip
        limits = DefaultLimits(dumps, InheritedPrecision(dumps.ref, direct=True), own)
        rows = judged(dumps, list(mine.values()), options, limits)
        unclear = dict(self._reading_functions(dumps, [mine[ref] for ref in rows if rows[ref].status == "different"]))
        for ref, row in rows.items():
            made = [each for key in mine[ref].recipe.keys for each in self._tensors[key].boundaries]
            if row.status == "different" and (why := [unclear[each] for each in made if each in unclear]):
                self.left_out.append(LeftOut(name=ref, why=why[0]))
                continue
            tensors = [self._tensors[key] for key in mine[ref].recipe.keys]
            wrong = list(self._wrong_parts(row, mine[ref].recipe.keys)) if row.status == "different" else []
            for parts in [[part] for part in wrong] or [tensors]:
                places = dict.fromkeys(name for part in parts for name in self._places_of(part, row))
                if not places and row.status != "different":
                    continue  # nothing that ran reads it
                # Where no layer of the candidate reads a value, the layer that reads it in the reference is named.
                named = tuple(places) or (self._dumps.ref.entry(ref).site.layer or ref,)
                ends = [end for part in parts for end in part.boundaries] if row.status == "different" else []
                yield LocalFinding(row=row, places=named, rearranging=self._places.rearranging(ends))

    def _places_of(self, tensor: _Tensor, row: ComparisonRow) -> Iterable[str]:
        """Returns the places that may have made the error of a tensor; of one without, the layers that made it."""
        if row.status == "different":
            return self._places.of(tensor.boundaries, tensor.gradient_of)
        return map(self._boundaries.name, self._boundaries.ordered(tensor.boundaries))

    def _reading_functions(self, dumps: Dumps, differing: Iterable[Match]) -> Iterator[tuple[ValueAt, str]]:
        """Yields the boundaries of segments that read a value at another side of a function, and why that is unclear.

        Where one program has an activation function inside of a layer and the other has one behind it, the segment
        behind gets the reference's value with one function too many or too few, and its own error is not known.
        """
        for match in (each for each in differing if naming.split_key(each.ref)[0] == naming.ACTIVATION):
            found = function_between(dumps, match, _FUNCTION)
            if found is None:
                continue
            name = naming.printable(naming.split_key(match.ref)[1])
            one, other = ("candidate", "reference") if found.of_ref else ("reference", "candidate")
            why = f"it is computed from {name}, which in the {one} is the {found.words} of that in the {other}"
            for boundary in self._tensors[match.cand].boundaries:
                yield from ((reader, why) for reader in self._boundaries.readers(boundary))

    def _made(self) -> Iterator[tuple[str, _Tensor]]:
        """Yields every tensor of the isolated candidate except the loss's own gradient, which is pinned."""
        for value_at, key in self._pinned.keys.items():
            yield key, _Tensor(self._run.value(value_at), (value_at,))
            if self._pinned.sites[value_at.value].differentiable and value_at != self._boundaries.loss:
                yield from self._gradient(gradient_key(key), value_at, self._run.gradient(value_at))
        for number, leaf in enumerate(self._trace.arguments):
            family = naming.gradient_family(leaf.family)
            if family is not None and leaf.differentiated:
                value_at = ValueAt(ValueKey((), OPERAND, number), ())
                array = self._run.gradient(value_at)
                for key, tensor in self._gradient(naming.key_of(family, leaf.name), value_at, array):
                    yield key, replace(tensor, argument=True)
        boundaries = {name: value_at for value_at, name in self._boundaries.outputs.items()}
        for leaf, value in zip(self._trace.auxiliary, self._run.auxiliary, strict=True):
            key = naming.key_of(naming.AUX, leaf.name)
            if key in boundaries:
                yield key, _Tensor(np.asarray(value), (boundaries[key],))

    def _gradient(self, key: str, value_at: ValueAt, array: Array | None) -> Iterator[tuple[str, _Tensor]]:
        """Yields the gradient that arrived at a value, unless it depends on a cotangent that the reference lacks."""
        readers = tuple(self._boundaries.readers(value_at))
        unknown = [each for each in readers if each in self._pinned.without_cotangent and each != self._boundaries.loss]
        if not unknown:
            yield key, _Tensor(array, readers, gradient_of=value_at)
            return
        lacking = naming.printable(gradient_key(self._pinned.keys[unknown[0]]))
        self.left_out.append(LeftOut(name=key, why=f"it depends on {lacking}, which the reference does not have"))

    def _wrong_parts(self, row: ComparisonRow, keys: Iterable[str]) -> Iterator[_Tensor]:
        """Yields each wrong part of the tensors that a row is about, with the boundaries that made it.

        A loop that reads an argument slice by slice returns the gradient of each slice from one iteration.
        """
        for key in keys:
            tensor, ref = self._tensors[key], self._placing.array(key)
            if tensor.array is None or ref is None or row.tolerance is None:
                yield tensor
                continue
            for index, boundaries in self._slices(tensor).items():
                if _differ(tensor.array[index], ref[index], row.tolerance):
                    yield replace(tensor, boundaries=boundaries)

    def _slices(self, tensor: _Tensor) -> Mapping[tuple[int, ...], tuple[ValueAt, ...]]:
        """Returns the boundaries that made each slice of an argument's gradient, or the whole, by the slice's index."""
        argument = tensor.gradient_of if tensor.argument else None
        slices = {} if argument is None else self._boundaries.readers_of_slices(argument)
        return slices or {(): tensor.boundaries}

    def _of_owners(self, matches: Iterable[Match]) -> dict[str, Match]:
        """Returns the pairs of tensors that were made, by the reference's key; each pair of tensors under one name.

        What is one tensor in the reference may be several in the candidate, where that computes more.
        """
        ref, cand, found = self._dumps.ref, self._dumps.cand, dict[str, Match]()
        pairs: dict[tuple[str, tuple[str, ...]], dict[str, Match]] = {}
        for match in matches:
            owner, keys = ref.resolve(match.ref), tuple(map(cand.resolve, match.recipe.keys))
            pairs.setdefault((owner, keys), {})[match.ref] = match
        own = {owner for (owner, _), named in pairs.items() if owner in named}
        for (owner, keys), named in pairs.items():
            name, match = next(iter(named.items()))
            name = owner if owner in named or owner not in own | found.keys() else name
            if why := self._why_not(owner, keys):
                self.left_out.append(LeftOut(name=owner, why=why))
            elif all(key in self._tensors for key in keys):
                found[name] = replace(match, ref=name, recipe=replace(match.recipe, keys=keys))
        return found

    def _why_not(self, owner: str, keys: Iterable[str]) -> str:
        """Returns why a tensor is not judged although both dumps have it; "" where it is, or is an alias or pinned."""
        entry = self._dumps.ref.entry(owner)
        if all(key in self._tensors for key in keys):
            known = entry.absent is not None or self._dumps.ref.has_tensor(owner)
            return "" if known else "the reference has only its statistics"
        if entry.family == naming.TERM:
            return "it is a term of a gradient, and only the full gradient is judged"
        return "it is a random key" if entry.family == naming.AUX and is_key(entry.dtype) else ""

    def _dump(self) -> DumpSource:
        entries = tuple(_entry(self._dumps.cand.entry(key), each.array) for key, each in self._tensors.items())
        manifest = Manifest(entries=entries, provenance=self._dumps.cand.manifest.provenance)
        arrays = {key: each.array for key, each in self._tensors.items() if each.array is not None}
        return MemoryDump(manifest, arrays)


def _differ(array: Array, ref: Array, tolerance: float) -> bool:
    wide = np.complex128 if np.iscomplexobj(ref) else np.float64
    distance = np.linalg.norm(array.astype(wide).ravel() - ref.astype(wide).ravel())
    return not distance <= tolerance * np.linalg.norm(ref.astype(wide).ravel())


def _entry(cand: Entry, array: Array | None) -> Entry:
    return replace(
        cand, stats={}, stored=None, alias_of=None,
        shape=cand.shape if array is None else array.shape, absent="disconnected" if array is None else None,
    )  # fmt: skip
