"""`GradientTraces` finds what gradients show of a value that leaves no trace among the values behind it.

`ProgramTraces` finds which traces a value leaves in one program, and whether anything that it is computed from differs,
`accounts_for_losses` whether a value that only the loss reads makes the losses differ, `hides_from_losses`
whether it could differ without a trace there.

A branch that ends with a factor of zero, as many do before they are trained, hides whatever differs inside of it: what
the branch is added to agrees. The gradient of that factor is made of the values of the branch all the same. Where it
differs, and nothing else that it is made of does, those are wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradscope.comparison.diagnosis.refuting.behind.errors_behind import EXACT, ErrorsBehind, relative_error
from gradscope.comparison.diagnosis.refuting.float_tensors import FloatTensors
from gradscope.comparison.diagnosis.refuting.lost_parameters import forward_sources, owner_sources
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.loss_values import is_loss
from gradscope.comparison.pairing.matching import Dumps, Match, is_of_jax
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, is_gradient, key_of, split_key

#: How near a difference of losses is to what makes it, and how many times its rounding it is at least.
_NEAR: Final = 1e-3
_CLEAR: Final = 100

#: How many times its tolerance an error is that another form of a step makes, and that other steps seldom do.
_SMALL: Final = 10


def accounts_for_losses(dumps: Dumps, match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether the losses differ by the difference of a value times its gradient, which agrees.

    Args:
        dumps: The dumps.
        match: The pair of values.
        rows: The rows of pairs, by the reference's keys.
    """
    row = rows.get(key_of(ACTIVATION_GRAD, split_key(match.ref)[1]))
    found = None if row is None or row.status != "same" else _of_losses(dumps, match)
    return found is not None and found.is_clear and abs(found.made - found.apart) <= _NEAR * abs(found.apart)


def hides_from_losses(dumps: Dumps, match: Match, rows: Mapping[str, ComparisonRow]) -> bool:
    """Returns whether a small difference of a value changes the loss by less than losses show.

    Args:
        dumps: The dumps.
        match: The pair of values.
        rows: The rows of pairs, by the reference's keys.
    """
    row = rows[match.ref]
    if row.tolerance is None or relative_error(row) > _SMALL * row.tolerance:
        return False
    found = _of_losses(dumps, match)
    return found is not None and not found.is_clear and abs(found.made) <= found.shown


class _OfLosses(NamedTuple):
    """_OfLosses has how far two losses are apart, what a difference of values makes of it, and the least they show."""

    apart: float
    made: float
    shown: float

    @property
    def is_clear(self) -> bool:
        """Whether the losses differ by more than rounding."""
        return abs(self.apart) > self.shown


def _of_losses(dumps: Dumps, match: Match) -> _OfLosses | None:
    """Returns what a difference of values times its gradient makes of the loss; None where that is not known."""
    one, other, tensors = dumps.ref.manifest.loss, dumps.cand.manifest.loss, FloatTensors(dumps.ref)
    value = tensors.tensor(match.ref)
    gradient = tensors.tensor(key_of(ACTIVATION_GRAD, split_key(match.ref)[1]))
    if one is None or other is None or value is None or gradient is None:
        return None
    if not all(map(dumps.cand.has_tensor, match.recipe.keys)):
        return None
    found = match.recipe.array(dumps.cand)
    if found.shape != value.shape or gradient.shape != value.shape:
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # a difference may be infinite where the gradient is zero
        made = float((gradient * (found.astype(np.float64) - value)).sum())
    return _OfLosses(other - one, made, _CLEAR * float(machine_epsilon("float32")) * abs(one))


class GradientTraces:
    """GradientTraces finds the errors of the gradients that are computed next from a value of one program.

    Args:
        source: The dump.
        rows: The rows of what is compared, by key.
    """

    def __init__(self, source: DumpSource, rows: Mapping[str, ComparisonRow]) -> None:
        sources = owner_sources(source)
        self._sources = NearestKeys(sources, rows)
        self._readers = NearestKeys(inverted(sources), rows)
        self._rows = rows
        gradients = {key for key, row in rows.items() if is_gradient(row.family)}
        zero = {key for key in gradients if source.entry(key).stats.get("rms") == 0 and rows[key].status == "same"}
        self._telling = gradients - zero

    def largest(self, key: str) -> float | None:
        """Returns the largest error that begins in a gradient next behind a value; None where no gradient shows any.

        A program without gradients has none that does, and those next behind may all be zero, whatever the value is.
        """
        behind = [each for each in self._readers.behind(key) if is_gradient(self._rows[each].family)]
        telling = self._telling.intersection(behind)
        if not telling and (behind or not self._telling):
            return None
        return max((relative_error(self._rows[each]) for each in telling if self._begins_in(each)), default=0.0)

    def _begins_in(self, key: str) -> bool:
        """Returns whether a gradient differs, and nothing that is compared of what it is computed from does."""
        before = self._sources.behind(key)
        return self._rows[key].status == "different" and all(self._rows[each].status == "same" for each in before)


class ProgramTraces:
    """`ProgramTraces` finds what differs before and behind a value of one dump.

    Args:
        source: The dump.
        rows: The rows of the pairs that are no guesses, by the keys of owners in the dump.
        gradients: What the gradients that are computed from values show of them.
        lost: The keys of parameters that only one of the programs uses.
        loss: The error of the loss.

    Attributes:
        gradients: What the gradients that are computed from values show of them.
        differing: The values of pairs by place that are kept.
    """

    def __init__(
        self,
        source: DumpSource,
        rows: Mapping[str, ComparisonRow],
        gradients: GradientTraces,
        lost: Collection[str],
        loss: float,
    ) -> None:
        self.gradients = gradients
        self._source = source
        self._sources = forward_sources(source)
        self._rows = rows
        self._lost = lost
        self._exact: set[str] = set()
        self.differing: set[str] = set()
        errors = {key: relative_error(row) for key, row in rows.items() if key in self._sources}
        self._nearest = NearestKeys(self._sources, self._rows)
        readers = inverted(self._sources)
        self._read = None if is_of_jax(source) else readers.keys()
        self._readers_at_once = readers
        self._readers = NearestKeys(readers, self._rows)
        self._certain = ErrorsBehind(self._sources, errors, loss)
        self._likely = ErrorsBehind(self._sources, errors, loss)
        self._in_values = ErrorsBehind(self._sources, errors, 0.0)

    def trace(self, key: str) -> float:
        """Returns the largest error of what is compared next behind a value, with and without pairs by place."""
        return max(self._certain.largest(key), self._likely.largest(key))

    def trace_in_values(self, key: str) -> float:
        """Returns the same without the loss, which stands for what reads a value that nothing reads."""
        return self._in_values.largest(key)

    def tells_what_reads(self, key: str) -> bool:
        """Returns whether the graph has what reads a value, if anything: PyTorch's ends where no module is called."""
        return self._read is None or key in self._read

    def bear_out(self, key: str, error: float) -> None:
        """Adds the relative error of a value of a pair by place that leaves a trace."""
        self._likely.add(key, error)
        self._in_values.add(key, error)

    def only_loss_is_behind(self, key: str) -> bool:
        """Returns whether nothing is compared behind a value but the loss, where pairs by place are left out."""
        return all(is_loss(self._source, each) for each in self._readers.behind(key))

    def agreeing_before(self, key: str) -> Iterator[str]:
        """Yields the nearest compared values that agree and that a value is computed from, by the reference's keys."""
        rows = (self._rows[each] for each in self._nearest.behind(key))
        yield from (key_of(row.family, row.name) for row in rows if (row.family, row.status) == (ACTIVATION, "same"))

    def readers(self, key: str) -> Collection[str]:
        """Returns the keys of what is computed from a value at once."""
        return self._readers_at_once.get(key, ())

    def shows(self, key: str) -> bool:
        """Returns whether anything that is computed from a value differs."""
        waiting, seen = [*self.readers(key)], {key}
        while waiting:
            each = waiting.pop()
            row = self._rows.get(each)
            if each in self.differing or (row is not None and row.status == "different"):
                return True
            waiting += () if each in seen else self.readers(each)
            seen.add(each)
        return False

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
        # Pairs are decided in execution order, so that what is before these does not change.
        self._exact |= seen - {key}
        return False


def largest_trace(values: Sequence[tuple[ProgramTraces, str]]) -> float:
    """Returns the largest error of what is compared next behind the values of a pair, in either program.

    Where one program computes nothing but values that agree from its own, the loss of the other, which may have a term
    more, shows no difference of the pair.
    """
    shown = max(program.trace_in_values(key) for program, key in values)
    traces = [program.trace(key) for program, key in values]
    return shown if shown <= EXACT and min(traces) <= EXACT else max(traces)


def by_owner(
    dumps: Dumps, matches: Iterable[Match], rows: Mapping[str, ComparisonRow]
) -> tuple[dict[str, ComparisonRow], dict[str, ComparisonRow]]:
    """Returns the rows of pairs by the keys of owners in the reference, and in the candidate.

    Args:
        dumps: The dumps.
        matches: The pairs.
        rows: Their rows.
    """
    in_ref: dict[str, ComparisonRow] = {}
    in_cand: dict[str, ComparisonRow] = {}
    for match in matches:
        in_ref[dumps.ref.resolve(match.ref)] = rows[match.ref]
        in_cand |= {dumps.cand.resolve(key): rows[match.ref] for key in match.recipe.keys}
    return in_ref, in_cand
