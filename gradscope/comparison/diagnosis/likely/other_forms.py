"""`with_other_forms` finds functions of which the programs compute two forms, or two functions of one value.

Of a GELU, one may have the error function, and the other the formula by tanh: in float32 they differ by 1e-4, where
rounding makes 1e-6. The sentence says so, also where the values are the same within the tolerance, and where they are
added to another value. Norms may add different numbers to a variance, convolutions pad otherwise, and values be
flattened in different orders (`layers`). Or one value is the other behind a dropout, or functions of different sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gradscope.arrays.blocks import Array
from gradscope.comparison.diagnosis.growth import makes_error
from gradscope.comparison.diagnosis.likely.dropouts import dropout_in_words
from gradscope.comparison.diagnosis.likely.layers.cells.cell_differences import CellDifferences
from gradscope.comparison.diagnosis.likely.layers.flatten_orders import FlattenOrders
from gradscope.comparison.diagnosis.likely.layers.functions.function_differences import FunctionDifferences
from gradscope.comparison.diagnosis.likely.layers.functions.read_forms import ReadForms
from gradscope.comparison.diagnosis.likely.layers.kernels.kernel_differences import KernelDifferences
from gradscope.comparison.diagnosis.likely.layers.kernels.part_orders import PartOrders
from gradscope.comparison.diagnosis.likely.layers.norms.evaluated_norms import EvaluatedNorms
from gradscope.comparison.diagnosis.likely.layers.norms.norm_differences import norm_difference
from gradscope.comparison.diagnosis.likely.layers.norms.summed_reads import SummedReads
from gradscope.comparison.diagnosis.likely.layers.other_parameters import OtherParameters
from gradscope.comparison.diagnosis.likely.layers.reduction_differences import ReductionDifferences
from gradscope.comparison.diagnosis.likely.layers.unpaired_vectors import UnpairedVectors
from gradscope.comparison.diagnosis.likely.sum_differences import SumDifferences
from gradscope.comparison.diagnosis.refuting.activation_functions import ELEMENTWISE
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.layout.layouts import Shape, usually_arranged
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import NearestKeys
from gradscope.naming import ACTIVATION, INPUT, PARAM, key_of, printable, split_key

#: The relative error above which a value may be of another form: rounding of float32 makes less in one function.
_LEAST: Final = 5e-6

#: The most values of which one may be added to a function of another.
_MOST_TERMS: Final = 3

#: The share of that error that is left where the form is the right one.
_LEFT: Final = 0.1

#: How many times as large as the error of a function that of another one is which may be the right one as well.
_AS_GOOD: Final = 2.0

#: The numbers of elements that are computed again: of all, and of those that differ most. A rectifier that is limited
#: at 6 differs from one that is not in a few elements alone.
_SAMPLE: Final = 4096
_MOST_APART: Final = 256


def with_other_forms(
    dumps: Dumps, matches: Sequence[Match], rows: Mapping[str, ComparisonRow]
) -> dict[str, ComparisonRow]:
    """Returns the rows of values that are two functions of one value, with the functions.

    Args:
        dumps: The dumps of the pairs.
        matches: The pairs.
        rows: Their rows, by the reference's keys.
    """
    # Of several names of a value, the first is that of the layer that makes it.
    values = {dumps.ref.resolve(each.ref): each for each in reversed(matches) if split_key(each.ref)[0] == ACTIVATION}
    # Within the tolerance of coarser types, rounding may look like any form.
    is_fine = not any(FloatTensors(each).is_coarse for each in (dumps.ref, dumps.cand))
    possible = [each for each in values.values() if _may_be_other_form(rows[each.ref], is_fine=is_fine)]
    if not possible:
        return {}
    of_cand = {dumps.cand.resolve(key): each for each in values.values() for key in each.recipe.keys}
    nearest = [
        (NearestKeys(forward_sources(source), known), known)
        for source, known in ((dumps.ref, values), (dumps.cand, of_cand))
    ]
    norms, sums, orders = _Norms(dumps, matches, of_cand), SumDifferences(dumps, of_cand), FlattenOrders(dumps)
    cells, functions = CellDifferences.of_both(dumps), FunctionDifferences(dumps)
    unpaired, reductions = UnpairedVectors(dumps, matches), ReductionDifferences(dumps, matches)
    others, reads = OtherParameters(dumps, matches), ReadForms(dumps)
    kernels, parts = KernelDifferences(dumps, matches, unpaired), PartOrders(dumps)
    found: dict[str, tuple[str, bool]] = {}
    for match in possible:
        keys = dumps.ref.resolve(match.ref), dumps.cand.resolve(match.cand)
        read = {
            each.ref: each
            for key, (before, known) in zip(keys, nearest, strict=True)
            for each in map(known.__getitem__, before.behind(key))
        }
        row = rows[match.ref]
        words = _of_forms(dumps, match, read.values(), as_float(row.metrics["rel_l2"])) or norms.words(match)
        if not words and row.status == "same" and makes_error(row):
            words = reads.words(match, norms.read_by(match), as_float(row.metrics["rel_l2"]))
        if not words and row.status == "different":
            before = norms.read_by(match)
            words = functions.words(match, before) or _of_cells(dumps, cells, match) or orders.words(match, before)
            words = words or parts.words(match, before) or kernels.words(match, before)
            words = words or unpaired.words(match, before) or others.words(match)
            if not words and (reduced := reductions.words(match, before)):
                # A step that one of the programs has an entry for is told before the layer that reads it.
                found[keys[0]] = reduced, not reductions.have_steps(match)
                continue
            words = words or sums.words(match)
            if not words and (of_norms := norms.words_of_sums(match))[0]:
                found[keys[0]] = of_norms[0], of_norms[1] or not reductions.have_steps(match)
                continue
        if words:
            found[keys[0]] = words, True
        elif row.status == "different" and (words := dropout_in_words(dumps, match, read.values())):
            found[keys[0]] = words, False
    owners = {each.ref: dumps.ref.resolve(each.ref) for each in matches if split_key(each.ref)[0] == ACTIVATION}
    return {
        key: replace(rows[key], likely=found[owner][0], explained=found[owner][1])
        for key, owner in owners.items()
        if owner in found
    }


class _Norms:
    """_Norms finds how the norms of two programs differ.

    Args:
        dumps: The dumps.
        matches: Their pairs.
        of_cand: Those of values by the candidate's owners.
    """

    def __init__(self, dumps: Dumps, matches: Sequence[Match], of_cand: Mapping[str, Match]) -> None:
        params = {
            dumps.cand.resolve(key): each
            for each in matches
            if split_key(each.ref)[0] == PARAM
            for key in each.recipe.keys
        }
        self._dumps, self._evaluated = dumps, EvaluatedNorms(dumps)
        self._sums = SummedReads(dumps, {**params, **of_cand})
        read = (each for each in matches if split_key(each.ref)[0] in (ACTIVATION, INPUT, PARAM))
        self._ref, self._cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
        self._owners = {dumps.ref.resolve(each.ref): each for each in read}
        self._sources = NearestKeys(forward_sources(dumps.ref), self._owners)
        self._params = _own_parameters(dumps.ref)

    def read_by(self, match: Match) -> list[Match]:
        """Returns the pairs of what two values are computed from, parameters among them."""
        return [self._owners[each] for each in self._sources.behind(match.ref)]

    def words(self, match: Match) -> str:
        """Returns a clause about how the norms differ that make two values; "" where that is not known.

        Args:
            match: The pair of the values.
        """
        values, *pairs = map(self._both, (match, *self.read_by(match)))
        known = [each for each in pairs if each is not None]
        if values is None or len(known) < len(pairs) or values[0].shape != values[1].shape:
            return ""
        with np.errstate(all="ignore"):  # it may be no norm at all
            reads = [way for each in known for way in _in_shape(each, values[0].shape)]
            return norm_difference(values, reads) or self._evaluated.words(match, values, reads)

    def words_of_sums(self, match: Match) -> tuple[str, bool]:
        """Returns a clause about norms that read a sum without an entry, and whether both read the same.

        The clause is "" where the norms read no such sum, or do not differ.

        Args:
            match: The pair of the values.
        """
        keys = self._params.get(self._dumps.ref.resolve(match.ref), ())
        params = [self._both(self._owners[each]) for each in keys if each in self._owners]
        values, known = self._both(match), [each for each in params if each is not None]
        if values is None or len(known) < len(params) or values[0].shape != values[1].shape:
            return "", False
        with np.errstate(all="ignore"):  # it may be no norm at all
            return self._sums.words(match, values, known)

    def _both(self, match: Match) -> tuple[Array, Array] | None:
        one, other = self._ref.tensor(match.ref), self._cand.made(match.recipe)
        return None if one is None or other is None else (one, other)


def _own_parameters(source: DumpSource) -> dict[str, list[str]]:
    """Returns the keys of the parameters of the innermost layer that makes a value, by the owners of values."""
    known = frozenset(source.keys())
    return {  # a part comes after its composite, and is more exact
        source.resolve(key): [key_of(PARAM, each) for each in layer.params]
        for layer in source.manifest.layers
        for key in (key_of(ACTIVATION, name) for name in layer.outputs)
        if layer.params and key in known
    }


def _in_shape(pair: tuple[Array, Array], shape: Shape) -> list[tuple[Array, Array]]:
    """Returns what both programs read in the shape of what they make of it, in each usual way; as it is for none."""
    one, other = pair
    if one.ndim < 2 or one.shape != other.shape:
        return [pair]
    return [*zip(usually_arranged(one, shape), usually_arranged(other, shape), strict=True)] or [pair]


def _of_cells(dumps: Dumps, cells: tuple[CellDifferences, CellDifferences], match: Match) -> str:
    """Returns a clause about how the recurrent layers differ that make both values; "" where that is not known."""
    one, other = FloatTensors(dumps.ref).tensor(match.ref), FloatTensors(dumps.cand).made(match.recipe)
    if one is None or other is None:
        return ""
    words = cells[0].words(match.ref, other)
    if not words and match.recipe.plain:
        words = cells[1].words(match.cand, one)
    return f"is {words}" if words else ""


def _of_forms(dumps: Dumps, value: Match, read: Iterable[Match], error: float) -> str:
    """Returns a clause about two functions that the values of a pair are of one of the others; "" for one function."""
    read = list(read)
    form = next(filter(None, (_forms(dumps, value, each, error) for each in read)), None)
    if form is not None:
        return f"is {form[0]} in the reference, and {form[1]} in the candidate"
    for argument, added in itertools.permutations(read if len(read) <= _MOST_TERMS else (), 2):
        if form := _forms(dumps, value, argument, error, added):
            one, other = (f"`{printable(split_key(each.ref)[1])}`" for each in (argument, added))
            return f"adds the {form[1]} of {one} to {other}, and the reference the {form[0]}"
    return ""


def _may_be_other_form(row: ComparisonRow, *, is_fine: bool) -> bool:
    """Returns whether a value has an error that its layer makes, which nothing explains and rounding alone does not."""
    own = (row.status == "same" and is_fine) or (row.status == "different" and makes_error(row) and not row.likely)
    return own and as_float(row.metrics.get("rel_l2", 0.0)) > _LEAST and row.needed != 0.0


def _forms(
    dumps: Dumps, value: Match, argument: Match, error: float, added: Match | None = None
) -> tuple[str, str] | None:
    """Returns the functions of an argument that a value is in the reference and in the candidate; None for one.

    Args:
        dumps: The dumps of the pairs.
        value: The pair of the value.
        argument: The pair of what it may be a function of.
        error: The relative error of the value.
        added: The pair of what the function is added to; None for nothing.
    """
    pairs = (value, argument) if added is None else (value, argument, added)
    tensors = list(_sampled(dumps, pairs))
    if len(tensors) < len(pairs):
        return None
    one, other = (_functions(*each, error=_LEFT * error) for each in zip(*tensors, strict=True))
    return (" or ".join(one), " or ".join(other)) if one and other and not {*one} & {*other} else None


def _sampled(dumps: Dumps, matches: Sequence[Match]) -> Iterator[tuple[Array, Array]]:
    """Yields some elements of both tensors of each pair, in the layout of the reference, while all have one shape.

    They are the same of each pair, and among them those of which the first pair differs most.
    """
    shape = dumps.ref.entry(matches[0].ref).shape
    places: Array | None = None
    ref, cand = FloatTensors(dumps.ref), FloatTensors(dumps.cand)
    for match in matches:
        one, other = ref.tensor(match.ref), cand.made(match.recipe)
        if one is None or other is None or not one.shape == other.shape == shape:
            return
        if places is None:
            places = _places(np.abs(one - other).reshape(-1))
        yield one.reshape(-1)[places], other.reshape(-1)[places]


def _places(apart: Array) -> Array:
    """Returns where some of the elements are, given how far each is apart."""
    spread = np.linspace(0, apart.size - 1, _SAMPLE).astype(np.int64)
    most = min(_MOST_APART, apart.size)
    return np.union1d(spread, np.argpartition(apart, -most)[-most:])


def _functions(value: Array, argument: Array, added: Array | float = 0.0, *, error: float) -> list[str]:
    """Returns which function of an argument is in a value, to a relative error; several where rounding hides which."""
    made = {name: function(argument) + added for name, function in ELEMENTWISE.items()}
    errors = {name: float(np.linalg.norm(each - value)) for name, each in made.items()}
    # What is added may be so large that its rounding looks like a function of anything small.
    own = _LEFT * float(np.linalg.norm(value - added))
    most = min(error * float(np.linalg.norm(value)), own, _AS_GOOD * min(errors.values()))
    by_errors = {errors[name]: name for name in reversed([*ELEMENTWISE]) if errors[name] <= most}
    return [*reversed(by_errors.values())]  # of those that are the same function of these arguments the first
