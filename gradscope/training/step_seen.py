"""`StepSeen` is what a training step observed: statistics of every stage, and the numbers of the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.core import Tracer

from gradscope.capturing.in_steps.seen import CoreStatistics
from gradscope.errors import UsageError
from gradscope.instrument.statistics.core_columns import scalars_of
from gradscope.naming import split_key
from gradscope.naming.selecting.nearest_names import missing_key
from gradscope.naming.summary import Summary

#: The numbers of a step, in the order in which a run's history has them.
NUMBERS: Final = ("loss", "learning_rate", "grad_norm", "grad_norm_clipped", "update_norm", "param_norm")


@jax.tree_util.register_pytree_node_class
class StepSeen(Mapping[str, CoreStatistics]):
    """`StepSeen` maps keys to statistics: those of `Seen`, and `clipped_grad/`, `update/`, `slot/mu/`, `average/`.

    Args:
        backward: The observations of the loss and its gradients, a `Seen`; empty where none were made.
        stages: Vectors of core statistics by key.
        numbers: The numbers of the step, by the names of `NUMBERS`; an unknown learning rate is absent.
        aux: What the loss returned beside the scalar; None where nothing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradscope as gs
        >>> step = gs.train_step(lambda w, x: ((w["a"] * x) ** 2).mean(), "sgd(0.5)", clip=gs.clip.norm(1))
        >>> state, seen = jax.jit(step)(step.init({"a": jnp.ones(2)}), jnp.array([3.0, 4.0]))
        >>> float(seen["clipped_grad/a"].l2), float(seen["update/a"].l2), float(seen.loss)
        (1.0, 0.5, 12.5)
    """

    def __init__(
        self,
        backward: Mapping[str, CoreStatistics],
        stages: Mapping[str, Any],
        numbers: Mapping[str, Any],
        aux: Any,
    ) -> None:
        self.backward = backward
        self.stages = dict(stages)
        self.numbers = dict(numbers)
        self.aux = aux

    def __getitem__(self, key: str) -> CoreStatistics:
        if key in self.stages:
            return CoreStatistics(self.stages[key])
        if key in self.backward:
            return self.backward[key]
        raise missing_key("nothing was observed as", key, self)

    def __iter__(self) -> Iterator[str]:
        return chain(self.backward, self.stages)

    def __len__(self) -> int:
        return len(self.backward) + len(self.stages)

    @property
    def loss(self) -> Any:
        """The loss before the update, 0-d."""
        return self.numbers["loss"]

    @property
    def grad_norm(self) -> Any:
        """The l2 norm of the gradients of all trained parameters together, as differentiated."""
        return self.numbers["grad_norm"]

    def scalars(self, columns: Sequence[str] = ("l2", "rms")) -> dict[str, float]:
        """Returns the numbers of the step and the statistics as a flat dictionary of floats, for wandb and the like.

        It waits for the step, once for all of it.

        Args:
            columns: The statistics: `l2`, `rms`, `mean`, `std`, `amax`, `zeros`, `nan`, `inf`.

        Returns:
            `loss`, `grad_norm`, ..., and the statistics by key and column, `update/head/kernel/l2`; those that a tensor
            without a finite element lacks are left out.

        Raises:
            UsageError: There is no such statistic, or these are observations of several steps.
        """
        if jnp.ndim(self.loss):
            raise UsageError("these are observations of several steps, and a tracker takes those of one")
        numbers = {name: float(value) for name, value in jax.device_get(self.numbers).items()}
        return {**numbers, **scalars_of(self, columns)}

    def __repr__(self) -> str:
        return self.summary().one_line("StepSeen")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()

    def summary(self) -> Summary:
        """Returns the numbers of the step, where it has run, and the keys that were observed by family."""
        concrete = {name: each for name, each in self.numbers.items() if not isinstance(each, Tracer)}
        known = ", ".join(f"{name} {float(each):.6g}" for name, each in concrete.items() if jnp.ndim(each) == 0)
        families = Counter(split_key(key)[0] for key in self)
        line = ", ".join(filter(None, [known, f"{len(self):,} tensors"]))
        return Summary(line=line, headings=("family", "tensors"), rows=tuple(families.items()))

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns the observations; keys are part of the pytree."""
        return (self.backward, self.stages, self.numbers, self.aux), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> StepSeen:
        """Restores the observations from the output of `tree_flatten`."""
        made = cls.__new__(cls)  # JAX also builds pytrees whose parts are no arrays and no mappings
        made.backward, made.stages, made.numbers, made.aux = children
        return made
