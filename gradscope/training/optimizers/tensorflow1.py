"""TensorFlow 1 has four optimizers that optax lacks; these have its arguments and arithmetic.

optax's Adam adds epsilon to the bias-corrected root where TensorFlow 1 adds it to the raw one ("epsilon hat"), its
RMSProp starts at zeros, and multiplies by the learning rate outside the momentum; it has no Ftrl. Elsewhere
(gradient descent, Adagrad with `eps=0`, Adadelta) its numbers are TensorFlow's.

References:
    TensorFlow 1.15, core/kernels/training_ops.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

#: A learning rate: a number, or a schedule, a function of the number of steps that were taken before.
LearningRate = float | Callable[[Any], Any]


class FtrlState(NamedTuple):
    """An `FtrlState` has the slots of `ftrl`: sums of squares and of linearised losses' gradients, and a step count."""

    count: Any
    accum: Any
    linear: Any


def ftrl(
    learning_rate: LearningRate,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
) -> optax.GradientTransformation:
    """Returns FTRL-Proximal with L1 and L2 regularisation, `tf.compat.v1.train.FtrlOptimizer`.

    Args:
        learning_rate: A number or a schedule.
        learning_rate_power: Power of the sums of squares in the rate of each weight; at most 0.
        initial_accumulator_value: Start of the sums of squares; above 0.
        l1: Strength of the L1 regularisation; at least 0.
        l2: Strength of the L2 regularisation; at least 0.

    Raises:
        ValueError: An argument is out of its range.

    References:
        McMahan et al., Ad Click Prediction: a View from the Trenches, 2013, algorithm 1.
    """
    if learning_rate_power > 0 or initial_accumulator_value <= 0 or l1 < 0 or l2 < 0:
        raise ValueError(
            "learning_rate_power must be at most 0, initial_accumulator_value above 0, l1 and l2 at least 0"
        )

    def init(params: Any) -> FtrlState:
        return FtrlState(_zero(), _full_like(params, initial_accumulator_value), _full_like(params, 0.0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, FtrlState]:
        def weight(gradient: Any, accum: Any, linear: Any, param: Any) -> tuple[Any, Any, Any]:
            rate = _rate_of(learning_rate, state.count, gradient)
            squares = accum + gradient * gradient
            sigma = (squares**-learning_rate_power - accum**-learning_rate_power) / rate
            linear += gradient - sigma * param
            quadratic = squares**-learning_rate_power / rate + 2 * l2
            new = jnp.where(jnp.abs(linear) > l1, (jnp.sign(linear) * l1 - linear) / quadratic, 0.0)
            return new - param, squares, linear

        new, accum, linear = _by_weight(weight, updates, state.accum, state.linear, _required(params))
        return new, FtrlState(state.count + 1, accum, linear)

    return optax.GradientTransformation(init, update)


def momentum(
    learning_rate: LearningRate, momentum: float, use_nesterov: bool = False
) -> optax.GradientTransformationExtraArgs:
    """Returns gradient descent with momentum, `tf.compat.v1.train.MomentumOptimizer`; its slot is called `trace`."""
    return optax.sgd(learning_rate, momentum=momentum, nesterov=use_nesterov)


class Tf1AdamState(NamedTuple):
    """A `Tf1AdamState` has the slots of `tf1_adam`: TensorFlow's `m` and `v`, a step count, and the decays' powers."""

    count: Any
    beta1_power: Any
    beta2_power: Any
    mu: Any
    nu: Any


def tf1_adam(
    learning_rate: LearningRate, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """Returns Adam as `tf.compat.v1.train.AdamOptimizer` has it: epsilon is added before the bias is corrected.

    Args:
        learning_rate: A number or a schedule.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of their squares.
        epsilon: "Epsilon hat" of the paper.

    References:
        Kingma and Ba, Adam, 2015, the last paragraph of section 2.
    """
    # One minus a decay near one is wrong in the fifth digit in float32. As in TensorFlow, every use has the same error,
    # so that they cancel.
    first, second = np.float32(beta1), np.float32(beta2)

    def init(params: Any) -> Tf1AdamState:
        powers = jnp.float32(1), jnp.float32(1)
        return Tf1AdamState(_zero(), *powers, _full_like(params, 0.0), _full_like(params, 0.0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Tf1AdamState]:
        del params
        powers = state.beta1_power * first, state.beta2_power * second
        rate = _rate(learning_rate, state.count) * jnp.sqrt(1 - powers[1]) / (1 - powers[0])

        def weight(gradient: Any, mu: Any, nu: Any) -> tuple[Any, Any, Any]:
            mu += (gradient - mu) * (1 - first).astype(mu.dtype)
            nu += (gradient * gradient - nu) * (1 - second).astype(nu.dtype)
            return -rate * mu / (jnp.sqrt(nu) + epsilon), mu, nu

        new, mu, nu = _by_weight(weight, updates, state.mu, state.nu)
        return new, Tf1AdamState(state.count + 1, *powers, mu, nu)

    return optax.GradientTransformation(init, update)


class Tf1RmspropState(NamedTuple):
    """A `Tf1RmspropState` has the slots of `tf1_rmsprop`: means of gradients and squares, momentum, a step count."""

    count: Any
    mu: Any
    nu: Any
    mom: Any


def tf1_rmsprop(
    learning_rate: LearningRate,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    centered: bool = False,
) -> optax.GradientTransformation:
    """Returns RMSProp as `tf.compat.v1.train.RMSPropOptimizer` has it: means of squares start at ones.

    Args:
        learning_rate: A number or a schedule; it is a factor of what is added to the momentum.
        decay: Decay of the means.
        momentum: Decay of the momentum.
        epsilon: Added to the mean of squares, below the root.
        centered: Whether gradients are divided by their standard deviation instead of their root mean square.

    References:
        Hinton, Neural Networks for Machine Learning, lecture 6e, 2012.
    """

    def init(params: Any) -> Tf1RmspropState:
        return Tf1RmspropState(_zero(), _full_like(params, 0.0), _full_like(params, 1.0), _full_like(params, 0.0))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Tf1RmspropState]:
        del params

        def weight(gradient: Any, mu: Any, nu: Any, mom: Any) -> tuple[Any, Any, Any, Any]:
            rate = _rate_of(learning_rate, state.count, gradient)
            nu += (gradient * gradient - nu) * (1 - decay)
            if centered:
                mu += (gradient - mu) * (1 - decay)
            mom = momentum * mom + rate * gradient / jnp.sqrt(nu - mu * mu + epsilon)
            return -mom, mu, nu, mom

        new, mu, nu, mom = _by_weight(weight, updates, state.mu, state.nu, state.mom)
        return new, Tf1RmspropState(state.count + 1, mu, nu, mom)

    return optax.GradientTransformation(init, update)


def _zero() -> Any:
    return jnp.zeros((), jnp.int32)


def _full_like(params: Any, value: float) -> Any:
    return jax.tree_util.tree_map(lambda param: jnp.full_like(param, value), params)


def _rate(learning_rate: LearningRate, count: Any) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate


def _rate_of(learning_rate: LearningRate, count: Any, gradient: Any) -> Any:
    """Returns the learning rate of one weight: in its dtype, as in TensorFlow, so that slots keep theirs."""
    rate = _rate(learning_rate, count)
    return rate.astype(gradient.dtype) if isinstance(rate, jax.Array) else rate


def _required(params: Any) -> Any:
    if params is None:
        raise ValueError("ftrl computes new weights from the old ones: pass params to update")
    return params


def _by_weight(weight: Callable[..., tuple[Any, ...]], gradients: Any, *trees: Any) -> tuple[Any, ...]:
    """Returns one tree for each of a function's results; it is called for each weight with its gradient and slots."""
    leaves, structure = jax.tree_util.tree_flatten(gradients)
    others = [structure.flatten_up_to(tree) for tree in trees]
    results = [weight(*each) for each in zip(leaves, *others, strict=True)]
    return tuple(structure.unflatten(column) for column in zip(*results, strict=True))
