"""Exponential moving averages of parameters are computed as by `tf.train.ExponentialMovingAverage`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gradscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """A `MovingAverage` is that of each trained parameter, exponential, and starts at the parameter itself.

    Attributes:
        decay: The share of the old average that each step keeps; between 0 and 1.
        warmup: Whether the n-th step keeps at most (1 + n) / (10 + n), so that early parameters are forgotten soon, as
            TensorFlow has it with `num_updates=global_step`.

    Raises:
        UsageError: The decay is not between 0 and 1.
    """

    decay: float
    warmup: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise UsageError(f"the decay of a moving average is between 0 and 1, not {self.decay:g}", hint="0.999")

    @classmethod
    def parse(cls, text: str) -> MovingAverage:
        """Returns the average that a text states: `0.999`, or `0.999,warmup`.

        Raises:
            UsageError: The text states none.
        """
        number, comma, word = text.partition(",")
        try:
            decay = float(number)
        except ValueError as error:
            raise UsageError(f"{text!r} is no decay of a moving average", hint="0.999, or 0.999,warmup") from error
        if comma and word.strip() != "warmup":
            raise UsageError(f"{word.strip()!r} is not known of a moving average", hint="0.999, or 0.999,warmup")
        return cls(decay, warmup=bool(comma))

    def updated(self, average: Any, params: Any, step: Any) -> Any:
        """Returns the averages after a step.

        Args:
            average: The averages before it.
            params: The parameters after it.
            step: The number of the step, counted from 1.
        """
        number = jnp.asarray(step, jnp.float32)
        decay = jnp.minimum(self.decay, (1 + number) / (10 + number)) if self.warmup else self.decay
        averaged = optax.incremental_update(params, average, 1 - decay)
        return jax.tree_util.tree_map(lambda new, old: new.astype(old.dtype), averaged, average)
