"""`without_refuted` drops pairs that only their places suggest and that the graphs of both programs refute.

Tensors that only their places pair may be different steps of the same computation, such as an embedding before and
after positions are added. Such a pair differs, although everything that either is computed from agrees, and it leaves
no trace: everything that is computed next from either agrees. So a pair by place that claims to be where a difference
begins is kept where something behind it bears that out, in either program.

The products of one kernel with what both programs read are a pair, however small the trace that they leave: attention
may hide most of what is wrong with its queries.

A difference can also vanish behind the pair, as that of a lost bias does in a batch norm. Then what the pair is
computed from shows: a parameter that only one of the programs uses.

A pair of which one value is a function of the other (`functions_between`) is no pair either, whatever else differs,
unless gradients show that one program leaves the function out, or applies another. Where they show that both apply it,
the values agree, and a pair by name is none, too. Nor is a pair of which one value has a bias that the other program
adds elsewhere (`steps_apart`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gradscope.comparison.diagnosis.refuting.errors_behind import ErrorsBehind
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.kernel_products import is_product
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources, lost_parameters, summed_parameters
from gradscope.comparison.diagnosis.refuting.steps_apart import steps_apart
from gradscope.comparison.diagnosis.refuting.traceless_gradients import traceless_gradients
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.structure.paired_inputs import PairedInputs
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import nearest
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, is_gradient, key_of, split_key

#: The passes that pair by names, which may be of another step.
_BY_NAME: Final = ("name", "path")

#: The passes that pair by places, or by names that only resemble each other.
_GUESSES: Final = ("order", "path")

#: The relative error of a loss, and of a gradient, that only rounding makes.
_EXACT: Final = 5e-6

#: What a gradient is of which nothing that is computed from it shows that it differs.
_TRACELESS_GRADIENT: Final = "a gradient where the function has none; nothing that is computed from it differs"

#: How many times as large as all errors behind it an error is that leaves no trace.
_TRACELESS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrefuted:
    """Unrefuted stores what is left of a pairing, and what is known of tensors that are no pair.

    Attributes:
        pairing: The pairs that are not refuted.
        agreeing: What tensors are that agree with those of another step, in words, by their keys.
        related: The same of tensors of which that is not known.
    """

    pairing: Pairing
    agreeing: Mapping[str, str] = field(default_factory=dict[str, str])
    related: Mapping[str, str] = field(default_factory=dict[str, str])


def without_refuted(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> Unrefuted:
    """Returns a pairing without the pairs by place that are refuted.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    if not (dumps.ref.manifest.layers and dumps.cand.manifest.layers):
        return Unrefuted(pairing=pairing)
    pairing, agreeing = _without_applied(dumps, pairing, rows)
    traceless = traceless_gradients(dumps, pairing, rows)
    agreeing |= {key: _TRACELESS_GRADIENT for match in traceless for key in (match.ref, *match.recipe.keys)}
    pairing = _without(dumps, pairing, {match.ref for match in traceless})
    guesses = [each for each in pairing.matched if each.matched_by in _GUESSES and rows[each.ref].status == "different"]
    values = [each for each in guesses if split_key(each.ref)[0] == ACTIVATION]
    if not values:
        return Unrefuted(pairing=pairing, agreeing=agreeing)
    guessed = frozenset(each.ref for each in guesses)
    known = [each for each in pairing.matched if each.ref not in guessed]
    loss = _loss_error(dumps, known, rows)
    summed = summed_parameters(dumps, pairing)
    lost = lost_parameters(dumps, pairing, summed)
    ref = _Program(dumps.ref, {dumps.ref.resolve(each.ref): each for each in known}, rows, lost, loss)
    cand = _Program(
        dumps.cand, {dumps.cand.resolve(key): each for each in known for key in each.recipe.keys}, rows, lost, loss
    )
    ordered = sorted(values, key=lambda each: dumps.ref.entry(each.ref).site.index)
    own = {
        each.ref: [(ref, dumps.ref.resolve(each.ref)), *((cand, dumps.cand.resolve(key)) for key in each.recipe.keys)]
        for each in ordered
    }
    products = _Products(dumps, replace(pairing, matched=tuple(known)))
    borne_out: set[str] = set()
    traces: dict[str, float] = {}
    for match in reversed(ordered):  # a pair that is borne out bears out what it is computed from
        error = _error(rows[match.ref])
        traces[match.ref] = max(program.trace(key) for program, key in own[match.ref])
        if _TRACELESS * traces[match.ref] >= error:
            borne_out.add(match.ref)
            for program, key in own[match.ref]:
                program.bear_out(key, error)
    refuted: set[str] = set()
    related: dict[str, str] = {}
    for match in ordered:
        inherited = any(program.inherits(key) for program, key in own[match.ref])
        terms = (each for program, key in own[match.ref] for each in program.agreeing_before(key))
        found = None if inherited else steps_apart(dumps, match, rows[match.ref].tolerance, summed, terms)
        if found is not None and found.applied is not False:
            (agreeing if found.applied else related).update(found.stages)
        # Another form of a function differs by much less than the value from its argument, but leaves a trace.
        other_form = (
            found is not None and found.applied is False and traces[match.ref] > (rows[match.ref].tolerance or 0)
        )
        borne = match.ref in borne_out or (not inherited and products.are_of_one_kernel(match))
        if inherited or other_form or (borne and (found is None or found.applied is False)):
            for program, key in own[match.ref]:
                program.differing.add(key)
        else:
            shifted = found is not None and found.shifted
            refuted |= {match.ref} | (set() if shifted else {key_of(ACTIVATION_GRAD, split_key(match.ref)[1])})
    # A gradient that only its value pairs goes with it.
    by_place = {each.ref for each in pairing.matched if each.matched_by in _GUESSES}
    return Unrefuted(pairing=_without(dumps, pairing, by_place & refuted), agreeing=agreeing, related=related)


def _without_applied(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]
) -> tuple[Pairing, dict[str, str]]:
    """Returns a pairing without pairs by name of which one is a function of the other that both programs apply."""
    agreeing: dict[str, str] = {}
    dropped: set[str] = set()
    for match in (each for each in pairing.matched if each.matched_by in _BY_NAME and rows[each.ref].made_here):
        found = steps_apart(dumps, match, rows[match.ref].tolerance) if split_key(match.ref)[0] == ACTIVATION else None
        if found is not None and found.applied:
            agreeing.update(found.stages)
            dropped |= {match.ref, key_of(ACTIVATION_GRAD, split_key(match.ref)[1])}
    return _without(dumps, pairing, dropped), agreeing


def _without(dumps: Dumps, pairing: Pairing, dropped: Collection[str]) -> Pairing:
    if not dropped:
        return pairing
    matched = tuple(match for match in pairing.matched if match.ref not in dropped)
    used = {key for match in matched for key in match.recipe.keys}
    freed = {key for match in pairing.matched if match.ref in dropped for key in match.recipe.keys} - used
    return replace(
        pairing,
        matched=matched,
        only_ref=_in_order(dumps.ref, {*pairing.only_ref, *dropped}),
        only_cand=_in_order(dumps.cand, {*pairing.only_cand, *freed}),
    )


def _in_order(source: DumpSource, keys: Collection[str]) -> tuple[str, ...]:
    return tuple(filter(keys.__contains__, source.keys()))


def _error(row: ComparisonRow) -> float:
    """Returns the relative error of a pair; zero where that is rounding."""
    if row.needed == 0.0:
        return 0.0
    error = as_float(row.metrics.get("rel_l2", math.inf if row.status == "different" else 0.0))
    return math.inf if math.isnan(error) else error


def _loss_error(dumps: Dumps, known: Iterable[Match], rows: Mapping[str, ComparisonRow]) -> float:
    """Returns the largest error of the loss and of the gradients, by which what only the loss reads is compared.

    Where the losses agree exactly, and so does a gradient, what differs is a derivative: no other gradient counts then.
    """
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    if one is None or other is None or not math.isfinite(one):
        return math.inf
    loss = abs(one - other) / max(abs(one), 1e-30)
    gradients = [rows[each.ref] for each in known if is_gradient(split_key(each.ref)[0])]
    derivative = loss <= _EXACT and any(0 < (row.needed or 0.0) <= _EXACT for row in gradients)
    return loss if derivative else max(loss, *map(_error, gradients), 0.0)


class _Products:
    """_Products finds whether the values of a pair are the products of one kernel, with values that are paired.

    Args:
        dumps: The dumps.
        pairing: The pairs that are not only suggested by their places.
    """

    def __init__(self, dumps: Dumps, pairing: Pairing) -> None:
        self._tensors = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        # A part comes after its composite, and is more exact.
        self._makers = [
            {
                source.resolve(key_of(ACTIVATION, name)): layer
                for layer in source.manifest.layers
                for name in layer.outputs
            }
            for source in (dumps.ref, dumps.cand)
        ]
        self._inputs = PairedInputs(dumps, pairing)
        kernels = (each for each in pairing.matched if split_key(each.ref)[0] == PARAM)
        self._kernels = {each.ref: each.recipe.keys for each in kernels if len(dumps.ref.entry(each.ref).shape) > 1}

    def are_of_one_kernel(self, match: Match) -> bool:
        """Returns whether both values are products of what is paired, with kernels that are paired."""
        layers = [makers.get(key) for makers, key in zip(self._makers, (match.ref, match.cand), strict=True)]
        one, other = layers
        if one is None or other is None or len(match.recipe.keys) > 1:
            return False
        own, others = ({key_of(PARAM, name) for name in layer.params} for layer in (one, other))
        paired = any(others.issuperset(self._kernels.get(key, ("",))) for key in own)
        if not paired or not self._inputs.share(match.ref, match.cand):
            return False
        return is_product(self._tensors[0], one, match.ref) and is_product(self._tensors[1], other, match.cand)


class _Program:
    """_Program finds what differs before and behind a value of one dump.

    Attributes:
        differing: The values of pairs by place that are kept.
    """

    def __init__(
        self,
        source: DumpSource,
        pairs: Mapping[str, Match],
        rows: Mapping[str, ComparisonRow],
        lost: Collection[str],
        loss: float,
    ) -> None:
        self._sources = forward_sources(source)
        self._pairs = pairs
        self._rows = {key: rows[pair.ref] for key, pair in pairs.items()}
        self._lost = lost
        self._exact: set[str] = set()
        self.differing: set[str] = set()
        errors = {key: _error(row) for key, row in self._rows.items() if key in self._sources}
        self._certain = ErrorsBehind(self._sources, errors, loss)
        self._likely = ErrorsBehind(self._sources, errors, loss)

    def trace(self, key: str) -> float:
        """Returns the largest error of what is compared next behind a value, with and without pairs by place."""
        return max(self._certain.largest(key), self._likely.largest(key))

    def bear_out(self, key: str, error: float) -> None:
        """Adds the relative error of a value of a pair by place that leaves a trace."""
        self._likely.add(key, error)

    def agreeing_before(self, key: str) -> Iterator[Match]:
        """Yields the pairs of the nearest values that are compared and agree from which a value is computed."""
        found = nearest(self._sources, key, self._rows)
        agreeing = (each for each in found if self._rows[each].status == "same")
        yield from (self._pairs[each] for each in agreeing if split_key(each)[0] == ACTIVATION)

    def inherits(self, key: str) -> bool:
        """Returns whether anything that a value is computed from differs, through what is not compared."""
        waiting, seen = [*self._sources.get(key, ())], {key}
        while waiting:
            each = waiting.pop()
            if each in seen or each in self._exact:
                continue
            seen.add(each)
            row = self._rows.get(each)
            if each in self.differing or each in self._lost or (row is not None and row.status == "different"):
                return True
            if row is None:
                waiting += self._sources.get(each, ())
        self._exact |= seen - {
            key
        }  # pairs are decided in execution order, so that what is before these does not change
        return False
