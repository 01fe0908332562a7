"""Measures the noise of gradients at the steps that are due, and turns it into rows of the run's history.

Variance and signal of one batch are noisy themselves, and the mean of their ratio is not the ratio of their means. So
each has a moving average of its own, and the noise scale is the ratio of these (McCandlish et al. 2018, appendix A.1).
The average is s += (x - s) * (1 - d) / (1 - d^t) at the t-th measurement: an exponential one without the bias of its
start, which a resumed run continues from its history bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax

from gradscope import naming
from gradscope.history.history_rows import Smoothed
from gradscope.training.gradient_noise import GradientNoise, split_into_groups
from gradscope.training.state import TrainState
from gradscope.training.step import TrainStep

#: The decay of the moving averages: about the last ten measurements count.
DECAY: Final = 0.9
#: The coupling from which a line says so: far beyond rounding.
_COUPLED: Final = 1e-2

#: The columns of `schema.NOISE` by the key of a parameter's gradient, of all trained parameters together by None.
NoiseRows = Mapping[str | None, Mapping[str, float | int | None]]


def noise_cost(batch: Any, batch_size: int | None, *, every: int, group_size: int) -> str:
    """Returns a line that says what it costs to measure the noise of gradients.

    Args:
        batch: The shapes of a batch.
        batch_size: Its examples; None where its leaves state it.
        every: Steps between two measurements.
        group_size: Examples in a group.

    Raises:
        UsageError: The batch does not make at least two groups.
    """
    groups, _ = split_into_groups(batch, batch_size, group_size)
    each = "an example" if group_size == 1 else f"{group_size} examples"
    return (
        f"the noise of gradients takes {groups} gradients of {each} one after the other, and that of the batch, every "
        f"{every} steps: about {200 / every:.3g}% more arithmetic, and memory for three more copies of the gradients"
    )


class NoiseMeasurement:
    """Measures the noise of gradients of a run, and keeps the moving averages.

    Args:
        step: The step.
        batch_size: Examples of a batch; None where its leaves state it.
        group_size: Examples in a group.
        before: The moving averages of the steps before.
        notify: Called with a line where the loss is no mean over its examples.
    """

    def __init__(
        self, step: TrainStep, *, batch_size: int | None, group_size: int, before: Mapping[str | None, Smoothed],
        notify: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._program = jax.jit(
            lambda state, batch: step.gradient_noise(state, batch, group_size=group_size, batch_size=batch_size)
        )
        self._averages = dict(before)
        self._notify: Callable[[str], None] | None = notify

    def start(self, state: TrainState, batch: Any) -> Callable[[], NoiseRows]:
        """Starts to measure the noise of a batch; what it returns waits for the device, and returns the rows."""
        found = self._program(state, batch)
        return lambda: dict(self._rows(jax.device_get(found)))

    def _rows(self, noise: GradientNoise) -> Iterator[tuple[str | None, Mapping[str, float | int | None]]]:
        coupling = float(noise.coupling)
        if self._notify is not None and coupling > _COUPLED:
            self._notify(
                f"the gradient of the batch is {100 * coupling:.0f}% from the mean of its parts: the loss couples "
                "examples, or draws for each batch; the noise is that of the parts (--microbatch makes them larger)"
            )
            self._notify = None
        varying = {name: int(count) for name, count in noise.varying.items()}
        total = sum(varying.values())
        mean = sum(float(noise.gsnr[name]) * count for name, count in varying.items() if count) / max(total, 1)
        gsnr = mean if total else math.nan
        yield (
            None,
            self._row(None, noise, float(noise.total_variance), float(noise.total_signal), gsnr)
            | {"coupling": _known(coupling)},
        )
        for name, variance in noise.variance.items():
            key = naming.key_of(naming.PARAM_GRAD, name)
            yield key, self._row(key, noise, float(variance), float(noise.signal[name]), float(noise.gsnr[name]))

    def _row(
        self, key: str | None, noise: GradientNoise, variance: float, signal: float, gsnr: float
    ) -> dict[str, float | int | None]:
        row: dict[str, float | int | None] = {"groups": noise.groups, "group_size": noise.group_size}
        if not (math.isfinite(variance) and math.isfinite(signal)):
            return row
        average = self._averages[key] = smoothed(self._averages.get(key, Smoothed()), variance, signal)
        return {
            **row, "variance": variance, "signal": signal, "variance_smoothed": average.variance,
            "signal_smoothed": average.signal, "gsnr": _known(gsnr),
            "noise_scale": average.variance / average.signal if average.signal > 0 else None,
        }  # fmt: skip


def smoothed(before: Smoothed, variance: float, signal: float) -> Smoothed:
    """Returns the moving averages with one measurement more."""
    count = before.count + 1
    weight = (1 - DECAY) / (1 - DECAY**count)
    return Smoothed(
        variance=before.variance + (variance - before.variance) * weight,
        signal=before.signal + (signal - before.signal) * weight,
        count=count,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
