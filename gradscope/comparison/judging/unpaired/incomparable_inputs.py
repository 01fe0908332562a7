"""`incomparable_input_gradients` finds inputs whose gradients two programs that compute the same need not share.

A loss often reads what the network does, as that of an autoencoder reads the image that it is to return. A capture from
PyTorch has the gradient through the module alone, none where the module does not read the input, as the noise that a
diffusion model predicts. One of JAX has that of the whole loss, and states what the loss is computed from, so that it
is known whether an input is read there on a way that no value of both programs is on. A mask of zeros and ones may be a
factor or a summand in one program, and what the other selects by, so that no gradient arrives there.

Why they are told and do not count (2026-11): every port of an autoencoder was "different", with nothing to mend. Where
anything else differs, they count, but for those of what the module does not read, as do those of all that is computed
from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from gradscope.comparison.judging.loss_comparison import losses_of_both_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import sources_among, sources_of
from gradscope.naming import ACTIVATION, INPUT, INPUT_GRAD, key_of, split_key

#: Why a gradient does not count that arrives in both programs.
OF_LOSS: Final = "the loss reads it, of which a capture from PyTorch has no gradient, and all else agrees"

#: Likewise, of what the module does not read, whatever else differs.
UNREAD: Final = "the loss alone reads it, of which a capture from PyTorch has no gradient"

#: Why a gradient does not count that arrives in one of the programs.
OF_MASK: Final = "a mask of zeros and ones that one of the programs selects by, and all else agrees"

#: What stands for the loss, and for all that both programs compute, among the keys of what is computed from what.
_LOSS, _MODULE = "", "module"


def incomparable_input_gradients(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> dict[Match, str]:
    """Returns the pairs of gradients of inputs that differ and need not agree, with the reason.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = [match for match in pairing.matched if rows[match.ref].status == "different"]
    gradients = [match for match in differing if split_key(match.ref)[0] == INPUT_GRAD]
    found = _explained(dumps, pairing, rows, gradients)
    if found and len(gradients) == len(differing) and losses_of_both_agree(dumps, pairing.matched, rows):
        return found
    return {match: why for match, why in found.items() if why == UNREAD}


def in_need_of_no_tolerance(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]
) -> dict[str, ComparisonRow]:
    """Returns the rows of such gradients that differ beside others, without the tolerance that they need.

    They count where anything else differs, so none is needed once a tolerance lets all else pass.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = [match for match in pairing.matched if rows[match.ref].status == "different"]
    gradients = [match for match in differing if split_key(match.ref)[0] == INPUT_GRAD]
    if len(gradients) == len(differing):
        return {}
    return {match.ref: replace(rows[match.ref], needed=None) for match in _explained(dumps, pairing, rows, gradients)}


def _explained(
    dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow], differing: Sequence[Match]
) -> dict[Match, str]:
    """Returns those of the gradients of inputs that need not agree, with the reason."""
    read = _read_inputs(dumps, pairing) if differing else _Read()
    found = {match: _why(dumps, match, read) for match in differing if _is_of_one_value(match, rows)}
    return {match: why for match, why in found.items() if why}


def _is_of_one_value(match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    value = rows.get(key_of(INPUT, split_key(match.ref)[1]))
    return value is not None and value.status == "same"


def _why(dumps: Dumps, match: Match, read: _Read) -> str:
    sides = _sides(dumps, match)
    names = {key_of(INPUT, split_key(key)[1]) for _, key in sides}
    absent = {is_of_jax(source) for source, key in sides if source.entry(source.resolve(key)).absent}
    if not absent:
        return "" if names.isdisjoint(read.by_loss) else OF_LOSS
    if absent == {False} and not names.isdisjoint(read.by_loss) and names.isdisjoint(read.by_module):
        return UNREAD
    return OF_MASK if all(map(_is_mask, *zip(*sides, strict=True))) else ""


class _Read(NamedTuple):
    """_Read has the inputs of a program of JAX that the module reads which PyTorch's capture is of, or its loss beside.

    Attributes:
        by_loss: Those that the loss reads on a way that no value of both programs is on.
        by_module: Those that a value of both programs is computed from.
    """

    by_loss: frozenset[str] = frozenset()
    by_module: frozenset[str] = frozenset()


def _read_inputs(dumps: Dumps, pairing: Pairing) -> _Read:
    ported = is_of_jax(dumps.ref) is not is_of_jax(dumps.cand)
    source = dumps.ref if is_of_jax(dumps.ref) else dumps.cand
    if not ported or not source.manifest.loss_sources:
        return _Read()
    keys = (key for match in pairing.matched for of, key in _sides(dumps, match) if of is source)
    shared = {source.resolve(key) for key in keys if split_key(key)[0] == ACTIVATION}
    graph = {**sources_of(source.manifest.layers), _LOSS: source.manifest.loss_sources, _MODULE: tuple(shared)}
    inputs = {key_of(entry.family, entry.name) for entry in source.manifest.entries if entry.family == INPUT}
    return _Read(sources_among(graph, _LOSS, inputs, shared), sources_among(graph, _MODULE, inputs, ()))


def _sides(dumps: Dumps, match: Match) -> list[tuple[DumpSource, str]]:
    return [(dumps.ref, match.ref), *((dumps.cand, key) for key in match.recipe.keys)]


def _is_mask(source: DumpSource, gradient: str) -> bool:
    """Returns whether an input has zeros and ones alone, by its statistics."""
    value = source.entry(source.resolve(key_of(INPUT, split_key(gradient)[1])))
    stats = value.stats
    if any(not isinstance(stats.get(name), int | float) for name in ("min", "max", "l1", "l2", "zeros")):
        return False
    ones = math.prod(value.shape) - as_float(stats["zeros"])
    sums = as_float(stats["l1"]), as_float(stats["l2"]) ** 2
    return stats["min"] == 0 and stats["max"] == 1 and all(math.isclose(each, ones) for each in sums)
