"""Names mislead where the values that are called alike have theirs under other names.

`are_refuted` tells it of all names, by the parameters, as where one program counts layers from 0 and the other from 1.
`without_misnamed` drops pairs of activations that have their values under another pair's name,
`without_other_layers` the pairs of two layers whose parameters are those of layers that no name pairs, and
`without_exchanged_outputs` those of the numbered outputs of one layer, which have other numbers where a loop carries
`(h, c)` in one program and `(c, h)` in the other. `without_exchanged_calls` drops those of the calls of a layer that
have other numbers, where both programs come to the same gradients. `without_slices` drops inputs of which one is a
slice of the other, `without_losses` the loss of one program with what has its name. `equal_to_freed` pairs what is left
of pairs that turn out to be none with what has its values.

The outputs of a PyTorch module are numbered (`lstm.0`), and so are the layers of a port (`lstm_0`). Such a name is only
misleading where the values of both pairs differ: where one of them agrees, the other may be wrong.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from gradscope.comparison.loss_values import is_loss
from gradscope.comparison.metrics.bounds import least_rel_l2
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing, Pass, is_of_jax
from gradscope.comparison.pairing.values.equal_classes import equal_classes
from gradscope.comparison.pairing.values.equality import Equality, is_constant, is_measured
from gradscope.comparison.precision import dtype_class
from gradscope.dump.manifest.manifest import Entry
from gradscope.naming import (
    ACTIVATION,
    ACTIVATION_GRAD,
    INPUT,
    INPUT_GRAD,
    PARAM,
    PARAM_GRAD,
    gradient_key,
    key_of,
    split_key,
)
from gradscope.naming.paths import without_occurrence

#: The name of one of several outputs of a layer.
_OUTPUT: Final = re.compile(r"(.+)\.\d+")


def are_refuted(dumps: Dumps, unmatched: Pairing, matches: Iterable[Match]) -> bool:
    """Returns whether more kernels have their values under another name than under that of their match.

    Only statistics are read of kernels that are far from each other, or have one hash.

    Args:
        dumps: The dumps.
        unmatched: The tensors among which names are matched.
        matches: The matches by name.
    """
    stored = [match for match in matches if match.recipe.plain and _is_kernel(dumps, match)]
    if not stored:
        return False
    equality = Equality(dumps)
    wrong = [match for match in stored if not _agree(match, equality)]
    if 2 * len(wrong) <= len(stored):
        return False
    only_cand = tuple(key for key in unmatched.only_cand if split_key(key)[0] == PARAM)
    sought = Pairing(only_ref=tuple(match.ref for match in wrong), only_cand=only_cand)
    elsewhere: set[str] = set()
    for each in equal_classes(dumps, sought, equality):
        elsewhere.update(each.refs)
        if 2 * len(elsewhere) > len(stored):
            return True
    return False


def _is_kernel(dumps: Dumps, match: Match) -> bool:
    return _is_measured_parameter(dumps, match) and len(dumps.ref.entry(match.ref).shape) > 1


def _agree(match: Match, equality: Equality) -> bool:
    if equality.ref_class(match.ref)[1:] == equality.cand_class(match.cand)[1:]:
        return True
    if prod(equality.ref_class(match.ref)[2]) != prod(equality.cand_class(match.cand)[2]):
        return False
    limit = equality.tolerance(match.ref, match.cand)
    bound = least_rel_l2(equality.ref_stats(match.ref), equality.cand_stats(match.cand))
    return (limit is None or bound is None or bound.rel_l2 <= limit) and equality.agree(match)


def without_misnamed(dumps: Dumps, matches: Sequence[Match]) -> list[Match]:
    """Returns the matches by name without those of activations whose values are under another of these names.

    Args:
        dumps: The dumps.
        matches: The matches.
    """
    found = _misnamed(dumps, matches, Equality(dumps))
    return [match for match in matches if match.ref not in found]


def without_other_layers(dumps: Dumps, unmatched: Pairing, matches: Sequence[Match]) -> list[Match]:
    """Returns the matches by name without those of layers whose parameters are those of layers that no name pairs.

    A second layer of a sequence `conv` and a layer `conv1` have one normal form. Where none of their parameters agrees,
    and one has its values in a layer of another name, they are two layers.

    Args:
        dumps: The dumps.
        unmatched: The tensors among which names are matched.
        matches: The matches.
    """
    equality = Equality(dumps)
    stored = [match for match in matches if match.recipe.plain and _is_measured_parameter(dumps, match)]
    wrong = [match for match in stored if not _agree(match, equality)]
    right = {_scopes(match) for match in stored} - {_scopes(match) for match in wrong}
    if not wrong:
        return [*matches]
    named = {key for match in matches for key in (match.ref, *match.recipe.keys)}
    free = {key for key in (*unmatched.only_ref, *unmatched.only_cand) if split_key(key)[0] == PARAM} - named
    claimed = Pairing(
        only_ref=(*(each.ref for each in wrong), *(key for key in unmatched.only_ref if key in free)),
        only_cand=(*(each.cand for each in wrong), *(key for key in unmatched.only_cand if key in free)),
    )
    elsewhere = {
        key
        for each in equal_classes(dumps, claimed, equality)
        if not is_constant(equality.ref_stats(each.refs[0]))
        for own, others in ((each.refs, each.cands), (each.cands, each.refs))
        if not free.isdisjoint(others)
        for key in own
    }
    found = {_scopes(each) for each in wrong if each.ref in elsewhere or each.cand in elsewhere} - right
    return [match for match in matches if not match.recipe.plain or found.isdisjoint((_scopes(match), _names(match)))]


def _is_measured_parameter(dumps: Dumps, match: Match) -> bool:
    return split_key(match.ref)[0] == PARAM and _is_measured(dumps, match)


def _is_measured(dumps: Dumps, match: Match) -> bool:
    return is_measured(dumps.ref, match.ref) and is_measured(dumps.cand, match.cand)


def _names(match: Match) -> tuple[str, str]:
    return split_key(match.ref)[1], split_key(match.cand)[1]


def _scopes(match: Match) -> tuple[str, str]:
    one, other = _names(match)
    return one.rpartition("/")[0], other.rpartition("/")[0]


def without_slices(find: Pass) -> Pass:
    """Returns a pass by names without the matches of integers of other sizes between PyTorch and JAX.

    A port may have tokens and labels in one array, of which the other program is given slices, one under its name.

    Args:
        find: The pass.
    """

    def found(dumps: Dumps, unmatched: Pairing) -> Iterable[Match]:
        matches = find(dumps, unmatched)
        if is_of_jax(dumps.ref) is is_of_jax(dumps.cand):
            return matches
        return [each for each in matches if not _is_slice(dumps.ref.entry(each.ref), dumps.cand.entry(each.cand))]

    return found


def _is_slice(one: Entry, other: Entry) -> bool:
    integers = dtype_class(one.dtype) == dtype_class(other.dtype) == "integer"
    return one.family in (INPUT, INPUT_GRAD) and integers and prod(one.shape) != prod(other.shape)


def without_losses(find: Pass) -> Pass:
    """Returns a pass by names without the matches of the loss of one program with a value of several elements.

    A scope around the last layer may have the loss inside in one program: what leaves it is the loss there.

    Args:
        find: The pass.
    """

    def found(dumps: Dumps, unmatched: Pairing) -> Iterable[Match]:
        return [each for each in find(dumps, unmatched) if not _has_one_loss(dumps, each)]

    return found


def _has_one_loss(dumps: Dumps, match: Match) -> bool:
    sides = (dumps.ref, match.ref), (dumps.cand, match.cand)
    one, other = (source.entry(source.resolve(key)).shape for source, key in sides)
    if split_key(match.ref)[0] not in (ACTIVATION, ACTIVATION_GRAD) or bool(one) is bool(other):
        return False
    return any(is_loss(source, key_of(ACTIVATION, split_key(key)[1])) for source, key in sides)


def without_exchanged_outputs(dumps: Dumps, matches: Sequence[Match]) -> list[Match]:
    """Returns the matches by name without those of outputs of a layer whose values its other outputs have.

    Args:
        dumps: The dumps.
        matches: The matches.
    """
    outputs: defaultdict[str, list[Match]] = defaultdict(list)
    for match in matches:
        family, name = split_key(match.ref)
        if family == ACTIVATION and (numbered := _OUTPUT.fullmatch(name)) is not None and match.recipe.plain:
            outputs[numbered[1]].append(match)
    equality = Equality(dumps)
    found = {key for each in outputs.values() if len(each) > 1 for key in _misnamed(dumps, each, equality)}
    return [match for match in matches if match.ref not in found]


def without_exchanged_calls(dumps: Dumps, matches: Sequence[Match]) -> list[Match]:
    """Returns the matches by name without those of calls of a layer whose values its other calls have.

    A program may call an encoder on the second of two views first. Where not all gradients of parameters agree, the
    views may be exchanged by mistake, and names count.

    Args:
        dumps: The dumps.
        matches: The matches.
    """
    calls: defaultdict[str, list[Match]] = defaultdict(list)
    for match in matches:
        family, name = split_key(match.ref)
        if family == ACTIVATION and match.recipe.plain:
            calls[without_occurrence(name)].append(match)
    several = [each for each in calls.values() if len(each) > 1]
    if not several:  # most programs call no layer again
        return [*matches]
    equality = Equality(dumps)
    found = {key for each in several for key in _misnamed(dumps, each, equality)}
    gradients = [match for match in matches if split_key(match.ref)[0] == PARAM_GRAD] if found else []
    known = [each for each in gradients if is_measured(dumps.ref, each.ref) or is_measured(dumps.cand, each.cand)]
    if not known or not all(_is_measured(dumps, each) and _agree(each, equality) for each in known):
        return [*matches]
    return [match for match in matches if match.ref not in found]


def equal_to_freed(dumps: Dumps, before: Pairing, left: Pairing) -> list[Match]:
    """Returns matches of the values of pairs that are none, and of their gradients, with unmatched ones equal to them.

    Args:
        dumps: The dumps.
        before: The pairing with those pairs.
        left: The pairing without them.
    """
    kept, equality = {each.ref for each in left.matched}, Equality(dumps)
    freed = [each for each in before.matched if each.ref not in kept and split_key(each.ref)[0] == ACTIVATION]
    of_ref, of_cand = {each.ref for each in freed}, {key for each in freed for key in each.recipe.keys}
    free = [
        [
            key
            for key in keys
            if split_key(key)[0] == ACTIVATION and source.resolve(key) == key and source.has_tensor(key)
        ]
        for source, keys in ((dumps.ref, left.only_ref), (dumps.cand, left.only_cand))
    ]
    found: list[Match] = []
    for ref in free[0] if freed else ():
        for cand in free[1] if ref in of_ref else (key for key in free[1] if key in of_cand):
            recipe = None if is_constant(equality.ref_stats(ref)) else equality.recipe(ref, cand)
            if recipe is None:
                continue
            found.append(Match(ref=ref, recipe=recipe, matched_by="fingerprint"))
            slopes = gradient_key(ref), gradient_key(cand)
            if slopes[0] in left.only_ref and slopes[1] in left.only_cand:
                found.append(Match(ref=slopes[0], recipe=replace(recipe, keys=(slopes[1],)), matched_by="fingerprint"))
            break
    return found


def _misnamed(dumps: Dumps, matches: Iterable[Match], equality: Equality) -> set[str]:
    """Returns the reference's keys of activations with their values under another of some names, and of gradients."""
    wrong = [match for match in matches if match.recipe.plain and _differs(dumps, match, equality)]
    if len(wrong) < 2:
        return set()
    # An output that a layer returns as it is has its values under the name of what made it.
    owners = {each.ref: (dumps.ref.resolve(each.ref), dumps.cand.resolve(each.cand)) for each in wrong}
    only_ref, only_cand = (tuple(dict.fromkeys(each)) for each in zip(*owners.values(), strict=True))
    classes = list(equal_classes(dumps, Pairing(only_ref=only_ref, only_cand=only_cand), equality))
    in_ref = {key for each in classes for key in each.refs}
    in_cand = {key for each in classes for key in each.cands}
    found = {key for key, (ref, cand) in owners.items() if ref in in_ref or cand in in_cand}
    return found | {key_of(ACTIVATION_GRAD, split_key(key)[1]) for key in found}


def _differs(dumps: Dumps, match: Match, equality: Equality) -> bool:
    """Returns whether the sizes or the statistics of two activations show that they differ in every layout."""
    one, other = dumps.ref.entry(match.ref), dumps.cand.entry(match.cand)
    if one.family != ACTIVATION or not _is_measured(dumps, match):
        return False
    limit = equality.tolerance(match.ref, match.cand)
    if limit is None or prod(one.shape) != prod(other.shape):
        return True
    bound = least_rel_l2(equality.ref_stats(match.ref), equality.cand_stats(match.cand))
    return bound is not None and bound.rel_l2 > limit
