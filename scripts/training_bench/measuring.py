"""Takes the turns of loops, and computes their figures."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from training_bench import loops_of_jax, loops_of_torch
from training_bench.contender import INTERVAL, Contender, Take
from training_bench.subjects import Subject

#: Seconds of rounds for one model; what is compiled comes on top.
BUDGET = 600
LEAST_ROUNDS, MOST_ROUNDS = 3, 15

#: How many times as long a loop is measured that has a limit.
LIMITED = 3
HISTOGRAMS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The ratio of a loop's time to that of the plain one.

    Attributes:
        name: What watches the loop.
        what: What it watches.
        ratio: The median of all rounds.
        least: The least of one round.
        most: The most of one round.
        cpu: The median ratio of the seconds that all cores worked.
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


def measured(subject: Subject, folder: Path, *, quick: bool, tell: Callable[[str], None]) -> list[Figure]:
    """Returns the figures of a model.

    Args:
        subject: The model.
        folder: Where probes write.
        quick: Whether two rounds do.
        tell: Receives a line for each figure that is measured, and for what is left out.
    """
    contests = [loops_of_jax.contest(subject, folder)]
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        tell("PyTorch is LEFT OUT: it takes the packages torch and transformers")
    else:
        contests.append(loops_of_torch.contest(subject))
    shares = sum(_share(each) for contest in contests for each in contest.contenders)
    figures: list[Figure] = []
    for contest in contests:
        plain = _warm(contest.plain())
        for each in contest.contenders:
            seconds = 0.0 if quick else BUDGET * _share(each) / shares
            figures.append(_figure(each, plain, seconds, least_rounds=2 if quick else LEAST_ROUNDS))
            tell(f"{each.name}, {each.what}: {figures[-1].ratio:.3f}")
            gc.collect()  # a loop and its state hold each other
    return [*figures, *_computed(figures)]


def _share(contender: Contender) -> float:
    return contender.round * (1 if contender.limit is None else LIMITED)


def _figure(contender: Contender, plain: Take, seconds: float, *, least_rounds: int) -> Figure:
    rounds: list[tuple[_Spent, _Spent]] = []
    with ExitStack() as stack:
        take = _warm(contender.build(stack))
        begin = time.perf_counter()
        while len(rounds) < least_rounds or (time.perf_counter() - begin < seconds and len(rounds) < MOST_ROUNDS):
            rounds.append(_round(take, plain, contender.round))
    ratios = [ours.seconds / theirs.seconds for ours, theirs in rounds]
    return Figure(
        name=contender.name,
        what=contender.what,
        ratio=median(ratios),
        least=min(ratios),
        most=max(ratios),
        cpu=median(ours.cpu / theirs.cpu for ours, theirs in rounds),
        seconds=median(ours.seconds / contender.round for ours, _ in rounds),
        limit=contender.limit,
    )


def _round(take: Take, plain: Take, steps: int) -> tuple[_Spent, _Spent]:
    """Returns what so many steps of each loop take, step by step in alternation, each first in turn."""
    spent = {take: _NOTHING, plain: _NOTHING}
    for number in range(steps):
        for each in (take, plain) if number % 2 else (plain, take):
            spent[each] = spent[each].plus_step(each)
    return spent[take], spent[plain]


def _warm(take: Take) -> Take:
    """Returns a loop that has compiled: of a watched loop, the second step is not due."""
    take(2)
    return take


class _Spent(NamedTuple):
    """The seconds that some steps took, and those that all cores worked meanwhile."""

    seconds: float
    cpu: float

    def plus_step(self, take: Take) -> _Spent:
        """Returns the same with one more step of a loop, which is taken."""
        begin, worked = time.perf_counter(), time.process_time()
        take(1)
        return _Spent(self.seconds + time.perf_counter() - begin, self.cpu + time.process_time() - worked)


_NOTHING = _Spent(0.0, 0.0)


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
