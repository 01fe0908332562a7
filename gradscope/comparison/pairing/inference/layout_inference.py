"""`with_layouts` infers the layout of each counterpart from values, never from shapes alone.

A pair under two names, or of two frameworks, may have any layout. A pair under one name keeps its layout where nothing
else shows that one program is a port of the other, so that a transposed kernel is a fault. What shows a port is how the
values are used: both dumps hold activations, so that a kernel that is stored transposed and used as if it were not has
another output. Once a parameter or an input is found in another layout, activations may be, too: their shapes can agree
by chance (as many channels as rows). So may those whose sizes alone are turned, of programs whose loss would tell.

Some values do not show a layout: they differ by more than a layout, or are equal in several. Then related pairs decide:
a pair of another family with the same names (a gradient has the layout of its parameter), else the layout that pairs
with as many axes agree on (NCHW activations), else what the kernels of convolutions imply, else the order of axes in
which equal values of the same two shapes were found (what `vmap` puts first or last), or values are by far nearest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from gradscope.comparison.layout.example_orders import Order
from gradscope.comparison.layout.layouts import AxisLayout, arranged, differ_by_ones, relative_error
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.by_use.kernel_rows import with_orders_of_kernels
from gradscope.comparison.pairing.inference.by_use.layout_use import LayoutUse
from gradscope.comparison.pairing.inference.layout_search import (
    LayoutSearch,
    both_shapes,
    layouts_by_shapes,
    likeliest_axes,
    pure_axes,
    transposed_by_values,
)
from gradscope.comparison.pairing.matching import Dumps, Match, is_of_jax
from gradscope.comparison.pairing.normal_forms import end_of
from gradscope.comparison.precision import comparable
from gradscope.naming import ACTIVATION, AUX, INPUT, PARAM, STATE, is_gradient, split_key, subject_family

#: The layouts in which the values of a pair agree: none, one, or several where they are equal in all of them.
Layouts: TypeAlias = tuple[AxisLayout, ...]

#: Applies a function to matches, perhaps to several at a time.
Mapper: TypeAlias = Callable[[Callable[[Match], Layouts], Iterable[Match]], Iterable[Layouts]]

#: The family and the two names of a value.
_Subject: TypeAlias = tuple[str, str, str]

#: The families whose layout shows that one program is a port of the other.
_PROOFS: Final = (PARAM, STATE, INPUT)

#: The families of tensors that layers and programs return, with or without axes of one element.
_OUTPUTS: Final = (ACTIVATION, AUX)

#: The families of tensors with one order of axes throughout a program.
_COMPUTED: Final = (ACTIVATION, INPUT)

#: How many elements show whether a pair agrees as it is.
_FIRST_ELEMENTS: Final = 4096


def with_layouts(dumps: Dumps, matches: Sequence[Match], mapper: Mapper, order: Order = ()) -> tuple[Match, ...]:
    """Returns the matches with the recipe steps that bring each counterpart into the reference's layout.

    Args:
        dumps: The dumps of the matches.
        matches: The matches.
        mapper: Applies a function to many matches.
        order: The index in the candidate of each example of the reference; empty where it is the same.

    Returns:
        As many matches in the same order; unchanged where no layout was found.
    """
    return _Inference(dumps, mapper, order).applied(matches)


class _Inference:
    def __init__(self, dumps: Dumps, mapper: Mapper, order: Order) -> None:
        self._dumps, self._mapper, self._search = dumps, mapper, LayoutSearch(dumps, order)
        self._frameworks = is_of_jax(dumps.ref) is not is_of_jax(dumps.cand)
        programs = dumps.ref.manifest, dumps.cand.manifest
        self._used = all(ACTIVATION in {entry.family for entry in each.entries} for each in programs)
        self._have_loss = all(each.layers and each.loss is not None for each in programs)

    def applied(self, matches: Sequence[Match]) -> tuple[Match, ...]:
        plain = [match for match in matches if self._comparable(match)]
        first = [match for match in plain if _family(match) in _PROOFS]
        found = self._by_values([match for match in first if self._free(match, ported=self._used)])
        transposed = transposed_by_values(self._dumps, matches)
        laid_out = (match for match, each in found.items() if each and each[0].steps(self._shape(match)))
        ported = any(_family(match) in _PROOFS for match in (*transposed, *laid_out))
        rest = [match for match in plain if _family(match) not in _PROOFS and self._free(match, ported=ported)]
        found |= self._by_values([match for match in rest if not is_gradient(_family(match))])
        # A gradient of a value that is stored alike is, too: where it looks transposed, it is wrong.
        gradients = [match for match in rest if is_gradient(_family(match))]
        values = (each for each in plain if gradients and each not in found and not is_gradient(_family(each)))
        alike = {_subject(each) for each in values if not self._search.of_constants(each.ref, each.cand)}
        found |= self._by_values([match for match in gradients if _subject(match) not in alike])
        related = _RelatedPairs(self._dumps, self._search, found, transposed)
        known = {match: layout for match in found if (layout := related.layout(match, self._among(match))) is not None}
        use = LayoutUse(self._dumps, self._search, matches)
        known = use.borne_out(known, related.usual)
        undecided = [match for match, agreeing in found.items() if not agreeing]
        known = use.with_moved_rows(known, undecided)
        known |= related.voted(match for match in found if match not in known)
        known = with_orders_of_kernels(self._dumps, self._search, matches, known, undecided)
        known |= self._gradients_as_values([match for match in found if match not in known], known)
        every = transposed | known
        unproven = {one for one in every if self._unproven(one, every, related) and not use.agrees_behind(one, known)}
        if not known and not unproven:
            return tuple(matches)
        laid_out = (_with_layout(match, known.get(match), self._dumps) for match in matches)
        return tuple(replace(made, unproven=match in unproven) for match, made in zip(matches, laid_out, strict=True))

    def _gradients_as_values(
        self, matches: Iterable[Match], known: Mapping[Match, AxisLayout]
    ) -> Iterator[tuple[Match, AxisLayout]]:
        """Yields the gradients among some pairs whose values have a known layout, with that."""
        values = {_subject(match): layout for match, layout in known.items() if not is_gradient(_family(match))}
        for match in (each for each in matches if is_gradient(_family(each)) and _subject(each) in values):
            if (layout := _fitting(values[_subject(match)], self._among(match))) is not None:
                yield match, layout

    def _unproven(self, match: Match, known: Mapping[Match, AxisLayout], related: _RelatedPairs) -> bool:
        """Returns whether an input has another layout that no parameter has or implies."""
        if _family(match) != INPUT or not known[match].steps(self._shape(match)):
            return False
        implied = {axes for axes in related.implied if len(axes) == len(known[match].axes)}
        if implied:
            return known[match].axes not in implied
        return not any(known[each].steps(self._shape(each)) for each in known if _family(each) in (PARAM, STATE))

    def _by_values(self, matches: Sequence[Match]) -> dict[Match, Layouts]:
        found = self._mapper(lambda match: self._search.agreeing(match.ref, match.cand), matches)
        return dict(zip(matches, found, strict=True))

    def _among(self, match: Match) -> Layouts:
        return self._search.possible(match.ref, match.cand)

    def _shape(self, match: Match) -> tuple[int, ...]:
        return arranged(self._dumps.cand.entry(match.cand))

    def _comparable(self, match: Match) -> bool:
        if not match.recipe.plain or match.matched_by == "map":
            return False
        one, other = self._dumps.ref.entry(match.ref), self._dumps.cand.entry(match.cand)
        return comparable(one.dtype, other.dtype) and not (one.absent or other.absent)

    def _free(self, match: Match, *, ported: bool) -> bool:
        """Returns whether a pair may have another layout, and is not known to agree as it is."""
        one, other = self._dumps.ref.entry(match.ref), self._dumps.cand.entry(match.cand)
        if one.shape != other.shape:
            turned = self._have_loss and sorted(one.shape) == sorted(other.shape)
            alike = _subject(match)[0] in _OUTPUTS and (turned or differ_by_ones(arranged(one), arranged(other)))
            return match.matched_by != "name" or self._frameworks or ported or alike
        renamed = match.matched_by == "path" and len(arranged(one)) > 1 and end_of(one.name) != end_of(other.name)
        return renamed or (ported and len(one.shape) > 0 and not self._agrees(match))

    def _agrees(self, match: Match) -> bool:
        """Returns whether the first elements of a pair of one shape agree."""
        ref, cand = self._dumps.ref, self._dumps.cand
        one, other = ref.entry(ref.resolve(match.ref)), cand.entry(cand.resolve(match.cand))
        if one.stats.get("hash", 0) == other.stats.get("hash", 1):
            return True
        if not (ref.has_tensor(match.ref) and cand.has_tensor(match.cand)):
            return True
        size = min(_FIRST_ELEMENTS, int(np.prod(one.shape)))
        first, other_first = (
            source.stretch(source.resolve(key), 0, size) for source, key in ((ref, match.ref), (cand, match.cand))
        )
        return relative_error(first, other_first) <= self._dumps.tolerance(one.family, one.dtype, other.dtype)


class _RelatedPairs:
    """_RelatedPairs infers the layout of a pair from pairs of known layout.

    Args:
        dumps: The dumps.
        search: Finds layouts.
        found: The layouts that the values of each pair agree with.
        transposed: The layouts of pairs that were found by their values.

    Attributes:
        implied: The orders of the axes of activations that the kernels of convolutions imply.
    """

    def __init__(
        self,
        dumps: Dumps,
        search: LayoutSearch,
        found: Mapping[Match, Layouts],
        transposed: Mapping[Match, AxisLayout],
    ) -> None:
        self._dumps = dumps
        self._search = search
        self._by_shapes = layouts_by_shapes(dumps, transposed)
        self._found = found
        self._shown = {_subject(each) for each, own in found.items() if own and not is_gradient(_family(each))}
        self._values: dict[_Subject, AxisLayout] = {}
        self._gradients: dict[_Subject, AxisLayout] = {}
        groups: defaultdict[tuple[str, int], Counter[tuple[int, ...]]] = defaultdict(Counter)
        undecided: defaultdict[tuple[str, int], Counter[tuple[int, ...]]] = defaultdict(Counter)
        for match, layout in transposed.items():
            groups[_group(dumps, match)][layout.axes] += 1
        for match, agreeing in found.items():
            if len(agreeing) == 1:
                (self._gradients if is_gradient(_family(match)) else self._values)[_subject(match)] = agreeing[0]
                if (axes := pure_axes(agreeing[0])) is not None:
                    groups[_group(dumps, match)][axes] += 1
            elif votes := [*filter(None, map(pure_axes, agreeing))]:
                undecided[_group(dumps, match)].update(votes)
        known = {group: next(iter(axes)) for group, axes in groups.items() if len(axes) == 1}
        self._usual = {group: likeliest_axes(each) for group, each in undecided.items() if group not in groups} | known
        self._votes = {rank: axes.most_common() for (family, rank), axes in groups.items() if family == ACTIVATION}
        self._usual |= {(ACTIVATION, rank): votes[0][0] for rank, votes in self._votes.items()}
        self.implied = frozenset(self._implied())
        self._usual = {(ACTIVATION, len(axes)): axes for axes in self.implied} | self._usual

    def layout(self, match: Match, among: Iterable[AxisLayout]) -> AxisLayout | None:
        """Returns the layout of a pair: by its values, or by related pairs; None where nothing decides."""
        agreeing = self._found[match]
        subject = _subject(match)
        if is_gradient(_family(match)) and subject in self._values:
            return _fitting(self._values[subject], among)
        if len(agreeing) == 1:
            return agreeing[0]
        possible = agreeing or tuple(among)
        for known in (self._values, self._gradients):
            if subject in known and (layout := _fitting(known[subject], possible)) is not None:
                return layout
        usual = self.usual(match, possible) or next(iter(agreeing), None)
        # Values that agree in no layout are compared in their order, so that it is seen by how much they differ.
        plain = next((each for each in possible if each.in_order), None)
        if agreeing or _family(match) not in _OUTPUTS:  # parameters alone if [n] is [n, 1] in the other program
            _, one, other = both_shapes(self._dumps, match)
            by_ones = one != other and subject not in self._shown and differ_by_ones(one, other)
            return usual or (plain if by_ones else None)
        layout = self._search.nearest(match.ref, match.cand, possible, plain, usual)
        if layout is not None and layout != usual:
            self._values[subject] = layout  # and its gradients
        return layout

    def usual(self, match: Match, possible: Iterable[AxisLayout]) -> AxisLayout | None:
        """Returns the layout of most pairs of as many axes, else of the same shapes; None where it is impossible."""
        among = tuple(possible)
        axes = self._usual.get(_group(self._dumps, match))
        found = next((each for each in among if pure_axes(each) == axes), None) if axes is not None else None
        layout = self._by_shapes.get(both_shapes(self._dumps, match))
        return layout if found is None and layout in among else found

    def voted(self, matches: Iterable[Match]) -> Iterator[tuple[Match, AxisLayout]]:
        """Yields outputs whose values agree in no layout, with that of the most activations which their shapes allow.

        A program that has its convolutions along time in one order of axes, and its dense layers in another, has two.
        """
        for match in (each for each in matches if _family(each) in _OUTPUTS and not self._found[each]):
            possible = {pure_axes(each): each for each in self._search.possible(match.ref, match.cand)}
            votes = (axes for axes, _ in self._votes.get(_group(self._dumps, match)[1], ()))
            if (axes := next((each for each in votes if each in possible), None)) is not None:
                yield match, possible[axes]

    def _implied(self) -> Iterator[tuple[int, ...]]:
        """Yields the orders of the axes of activations that the kernels of convolutions imply."""
        for (family, rank), axes in list(self._usual.items()):
            if family in (PARAM, STATE) and rank > 2:
                last, first = (rank - 1, rank - 2, *range(rank - 2)), (*range(2, rank), 1, 0)
                if axes == last:
                    yield (0, rank - 1, *range(1, rank - 1))
                elif axes == first:
                    yield (0, *range(2, rank), 1)


def _fitting(layout: AxisLayout, among: Iterable[AxisLayout]) -> AxisLayout | None:
    """Returns a layout where it is possible for a pair; flips, halves and orders of blocks always are."""
    always = layout.flipped or layout.interleaved or layout.blocks is not None
    return layout if always or layout in tuple(among) else None


def _group(dumps: Dumps, match: Match) -> tuple[str, int]:
    """Returns the family and number of axes; activations and inputs of a program have one order of axes."""
    family = _family(match)
    return ACTIVATION if family in _COMPUTED else family, len(dumps.ref.entry(match.ref).shape)


def _family(match: Match) -> str:
    return split_key(match.ref)[0]


def _with_layout(match: Match, layout: AxisLayout | None, dumps: Dumps) -> Match:
    steps = () if layout is None else layout.steps(arranged(dumps.cand.entry(match.cand)))
    return replace(match, recipe=Recipe(keys=match.recipe.keys, steps=steps)) if steps else match


def _subject(match: Match) -> _Subject:
    """Returns what the layout belongs to: a value and its gradients have one."""
    family, name = split_key(match.ref)
    return subject_family(family) or family, name, split_key(match.cand)[1]
