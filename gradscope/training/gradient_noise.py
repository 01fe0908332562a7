"""The noise of gradients is how far the gradient of one example is from that of all.

A batch is split into groups, of one example each where nothing else is requested, and h[k] is the gradient of the
user's own loss on group k. With n groups of b examples, and per element the mean m and the unbiased variance v of h:

    variance  tr(S) = b * sum(v)              trace of the covariance of the gradient of one example
    signal    |G|^2 = sum(m^2) - sum(v) / n   square of the norm of the expected gradient; unbiased, so maybe negative
    noise scale     = tr(S) / |G|^2           examples in a batch above which a larger one hardly helps
    GSNR            = G^2 / S per element     here ((n - 3) / (n - 1) * m^2 / v - 1 / n) / b, then the mean

The estimate of the GSNR is unbiased where gradients are normally distributed. Elements whose gradient is the same in
all groups have none: rows of an embedding that no example uses.

The groups are computed one after the other, and their moments by Welford's recurrence: in memory are three copies of
the gradients, for any number of examples. `jax.vmap` would need one for each example, and a batching rule for every
operation of the loss.

Sharp edges: where the loss couples examples, as batch norm does, the loss of a group is another function than that of
the batch. `coupling` says by how much, and larger groups bring both together.

References:
    McCandlish, Kaplan, Amodei: An Empirical Model of Large-Batch Training, 2018, appendix A.1.
        https://arxiv.org/abs/1812.06162
    Liu, Bai, Jiang, Chen, Wang: Understanding Why Neural Networks Generalize Well Through GSNR of Parameters, 2020.
        https://arxiv.org/abs/2001.07384
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.records.example_gradients import example_count
from gradscope.errors import UsageError
from gradscope.tracing.jaxpr.sharding import with_whole_axis
from gradscope.tracing.leaves import leaves_of
from gradscope.training.optimizers.tree_norm import tree_norm
from gradscope.training.state import named_leaves

#: The fewest groups of which a variance is known.
_FEWEST: Final = 2
#: The fewest groups of which the GSNR is: one more than its estimate subtracts.
_FEWEST_FOR_GSNR: Final = 4


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """A `GradientNoise` is the noise of the gradients of one batch; a pytree.

    Attributes:
        groups: Gradients that it was computed from.
        group_size: Examples in each of them.
        variance: Trace of the covariance of the gradient of one example, by parameter, 0-d.
        signal: Square of the l2 norm of the expected gradient, by parameter, 0-d; negative where noise hides it.
        gsnr: Mean of the gradient's signal-to-noise ratio over the elements, by parameter, 0-d; NaN of fewer than four
            groups, and where no element varies.
        varying: Elements whose gradient is not the same in all groups, by parameter, 0-d.
        coupling: Distance of the mean of the groups' gradients (or of their sum, where that is nearer) from the batch's
            gradient, as a share of the latter's norm, 0-d: beyond rounding where the loss is no mean over examples.
    """

    groups: int = field(metadata={"static": True})
    group_size: int = field(metadata={"static": True})
    variance: dict[str, Any]
    signal: dict[str, Any]
    gsnr: dict[str, Any]
    varying: dict[str, Any]
    coupling: Any

    @property
    def total_variance(self) -> Any:
        """The variance of all trained parameters together, 0-d."""
        return sum(self.variance.values())

    @property
    def total_signal(self) -> Any:
        """The signal of all trained parameters together, 0-d."""
        return sum(self.signal.values())

    @property
    def noise_scale(self) -> Any:
        """`tr(S) / |G|^2` of this batch alone, 0-d; of several batches, average both before dividing."""
        return self.total_variance / self.total_signal


def split_into_groups(batch: Any, batch_size: int | None, group_size: int) -> tuple[int, list[bool]]:
    """Returns the number of groups of a batch, and which of its leaves are split among them.

    Args:
        batch: The batch: arrays, or their shapes.
        batch_size: Its examples; None where its leaves state it.
        group_size: Examples in a group.

    Raises:
        UsageError: No axis of the batch is that of examples, or they do not make at least two groups.
    """
    leaves = leaves_of(batch, naming.INPUT)
    count = example_count(leaves, batch_size)
    if count % group_size:
        raise UsageError(
            f"{count} examples do not make groups of {group_size}", hint="the size of a group divides that of the batch"
        )
    if count // group_size < _FEWEST:
        raise UsageError(
            f"the noise of gradients needs at least two groups of examples, and the batch has {count // group_size}",
            hint="make the batch larger, or the groups smaller",
        )
    return count // group_size, [leaf.shape[:1] == (count,) for leaf in leaves]


def gradient_noise(
    gradient: Callable[[Any, Any], Any], batch: Any, *, groups: int, is_split: Sequence[bool], group_size: int
) -> GradientNoise:
    """Returns the noise of the gradients of a batch.

    Args:
        gradient: Returns the gradients of a batch, the first argument, whose random keys are folded with the second.
        batch: The batch.
        groups: Number of groups.
        is_split: Which of its leaves are split among them.
        group_size: Examples in each.
    """
    leaves, structure = jax.tree_util.tree_flatten(batch)
    split = [
        with_whole_axis(leaf).reshape(groups, group_size, *leaf.shape[1:])
        for leaf, each in zip(leaves, is_split, strict=True)
        if each
    ]

    def of_group(number: Any, parts: Sequence[Any]) -> dict[str, Any]:
        remaining = iter(parts)
        joined = [next(remaining) if each else leaf for leaf, each in zip(leaves, is_split, strict=True)]
        return named_leaves(gradient(jax.tree_util.tree_unflatten(structure, joined), number))

    def add(moments: tuple[Any, Any], group: tuple[Any, Any]) -> tuple[tuple[Any, Any], None]:
        (means, squares), (number, parts) = moments, group
        found = of_group(number, parts)
        away = {name: found[name].astype(mean.dtype) - mean for name, mean in means.items()}
        means = {name: mean + away[name] / (number + 1).astype(mean.real.dtype) for name, mean in means.items()}
        squares = {
            name: each + (away[name].conj() * (found[name].astype(means[name].dtype) - means[name])).real
            for name, each in squares.items()
        }
        return (means, squares), None

    of_batch = named_leaves(gradient(batch, 0))
    zeros = {name: jnp.zeros(each.shape, _wide(each.dtype)) for name, each in of_batch.items()}
    start = (zeros, {name: each.real for name, each in zeros.items()})
    (means, squares), _ = jax.lax.scan(add, start, (jnp.arange(groups), split))
    variances = {name: each / (groups - 1) for name, each in squares.items()}
    powers = {name: jnp.abs(mean) ** 2 for name, mean in means.items()}
    return GradientNoise(
        groups=groups,
        group_size=group_size,
        variance={name: group_size * each.sum() for name, each in variances.items()},
        signal={name: (powers[name] - each / groups).sum() for name, each in variances.items()},
        gsnr={name: _gsnr(powers[name], each, groups) / group_size for name, each in variances.items()},
        varying={name: (each > 0).sum() for name, each in variances.items()},
        coupling=_coupling(means, of_batch, groups),
    )


def _gsnr(power: Any, variance: Any, groups: int) -> Any:
    """Returns the mean over the elements that vary; NaN where it cannot be known."""
    if groups < _FEWEST_FOR_GSNR:
        return jnp.full((), jnp.nan, variance.dtype)
    varies = variance > 0
    ratio = power / jnp.where(varies, variance, 1)
    each = (groups - 3) / (groups - 1) * ratio - 1 / groups
    return jnp.where(varies, each, 0).sum() / varies.sum().astype(variance.dtype)


def _coupling(means: dict[str, Any], of_batch: dict[str, Any], groups: int) -> Any:
    apart = [
        tree_norm({name: factor * mean - of_batch[name].astype(mean.dtype) for name, mean in means.items()})
        for factor in (1, groups)
    ]
    return jnp.minimum(*apart) / tree_norm(of_batch)


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)
