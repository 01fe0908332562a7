"""Takes the turns of loops, and computes their figures."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from training_bench import loops_of_jax, loops_of_torch
from training_bench.contender import INTERVAL, Contender, Take
from training_bench.subjects import Subject

#: Seconds of rounds for one model; what is compiled comes on top.
BUDGET = 600
LEAST_ROUNDS, MOST_ROUNDS = 3, 15

#: Of a loop that has a limit: how many times as long it is measured, and the least steps.
LIMITED = 3
LEAST_STEPS = 16

#: Steps that a loop takes before it is measured: the second of a watched loop is not due.
WARM = 2
HISTOGRAMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The ratio of a loop's time to that of the plain one.

    Attributes:
        name: What watches the loop.
        what: What it watches.
        ratio: The median of all steps; where only some are watched, of these and of the others, by their shares.
        least: The least of one round.
        most: The most of one round.
        cpu: The same ratio of the seconds that all cores worked.
        seconds: The time of a step; None where the ratio is computed from others.
        limit: The ratio to hold; None where there is none.
    """

    name: str
    what: str
    ratio: float
    least: float
    most: float
    cpu: float
    seconds: float | None
    limit: float | None


def measured(
    subject: Subject, folder: Path, *, quick: bool, limited: bool, tell: Callable[[str], None]
) -> list[Figure]:
    """Returns the figures of a model.

    Args:
        subject: The model.
        folder: Where probes write.
        quick: Whether two rounds do.
        limited: Whether only loops are measured that have a limit, or from which one with a limit is computed.
        tell: Receives a line for each figure that is measured, and for what is left out.
    """
    contests = [loops_of_jax.contest(subject, folder)]
    if limited:
        contests = [replace(each, contenders=tuple(filter(_has_limit, each.contenders))) for each in contests]
    elif importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        tell("PyTorch is LEFT OUT: it takes the packages torch and transformers")
    else:
        contests.append(loops_of_torch.contest(subject))
    shares = sum(_share(each) for contest in contests for each in contest.contenders)
    figures: list[Figure] = []
    for contest in contests:
        plain = _warm(contest.plain())
        for each in contest.contenders:
            seconds = 0.0 if quick else BUDGET * _share(each) / shares
            figures.append(_figure(each, plain, seconds, least_rounds=2 if quick else _least_rounds(each)))
            tell(f"{each.name}, {each.what}: {figures[-1].ratio:.3f}")
            gc.collect()  # a loop and its state hold each other
    return [*figures, *_computed(figures)]


def _has_limit(contender: Contender) -> bool:
    return contender.limit is not None or (contender.name, contender.what) == loops_of_jax.HISTOGRAM_STEPS


def _least_rounds(contender: Contender) -> int:
    return LEAST_ROUNDS if contender.limit is None else max(LEAST_ROUNDS + 1, LEAST_STEPS // contender.round)


def _share(contender: Contender) -> float:
    return contender.round * (1 if contender.limit is None else LIMITED)


def _figure(contender: Contender, plain: Take, seconds: float, *, least_rounds: int) -> Figure:
    rounds: list[list[_Pair]] = []
    with ExitStack() as stack:
        take = _warm(contender.build(stack))
        begin = time.perf_counter()
        while len(rounds) < least_rounds or (time.perf_counter() - begin < seconds and len(rounds) < MOST_ROUNDS):
            rounds.append(_round(take, plain, contender.round))
    ratios = [sum(each.ours.seconds for each in one) / sum(each.plain.seconds for each in one) for one in rounds]
    return Figure(
        name=contender.name,
        what=contender.what,
        ratio=_ratio(contender, rounds, lambda spent: spent.seconds),
        least=min(ratios),
        most=max(ratios),
        cpu=_ratio(contender, rounds, lambda spent: spent.cpu),
        seconds=median(each.ours.seconds for one in rounds for each in one),
        limit=contender.limit,
    )


def _ratio(contender: Contender, rounds: list[list[_Pair]], spent: Callable[[_Spent], float]) -> float:
    """Returns the ratio of a loop, in which watched steps and others have a median of their own."""
    watched: list[float] = []
    others: list[float] = []
    for one in rounds:
        for at, pair in enumerate(one):
            is_due = contender.round != INTERVAL or (WARM + at) % INTERVAL == 0
            (watched if is_due else others).append(spent(pair.ours) / spent(pair.plain))
    share = len(watched) / (len(watched) + len(others))
    return share * median(watched) + ((1 - share) * median(others) if others else 0.0)


def _round(take: Take, plain: Take, steps: int) -> list[_Pair]:
    """Returns what so many steps of each loop take, step by step in alternation, each first in turn."""
    pairs: list[_Pair] = []
    for number in range(steps):
        if number % 2:
            ours = _Spent.in_step(take)
            pairs.append(_Pair(ours, _Spent.in_step(plain)))
        else:
            theirs = _Spent.in_step(plain)
            pairs.append(_Pair(_Spent.in_step(take), theirs))
    return pairs


def _warm(take: Take) -> Take:
    """Returns a loop that has compiled."""
    take(WARM)
    return take


class _Spent(NamedTuple):
    """The seconds that a step took, and those that all cores worked meanwhile."""

    seconds: float
    cpu: float

    @classmethod
    def in_step(cls, take: Take) -> _Spent:
        """Returns those of one more step of a loop, which is taken."""
        begin, worked = time.perf_counter(), time.process_time()
        take(1)
        return cls(time.perf_counter() - begin, time.process_time() - worked)


class _Pair(NamedTuple):
    """A step of a loop, and one of the plain loop beside it."""

    ours: _Spent
    plain: _Spent


def _computed(figures: list[Figure]) -> list[Figure]:
    """Returns the figures of what is rarer than a bench can wait for, from those of every step."""
    by_what = {(each.name, each.what): each for each in figures}
    histograms, all_families = by_what[loops_of_jax.HISTOGRAM_STEPS], by_what[loops_of_jax.ALL_FAMILIES]

    def ratio(value: Callable[[Figure], float]) -> float:
        recorded = (HISTOGRAMS // INTERVAL - 1) * (value(all_families) - 1)
        return 1 + (recorded + value(histograms) - 1) / HISTOGRAMS

    what = f"computed: all families every {INTERVAL} steps, and histograms every {HISTOGRAMS}"
    rarer = (by_what[each] for each in (loops_of_jax.NORMS, loops_of_torch.HOOKS) if each in by_what)
    return [_from("gradscope train", what, ratio, limit=1.02), *map(_every_tenth, rarer)]


def _every_tenth(figure: Figure) -> Figure:
    """Returns the figure of a loop that does nothing on the other steps."""
    what = f"computed: {figure.what.replace('every step', f'every {INTERVAL} steps')}"
    return _from(figure.name, what, lambda value: 1 + (value(figure) - 1) / INTERVAL, limit=None)


def _from(name: str, what: str, ratio: Callable[[Callable[[Figure], float]], float], limit: float | None) -> Figure:
    return Figure(
        name=name, what=what, ratio=ratio(lambda each: each.ratio), least=ratio(lambda each: each.least),
        most=ratio(lambda each: each.most), cpu=ratio(lambda each: each.cpu), seconds=None, limit=limit,
    )  # fmt: skip
