"""`incomparable_input_gradients` finds inputs whose gradients two programs that compute the same need not share.

A loss often reads what the network does, as that of an autoencoder reads the image that it is to return. A capture from
PyTorch has the gradient through the module alone, and one of JAX that of the whole loss. Such a loss compares what the
network returns with the input, so that both have as many elements. A mask of zeros and ones may be a factor or a
summand in one program, and what the other selects by, so that no gradient arrives there.

Why they are told and do not count (2026-11): every port of an autoencoder was "different", with nothing to mend. Where
anything else differs, they count, as do those of all that is computed from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.judging.unpaired.paired_dumps import losses_of_both_agree
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, INPUT, INPUT_GRAD, is_gradient, key_of, split_key

#: Why a gradient does not count that arrives in both programs.
OF_LOSS: Final = "the loss may read it, of which a capture from PyTorch has no gradient, and all else agrees"

#: Why a gradient does not count that arrives in one of the programs.
OF_MASK: Final = "a mask of zeros and ones that one of the programs selects by, and all else agrees"


def incomparable_input_gradients(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> dict[Match, str]:
    """Returns the pairs of gradients of inputs that alone differ and need not agree, with the reason.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    differing = [match for match in pairing.matched if rows[match.ref].status == "different"]
    if not differing or any(split_key(match.ref)[0] != INPUT_GRAD for match in differing):
        return {}
    if not losses_of_both_agree(dumps):
        return {}
    found = {match: _why(dumps, match) for match in differing if _is_of_one_value(match, rows)}
    return {match: why for match, why in found.items() if why}


def _is_of_one_value(match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    value = rows.get(key_of(INPUT, split_key(match.ref)[1]))
    return value is not None and value.status == "same"


def _why(dumps: Dumps, match: Match) -> str:
    cut = [source.entry(source.resolve(key)).absent for source, key in _sides(dumps, match)]
    if not any(cut):
        ported = is_of_jax(dumps.ref) is not is_of_jax(dumps.cand)
        return OF_LOSS if ported and any(_is_like_a_result(source, key) for source, key in _sides(dumps, match)) else ""
    return OF_MASK if all(map(_is_mask, *zip(*_sides(dumps, match), strict=True))) else ""


def _sides(dumps: Dumps, match: Match) -> list[tuple[DumpSource, str]]:
    return [(dumps.ref, match.ref), *((dumps.cand, key) for key in match.recipe.keys)]


def _is_like_a_result(source: DumpSource, gradient: str) -> bool:
    """Returns whether a program has a value of as many elements as an input from which no other value is computed."""
    read = {key for made, keys in sources_of(source.manifest.layers).items() if not _is_gradient(made) for key in keys}
    size = math.prod(source.entry(source.resolve(gradient)).shape)
    return any(
        entry.family == ACTIVATION and math.prod(entry.shape) == size and key_of(ACTIVATION, entry.name) not in read
        for entry in source.manifest.entries
    )


def _is_gradient(key: str) -> bool:
    return is_gradient(split_key(key)[0])


def _is_mask(source: DumpSource, gradient: str) -> bool:
    """Returns whether an input has zeros and ones alone, by its statistics."""
    value = source.entry(source.resolve(key_of(INPUT, split_key(gradient)[1])))
    stats = value.stats
    if any(not isinstance(stats.get(name), int | float) for name in ("min", "max", "l1", "l2", "zeros")):
        return False
    ones = math.prod(value.shape) - as_float(stats["zeros"])
    sums = as_float(stats["l1"]), as_float(stats["l2"]) ** 2
    return stats["min"] == 0 and stats["max"] == 1 and all(math.isclose(each, ones) for each in sums)
