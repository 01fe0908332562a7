"""`train_step` makes one step of an optimizer, as a pure function whose every stage is observed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.typed_arguments import typed

if TYPE_CHECKING:
    from gradscope.training.averages import MovingAverage
    from gradscope.training.step import TrainStep


@typed("ema")
def train_step(
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    clip: Any = (),
    multiply: Mapping[str, float] | None = None,
    only: str | Sequence[str] = (),
    freeze: str | Sequence[str] = (),
    ema: float | str | MovingAverage | None = None,
    state_updates: bool = True,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
) -> TrainStep:
    """Returns one step of training as a pure function of state and batch that observes each of its stages.

    The gradients of the loss are computed, multiplied, clipped and handed to the optimizer, and its updates are added
    to the parameters. The function can be compiled, sharded, scanned and donated; its `init` makes the first state, and
    its methods `compute_gradients`, `process_gradients` and `apply_gradients` are its parts.

    Args:
        loss: `loss(variables, batch) -> scalar` or `-> (scalar, aux)`. Variables are parameters, or Flax's collections
            with `params` among them.
        optimizer: A gradient transformation of optax, or its name with literal arguments: `"adam(1e-3)"`,
            `"sgd(exponential_decay(0.1, 1000, 0.96))"`. What optax lacks has the arguments and the arithmetic of
            TensorFlow 1: `"ftrl(0.1)"`, `"momentum(0.1, 0.9)"`, `"tf1_adam(1e-3)"`, `"tf1_rmsprop(1e-3)"`.
        clip: How gradients are clipped, in order: those of `gradscope.clip`, by object or name (`"global_norm(1)"`), or
            gradient transformations of optax without a state of their own.
        multiply: Factors of gradients by pattern of parameter names, applied before clipping.
        only: Patterns of the parameters that are trained; all where empty.
        freeze: Patterns of parameters that are not trained.
        ema: The decay of exponential moving averages of the parameters, `0.999` or `"0.999,warmup"`; None for none.
        state_updates: Whether collections that the loss returns, as batch norm's running statistics, are carried on.
        select: Patterns of names to observe; all where empty. A string is one pattern.
        exclude: Patterns of names to leave out.
        families: Families to observe: those of `value_and_grad`, `clipped_grad`, `update`, `slot` or `slot/mu`,
            `average`; None for all.
        depth: Only layers of at most so many scopes.

    Returns:
        A function `step(state, batch) -> (state, seen)`. `seen` maps keys, `update/dense/kernel`, to core statistics,
        and has the loss and the global norms; its gradients are those before the update, its slots those after it.

    Raises:
        UsageError: optax is missing, a name or an argument in an expression is unknown, or a pattern is none.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradscope as gs
        >>> def loss(params, batch):
        ...     return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)
        >>> step = gs.train_step(loss, "momentum(0.1, 0.9)", clip=gs.clip.global_norm(1.0), ema=0.9)
        >>> batch = {"x": jnp.eye(3), "y": jnp.ones(3)}
        >>> state, compiled = step.init({"w": jnp.zeros(3)}), jax.jit(step)
        >>> for _ in range(3):
        ...     state, seen = compiled(state, batch)
        >>> int(state.step), sorted(seen)[2:]
        (3, ['average/w', 'clipped_grad/w', 'param/w', 'param_grad/w', 'slot/trace/w', 'update/w'])
        >>> round(float(seen.loss), 3), round(float(seen["update/w"].l2), 3)
        (0.693, 0.267)
    """
    from gradscope.training.step import make_train_step  # noqa: PLC0415 - it needs optax, which is an extra

    return make_train_step(
        loss,
        optimizer,
        clip=clip,
        multiply=multiply or {},
        only=only,
        freeze=freeze,
        ema=ema,
        state_updates=state_updates,
        spec=CaptureSpec.of(select, exclude, families, depth),
    )
