"""Says in words what sums norms read.

Of a sum a norm shows its terms, and of the numbers by which these are multiplied how many times one is another: twice
the sum has the same norm. Where most terms are to be multiplied by one, that is all there is to say; of two terms the
ratio is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from gradscope.naming.wording import brief

#: The relative error up to which a multiple is the same as another.
AGREE: Final = 1e-3

#: The fewest terms that two sums share which are counted and not named.
_MANY: Final = 2

#: The number of terms of a sum of which none is more likely to be multiplied by one.
_TWO: Final = 2


def summed(terms: Mapping[str, float]) -> str:
    """Returns a sum of multiples of values in words.

    Args:
        terms: By what each value is multiplied, by its name.
    """
    found = sorted((number < 0, name, abs(number)) for name, number in terms.items())
    words = [name if size == 1 else f"{brief(size)} times {name}" for _, name, size in found]
    signs = (" - " if negative else " + " for negative, _, _ in found)
    return "".join(itertools.chain(*zip(signs, words, strict=True))).removeprefix(" + ").strip()


def of_other_terms(own: Mapping[str, float], its: Mapping[str, float]) -> str:
    """Returns a clause about two sums that norms read, without what many of their terms share.

    Args:
        own: By what each value is multiplied in the sum that the reference reads, by its name.
        its: The same of the candidate's.
    """
    if own.keys() == its.keys() and len(own) == _TWO and min(*own.values(), *its.values()) > 0:
        names = sorted(own)
        return f"reads {names[0]} and {names[1]} as {_ratio(its, names)}, and the reference as {_ratio(own, names)}"
    shared = {name for name in own if abs(own[name] - its.get(name, 0.0)) <= AGREE * abs(own[name])}
    if len(shared) < _MANY:
        return f"reads {summed(its)}, and the reference {summed(own)}"
    of_ref, of_cand = (summed({name: each for name, each in side.items() if name not in shared}) for side in (own, its))
    if not of_cand or not of_ref:
        return (
            f"reads {len(shared)} terms of the reference's, and not {of_ref}"
            if of_ref
            else (f"reads {of_cand} besides the {len(shared)} terms of the reference's")
        )
    return f"reads {of_cand} besides {len(shared)} other terms, and the reference {of_ref} besides these"


def _ratio(terms: Mapping[str, float], names: Sequence[str]) -> str:
    least = min(terms.values())
    numbers = [terms[name] / least for name in names]
    return " to ".join(f"{each:.0f}" if abs(each - round(each)) <= AGREE * each else brief(each) for each in numbers)
