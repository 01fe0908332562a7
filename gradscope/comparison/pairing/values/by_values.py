"""`by_fingerprint` matches tensors with the same values, in any layout and under any name.

Statistics that do not depend on the layout (norm, mean, standard deviation, extremes) are a lower bound of how much two
tensors differ. Pairs below the tolerance by that bound are read and verified: all elements have to agree within
tolerance, in the layout that a sample of them selected.

Several tensors can have the same values, for example biases that are all zero. Then `same_use` decides first, by what
uses them and by their gradients, and names last: the pair that has most in common with pairs found so far, such as
`conv1/bias` with `features.0.bias` because `conv1/kernel` is paired with `features.0.weight`. Names paired in one
family are paired in the others too, a gradient with its parameter, and a parameter that is less by one number with its
gradient.

Of very many equal tensors, only pairs that the layers or scopes around them speak for are rated, so that their number
does not enter squared; for the rest the order decides.

A single element says little: tensors of one are matched by `by_number`, parameters and state alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice, product, starmap
from math import prod
from typing import Final

import numpy as np

from gradscope.arrays.widening import wide_values
from gradscope.comparison.layout.layouts import arranged
from gradscope.comparison.layout.recipe_steps import Reshape
from gradscope.comparison.layout.recipes import Recipe
from gradscope.comparison.pairing.inference.equal_parts import SAME
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.cut_gradients import StoppedGradients
from gradscope.comparison.pairing.values.equal_classes import EqualClasses, equal_classes
from gradscope.comparison.pairing.values.equality import Equality, absent_keys, is_constant
from gradscope.comparison.pairing.values.name_similarity import NameSimilarity, scopes
from gradscope.comparison.pairing.values.same_use import SameUse
from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import (
    PARAM,
    PARAM_GRAD,
    STATE,
    TENSOR,
    gradient_key,
    is_gradient,
    key_of,
    split_key,
    subject_family,
)

#: The most pairs of equal tensors that are all rated.
_MOST_PAIRS: Final = 4096
#: The most pairs of one tensor that are rated where there are more.
_MOST_LIKELY: Final = 64


def by_fingerprint(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of equal values; gradients first by the pairs of their values, then by their own."""
    equality = Equality(dumps)
    values = _of_families(dumps, unmatched, equality, gradients=False)
    found = [each for each in values if not equality.of_other_constants(each)]
    yield from found
    siblings = list(by_sibling(dumps, unmatched.with_matches(found)))
    yield from siblings
    known = unmatched.with_matches([*found, *siblings])
    stopped = StoppedGradients(dumps, known.matched)
    gradients = [each for each in _of_families(dumps, known, equality, gradients=True) if not stopped.has(each)]
    yield from gradients
    yield from _constants_by_gradient(known.with_matches(gradients), equality)


def _constants_by_gradient(unmatched: Pairing, equality: Equality) -> Iterator[Match]:
    """Yields matches of equal constants by their gradients, as of a bias of all heads and one with an axis of them."""
    recipes = {match.ref: match.recipe for match in unmatched.matched if split_key(match.ref)[0] == PARAM_GRAD}
    free = frozenset(unmatched.only_cand)
    for key in (key for key in unmatched.only_ref if split_key(key)[0] == PARAM):
        recipe = recipes.get(gradient_key(key))
        others = () if recipe is None else tuple(key_of(PARAM, split_key(each)[1]) for each in recipe.keys)
        if recipe is None or len(others) != 1 or others[0] not in free:
            continue
        one, other = equality.ref_stats(key), equality.cand_stats(others[0])
        if is_constant(one) and is_constant(other) and one["min"] == other["min"]:
            yield Match(ref=key, recipe=replace(recipe, keys=others), matched_by="fingerprint")


def by_sibling(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of the gradients of values that are paired, by the same recipe."""
    recipes = {match.ref: match for match in unmatched.matched}
    free = frozenset(unmatched.only_cand)
    unused_ref, unused_cand = absent_keys(dumps.ref), absent_keys(dumps.cand)
    for key in unmatched.only_ref:
        family, name = split_key(key)
        subject = subject_family(family)
        match = None if subject is None else recipes.get(key_of(subject, name))
        if match is not None and all(split_key(each)[0] == subject for each in match.recipe.keys):
            keys = tuple(key_of(family, split_key(each)[1]) for each in match.recipe.keys)
            # A program can return a value twice, and the loss reads one of them: equal values are no equal uses.
            if match.matched_by != "name" and (key in unused_ref) is not unused_cand.issuperset(keys):
                continue
            if free.issuperset(keys) and _shapes(dumps, key, keys[0]) == _shapes(dumps, match.ref, match.cand):
                yield Match(ref=key, recipe=replace(match.recipe, keys=keys), matched_by=match.matched_by)


def by_gradient(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of parameters that have the same gradient and differ by one number.

    One program may add that by itself, as a norm that multiplies by 1 plus its scale.
    """
    gradients = {match.ref: match for match in unmatched.matched if match.matched_by == "fingerprint"}
    free = frozenset(unmatched.only_cand)
    for key in (key for key in unmatched.only_ref if split_key(key)[0] == PARAM and dumps.ref.has_tensor(key)):
        if (match := gradients.get(gradient_key(key))) is None:
            continue
        keys = tuple(key_of(PARAM, split_key(each)[1]) for each in match.recipe.keys)
        shapes = _shapes(dumps, match.ref, match.cand)
        if (
            all(each in free and dumps.cand.has_tensor(each) for each in keys)
            and _shapes(dumps, key, *keys[:1]) == shapes
        ):
            recipe = replace(match.recipe, keys=keys)
            apart = wide_values(recipe.array(dumps.cand)) - wide_values(dumps.ref.array(key))
            if apart.size and float(np.ptp(apart)) <= SAME * float(np.abs(apart).max()):
                yield Match(ref=key, recipe=recipe, matched_by=match.matched_by)


def by_number(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of parameters, and of state, of a single element that both programs have the same number of.

    Those of one value are matched by what uses them, and by the order of their use where that does not decide.
    """
    ref, cand = _numbers(dumps.ref, unmatched.only_ref), _numbers(dumps.cand, unmatched.only_cand)
    use = SameUse(dumps, unmatched.matched)
    for kind, keys in ref.items():
        others = cand.get(kind, ())
        if len(keys) == len(others):
            yield from _numbers_of_one_value(dumps, unmatched, use, dict(zip(keys, others, strict=True)))


def by_disconnected(dumps: Dumps, unmatched: Pairing) -> Iterator[Match]:
    """Yields matches of the gradients of paired parameters that reach the parameter in one of the programs alone.

    A part of a packed parameter that the loss does not read has a gradient of zeros there, and needs none of its own.
    """
    recipes = {match.ref: match for match in unmatched.matched if split_key(match.ref)[0] == PARAM}
    free = frozenset(unmatched.only_cand)
    # The gradient of a packed parameter is matched already, by the parts that have one.
    uses = Counter(key for match in recipes.values() for key in match.recipe.keys)
    packed = {key_of(PARAM_GRAD, split_key(key)[1]) for key, count in uses.items() if count > 1}
    for key in unmatched.only_ref:
        family, name = split_key(key)
        match = recipes.get(key_of(PARAM, name)) if family == PARAM_GRAD else None
        if match is not None:
            keys = tuple(key_of(PARAM_GRAD, split_key(each)[1]) for each in match.recipe.keys)
            recipe = replace(match.recipe, keys=keys)
            arrives = (
                packed.issuperset(keys) and all(map(dumps.cand.has_tensor, keys)) and recipe.array(dumps.cand).any()
            )
            if free.issuperset(keys) or arrives:
                yield Match(ref=key, recipe=recipe, matched_by=match.matched_by)


def _of_families(dumps: Dumps, unmatched: Pairing, equality: Equality, *, gradients: bool) -> Iterator[Match]:
    """Yields matches of equal values among gradients, or among all other tensors."""
    ref, cand = ([split_key(key)[0] for key in keys] for keys in (unmatched.only_ref, unmatched.only_cand))
    families = {family for family in {*ref, *cand} if is_gradient(family) is gradients}
    some = replace(
        unmatched,
        only_ref=tuple(compress(unmatched.only_ref, map(families.__contains__, ref))),
        only_cand=tuple(compress(unmatched.only_cand, map({*families, TENSOR}.__contains__, cand))),
    )
    classes = list(equal_classes(dumps, some, equality))
    counterparts, uses = Counter[str](), Counter[str]()
    for each in classes:
        counterparts.update(dict.fromkeys(each.refs, len(each.cands)))
        uses.update(dict.fromkeys(each.cands, len(each.refs)))
    certain = [each for each in classes if counterparts[each.refs[0]] == uses[each.cands[0]] == 1]
    unique = [match for each in certain for match in _matches(each)]
    yield from unique
    ambiguous = [each for each in classes if counterparts[each.refs[0]] > 1 or uses[each.cands[0]] > 1]
    if ambiguous:
        yield from _decided(dumps, some, [*unmatched.matched, *unique], ambiguous, equality)


def _decided(
    dumps: Dumps, some: Pairing, known: Sequence[Match], classes: Sequence[EqualClasses], equality: Equality
) -> Iterator[Match]:
    """Yields matches of ambiguous values, those with the most evidence first, and those of state last.

    No layer says which state it uses: only the names do, once the parameters beside it are matched.
    """
    states = [each for each in classes if _has_state(each)]
    others = [each for each in classes if not _has_state(each)]
    found = list(_by_evidence(dumps, some, known, others, equality))
    yield from found
    used = some.with_matches(found)
    yield from _by_evidence(dumps, used, [*known, *used.matched[len(some.matched) :]], states, equality)


def _has_state(classes: EqualClasses) -> bool:
    return STATE in (split_key(classes.refs[0])[0], split_key(classes.cands[0])[0])


def _by_evidence(
    dumps: Dumps, some: Pairing, known: Sequence[Match], classes: Sequence[EqualClasses], equality: Equality
) -> Iterator[Match]:
    if not classes:
        return
    similarity, use = NameSimilarity(known), SameUse(dumps, known)

    def evidence(match: Match) -> tuple[int, bool, int, tuple[float, int], bool]:
        against = equality.against_gradients(match)
        return use.shared(match), equality.of_gradients(match), use.beyond(match), similarity(match), not against

    large = [each for each in classes if len(each.refs) * len(each.cands) > _MOST_PAIRS]
    small = [each for each in classes if len(each.refs) * len(each.cands) <= _MOST_PAIRS]
    tried = [match for each in small for match in _matches(each)]
    for each in large:
        among = frozenset(each.cands)
        scopes = _by_scope(each.cands)
        for ref in each.refs:
            likely = {*use.likely(ref), *(key for scope in similarity.likely(ref) for key in scopes.get(scope, ()))}
            tried += (_match(ref, cand, each) for cand in islice(sorted(likely & among), _MOST_LIKELY))
    # The sort is stable: among matches that nothing distinguishes, the order of the dumps decides.
    order = {key: position for position, key in enumerate(some.only_ref)}
    other = {key: position for position, key in enumerate(some.only_cand)}
    tried = [match for match in tried if match.ref in order and match.cand in other]
    tried.sort(key=lambda match: (order[match.ref], other[match.cand]))
    tried.sort(key=evidence, reverse=True)
    yield from tried
    used = some.with_matches(tried)
    free, free_cand = frozenset(used.only_ref), frozenset(used.only_cand)
    for each in large:
        rest = (key for key in each.refs if key in free), (key for key in each.cands if key in free_cand)
        yield from (_match(*pair, each) for pair in zip(*rest, strict=False))


def _numbers(source: DumpSource, keys: Iterable[str]) -> dict[tuple[str, float], list[str]]:
    """Returns the keys of parameters and state of a single element, by family and value, in the order of their use."""
    found: defaultdict[tuple[str, float], list[str]] = defaultdict(list)
    params = (key_of(PARAM, name) for layer in source.manifest.layers for name in layer.params)
    order = {key: position for position, key in enumerate(dict.fromkeys(params))}
    for key in sorted(keys, key=lambda key: order.get(key, len(order))):
        entry = source.entry(key)
        single = entry.family in (PARAM, STATE) and prod(entry.shape) == 1 and dtype_class(entry.dtype) == "float"
        if single and source.has_tensor(key):
            found[entry.family, source.array(key).item()].append(key)
    return found


def _numbers_of_one_value(
    dumps: Dumps, unmatched: Pairing, use: SameUse, in_turn: Mapping[str, str]
) -> Iterator[Match]:
    """Yields matches of numbers of one value, those with the most in common first.

    Args:
        dumps: The dumps.
        unmatched: What is matched.
        use: What the layers that use two parameters have in common.
        in_turn: The numbers of the candidate by those of the reference, both in the order of their use.
    """

    def match(key: str, other: str) -> Match:
        shape = dumps.ref.entry(key).shape
        steps = () if dumps.cand.entry(other).shape == shape else (Reshape(shape),)
        return Match(ref=key, recipe=Recipe(keys=(other,), steps=steps), matched_by="fingerprint")

    among = frozenset(in_turn.values())
    tried = [match(key, each) for key in in_turn for each in islice(sorted(use.likely(key) & among), _MOST_LIKELY)]
    tried.sort(key=lambda each: (use.shared(each), in_turn[each.ref] == each.cand), reverse=True)
    yield from tried
    left = unmatched.with_matches(tried)
    free, free_cand = frozenset(left.only_ref), frozenset(left.only_cand)
    rest = filter(free.__contains__, in_turn), filter(free_cand.__contains__, in_turn.values())
    yield from starmap(match, zip(*rest, strict=True))


def _matches(classes: EqualClasses) -> Iterator[Match]:
    return (_match(ref, cand, classes) for ref, cand in product(classes.refs, classes.cands))


def _match(ref: str, cand: str, classes: EqualClasses) -> Match:
    return Match(ref=ref, recipe=Recipe(keys=(cand,), steps=classes.steps), matched_by="fingerprint")


def _by_scope(keys: Iterable[str]) -> dict[str, list[str]]:
    """Returns keys by the innermost scope around them."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys:
        for scope in scopes(key)[-1:]:
            found[scope].append(key)
    return found


def _shapes(dumps: Dumps, ref: str, cand: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return arranged(dumps.ref.entry(ref)), arranged(dumps.cand.entry(cand))
