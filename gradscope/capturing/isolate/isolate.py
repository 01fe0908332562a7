"""Isolating a candidate: its layers run one by one on what a reference's dump has, all of them in one program.

Each value that both dumps hold cuts the candidate's loss. What lies between cuts runs on the reference's values and is
pulled back on the reference's cotangents (`instrument.isolating`), and what comes out is compared with what the
reference has, by the rules of any comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.isolate.boundaries import Ends
from gradscope.capturing.isolate.pinned_arguments import GivenArguments, given_arguments
from gradscope.capturing.isolate.pinned_values import HeldValues, gradient_key, held_values
from gradscope.capturing.timings import Timings
from gradscope.comparison.compare_dumps import judged, paired
from gradscope.comparison.isolation import Isolation, LeftOut, LocalFinding, local_rows
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import Placing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.instrument.isolating import IsolatedRun, run_isolated
from gradscope.naming import Selection
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.jaxpr.iterations import Moment
from gradscope.tracing.loading.model import Model
from gradscope.tracing.user_frames import user_code


def isolate(model: Model, dumps: Dumps, options: CompareOptions, timings: Timings) -> Isolation:
    """Run a candidate's layers one by one on what the reference has, and judge each.

    Args:
        model: The candidate's model.
        dumps: The reference's dump and the candidate's.
        options: How they are paired and how strictly is judged; of the layers, only those selected are told of.
        timings: Receives the seconds of each phase.

    Raises:
        UsageError: The candidate's dump is of another model.
        ModelError: The user's code failed.
        DumpError: One of the dumps is damaged.
    """
    # All of the reference, whatever is selected: what is not held lets errors through.
    pairing = paired(dumps, replace(options, selection=Selection()))
    placing = Placing(dumps, pairing.matched, pairing.inverse)
    with timings.phase("trace"):
        given = given_arguments(model, dumps, placing)
        held = held_values(given.trace, dumps.cand, placing)
    with timings.phase("run"), user_code(f"running the layers of {model.name}"):
        run = run_isolated(given.trace, held.held, given.leaves)
    ends = Ends(given.trace, held)
    local = _LocalDump(dumps, given, held, run, ends)
    rows = local_rows(tuple(local.findings(pairing.matched, options)), ends.sources())
    return Isolation(
        rows=tuple(row for row in rows if options.selection.wants(row.name, *row.tensors)),
        left_out=tuple(each for each in (*held.left_out, *local.left_out) if options.selection.wants(each.name)),
        arguments=given.origins,
    )


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the isolated candidate: None where nothing arrives, and the ends of the pieces that made it."""

    array: Array | None
    ends: tuple[Moment, ...]


class _LocalDump:
    """What an isolating run made, as a dump of the candidate's, and whose work each tensor is."""

    def __init__(self, dumps: Dumps, given: GivenArguments, held: HeldValues, run: IsolatedRun, ends: Ends) -> None:
        self._dumps = dumps
        self._trace = given.trace
        self._held = held
        self._run = run
        self._ends = ends
        self.left_out: list[LeftOut] = []
        known = frozenset(dumps.cand.keys())
        self._tensors = {key: each for key, each in self._made() if key in known}

    def findings(self, matches: Iterable[Match], options: CompareOptions) -> Iterator[LocalFinding]:
        """What became of each tensor that the reference has, too."""
        mine = self._of_owners(matches)
        dumps = Dumps(ref=self._dumps.ref, cand=self._dump())
        for ref, row in judged(dumps, list(mine.values()), options).items():
            layers = self._ends.layers(end for key in mine[ref].recipe.keys for end in self._tensors[key].ends)
            # Where no layer of the candidate reads a value, it is the work of the one that does in the reference.
            yield LocalFinding(row=row, layers=layers or (self._dumps.ref.entry(ref).site.layer or ref,))

    def _made(self) -> Iterator[tuple[str, _Tensor]]:
        """Every tensor of the isolated candidate; the loss's own gradient, which is given, aside."""
        for moment, key in self._held.keys.items():
            yield key, _Tensor(_at(self._run.values, moment), (moment,))
            if self._held.sites[moment.value].differentiable and moment != self._ends.loss:
                yield from self._gradient(gradient_key(key), moment, _at(self._run.cotangents, moment))
        for number, leaf in enumerate(self._trace.arguments):
            family = naming.gradient_family(leaf.family)
            if family is not None and leaf.differentiated:
                moment = Moment(ValueKey((), OPERAND, number), ())
                found = self._run.gradients.get(number)
                array = None if found is None else np.asarray(found)
                yield from self._gradient(naming.key_of(family, leaf.name), moment, array)
        ends = {name: moment for moment, name in self._ends.outputs.items()}
        for leaf, value in zip(self._trace.auxiliary, self._run.auxiliary, strict=True):
            key = naming.key_of(naming.AUX, leaf.name)
            if key in ends:
                yield key, _Tensor(np.asarray(value), (ends[key],))

    def _gradient(self, key: str, moment: Moment, array: Array | None) -> Iterator[tuple[str, _Tensor]]:
        """What arrived at a value, unless it was made of a cotangent that the reference does not hold."""
        readers = tuple(self._ends.readers(moment))
        unknown = [each for each in readers if each in self._held.without_cotangent and each != self._ends.loss]
        if not unknown:
            yield key, _Tensor(array, readers)
            return
        lacking = naming.printable(gradient_key(self._held.keys[unknown[0]]))
        self.left_out.append(LeftOut(name=key, why=f"it is made of {lacking}, which the reference does not hold"))

    def _of_owners(self, matches: Iterable[Match]) -> dict[str, Match]:
        """The pairs of tensors that were made, by the reference's key; each tensor under one name."""
        ref, cand, found = self._dumps.ref, self._dumps.cand, dict[str, Match]()
        for match in matches:
            owner, keys = ref.resolve(match.ref), tuple(map(cand.resolve, match.recipe.keys))
            if owner in found:
                continue
            if why := self._why_not(owner, keys):
                self.left_out.append(LeftOut(name=owner, why=why))
            elif all(key in self._tensors for key in keys):
                found[owner] = replace(match, ref=owner, recipe=replace(match.recipe, keys=keys))
        return found

    def _why_not(self, owner: str, keys: Iterable[str]) -> str:
        """Why a tensor is not judged although both dumps have it; "" where it is, or is another's name or given."""
        entry = self._dumps.ref.entry(owner)
        if all(key in self._tensors for key in keys):
            held = entry.absent is not None or self._dumps.ref.has_tensor(owner)
            return "" if held else "the reference holds its statistics only"
        if entry.family == naming.TERM:
            return "it is a part of a gradient, which is judged as a whole"
        return "it is a random key" if entry.family == naming.AUX and is_key(entry.dtype) else ""

    def _dump(self) -> DumpSource:
        entries = tuple(_entry(self._dumps.cand.entry(key), each.array) for key, each in self._tensors.items())
        manifest = Manifest(entries=entries, provenance=self._dumps.cand.manifest.provenance)
        arrays = {key: each.array for key, each in self._tensors.items() if each.array is not None}
        return MemoryDump(manifest, arrays)


def _at(tensors: Mapping[ValueKey, Any], moment: Moment) -> Array | None:
    return np.asarray(tensors[moment.value])[moment.turn] if moment.value in tensors else None


def _entry(cand: Entry, array: Array | None) -> Entry:
    return replace(
        cand, stats={}, stored=None, alias_of=None,
        shape=cand.shape if array is None else array.shape, absent="disconnected" if array is None else None,
    )  # fmt: skip
