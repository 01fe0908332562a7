"""The pass of normal forms: tensors whose names differ only in how programs spell them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.comparison.layout.layouts import arranged
from gradscope.comparison.layout.recipes import Recipe, Stack, Unstack
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.normal_forms import Tokens, common_start, spelt, tokens_of, without_gradient_word
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import ACTIVATION, AUX, INPUT, PARAM, STATE, TENSOR, gradient_family, split_key

#: What a tensor of a foreign file may be, the likeliest first.
_VALUES: Final = (PARAM, STATE, INPUT, ACTIVATION, AUX)


@dataclass(frozen=True, slots=True)
class _Names:
    """The tensors of one family by the tokens of their names."""

    tokens: Mapping[str, Tokens]

    def scopes(self) -> list[Tokens]:
        """What may be scopes around everything, the outermost first."""
        start = common_start(self.tokens.values())
        return [start[:length] for length in range(1, len(start) + 1)]

    def forms(self, without: Tokens = ()) -> dict[str, str]:
        """The key of each normal form that one tensor alone has; of what lies in a scope, without that scope."""
        keys: defaultdict[str, list[str]] = defaultdict(list)
        for key, tokens in self.tokens.items():
            inside = tokens[: len(without)] == without
            keys[spelt(tokens[len(without) :] if inside else tokens)].append(key)
        return {form: found[0] for form, found in keys.items() if form and len(found) == 1}

    def numbered(self) -> dict[str, list[list[str]]]:
        """Rows of tensors numbered from 0 up, by the normal form of their names without the number."""
        rows: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for key, tokens in self.tokens.items():
            for place, token in enumerate(tokens):
                if token.isdecimal():
                    rows[spelt((*tokens[:place], *tokens[place + 1 :])), place][int(token)] = key
        found: defaultdict[str, list[list[str]]] = defaultdict(list)
        for (form, _), row in rows.items():
            if sorted(row) == list(range(len(row))):
                found[form].append([row[number] for number in range(len(row))])
        return found


def by_path(dumps: Dumps, left: Pairing) -> Iterator[Match]:
    """The pass of normal forms; also of stacks `[L, ...]` against the L tensors that are stacked in them."""
    ref, cand = _by_family(left.only_ref), _by_family(left.only_cand)
    for one, other in _family_pairs(ref, cand):
        matches = [*_of_one_form(ref[one], cand[other]), *_stacks(dumps, ref[one], cand[other])]
        used = {key for match in matches for key in (match.ref, *match.recipe.keys)}
        ref[one], cand[other] = _without(ref[one], used), _without(cand[other], used)
        yield from matches


def _of_one_form(ref: _Names, cand: _Names) -> Iterator[Match]:
    yield from _alike((ref.forms(), cand.forms()))
    # One side may have a scope around everything that the other lacks. Not both: `encoder` is no `decoder`.
    unwrapped = [
        *((ref.forms(scope), cand.forms()) for scope in ref.scopes()),
        *((ref.forms(), cand.forms(scope)) for scope in cand.scopes()),
    ]
    yield from _alike(max(unwrapped, key=lambda forms: len(forms[0].keys() & forms[1].keys()), default=({}, {})))


def _alike(forms: tuple[Mapping[str, str], Mapping[str, str]]) -> Iterator[Match]:
    ref, cand = forms
    yield from (Match.of(key, cand[form], "path") for form, key in ref.items() if form in cand)


def _stacks(dumps: Dumps, ref: _Names, cand: _Names) -> Iterator[Match]:
    for form, key in cand.forms().items():
        for row in ref.numbered().get(form, ()):
            if _is_stack(dumps.cand, key, dumps.ref, row):
                for part, each in enumerate(row):
                    yield Match(ref=each, recipe=Recipe(keys=(key,), steps=(Unstack(0),), part=part), matched_by="path")
    for form, key in ref.forms().items():
        for row in cand.numbered().get(form, ()):
            if _is_stack(dumps.ref, key, dumps.cand, row):
                yield Match(ref=key, recipe=Recipe(keys=tuple(row), steps=(Stack(0),)), matched_by="path")


def _is_stack(stacked: DumpSource, key: str, single: DumpSource, row: Sequence[str]) -> bool:
    shape = arranged(stacked.entry(key))
    return shape[:1] == (len(row),) and all(arranged(single.entry(each)) == shape[1:] for each in row)


def _by_family(keys: Iterable[str]) -> dict[str, _Names]:
    """Names by family; foreign ones that say they are gradients under the name of their gradient's family."""
    found: defaultdict[str, dict[str, Tokens]] = defaultdict(dict)
    for key in keys:
        family, name = split_key(key)
        tokens = tokens_of(name)
        gradient = without_gradient_word(tokens) if family == TENSOR else None
        found[family if gradient is None else _FOREIGN_GRADIENT][key] = tokens if gradient is None else gradient
    return {family: _Names(tokens) for family, tokens in found.items()}


#: Stands for the family of foreign tensors whose names say that they are gradients.
_FOREIGN_GRADIENT: Final = "tensor gradient"


def _family_pairs(ref: Mapping[str, _Names], cand: Mapping[str, _Names]) -> Iterator[tuple[str, str]]:
    """Which family may be which: the same, or what a foreign tensor stands for."""
    yield from ((family, family) for family in ref if family in cand)
    for foreign, may_be in ((TENSOR, _VALUES), (_FOREIGN_GRADIENT, tuple(map(gradient_family, _VALUES)))):
        families = [family for family in may_be if family is not None]
        yield from ((family, foreign) for family in families if family in ref and foreign in cand)
        yield from ((foreign, family) for family in families if foreign in ref and family in cand)


def _without(names: _Names, used: set[str]) -> _Names:
    return _Names({key: tokens for key, tokens in names.tokens.items() if key not in used})
