"""A parametrization computes a parameter from others, and another program may have either, under one name and shape.

A capture from PyTorch has both: the *effective* weight of a weight norm, and the direction and the norms, its
*originals*. A port has a kernel, which is the effective weight where the norm is folded into it, and the direction
where the port normalises by itself. `in_another_form` are the others.

The values tell which: those of the kernels, and of their gradients, as a weight norm begins with directions that are
the weights. Where neither tells of one, as where a port has another layer's weights, the others decide, and where none
does, the number of all elements: who folds a norm has no parameter for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from gradscope.comparison.pairing.matching import Dumps, Pairing
from gradscope.comparison.pairing.values.equal_classes import equal_classes
from gradscope.comparison.pairing.values.equality import Equality
from gradscope.dump.interfaces import DumpSource
from gradscope.naming import PARAM, PARAM_GRAD, key_of, split_key


def originals_of(source: DumpSource) -> Mapping[str, Sequence[str]]:
    """Returns the keys of the parameters that each effective parameter of a dump is computed from, by its key."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for entry in source.manifest.entries:
        if entry.family == PARAM and entry.site.of is not None:
            found[entry.site.of].append(key_of(PARAM, entry.name))
    return found


def in_another_form(dumps: Dumps) -> frozenset[str]:
    """Returns the keys of the reference that the candidate has in another form, and their gradients."""
    parametrized = originals_of(dumps.ref)
    known = frozenset(dumps.cand.keys())
    apart = {key: each for key, each in parametrized.items() if not known.issuperset((key, *each))}
    if not apart:
        return frozenset()
    found = _with_equal_values(dumps, apart)
    votes = {key: _vote(key, each, dumps.ref, found) for key, each in apart.items()}
    others = sum(votes.values()) or (1 if _is_folded(dumps, apart) else -1)
    params = {each for key, own in apart.items() for each in (own if (votes[key] or others) > 0 else (key,))}
    hidden = params | {*map(_gradient, params)}
    return frozenset(key for key in dumps.ref.keys() if dumps.ref.resolve(key) in hidden)  # noqa: SIM118 - no mapping


def _vote(key: str, originals: Sequence[str], source: DumpSource, found: frozenset[str]) -> int:
    """Returns 1 where the other program has the effective parameter, -1 where it has an original, 0 for neither."""
    size = prod(source.entry(key).shape)
    like = [each for each in originals if prod(source.entry(each).shape) == size]
    effective = sum(each in found for each in (key, _gradient(key)))
    original = max((sum(each in found for each in (own, _gradient(own))) for own in like), default=0)
    return (effective > original) - (effective < original)


def _with_equal_values(dumps: Dumps, parametrized: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Returns the keys of the parameters, and of gradients, of which the candidate has the values."""
    params = [key for effective, originals in parametrized.items() for key in (effective, *originals)]
    known = frozenset(dumps.ref.keys())
    sought = [key for each in params for key in (each, _gradient(each)) if key in known]
    others = tuple(key for key in dumps.cand.keys() if split_key(key)[0] in (PARAM, PARAM_GRAD))  # noqa: SIM118 - no mapping
    classes = equal_classes(dumps, Pairing(only_ref=tuple(sought), only_cand=others), Equality(dumps))
    return frozenset(key for each in classes for key in each.refs)


def _is_folded(dumps: Dumps, parametrized: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether the candidate has rather as many elements as effective parameters have, or as originals have."""
    ref, cand = (
        sum(prod(each.shape) for each in source.manifest.entries if each.family == PARAM and each.alias_of is None)
        for source in (dumps.ref, dumps.cand)
    )
    sizes = [[prod(dumps.ref.entry(each).shape) for each in (key, *own)] for key, own in parametrized.items()]
    folded, kept = ref - sum(sum(own) for _, *own in sizes), ref - sum(size for size, *_ in sizes)
    return abs(cand - folded) <= abs(cand - kept)


def _gradient(key: str) -> str:
    return key_of(PARAM_GRAD, split_key(key)[1])
