"""`train_step` makes one step of training a pure function, in the parts that TensorFlow users know.

A step computes the gradients of a loss (`compute_gradients`), processes them, and applies them (`apply_gradients`).
Each part is a pure function of arrays, so that a step can be compiled, sharded, scanned and donated like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gradscope import naming
from gradscope.capturing.in_steps.signature import Signature
from gradscope.capturing.in_steps.value_and_grad import OBSERVERS, Keep, observing_value_and_grad
from gradscope.errors import UsageError
from gradscope.instrument.query.capture_spec import EVERYTHING, CaptureSpec
from gradscope.tracing.tracer import loss_and_auxiliary
from gradscope.training.averages import MovingAverage
from gradscope.training.carrying import carried_on, with_keys_folded
from gradscope.training.gradient_noise import GradientNoise, gradient_noise, split_into_groups
from gradscope.training.optimizers.optimizers_by_name import Optimizer, parse_clip, parse_optimizer
from gradscope.training.optimizers.stated_learning_rate import stated_learning_rate
from gradscope.training.optimizers.tree_norm import tree_norm
from gradscope.training.optimizers.updating import initial, updated
from gradscope.training.processing import Processing, merged
from gradscope.training.state import TrainState, named_leaves, with_collections, with_params
from gradscope.training.step_seen import StepSeen
from gradscope.typed_arguments import typed


class Gradients(NamedTuple):
    """`Gradients` are those of one batch, with what was computed with them.

    Attributes:
        loss: The loss, 0-d.
        aux: What the loss returned beside the scalar; None where nothing.
        gradients: The gradients of the trained parameters: the parameters' pytree, with None for all others.
        seen: The observations of the loss and its gradients, a `Seen`; empty where no family is observed.
    """

    loss: Any
    aux: Any
    gradients: Any
    seen: Mapping[str, Any]


class TrainStep:
    """A `TrainStep` is called as `step(state, batch) -> (state, seen)`; its `init` makes the first state.

    Args:
        loss: `loss(variables, batch) -> scalar` or `-> (scalar, aux)`.
        optimizer: The optimizer, of optax.
        processing: What happens to gradients before the optimizer gets them.
        average: The moving averages to keep; None for none.
        state_updates: Whether collections that the loss returns replace those of the variables.
        spec: The selection that is observed.
        keep: What is observed of it: statistics, or these with a histogram.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], Any],
        optimizer: Any,
        processing: Processing,
        *,
        average: MovingAverage | None,
        state_updates: bool,
        spec: CaptureSpec,
        keep: Keep = "stats",
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._processing = processing
        self._average = average
        self._state_updates = state_updates
        self._spec = spec
        self._keep: Keep = keep
        self._families = spec.families | ({naming.SLOT_PREFIX} if spec.families == EVERYTHING else frozenset())

    def init(self, variables: Any) -> TrainState:
        """Returns the state before the first step.

        Args:
            variables: What the model's `init` returns.

        Raises:
            UsageError: A pattern matches no parameter, no parameter is trained, or the optimizer refuses them.
        """
        state = TrainState(jnp.zeros((), jnp.int32), variables, None, None)
        self._processing.require_matches(state.params)
        trained = self._processing.trained_of(state.params)
        # Copies: a state whose parameters and averages were the same arrays could not be donated.
        average = None if self._average is None else jax.tree_util.tree_map(jnp.array, trained)
        return TrainState(state.step, variables, initial(self._optimizer, trained), average)

    def compute_gradients(self, state: TrainState, batch: Any) -> Gradients:
        """Returns the loss of a batch and its gradients; nothing in the state changes."""

        def of_params(params: Any, variables: Any, batch: Any) -> tuple[Any, Any]:
            return loss_and_auxiliary(self._loss(with_params(variables, params), batch), self._loss)

        arguments = (state.params, with_params(state.variables, None), batch)
        seen: Mapping[str, Any] = {}
        if self._spec.families:
            run = observing_value_and_grad(of_params, Signature(has_aux=True, allow_int=True), self._spec, self._keep)
            ((loss, aux), gradients), seen = run(*arguments)
        else:  # the program that would run without us
            (loss, aux), gradients = jax.value_and_grad(of_params, has_aux=True, allow_int=True)(*arguments)
        return Gradients(loss, aux, self._trained_only(gradients, state), seen)

    def gradient_noise(
        self, state: TrainState, batch: Any, *, group_size: int = 1, batch_size: int | None = None
    ) -> GradientNoise:
        """Returns the noise of the gradients of a batch, from those of its examples or of groups of them.

        It computes the gradient of each group, one after the other, and that of the batch: as much arithmetic as two
        steps. Compile it, `jax.jit(step.gradient_noise)`, and call it on a clock of its own.

        Args:
            state: The state before the step; nothing in it changes.
            batch: The batch, whose leaves have an axis of examples first; those that have none go to each group whole.
            group_size: Examples in a group: more than one where the loss couples examples, as batch norm does.
            batch_size: Examples of the batch; None where its leaves state it.

        Raises:
            UsageError: The batch has no axis of examples, or they do not make at least two groups.
        """

        def gradients(part: Any, number: Any) -> Any:
            folded = with_keys_folded(with_params(state.variables, None), number)

            def of_params(params: Any) -> Any:
                return loss_and_auxiliary(self._loss(with_params(folded, params), part), self._loss)[0]

            return self._trained_only(jax.grad(of_params, allow_int=True)(state.params), state)

        groups, is_split = split_into_groups(batch, batch_size, group_size)
        return gradient_noise(gradients, batch, groups=groups, is_split=is_split, group_size=group_size)

    def process_gradients(self, state: TrainState, gradients: Any) -> Any:
        """Returns the gradients as the optimizer gets them: multiplied, then clipped."""
        return self._processing.processed(gradients, self._processing.trained_of(state.params))

    def apply_gradients(self, state: TrainState, gradients: Any, **extra: Any) -> tuple[TrainState, Any]:
        """Returns the state after an update, and the updates, which are added to the trained parameters.

        Args:
            state: The state before.
            gradients: Processed gradients of the trained parameters.
            extra: What some optimizers of optax take beside them, such as `value`, the loss; others do not get it.

        Raises:
            UsageError: The optimizer refuses them.
        """
        before = self._processing.trained_of(state.params)
        updates, optimizer = updated(self._optimizer, gradients, state.optimizer, before, **extra)
        trained = optax.apply_updates(before, updates)
        average = None if self._average is None else self._average.updated(state.average, trained, state.step + 1)
        variables = with_params(state.variables, merged(trained, state.params))
        return TrainState(state.step + 1, variables, optimizer, average), updates

    @typed()
    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, StepSeen]:
        """Returns the state after one step on a batch, and what was observed in it.

        Args:
            state: The state before.
            batch: The batch, as the loss takes it.

        Raises:
            UsageError: A pattern of `select` matches nothing.
            ModelError: The loss returns no real scalar.
        """
        return self.with_gradients(state, batch)[:2]

    def with_gradients(self, state: TrainState, batch: Any) -> tuple[TrainState, StepSeen, Any]:
        """Returns what a call returns, and the gradients of the trained parameters as differentiated."""
        computed = self.compute_gradients(state, batch)
        after, processed, updates = self.advanced(state, batch, computed)
        numbers = {
            "loss": computed.loss,
            "grad_norm": tree_norm(computed.gradients),
            "grad_norm_clipped": tree_norm(processed),
            "update_norm": tree_norm(updates),
            "param_norm": tree_norm(self._processing.trained_of(state.params)),
            **self.learning_rate(state, after),
        }
        stages = self._stages(after, processed, updates)
        return after, StepSeen(computed.seen, stages, numbers, computed.aux), computed.gradients

    def advanced(self, state: TrainState, batch: Any, computed: Gradients) -> tuple[TrainState, Any, Any]:
        """Returns the state after the gradients of a batch are applied, the processed gradients, and the updates."""

        def loss_of(trained: Any, obj_fn: Any = None) -> Any:
            del obj_fn  # line searches hand on to their `value_fn` what is for estimates of a Hessian
            out = self._loss(with_params(state.variables, merged(trained, state.params)), batch)
            return out[0] if isinstance(out, tuple) and len(out) == 2 else out

        processed = self.process_gradients(state, computed.gradients)
        extra = {"value": computed.loss, "grad": computed.gradients, "value_fn": loss_of, "obj_fn": loss_of}
        after, updates = self.apply_gradients(state, processed, **extra)
        carried = carried_on(state.variables, computed.aux if self._state_updates else None)
        return replace(after, variables=with_collections(after.variables, carried)), processed, updates

    def learning_rate(self, state: TrainState, after: TrainState) -> dict[str, Any]:
        """Returns by its name the learning rate of the step between two states; nothing where it is not stated."""
        rate = getattr(self._optimizer, "learning_rate", None)
        rate = stated_learning_rate(after.optimizer) if rate is None else rate
        value = rate(state.step) if callable(rate) else rate
        return {} if value is None else {"learning_rate": jnp.asarray(value, jnp.float32)}

    def trained_of(self, state: TrainState) -> Any:
        """Returns the trained parameters: the parameters' pytree, with None for all others."""
        return self._processing.trained_of(state.params)

    def unobserved(self) -> TrainStep:
        """Returns the step with the same numbers that observes no tensor."""
        return self._with(replace(self._spec, families=frozenset()), self._keep)

    def with_histograms(self) -> TrainStep:
        """Returns the step that also observes the histogram of each tensor."""
        return self._with(self._spec, "histograms")

    def observe(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns vectors of statistics of those tensors that are to be observed, by key."""
        return {key: OBSERVERS[self._keep](leaf) for key, leaf in tensors.items() if self._selects(key)}

    def _trained_only(self, gradients: Any, state: TrainState) -> Any:
        """Returns the gradients of the trained parameters: the pytree, with None for all others."""
        return jax.tree_util.tree_map(
            lambda param, gradient: None if param is None else gradient,
            self._processing.trained_of(state.params), gradients, is_leaf=lambda leaf: leaf is None,
        )  # fmt: skip

    def _with(self, spec: CaptureSpec, keep: Keep) -> TrainStep:
        return TrainStep(
            self._loss, self._optimizer, self._processing, average=self._average, state_updates=self._state_updates,
            spec=spec, keep=keep,
        )  # fmt: skip

    def _stages(self, after: TrainState, processed: Any, updates: Any) -> dict[str, Any]:
        """Returns statistics of what becomes of the gradients, and of the optimizer's variables after the step."""
        by_family = {naming.UPDATE: named_leaves(updates)}
        if self._processing.changes_gradients:
            by_family = {naming.CLIPPED_GRAD: named_leaves(processed), **by_family}
        tensors = {
            naming.key_of(family, name): leaf for family, leaves in by_family.items() for name, leaf in leaves.items()
        }
        tensors |= after.slots() | after.averages()
        return self.observe(tensors)

    def _selects(self, key: str) -> bool:
        family, name = naming.split_key(key)
        chosen = {family, family.partition("/")[0]} & self._families
        return bool(chosen) and self._spec.selection.selects(name, key)


@typed()
def make_train_step(
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    clip: str | optax.GradientTransformation | Iterable[Any],
    multiply: Mapping[str, float],
    only: str | Sequence[str],
    freeze: str | Sequence[str],
    ema: float | str | MovingAverage | None,
    state_updates: bool,
    spec: CaptureSpec,
) -> TrainStep:
    """Returns the training step that the arguments of `gradscope.train_step` state.

    Raises:
        UsageError: An optimizer, a clip, an average or a pattern is none.
    """
    clips = [clip] if isinstance(clip, str | optax.GradientTransformation) else list(clip)
    parsed = [parse_clip(each) if isinstance(each, str) else each for each in clips]
    chosen = parse_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    for each in (chosen, *parsed):
        if not isinstance(each, Optimizer | optax.GradientTransformation):
            raise UsageError(f"{each!r} is not a gradient transformation of optax", hint="for example optax.adam(1e-3)")
    return TrainStep(
        loss,
        chosen,
        Processing.of(only, freeze, multiply, parsed),
        average=_average(ema),
        state_updates=state_updates,
        spec=spec,
    )


def _average(ema: float | str | MovingAverage | None) -> MovingAverage | None:
    if ema is None or isinstance(ema, MovingAverage):
        return ema
    return MovingAverage.parse(ema) if isinstance(ema, str) else MovingAverage(float(ema))
