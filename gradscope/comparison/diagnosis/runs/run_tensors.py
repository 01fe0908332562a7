"""`run_tensors` pairs the tensors of two runs by their names, and those of layers by the normal forms of names.

Where the programs call their parameters otherwise, the values at the first common step pair them (`run_pairs`).

Where one program scans over layers and the other has them written out, the names of layers are `layers[0]/attn` and
`layers/0/attn`. Not all that have one name are a pair: values of another shape are those of a part of the batch, or of
a shard, and where one program alone has iterations or further calls of a name, it has another value under it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Final

from gradscope import naming
from gradscope.comparison.diagnosis.runs.run_pairs import pairs_by_values
from gradscope.comparison.diagnosis.runs.run_stages import OF_LAYERS, RunRow, place_in_step
from gradscope.comparison.pairing.normal_forms import spelt, tokens_of
from gradscope.history.history_reader import History
from gradscope.history.history_rows import TensorRow
from gradscope.history.renamed_tensors import by_shared_key

#: What begins the number of an iteration, and that of a further call.
_MARKS: Final = ("[", "#")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTensor:
    """RunTensor stores a tensor of two runs, or of one of them.

    Attributes:
        tensor: The tensor, with the reference's name where the reference has it.
        ref: Its number in the reference; None where that has none.
        cand: Its number in the candidate; None where that has none.
    """

    tensor: TensorRow
    ref: int | None = None
    cand: int | None = None


def run_tensors(ref_run: History, cand_run: History) -> list[RunTensor]:
    """Returns the tensors of two runs: those of the reference in its order, then those that only the candidate has.

    Args:
        ref_run: The reference.
        cand_run: The candidate.

    Raises:
        DumpError: One of the histories is damaged.
    """
    by_values = pairs_by_values(ref_run, cand_run)
    ref, cand = ref_run.tensors, cand_run.tensors
    ours, theirs = by_shared_key(ref, cand), by_shared_key(cand, ref)
    keys = {number: key for key, number in ours.items()}
    found = {keys[number]: counterpart for number, counterpart in by_values.items()}
    ours, theirs = (
        {key: number for key, number in each.items() if number not in taken}
        for each, taken in ((ours, by_values.keys()), (theirs, {*by_values.values()}))
    )
    repeated = _repeated(ours), _repeated(theirs)
    pairs = {
        key: theirs[key]
        for key, number in ours.items()
        if key in theirs
        and _fit(ref[number], cand[theirs[key]])
        and all(len({(key, mark) in each for each in repeated}) == 1 for mark in _MARKS)
    }
    forms, others = _forms(ref, ours, theirs), _forms(cand, theirs, ours)
    for form in forms.keys() & others.keys():
        key, number = forms[form], theirs[others[form]]
        if _fit(ref[ours[key]], cand[number]):
            pairs[key] = number
    pairs |= found
    paired = {*pairs.values()}
    return [
        *(RunTensor(tensor=_named(ref[number], key), ref=number, cand=pairs.get(key)) for number, key in keys.items()),
        *(RunTensor(tensor=cand[number], cand=number) for number in theirs.values() if number not in paired),
    ]


def in_order_of_step(tensors: Iterable[RunTensor]) -> list[RunTensor]:
    """Returns tensors in the order of a step: its stages, and in the backward pass the last layers first.

    Args:
        tensors: The tensors, in the order of the forward pass.
    """

    def place(numbered: tuple[int, RunTensor]) -> tuple[int, int]:
        number, each = numbered
        backward = each.tensor.family == naming.ACTIVATION_GRAD
        return place_in_step(each.tensor.family, each.tensor.name), -number if backward else number

    return [each for _, each in sorted(enumerate(tensors), key=place)]


def exchanged_layers(tensors: Iterable[RunTensor], rows: Iterable[RunRow]) -> tuple[str, ...]:
    """Returns two layers that follow each other in the reference, and come in the other order in the candidate.

    One of them has other values: branches beside each other may be computed in any order.

    Args:
        tensors: The tensors of both runs.
        rows: Those of the step that is looked at.
    """
    differing = {row.key for row in rows if row.differs}
    layers = [each for each in tensors if each.tensor.family == naming.ACTIVATION]
    paired = [(each.ref, each.cand, each.tensor) for each in layers if each.ref is not None and each.cand is not None]
    ordered = sorted(paired, key=itemgetter(0))
    for (_, one, tensor), (_, other, following) in pairwise(ordered):
        if other < one and {tensor.key, following.key} & differing:
            return tensor.name, following.name
    return ()


def _repeated(keys: Iterable[str]) -> set[tuple[str, str]]:
    """Returns the names that a program has iterations of, or further calls."""
    return {(key[:at], mark) for key in keys for mark in _MARKS if (at := key.find(mark)) > 0}


def _fit(one: TensorRow, other: TensorRow) -> bool:
    """Returns whether two tensors of one name may be one: of what layers make, one has the shape of the other."""
    return one.family not in OF_LAYERS or None in (one.shape, other.shape) or one.shape == other.shape


def _forms(
    tensors: Mapping[int, TensorRow], numbers: Mapping[str, int], others: Mapping[str, int]
) -> dict[tuple[str, str], str]:
    """Returns the keys of what layers make, by the normal forms of their names, that the other run has not.

    The number of a further call is no number of a layer: `layers#2` is what a loop has as `layers[1]`.
    """
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for key, number in numbers.items():
        if key not in others and "#" not in key and tensors[number].family in OF_LAYERS:
            found[tensors[number].family, spelt(tokens_of(tensors[number].name))].append(key)
    return {form: keys[0] for form, keys in found.items() if len(keys) == 1}


def _named(tensor: TensorRow, key: str) -> TensorRow:
    return replace(tensor, name=naming.split_key(key)[1])
