"""`PairedDump` stores a dump and what its pairing with the other says of its tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Final

from gradscope.comparison.judging.loss_comparison import losses_of_both_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.metrics.bounds import value_of
from gradscope.comparison.pairing.loops.split_batches import is_cut_otherwise
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax, names_of_operations, returned_counts
from gradscope.comparison.pairing.normal_forms import NamesWithin
from gradscope.comparison.pairing.values.equality import absent_keys
from gradscope.comparison.pairing.values.parametrized_values import originals_of
from gradscope.comparison.precision import coarser, dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, AUX, INPUT, PARAM, PARAM_GRAD, STATE, is_gradient, key_of, split_key
from gradscope.naming.paths import loops_around

#: Why a program has no values of what it states, however much of it was captured.
_WITHOUT_VALUES: Final = ("eliminated", "opaque")


def paired_dumps(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> tuple[PairedDump, PairedDump]:
    """Returns both dumps with what their pairing says of them.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    in_ref: dict[str, bool] = {}
    in_cand: dict[str, bool] = {}
    for match in pairing.matched:
        same = rows[match.ref].status == "same"
        for found, source, keys in ((in_ref, dumps.ref, (match.ref,)), (in_cand, dumps.cand, match.recipe.keys)):
            for key in map(source.resolve, keys):
                found[key] = found.get(key, True) and same
    loop_outputs = {match.ref: match for match in pairing.matched if match.matched_by == "iterations"}
    dtypes = [_coarsest(source) for source in (dumps.ref, dumps.cand)]
    across = is_of_jax(dumps.ref) is not is_of_jax(dumps.cand)
    facts = PairingFacts(
        ported=any(map(_is_ported, (*pairing.matched, *pairing.inverse))) or dtypes[0] != dtypes[1] or across,
        all_agree=any(row.compared for row in rows.values()) and all(row.status == "same" for row in rows.values()),
        losses_agree=losses_of_both_agree(dumps, pairing.matched, rows),
        gradients_agree=_gradients_agree(rows.values()),
        cut_otherwise=any(map(is_cut_otherwise, pairing.matched)),
    )
    return (
        PairedDump(dumps.ref, in_ref, loop_outputs, facts),
        PairedDump(dumps.cand, in_cand, {match.ref: match for match in pairing.inverse}, facts),
    )


def _is_ported(match: Match) -> bool:
    """Returns whether a pair has another name or layout in the candidate, which the user did not state.

    Parts of a batch that both cut otherwise are no more those of one program than such pairs are.
    """
    otherwise = match.matched_by == "name" and not match.recipe.as_stored
    return match.matched_by in ("path", "order", "fingerprint") or otherwise or is_cut_otherwise(match)


def _coarsest(source: DumpSource) -> str:
    """Returns the coarsest floating-point dtype of a dump's activations."""
    dtypes = dict.fromkeys(entry.dtype for entry in source.manifest.entries if entry.family == ACTIVATION)
    return reduce(coarser, (dtype for dtype in dtypes if dtype_class(dtype) == "float"), "float64")


def _gradients_agree(rows: Iterable[ComparisonRow]) -> bool:
    """Returns whether gradients are compared, and all of them agree."""
    gradients = [row.status for row in rows if is_gradient(row.family)]
    return bool(gradients) and all(status == "same" for status in gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingFacts:
    """PairingFacts stores whether one program is a port or a cast of the other, and what of both agrees.

    Attributes:
        ported: Whether one program is a port of the other, as that of another framework is, or a cast.
        all_agree: Whether something is compared, and all of it agrees.
        losses_agree: Whether both losses are known, and agree.
        gradients_agree: Whether gradients are compared, and all of them agree.
        cut_otherwise: Whether both run over parts of a batch, which they cut otherwise, so that means over them differ.
    """

    ported: bool
    all_agree: bool
    losses_agree: bool
    gradients_agree: bool
    cut_otherwise: bool


@dataclass(frozen=True)
class PairedDump:
    """PairedDump stores a dump, whether each of its owners that are compared agrees, and its loop outputs' matches."""

    source: DumpSource
    compared: Mapping[str, bool]
    loop_outputs: Mapping[str, Match]
    facts: PairingFacts

    @cached_property
    def computed_from(self) -> Mapping[str, Iterable[str]]:
        """The keys that are computed from each key."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for key, sources in sources_of(self.source.manifest.layers).items():
            for source in sources:
                found[source].append(key)
        return found

    @cached_property
    def has_other_inputs(self) -> bool:
        """Whether the program has inputs that are compared with none of the other program."""
        entries = (key_of(entry.family, entry.name) for entry in self.source.manifest.entries if entry.family == INPUT)
        return any(self.source.resolve(key) not in self.compared for key in entries)

    @property
    def has_no_scopes(self) -> bool:
        """Whether the program has no scopes, so that steps are layers that are called after their lines."""
        return self.source.manifest.provenance.get("naming") == "parameters and lines"

    @cached_property
    def compared_values(self) -> Mapping[Hashable, str]:
        """The names of the activations that are compared, by what tells their values apart (`value_of`)."""
        owners = (self.source.entry(key) for key in self.compared if split_key(key)[0] == ACTIVATION)
        return {value: entry.name for entry in owners if (value := value_of(entry)) is not None}

    @cached_property
    def values_of_state(self) -> frozenset[str]:
        """The keys of state of floating-point numbers, and of such parameters that the loss has no gradient of."""
        absent = absent_keys(self.source)
        return frozenset(
            key_of(entry.family, entry.name)
            for entry in self.source.manifest.entries
            if dtype_class(entry.dtype) in ("float", "complex")
            and (entry.family == STATE or (entry.family == PARAM and key_of(PARAM_GRAD, entry.name) in absent))
        )

    @cached_property
    def state_families(self) -> Mapping[str, Sequence[str]]:
        """The families that state of floating-point numbers is in, by its name."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for family, name in map(split_key, self.values_of_state):
            found[name].append(family)
        return found

    @cached_property
    def state_names(self) -> NamesWithin:
        """The names of state of floating-point numbers."""
        return NamesWithin(sorted(self.state_families))

    @cached_property
    def output_names(self) -> NamesWithin:
        """The names of what the program returns beside the loss."""
        return NamesWithin(dict.fromkeys(entry.name for entry in self.source.manifest.entries if entry.family == AUX))

    @cached_property
    def returns_state(self) -> bool:
        """Whether the program returns state as it is after the step."""
        return any(self.state_names.of(entry.name) for entry in self.source.manifest.entries if entry.family == AUX)

    @cached_property
    def _stored(self) -> frozenset[str]:
        return frozenset(self.source.keys())

    @cached_property
    def keys(self) -> frozenset[str]:
        """All keys of the dump."""
        return frozenset(self.source.keys())

    @cached_property
    def originals(self) -> Mapping[str, Sequence[str]]:
        """The keys of the parameters that each parameter of a parametrization is computed from, by its key."""
        return originals_of(self.source)

    @cached_property
    def known(self) -> frozenset[str]:
        """All keys of the dump, and those of the program that it lacks."""
        manifest = self.source.manifest
        return frozenset((
            *self.source.keys(), *(key_of(line.family, line.name) for line in manifest.ledger.missing),
            *(key_of(ACTIVATION, name) for layer in manifest.layers for name in layer.outputs),
        ))  # fmt: skip

    @cached_property
    def returned(self) -> Mapping[str, int]:
        """How many values a layer returns that has each of some values under a number, by their names."""
        return returned_counts(self.source.manifest.layers)

    @cached_property
    def eliminated(self) -> frozenset[str]:
        """The keys of what the program states and does not compute, since nothing reads it."""
        lines = self.source.manifest.ledger.missing
        return frozenset(key_of(line.family, line.name) for line in lines if line.reason == "eliminated")

    @cached_property
    def _operations(self) -> frozenset[str]:
        return names_of_operations(self.source)

    @cached_property
    def _without_values(self) -> frozenset[str]:
        lines = self.source.manifest.ledger.missing
        return frozenset(key_of(line.family, line.name) for line in lines if line.reason in _WITHOUT_VALUES)

    @cached_property
    def loops(self) -> frozenset[str]:
        """The names of the layers with a loop, of whose iterations the program has values."""
        names = (name for family, name in map(split_key, self.known) if family == ACTIVATION)
        return frozenset(layer for name in names for layer in loops_around(name))

    def why_absent(self, key: str) -> str | None:
        """Returns why the dump lists a tensor without its values; None where it has them, or does not list it."""
        return self.source.entry(self.source.resolve(key)).absent if key in self._stored else None

    def has_operation(self, key: str) -> bool:
        """Returns whether the program has an operation of this name, which may be another step in the other program.

        What an operation makes may have no values, as it is eliminated, or inside of another one.
        """
        return split_key(key)[1] in self._operations if key in self._stored else key in self._without_values

    def lacks(self, key: str) -> bool:
        """Returns whether the program has a tensor of this name that is paired with none of any name.

        Args:
            key: The key of a tensor of the other program.
        """
        return key in self.known and not (key in self._stored and self.source.resolve(key) in self.compared)

    def has_another_size(self, key: str, other: PairedDump) -> bool:
        """Returns whether both programs have values of a name, and not the same number of them."""
        if not (key in self._stored and key in other._stored):
            return False
        sizes = (math.prod(each.source.entry(key).shape) for each in (self, other))
        return len(set(sizes)) > 1

    def lies_between(self, owner: str) -> bool:
        """Returns whether what is computed from a tensor in its direction is compared, and all of it agrees.

        The last values are compared by the loss that is computed from them.

        Args:
            owner: The key of the tensor, which is no alias.
        """
        is_any = False
        seen, pending = {owner}, [owner]
        while pending:
            for key in self._next_of(pending.pop()):
                if key in seen:
                    continue
                seen.add(key)
                agrees = self.compared.get(key)
                if agrees is False:
                    return False
                if agrees is None:
                    pending.append(key)
                is_any = is_any or agrees is True
        return is_any or is_gradient(split_key(owner)[0]) or self.facts.losses_agree

    def is_read_by_loss_alone(self, value: str) -> bool:
        """Returns whether nothing that is compared, and nothing of a parameter, is computed from an input.

        Args:
            value: The key of the input.
        """
        values, pending = set[str](), [value]
        while pending:
            found = {*self._next_of(pending.pop())} - values
            values |= found
            pending += found
        names = {split_key(key)[1] for key in values}
        layers = self.source.manifest.layers
        of_parameters = {name for layer in layers if layer.params for name in layer.outputs}
        return values.isdisjoint(self.compared) and names.isdisjoint(of_parameters)

    def _next_of(self, key: str) -> Sequence[str]:
        """Returns what is computed next from a tensor in its direction: a program that is unrolled asks very often."""
        found = self._next.get(key)
        if found is None:
            backward = is_gradient(split_key(key)[0])
            behind = self.computed_from.get(key, ())
            found = [each for each in behind if is_gradient(split_key(each)[0]) is backward]
            self._next[key] = found
        return found

    @cached_property
    def _next(self) -> dict[str, Sequence[str]]:
        return {}
