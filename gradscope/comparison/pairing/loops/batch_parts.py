"""`batch_parts` finds the layers that one program calls for the whole batch, and the other for each part of it.

A program that accumulates gradients calls its layers again for each part of the batch, in a loop of Python (`attn`,
`attn#2`) or in a scan (`attn[0]`, `attn[1]`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.pairing.normal_forms import spelt, tokens_of
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, split_key
from gradscope.naming.paths import without_iterations, without_occurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchParts:
    """BatchParts stores a value of one program, and those that the other has of parts of the batch.

    Attributes:
        of_ref: Whether the reference has the value, and the candidate the parts.
        holder: The dump that has the value.
        whole: Its key.
        other: The other dump.
        parts: The keys of the parts, in order.
    """

    of_ref: bool
    holder: DumpSource
    whole: str
    other: DumpSource
    parts: tuple[str, ...]

    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the keys of the reference, and those of the candidate."""
        return ((self.whole,), self.parts) if self.of_ref else (self.parts, (self.whole,))


def batch_parts(
    dumps: Dumps, ref: Sequence[str], cand: Sequence[str], error: Callable[[BatchParts], float]
) -> Iterator[BatchParts]:
    """Yields activations with their parts.

    Both programs call a layer some times for each part of the batch, which is all of it or, as four examples of eight
    have parts of two, a part itself. How often is not known: it is what fits the values best.

    Args:
        dumps: The dumps.
        ref: Keys of the reference.
        cand: Keys of the candidate.
        error: Returns how far a value is from what its parts make; inf where they have not the shapes of parts.
    """
    taken = set[str](), set[str]()
    # The iterations of a scan over layers are numbers of layers, and those of a scan over parts of the batch are none.
    for layer_of in (without_occurrence, lambda name: without_iterations(without_occurrence(name))):
        of_ref = _calls((key for key in ref if key not in taken[0]), layer_of)
        of_cand = _calls((key for key in cand if key not in taken[1]), layer_of)
        for refs, cands in ((refs, of_cand[name]) for name, refs in of_ref.items() if name in of_cand):
            for found in _in_best_order(dumps, refs, cands, error):
                for side, keys in zip(taken, found.keys(), strict=True):
                    side.update(keys)
                yield found


def _calls(keys: Iterable[str], layer_of: Callable[[str], str]) -> dict[str, list[str]]:
    """Returns the keys of the activations that the calls of a layer made, in order, by the normal form of its name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for family, name, key in ((*split_key(key), key) for key in keys):
        if family == ACTIVATION:
            found[spelt(tokens_of(layer_of(name)))].append(key)
    return found


def _in_best_order(
    dumps: Dumps, refs: Sequence[str], cands: Sequence[str], error: Callable[[BatchParts], float]
) -> Sequence[BatchParts]:
    """Returns each value of a layer with its parts; none where the numbers of calls are no multiples of each other."""
    is_ref = len(refs) < len(cands)
    wholes, parts = (refs, cands) if is_ref else (cands, refs)
    holder, other = (dumps.ref, dumps.cand) if is_ref else (dumps.cand, dumps.ref)
    count, rest = divmod(len(parts), len(wholes))
    if count < 2 or rest:
        return ()
    best, least = [], math.inf
    for times in (each for each in range(len(wholes), 0, -1) if len(wholes) % each == 0):
        way = [
            BatchParts(
                of_ref=is_ref,
                holder=holder,
                whole=whole,
                other=other,
                parts=tuple(parts[(call // times * count + part) * times + call % times] for part in range(count)),
            )
            for call, whole in enumerate(wholes)
        ]
        total = sum(map(error, way))
        if total == math.inf:  # the shapes of the calls of one layer are those of every order
            return ()
        if not best or total < least:
            best, least = way, total
    return best
