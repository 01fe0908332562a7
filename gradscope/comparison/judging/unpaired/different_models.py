"""`different_models` says of two dumps in which hardly anything pairs that their models are not the same.

A port has the reference's parameters, whatever it calls them: in another layout, joined, or stacked. One that is wrong
has them too, or as many numbers in all. Of two models that have nothing to do with each other a few small ones pair
nevertheless, such as biases that are zero, and a long list of differences follows from none of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

from gradscope.comparison.judging.loss_comparison import losses_of_both_agree
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.normal_forms import Tokens, tokens_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, PARAM, split_key
from gradscope.naming.wording import counted

#: The parameters that pair have at most this share of the elements of all, and those of a size that both models have.
_MOST_PAIRED: Final = 0.05
_MOST_OF_ONE_SIZE: Final = 0.1
#: Models whose numbers of elements are less than this share apart may be one that has its parameters in other parts.
_APART: Final = 0.1
#: Values that are no further apart than this have something in common.
_UNRELATED: Final = 0.5


def different_models(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> str:
    """Returns a sentence, without a full stop, that the models are not the same; "" where they may be.

    Args:
        dumps: The dumps.
        pairing: The pairing of all of their tensors.
        rows: The rows of the pairs, by the reference's keys.
    """
    matches = (*pairing.matched, *pairing.inverse)
    paired = {match.ref for match in matches}, {key for match in matches for key in match.recipe.keys}
    every = [_sizes(source) for source in (dumps.ref, dumps.cand)]
    totals = [sum(sizes.values()) for sizes in every]
    if not all(totals) or max(totals) * (1 - _APART) < min(totals):
        return ""
    found = set[str]().union(*paired)  # an inverse match has its keys the other way round
    shares = [sum(size for key, size in sizes.items() if key in found) / total
              for sizes, total in zip(every, totals, strict=True)]  # fmt: skip
    alone = [Counter(size for key, size in sizes.items() if key not in found) for sizes in every]
    common = sum(size * number for size, number in (alone[0] & alone[1]).items())
    if max(shares) > _MOST_PAIRED or common > _MOST_OF_ONE_SIZE * min(totals):
        return ""
    words = [{_words(key) for key in sizes if key not in found} for sizes in every]
    if words[0] & words[1]:  # blocks, of which one has more or wider ones, in a stack perhaps
        return ""
    if _are_related(dumps, pairing, rows) or losses_of_both_agree(dumps, pairing.matched, rows):
        return ""
    small = sum(key in found for key in every[0])
    pairs = f"only {counted(small, 'small parameter')} {'has' if small == 1 else 'have'}" if small else "none has"
    elements = f"the parameters of the reference have {totals[0]:,} elements, those of the candidate {totals[1]:,}"
    return f"These seem to be dumps of different models: {elements}, and {pairs} a counterpart"


def _sizes(source: DumpSource) -> dict[str, int]:
    """Returns the number of elements of each parameter, by its key."""
    return {key: math.prod(source.entry(key).shape) for key in source.keys() if split_key(key)[0] == PARAM}  # noqa: SIM118


def _words(key: str) -> Tokens:
    """Returns the words in the name of a tensor, without its numbers."""
    return tuple(each for each in tokens_of(split_key(key)[1]) if not each.isdigit())


def _are_related(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether an activation of one is near that of the other; a single number, as a loss, may be by chance."""
    arrays = [each.ref for each in pairing.matched if dumps.ref.entry(each.ref).shape]
    near = (rows[key].needed for key in arrays if split_key(key)[0] == ACTIVATION)
    return any(needed is not None and needed < _UNRELATED for needed in near)
