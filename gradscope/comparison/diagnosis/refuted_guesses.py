"""`without_refuted` drops pairs that only their places suggest and that the graphs of both programs refute.

Tensors that only their places pair may be different steps of the same computation, such as an embedding before and
after positions are added. Such a pair differs, although everything that either is computed from agrees, and it leaves
no trace: everything that is computed next from either agrees. So a pair by place that claims to be where a difference
begins is kept where something behind it bears that out, in either program.

A difference can also vanish behind the pair, as that of a lost bias does in a batch norm. Then what the pair is
computed from tells: a parameter that only one of the programs uses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, Pairing
from gradscope.comparison.pairing.values.equality import absent_keys
from gradscope.comparison.pairing.values.sums import sums
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM, PARAM_GRAD, is_gradient, key_of, split_key

#: How many times as large as all errors behind it an error is that leaves no trace.
_TRACELESS: Final = 10


def without_refuted(dumps: Dumps, pairing: Pairing, rows: Mapping[str, ComparisonRow]) -> Pairing:
    """Returns a pairing without the pairs by place that are refuted.

    Args:
        dumps: The dumps.
        pairing: Their pairing.
        rows: The rows of the pairs, by the reference's keys.
    """
    guesses = [each for each in pairing.matched if each.matched_by == "order" and rows[each.ref].status == "different"]
    values = [each for each in guesses if split_key(each.ref)[0] == ACTIVATION]
    if not values or not (dumps.ref.manifest.layers and dumps.cand.manifest.layers):
        return pairing
    guessed = frozenset(each.ref for each in guesses)
    known = [each for each in pairing.matched if each.ref not in guessed]
    loss = _loss_error(dumps, known, rows)
    lost = _lost(dumps, pairing)
    ref = _Program(dumps.ref, {dumps.ref.resolve(each.ref): rows[each.ref] for each in known}, lost, loss)
    cand = _Program(
        dumps.cand, {dumps.cand.resolve(key): rows[each.ref] for each in known for key in each.recipe.keys}, lost, loss
    )
    refuted: set[str] = set()
    for match in sorted(values, key=lambda each: dumps.ref.entry(each.ref).site.index):
        own = [(ref, dumps.ref.resolve(match.ref)), *((cand, dumps.cand.resolve(key)) for key in match.recipe.keys)]
        inherited = any(program.inherits(key) for program, key in own)
        trace = max(program.behind.get(key, loss) for program, key in own)
        if inherited or _TRACELESS * trace >= _error(rows[match.ref]):
            for program, key in own:
                program.differing.add(key)
        else:
            refuted |= {match.ref, key_of(ACTIVATION_GRAD, split_key(match.ref)[1])}
    # A gradient that only its value pairs goes with it.
    by_place = {each.ref for each in pairing.matched if each.matched_by == "order"}
    return _without(dumps, pairing, by_place & refuted)


def _without(dumps: Dumps, pairing: Pairing, dropped: Collection[str]) -> Pairing:
    if not dropped:
        return pairing
    matched = tuple(match for match in pairing.matched if match.ref not in dropped)
    used = {key for match in matched for key in match.recipe.keys}
    freed = {key for match in pairing.matched if match.ref in dropped for key in match.recipe.keys} - used
    return replace(
        pairing,
        matched=matched,
        only_ref=_in_order(dumps.ref, {*pairing.only_ref, *dropped}),
        only_cand=_in_order(dumps.cand, {*pairing.only_cand, *freed}),
    )


def _in_order(source: DumpSource, keys: Collection[str]) -> tuple[str, ...]:
    return tuple(filter(keys.__contains__, source.keys()))


def _error(row: ComparisonRow) -> float:
    """Returns the relative error of a pair; zero where that is rounding."""
    if row.needed == 0.0:
        return 0.0
    error = as_float(row.metrics.get("rel_l2", math.inf if row.status == "different" else 0.0))
    return math.inf if math.isnan(error) else error


def _loss_error(dumps: Dumps, known: Iterable[Match], rows: Mapping[str, ComparisonRow]) -> float:
    """Returns the largest error of the loss and of the gradients, by which what only the loss reads is compared."""
    one, other = dumps.ref.manifest.loss, dumps.cand.manifest.loss
    if one is None or other is None:
        return math.inf
    errors = (_error(rows[each.ref]) for each in known if is_gradient(split_key(each.ref)[0]))
    return max(abs(one - other) / max(abs(one), 1e-30), *errors, 0.0) if math.isfinite(one) else math.inf


def _lost(dumps: Dumps, pairing: Pairing) -> frozenset[str]:
    """Returns the parameters of either program that the other does not use."""
    used_ref, used_cand = _used(dumps.ref), _used(dumps.cand)
    found: set[str] = set()
    for match in (each for each in pairing.matched if split_key(each.ref)[0] == PARAM):
        used = (
            dumps.ref.resolve(match.ref) in used_ref,
            any(dumps.cand.resolve(key) in used_cand for key in match.recipe.keys),
        )
        if used[0] is not used[1]:
            found |= {match.ref, *match.recipe.keys}
    alone = [key for key in (*pairing.only_ref, *pairing.only_cand) if split_key(key)[0] == PARAM]
    added = sums(dumps, pairing.only_ref, pairing.only_cand) if alone else {}
    return frozenset(found.union(key for key in alone if key not in added))


def _used(source: DumpSource) -> frozenset[str]:
    """Returns the parameters that have a gradient, and those behind a `stop_gradient`, from which layers compute."""
    unused = absent_keys(source)
    params = filter(lambda key: split_key(key)[0] == PARAM, source.keys())
    trained = {source.resolve(key) for key in params if key_of(PARAM_GRAD, split_key(key)[1]) not in unused}
    return frozenset(trained.union(*_forward_sources(source).values()))


def _forward_sources(source: DumpSource) -> dict[str, Sequence[str]]:
    """Returns what the outputs of layers are computed from, without gradients."""
    found = sources_of(source.manifest.layers)
    return {key: made_of for key, made_of in found.items() if not is_gradient(split_key(key)[0])}


class _Program:
    """_Program finds what differs before and behind a value of one dump.

    Attributes:
        behind: The largest error of what is computed next from each value.
        differing: The values of pairs by place that are kept.
    """

    def __init__(
        self, source: DumpSource, rows: Mapping[str, ComparisonRow], lost: Collection[str], loss: float
    ) -> None:
        self._sources = _forward_sources(source)
        self._rows = rows
        self._lost = lost
        self._exact: set[str] = set()
        self.differing: set[str] = set()
        self.behind = _behind(self._sources, {key: _error(row) for key, row in rows.items()}, loss)

    def inherits(self, key: str) -> bool:
        """Returns whether anything that a value is computed from differs, through what is not compared."""
        waiting, seen = [*self._sources.get(key, ())], {key}
        while waiting:
            each = waiting.pop()
            if each in seen or each in self._exact:
                continue
            seen.add(each)
            row = self._rows.get(each)
            if each in self.differing or each in self._lost or (row is not None and row.status == "different"):
                return True
            if row is None:
                waiting += self._sources.get(each, ())
        self._exact |= seen - {
            key
        }  # pairs are decided in execution order, so that what is before these does not change
        return False


def _behind(sources: Mapping[str, Sequence[str]], errors: Mapping[str, float], loss: float) -> dict[str, float]:
    """Returns for each value the largest error of what is compared next behind it, as far as that is known."""
    read = {source for made_of in sources.values() for source in made_of}
    ends = {key: loss for key in sources if key not in read and key not in errors}
    found: dict[str, float] = {}
    # From the largest error on, so that each value is reached by the largest one first, and once.
    compared = {key: errors[key] for key in errors if key in sources}
    for key, error in sorted((compared | ends).items(), key=lambda each: each[1], reverse=True):
        if key in ends:
            found.setdefault(key, error)
        waiting = list(sources[key])
        while waiting:
            each = waiting.pop()
            if each not in found:
                found[each] = error
                if each not in errors:
                    waiting += sources.get(each, ())
    return found
