"""`LayoutUse` checks the layouts of activations by what reads them.

An activation in another order of elements is right where the candidate's program expects that order. A flattened
image `[H W C]` for `[C H W]` is, if the rows of the kernel that reads it are in that order too; otherwise the program
flattens in the wrong order, and the values only look like a layout. So a layout that is not the usual one of
activations counts where a kernel that reads them has it, or where what is computed from them agrees; else the tensor is
compared in the usual layout.

A kernel whose single rows are in another order is right where its layer's output agrees, and so is what it reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import AxisLayout, relative_error
from gradscope.comparison.pairing.inference.layout_search import LayoutSearch
from gradscope.comparison.pairing.inference.shuffled_blocks import reordered_rows
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import ACTIVATION, PARAM, gradient_family, key_of, split_key

#: Returns the usual layout of a pair, among those that are possible.
_Usual = Callable[[Match, Iterable[AxisLayout]], AxisLayout | None]

#: How many times the default tolerance a value may differ that still bears out what it was computed from.
_STILL_AGREES: Final = 10


class LayoutUse:
    """LayoutUse checks the layouts of activations.

    Args:
        dumps: The dumps.
        search: Finds layouts.
        matches: All pairs of the dumps.
    """

    def __init__(self, dumps: Dumps, search: LayoutSearch, matches: Sequence[Match]) -> None:
        self._dumps = dumps
        self._search = search
        self._matches = {dumps.ref.resolve(match.ref): match for match in matches}
        self._readers: defaultdict[str, list[Layer]] = defaultdict(list)
        self._users: defaultdict[str, list[Layer]] = defaultdict(list)
        for layer in dumps.ref.manifest.layers:
            for name in layer.inputs:
                self._readers[name].append(layer)
            for name in layer.params:
                self._users[name].append(layer)

    def borne_out(self, known: Mapping[Match, AxisLayout], usual: _Usual) -> dict[Match, AxisLayout]:
        """Returns the layouts with those of activations that nothing bears out replaced by the usual layout.

        Args:
            known: Layouts by pair.
            usual: Returns the usual layout of a pair.
        """
        found = dict(known)
        for match, layout in known.items():
            family, name = split_key(match.ref)
            if family != ACTIVATION or self._is_used(match, layout, known, usual):
                continue
            if usual(match, self._search.possible(match.ref, match.cand)) is None and self._differs(match, layout):
                continue  # as of what has the axes of `vmap` in one layer alone: that it differs is seen in its order
            gradient = self._matches.get(key_of(gradient_family(family) or "", name))
            for each in (match, gradient):
                if each is not None and each in found:
                    del found[each]
                    if (other := usual(each, self._search.possible(each.ref, each.cand))) is not None:
                        found[each] = other
        return found

    def with_moved_rows(self, known: Mapping[Match, AxisLayout], differing: Iterable[Match]) -> dict[Match, AxisLayout]:
        """Returns the layouts with those of kernels whose rows are in another order, and of what these read.

        Args:
            known: Layouts by pair.
            differing: The pairs of parameters whose values agree in no layout.
        """
        found = dict(known)
        for match in differing:
            family, name = split_key(match.ref)
            layers = self._users[name] if family == PARAM else []
            if any(self._agrees(output, known) for layer in layers for output in layer.outputs):
                self._move_rows(match, found)
                for key in (key_of(ACTIVATION, each) for layer in layers for each in layer.inputs):
                    read = self._matches.get(key)
                    if match in found and read is not None and self._agrees(split_key(key)[1], known) is False:
                        self._move_rows(read, found)
        return found

    def _move_rows(self, match: Match, found: dict[Match, AxisLayout]) -> None:
        """Adds the layout of a pair whose rows are in another order, and of its gradients."""
        sides = zip((self._dumps.ref, self._dumps.cand), (match.ref, match.cand), strict=True)
        if not all(source.has_tensor(key) for source, key in sides):
            return
        family, name = split_key(match.ref)
        gradient = self._matches.get(key_of(gradient_family(family) or "", name))
        for layout in reordered_rows(*self._search.arrays(match.ref, match.cand)):
            found |= {each: layout for each in (match, gradient) if each is not None}

    def agrees_behind(self, match: Match, known: Mapping[Match, AxisLayout]) -> bool:
        """Returns whether a value that is computed from a tensor agrees with its counterpart, or none is known.

        Args:
            match: The tensor.
            known: Layouts by pair.
        """
        readers = self._readers[split_key(self._dumps.ref.resolve(match.ref))[1]]
        outputs = (self._agrees(name, known) for layer in readers for name in layer.outputs)
        results = [result for result in outputs if result is not None]
        return not results or any(results)

    def _is_used(self, match: Match, layout: AxisLayout, known: Mapping[Match, AxisLayout], usual: _Usual) -> bool:
        if layout.in_order or layout == usual(match, (layout,)):
            return True
        readers = self._readers[split_key(self._dumps.ref.resolve(match.ref))[1]]
        return self.agrees_behind(match, known) or any(self._has(layer, layout, known) for layer in readers)

    def _has(self, layer: Layer, layout: AxisLayout, known: Mapping[Match, AxisLayout]) -> bool:
        """Returns whether a parameter of a layer is merged of the same parts in the same order."""
        matches = (self._matches.get(key_of(PARAM, name)) for name in layer.params)
        layouts = (known[match] for match in matches if match is not None and match in known)
        return layout.reordered is not None and any(each.reordered == layout.reordered for each in layouts)

    def _agrees(self, name: str, known: Mapping[Match, AxisLayout]) -> bool | None:
        """Returns whether a value of the reference agrees with its counterpart; None where that is not known."""
        key = key_of(ACTIVATION, name)
        match = self._matches.get(key)
        if match is None:
            return None
        if not (self._dumps.ref.has_tensor(match.ref) and all(map(self._dumps.cand.has_tensor, match.recipe.keys))):
            return None
        if not match.recipe.plain:  # where it does not agree, the recipe may be the reason
            return self._is_near(match, self._dumps.ref.array(match.ref), match.recipe.array(self._dumps.cand)) or None
        one, other = self._search.arrays(match.ref, match.cand)
        return self._is_near(match, one, other, known.get(match))

    def _differs(self, match: Match, layout: AxisLayout) -> bool:
        """Returns whether the values of a pair are known to differ in a layout."""
        if not (self._dumps.ref.has_tensor(match.ref) and self._dumps.cand.has_tensor(match.cand)):
            return False
        return not self._is_near(match, *self._search.arrays(match.ref, match.cand), layout)

    def _is_near(self, match: Match, one: Array, other: Array, layout: AxisLayout | None = None) -> bool:
        dtypes = (self._dumps.ref.entry(match.ref).dtype, self._dumps.cand.entry(match.cand).dtype)
        if layout is None and one.shape != other.shape:
            return False
        return relative_error(one, other, layout) <= _STILL_AGREES * self._dumps.tolerance(ACTIVATION, *dtypes)
