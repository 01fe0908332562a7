"""The saturations of a run are the bounded functions inside its layers that are at their limits, by iteration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from gradscope.capturing.execution.observation import gathered
from gradscope.capturing.execution.order import ExecutionOrder
from gradscope.capturing.execution.run import Run, SiteIteration, site_iterations
from gradscope.dump.manifest.operation_facts import Clip, RandomMask, Saturation, SoftmaxUse
from gradscope.dump.manifest.operation_facts.random_mask import LARGEST_RATE
from gradscope.instrument.saturation_observer import noise_share, reads, saturated
from gradscope.tracing.jaxpr.frames import iterations

#: What is not reported: most functions are nowhere near a limit, in each of a thousand iterations.
_LITTLE: Final = 0.1


def saturations_of(run: Run, order: ExecutionOrder) -> Iterator[Saturation]:
    """Yields how far each bounded function is at its limits, in the iterations that ran, where it is more than a bit.

    Where several processes share the run, all of them have to call this.
    """
    sums = {noisy.site.value: number for number, noisy in run.plan.noisy.items()}
    for number, bounded in run.plan.bounded.items():
        site, layer = bounded.site, bounded.layer
        if bounded.function in ("clip", "attention", "mask"):
            continue
        if bounded.noise is not None and bounded.noise.site.value not in sums:
            continue  # it was observed in another run, so that it is not known whether the noise saturates the function
        noise = None if bounded.noise is None else _numbers(run, sums[bounded.noise.site.value])
        numbers = _numbers(run, number)
        for iteration in site_iterations(run, number):
            share = saturated(bounded, numbers[iteration.at]) if iteration.executed else 0.0
            if share > _LITTLE or (bounded.again and iteration.executed):
                own = iteration.iteration
                yield Saturation(
                    function=bounded.function,
                    index=order.rank_between(site.loops, site.order, iteration.nominal),
                    saturated=share,
                    layer=None if layer is None else str(layer.path.at(own[: len(layer.frame.loops)])),
                    inputs=tuple(str(each.names[0].at(own[: len(each.loops)])) for each in bounded.inputs()),
                    source=site.source,
                    iteration=own,
                    names=() if bounded.named is None else tuple(str(each.at(own)) for each in bounded.named.names),
                    # The sum may be outside the innermost loops around the function.
                    noise=0.0 if noise is None else noise_share(noise[iteration.at[: noise.ndim - 1]]),
                    again=bounded.again,
                )


def clips_of(run: Run, order: ExecutionOrder) -> Iterator[Clip]:
    """Yields the clips of which more than a bit is at a limit, in the iterations that ran.

    Where several processes share the run, all of them have to call this.
    """
    for number, bounded in run.plan.bounded.items():
        if bounded.limits is None:
            continue
        ran = _ran(run, number)
        share = _mean(saturated(bounded, numbers) for numbers, _ in ran)
        if share > _LITTLE:
            site, (low, high) = bounded.site, bounded.limits
            index = order.rank_between(site.loops, site.order, ran[0][1].nominal)
            yield Clip(low=low, high=high, share=share, index=index, source=site.source)


def random_masks_of(run: Run, order: ExecutionOrder) -> Iterator[RandomMask]:
    """Yields the random masks that drop more than a usual rate, in the iterations that ran.

    Where several processes share the run, all of them have to call this.
    """
    for number, bounded in run.plan.bounded.items():
        if bounded.mask is None:
            continue
        ran = _ran(run, number)
        share = _mean(saturated(bounded, numbers) for numbers, _ in ran)
        if share > LARGEST_RATE:
            site = bounded.site
            zeros = (str(each.names[0].at(at)) for each in bounded.mask.zeros for at in iterations(each.loops))
            yield RandomMask(
                share=share,
                elements=math.prod(site.shape) * len(ran),
                index=order.rank_between(site.loops, site.order, ran[0][1].nominal),
                names=tuple(dict.fromkeys(zeros)),
                source=bounded.mask.source,
            )


def attentions_of(run: Run) -> Iterator[SoftmaxUse]:
    """Yields attention in which no position reads those before it, or none itself, in any iteration that ran.

    Where several processes share the run, all of them have to call this.
    """
    for number, bounded in run.plan.bounded.items():
        if bounded.positions is None:
            continue
        read = [reads(bounded, numbers) for numbers, _ in _ran(run, number)]
        before, own, behind = np.mean(read, axis=0).tolist() if read else (0.0, 0.0, 0.0)
        if (not before and behind) or (not own and (before or behind)):
            keys = bounded.positions[1]
            yield SoftmaxUse(
                shape=bounded.site.shape, over=(keys,), summed=(keys,), reads=(before, own, behind),
                source=bounded.site.source,
            )  # fmt: skip


def _ran(run: Run, number: int) -> list[tuple[np.ndarray, SiteIteration]]:
    """Returns what was observed at a site in each iteration that ran."""
    numbers = _numbers(run, number)
    return [(numbers[each.at], each) for each in site_iterations(run, number) if each.executed]


def _mean(shares: Iterable[float]) -> float:
    """Returns the mean of some shares; 0 of none."""
    known = [*shares]
    return sum(known) / max(len(known), 1)


def _numbers(run: Run, number: int) -> np.ndarray:
    return np.asarray(gathered(run.observed.captured.values[number]))
