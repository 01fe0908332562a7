"""`ConstantParts` finds the parts of packed tensors of one value, as biases that are all zero, whose values show none.

Their gradients do where the programs agree. Where they do not, when the parts are used does, or the numbers in names.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from gradscope.comparison.pairing.inference.packed_parts import STACKED, PackedParts, packed_parts
from gradscope.comparison.pairing.normal_forms import tokens_of
from gradscope.comparison.pairing.values.parts.part_candidates import PartCandidates, constant_of
from gradscope.comparison.pairing.values.parts.used_in_turn import UsedInTurn
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import gradient_key, split_key
from gradscope.naming.numbering import NUMBER

_NUMBER: Final = re.compile(NUMBER)


class ConstantParts:
    """ConstantParts knows which tensors of one program may be the parts of constants of the other.

    Args:
        holder: The dump that has the constants.
        packed: The keys of its tensors that may be packed.
        other: The dump of the parts.
        free: The tensors that may be parts.
        solved: The packed tensors whose parts are known; more may be added.
        of_ref: Whether it is the reference that has the packed tensors.
    """

    def __init__(
        self,
        holder: DumpSource,
        packed: Sequence[str],
        other: DumpSource,
        free: PartCandidates,
        solved: Collection[PackedParts],
        *,
        of_ref: bool,
    ) -> None:
        self._holder, self._packed, self._other, self._free = holder, packed, other, free
        self._solved, self._of_ref = solved, of_ref
        self._in_turn = UsedInTurn(holder, other, solved)
        self._constant = cache(partial(constant_of, holder))

    def value(self, key: str) -> Any | None:
        """Returns the value that all elements of a packed tensor have; None where they differ.

        Args:
            key: Its key.
        """
        return self._constant(key)

    def parts_of(self, key: str, count: int) -> PackedParts | None:
        """Returns the parts of a constant; None where nothing shows them.

        Args:
            key: Its key.
            count: The number of its parts.
        """
        shape, value = self._holder.entry(key).shape, self.value(key)
        size = math.prod(shape) // count
        equal = self._free.equal_to(value, size)
        if len(equal) < count:
            return None
        gradient = gradient_key(key)
        if self._holder.has_tensor(gradient) and constant_of(self._holder, gradient) is None:
            own, gradients = self._free.gradients_of(value, size)
            near = partial(gradients.arrays, ())
            found = packed_parts(self._holder, gradient, count, near, of_ref=self._of_ref)
            if found is not None:
                return replace(found, key=key, parts=tuple(own[part] for part in found.parts))
        rest = [shape[axes:] for axes in (1, STACKED) if math.prod(shape[:axes]) == count]
        slices = [each for each in equal if self._other.entry(each).shape in rest]
        ordered = self._in_turn.parts(key, self._alike(key), slices, count) or _numbered(key, slices)
        if len(ordered) != count:
            return None
        stack = {each: self._other.array(each) for each in ordered}
        return packed_parts(self._holder, key, count, lambda _: stack, of_ref=self._of_ref)

    def parts_of_blocks(self, key: str, count: int) -> PackedParts | None:
        """Returns the parts of a vector whose blocks are constants, most of them of one value; None where none show.

        One of them may be another, as where a program adds that number to a gate by itself.

        Args:
            key: Its key.
            count: The number of its parts.
        """
        shape, gradient = self._holder.entry(key).shape, gradient_key(key)
        if len(shape) != 1 or shape[0] // count < STACKED or not self._holder.has_tensor(gradient):
            return None
        blocks = self._holder.array(key).reshape(count, -1)
        (value, number), *others = Counter(blocks[:, 0].tolist()).most_common()
        if not others or number < count - 1 or (blocks != blocks[:, :1]).any():
            return None
        own, gradients = self._free.gradients_of(value, shape[0] // count)
        found = packed_parts(self._holder, gradient, count, partial(gradients.arrays, ()), of_ref=self._of_ref)
        return None if found is None else replace(found, key=key, parts=tuple(own[part] for part in found.parts))

    def _alike(self, key: str) -> list[str]:
        """Returns the constants of one value and shape whose parts are not known, a key's own among them."""
        shape, value, done = self._holder.entry(key).shape, self.value(key), {each.key for each in self._solved}
        free = (each for each in self._packed if each not in done and self._holder.entry(each).shape == shape)
        return [each for each in free if self.value(each) == value]


def _numbered(key: str, singles: Iterable[str]) -> list[str]:
    """Returns the tensors that are named as a stack is, in the order of their numbers; none where several are."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for single in singles:
        groups[_NUMBER.sub("#", single)].append(single)
    own = {*tokens_of(split_key(key)[1])}
    shared = {name: len(own & {*tokens_of(split_key(name)[1])}) for name in groups}
    best = [name for name, number in shared.items() if number and number == max(shared.values())]
    if len(best) != 1:
        return []
    return sorted(groups[best[0]], key=lambda name: tuple(map(int, _NUMBER.findall(name))))
