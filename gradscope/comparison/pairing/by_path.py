"""`by_path` matches tensors whose names have the same normal form, and stacks with the tensors stacked in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final

from gradscope.arrays.blocks import Array
from gradscope.comparison.layout.layouts import agreeing_layouts, arranged
from gradscope.comparison.layout.recipe_steps import Stack, Unstack
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.loops.calls_in_turn import calls_in_turn
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, is_of_jax, siblings
from gradscope.comparison.pairing.normal_forms import (
    Tokens,
    common_start,
    iterations_of_occurrences,
    spelt,
    tokens_of,
    without_gradient_word,
)
from gradscope.comparison.pairing.values.misnamed import are_refuted, without_misnamed, without_other_layers
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, AUX, INPUT, PARAM, STATE, TENSOR, gradient_family, split_key
from gradscope.naming.numbering import number_of

#: The families that a tensor of a foreign file may belong to, the likeliest first.
_VALUES: Final = (PARAM, STATE, INPUT, ACTIVATION, AUX)


@dataclass(frozen=True)
class _FamilyNames:
    """_FamilyNames stores the tensors of one family: the tokens of each name, by key."""

    tokens: Mapping[str, Tokens]

    def scopes(self) -> list[Tokens]:
        """Returns the prefixes that all names share, which may be scopes around the model, the shortest first."""
        start = common_start(self.tokens.values())
        return [start[:length] for length in range(1, len(start) + 1)]

    def forms(self, without: Tokens = ()) -> dict[str, str]:
        """Returns keys by normal form, where only one tensor has the form; the prefix `without` is removed first."""
        return self._forms_without(without) if without else self._forms

    @cached_property
    def _spelt(self) -> Sequence[str]:
        return [*map(spelt, self.tokens.values())]

    @cached_property
    def _forms(self) -> dict[str, str]:
        return self._forms_without(())

    def _forms_without(self, without: Tokens) -> dict[str, str]:
        found: dict[str, str] = {}
        repeated: set[str] = {""}
        start = len(spelt(without))
        for (key, tokens), form in zip(self.tokens.items(), self._spelt, strict=True):
            # No token has a dot, so that what is behind the prefix is spelt as it is without.
            inside = without and tokens[: len(without)] == without
            own = form[start:].removeprefix(".") if inside else form
            if found.setdefault(own, key) is not key:
                repeated.add(own)
        for form in repeated:
            found.pop(form, None)
        return found

    def numbered(self) -> dict[str, list[list[str]]]:
        """Returns sequences of tensors numbered from 0, by the normal form of their names without the number."""
        rows: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for key, tokens in self.tokens.items():
            for position, token in enumerate(tokens):
                if (number := number_of(token)) is not None:
                    rows[spelt((*tokens[:position], *tokens[position + 1 :])), position][number] = key
        found: defaultdict[str, list[list[str]]] = defaultdict(list)
        for (form, _), row in rows.items():
            if sorted(row) == list(range(len(row))):
                found[form].append([row[number] for number in range(len(row))])
        return found


def by_path(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of one normal form, and of stacks `[L, ...]` with the L tensors that are stacked in them.

    Nothing is matched by names that the values of parameters refute, as where one program counts layers from 0 and the
    other from 1: more parameters have their values under another name than under their own. Activations that have
    their values under another name are not matched either, nor what belongs to layers whose parameters have theirs
    in layers of other names. A stack of square kernels that are those of the other program transposed is left to the
    passes that find equal values, as one of other kernels is by its shape.
    """
    matches = _without_turned_stacks(dumps, _without_iterations_of_outputs(dumps, _of_names(dumps, unmatched)))
    if not are_refuted(dumps, unmatched, matches):
        yield from without_misnamed(dumps, without_other_layers(dumps, unmatched, matches))


def _without_iterations_of_outputs(dumps: Dumps, matches: Iterable[Match]) -> list[Match]:
    """Returns matches without those of one of several outputs of a layer, `rnn.1`, with an iteration, `rnn[1]`.

    The first one of PyTorch, `rnn.0`, has no more to do with the first results of the iterations, `rnn[1].0`.
    """
    several = siblings(dumps.ref.manifest.layers), siblings(dumps.cand.manifest.layers)
    is_port = is_of_jax(dumps.ref) is not is_of_jax(dumps.cand)

    def is_right(match: Match) -> bool:
        names = split_key(match.ref)[1], split_key(match.cand)[1]
        for name, other, outputs in zip(names, names[::-1], several, strict=True):
            steps = other.endswith("]") or (is_port and not match.recipe.plain and "[" in other)
            if name in outputs and "[" not in name and steps:
                return False
        return True

    return [match for match in matches if is_right(match)]


def _without_turned_stacks(dumps: Dumps, matches: Sequence[Match]) -> list[Match]:
    """Returns matches without stacked parameters that agree with their axes in another order, and their gradients."""
    rows: defaultdict[Recipe, list[Match]] = defaultdict(list)
    for match in matches:
        if not match.recipe.plain and split_key(match.ref)[0] in (PARAM, STATE):
            rows[replace(match.recipe, part=0)].append(match)
    turned = {split_key(each.ref)[1] for row in rows.values() if _is_turned(dumps, row) for each in row}
    return [match for match in matches if match.recipe.plain or split_key(match.ref)[1] not in turned]


def _is_turned(dumps: Dumps, row: Sequence[Match]) -> bool:
    """Returns whether the first part of a stack that agrees in any layout does so in another one."""
    keys = [(dumps.ref, each.ref) for each in row] + [(dumps.cand, key) for key in row[0].recipe.keys]
    if not all(source.has_tensor(key) for source, key in keys):
        return False
    for ref, cand in _parts(dumps, row):
        if ref.ndim > 1 and (layouts := agreeing_layouts(ref, cand)):
            return not any(each.in_order for each in layouts)
    return False


def _parts(dumps: Dumps, row: Sequence[Match]) -> Iterator[tuple[Array, Array]]:
    """Yields what is stacked in one program, and the parts of the stack, each with its counterpart."""
    recipe = row[0].recipe
    if Stack(0) in recipe.steps:
        yield from zip(dumps.ref.array(row[0].ref), map(dumps.cand.array, recipe.keys), strict=True)
    else:
        stack = dumps.cand.array(recipe.keys[0])
        yield from ((dumps.ref.array(each.ref), stack[each.recipe.part]) for each in row)


def _of_names(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    names = [[split_key(key)[1] for key in keys] for keys in (unmatched.only_ref, unmatched.only_cand)]
    calls = calls_in_turn(dumps)
    ref = _by_family(unmatched.only_ref, {**iterations_of_occurrences(*names), **calls[0]})
    cand = _by_family(unmatched.only_cand, {**iterations_of_occurrences(*names[::-1]), **calls[1]})
    for one, other in _family_pairs(ref, cand):
        matches = [*_of_one_form(ref[one], cand[other]), *_stacks(dumps, ref[one], cand[other])]
        used = {key for match in matches for key in (match.ref, *match.recipe.keys)}
        ref[one], cand[other] = _without(ref[one], used), _without(cand[other], used)
        yield from matches


def _of_one_form(ref: _FamilyNames, cand: _FamilyNames) -> Iterator[Match]:
    yield from _same_form((ref.forms(), cand.forms()))
    # One program may have a scope around the model that the other lacks. A scope is never removed in both: that would
    # match `encoder/w` with `decoder/w`.
    unwrapped = chain(
        ((ref.forms(scope), cand.forms()) for scope in ref.scopes()),
        ((ref.forms(), cand.forms(scope)) for scope in cand.scopes()),
    )
    yield from _same_form(max(unwrapped, key=lambda forms: len(forms[0].keys() & forms[1].keys()), default=({}, {})))


def _same_form(forms: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[Match]:
    ref, cand = forms
    yield from (Match.of(key, cand[form], "path") for form, key in ref.items() if form in cand)


def _stacks(dumps: Dumps, ref: _FamilyNames, cand: _FamilyNames) -> Iterator[Match]:
    numbered = ref.numbered()
    for form, key in cand.forms().items():
        for row in numbered.get(form, ()):
            if _is_stack(dumps.cand, key, dumps.ref, row):
                for part, each in enumerate(row):
                    yield Match(ref=each, recipe=Recipe(keys=(key,), steps=(Unstack(0),), part=part), matched_by="path")
    numbered = cand.numbered()
    for form, key in ref.forms().items():
        for row in numbered.get(form, ()):
            if _is_stack(dumps.ref, key, dumps.cand, row):
                yield Match(ref=key, recipe=Recipe(keys=tuple(row), steps=(Stack(0),)), matched_by="path")


def _is_stack(stacked: DumpSource, key: str, single: DumpSource, row: Sequence[str]) -> bool:
    shape = arranged(stacked.entry(key))
    return shape[:1] == (len(row),) and all(arranged(single.entry(each)) == shape[1:] for each in row)


def _by_family(keys: Iterable[str], renamed: Mapping[str, str]) -> dict[str, _FamilyNames]:
    """Returns names by family; foreign gradients, known by a word in their names, are a family of their own."""
    found: defaultdict[str, dict[str, Tokens]] = defaultdict(dict)
    for key in keys:
        family, name = split_key(key)
        tokens = tokens_of(renamed.get(name, name))
        gradient = without_gradient_word(tokens) if family == TENSOR else None
        found[family if gradient is None else _FOREIGN_GRADIENT][key] = tokens if gradient is None else gradient
    return {family: _FamilyNames(tokens) for family, tokens in found.items()}


#: The family of foreign tensors whose names contain a word such as `grad`.
_FOREIGN_GRADIENT: Final = "tensor gradient"


def _family_pairs(ref: Mapping[str, _FamilyNames], cand: Mapping[str, _FamilyNames]) -> Iterator[tuple[str, str]]:
    """Yields pairs of families that may match: equal families, and a foreign family with any it may belong to."""
    yield from ((family, family) for family in ref if family in cand)
    for foreign, may_be in ((TENSOR, _VALUES), (_FOREIGN_GRADIENT, tuple(map(gradient_family, _VALUES)))):
        families = [family for family in may_be if family is not None]
        yield from ((family, foreign) for family in families if family in ref and foreign in cand)
        yield from ((foreign, family) for family in families if foreign in ref and family in cand)


def _without(names: _FamilyNames, used: set[str]) -> _FamilyNames:
    return _FamilyNames({key: tokens for key, tokens in names.tokens.items() if key not in used})
