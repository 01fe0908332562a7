"""A training step is compiled twice: as it is, and with everything that is observed as extra outputs."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.in_steps.seen import Seen
from gradscope.errors import GradscopeError
from gradscope.history.history_rows import LossFault, TensorRow
from gradscope.tracing.leaves import leaves_of
from gradscope.training.loop.placement import placed
from gradscope.training.optimizers.tree_norm import tree_norm
from gradscope.training.recording.compared_arrays import cosine, is_same
from gradscope.training.recording.loss_faults import loss_faults
from gradscope.training.recording.recorded import Recorded, outline_of
from gradscope.training.recording.step_rows import (
    affine_params,
    program_facts,
    returned_by_readers,
    tensor_rows,
    unreached_params,
)
from gradscope.training.state import TrainState, named_leaves
from gradscope.training.step import Gradients, TrainStep


class Taken(NamedTuple):
    """A `Taken` is what a step returned.

    Attributes:
        state: The state after it; the state before it where it was not sound.
        sound: Whether its loss and gradients, and those of all steps before, are finite.
        numbers: Its loss, the norms of its gradients and updates, and the learning rate where that is known.
        recorded: What is recorded of it; None where it was not observed.
        gradients: The gradients of an observed step, for the cosines of the next one.
    """

    state: TrainState
    sound: Any
    numbers: dict[str, Any]
    recorded: Recorded | None = None
    gradients: Any = None


class StepPrograms:
    """`StepPrograms` are compiled of one step and donate the state: plain, observed, and observed with histograms.

    Args:
        step: The step.
        check: Whether a step whose loss or gradient is not finite leaves the state as it is.
        sharding: That of everything that a step returns; None where all is on one device.

    Attributes:
        keys: The keys of the observed tensors; empty before the first observed step.
    """

    def __init__(self, step: TrainStep, *, check: bool, sharding: Any = None) -> None:
        self._step = step
        self._unobserved = step.unobserved()
        self._check = check
        self._sharding = sharding
        shardings = {} if sharding is None else {"out_shardings": sharding}
        self._plain_program: Any = jax.jit(self._plain_step, donate_argnums=0, **shardings)
        self._observed_programs = {
            histograms: jax.jit(partial(self._observed_step, each), donate_argnums=(0, 2), **shardings)
            for histograms, each in ((False, step), (True, step.with_histograms()))
        }
        # The arrays are read by nothing, and say on which devices the zeros are.
        self._zeros_program: Any = jax.jit(
            lambda tree: jax.tree_util.tree_map(jnp.zeros_like, tree), keep_unused=True, **shardings
        )
        self._last_sound: Any = None
        self.keys: tuple[str, ...] = ()
        self._inputs: dict[str, Any] = {}
        self._outline: Seen | None = None

    def plain(self, state: TrainState, sound: Any, batch: Any) -> Taken:
        """Takes a step without observing it.

        Args:
            state: The state before; donated.
            sound: Whether the steps before were sound.
            batch: The batch.
        """
        return self._started(self._plain_program(state, sound, batch))

    def observed(self, state: TrainState, sound: Any, previous: Any, batch: Any, *, histograms: bool) -> Taken:
        """Takes a step and observes it.

        Args:
            state: The state before; donated.
            sound: Whether the steps before were sound.
            previous: The gradients of the last observed step, or zeros; donated.
            batch: The batch.
            histograms: Whether the histogram of each tensor is observed, too.
        """
        return self._started(self._observed_programs[histograms](state, sound, previous, batch))

    @contextmanager
    def finished_on_failure(self) -> Generator[None]:
        """Waits for the steps that were started where the loop around them fails.

        What a step calls on the host would ask for an interpreter that is ending, and abort the process. Of several
        processes none waits: a step would wait for those that are lost.
        """
        try:
            yield
        except GradscopeError:
            if jax.process_count() == 1:
                with suppress(RuntimeError):
                    jax.block_until_ready(self._last_sound)
            raise

    def no_gradients(self, state: TrainState) -> Any:
        """Returns zeros of the shapes of a step's gradients."""
        return self._zeros_program(self._step.trained_of(state))

    def sound_so_far(self) -> Any:
        """Returns the True with which a run begins."""
        sound = jnp.bool_(True)
        return sound if self._sharding is None else placed(sound, self._sharding)

    def tensors(self, state: TrainState, *, noise: bool) -> Iterable[TensorRow]:
        """Returns the tensors that an observed step records; `noise`: whether the noise of gradients is among it."""
        families = (naming.PARAM_GRAD, naming.CLIPPED_GRAD, naming.UPDATE)
        of_params = {naming.key_of(family, name): leaf
                     for name, leaf in named_leaves(state.params).items() for family in families}  # fmt: skip
        outlines = [] if self._outline is None else [self._outline]
        leaves = {**self._inputs, **of_params, **state.slots(), **state.averages()}
        keys = dict.fromkeys(self.keys)
        if noise:
            trained = named_leaves(self._step.trained_of(state))
            keys |= dict.fromkeys(naming.key_of(naming.PARAM_GRAD, name) for name in trained)
        return tensor_rows(outlines, tuple(keys), leaves)

    def faults(self) -> tuple[LossFault, ...]:
        """Returns what is wrong with the program of the loss of an observed step."""
        return () if self._outline is None else loss_faults([self._outline.watching.trace])

    def unreached(self) -> dict[str, str]:
        """Returns why no gradient of an observed step reaches a parameter, by name."""
        return {} if self._outline is None else unreached_params([self._outline])

    def affine(self) -> frozenset[str]:
        """Returns the parameters in which the loss of an observed step is affine, by name."""
        return frozenset() if self._outline is None else affine_params([self._outline])

    def returned_by_readers(self) -> dict[str, frozenset[str]]:
        """Returns the gradients that return to the layers that read a parameter, by its name."""
        return {} if self._outline is None else returned_by_readers([self._outline])

    def program_facts(self) -> dict[str, str]:
        """Returns what the program of the loss of an observed step says of the run, whatever its numbers are."""
        return {} if self._outline is None else program_facts([self._outline])

    def everywhere(self, batch: Any) -> Any:
        """Returns a batch that is whole on each device; of several processes, each has to call it."""
        if self._sharding is None or self._sharding.is_fully_addressable:
            return batch
        return jax.jit(lambda tree: tree, out_shardings=self._sharding)(batch)

    def _started(self, taken: Taken) -> Taken:
        self._last_sound = taken.sound
        return taken

    def _plain_step(self, state: TrainState, sound: Any, batch: Any) -> Taken:
        computed = self._unobserved.compute_gradients(state, batch)
        norm = tree_norm(computed.gradients)
        sound = self._sound(sound, computed.loss, norm, computed.gradients)
        numbers = {"loss": computed.loss, "grad_norm": norm}
        if not self._check:
            after, update_norm = self._advanced(state, batch, computed)
        else:
            # A branch, and no selection: that would copy all of the state in every step.
            after, update_norm = jax.lax.cond(
                sound,
                lambda before: self._advanced(before, batch, computed),
                lambda before: (before, jnp.float32(0)),
                state,
            )
        numbers |= {"update_norm": update_norm, **self._unobserved.learning_rate(state, after)}
        return Taken(after, sound, numbers)

    def _advanced(self, state: TrainState, batch: Any, computed: Gradients) -> tuple[TrainState, Any]:
        """Returns the state after a step that is not observed, and the norm of its updates."""
        after, _, updates = self._unobserved.advanced(state, batch, computed)
        return after, tree_norm(updates).astype(jnp.float32)

    def _observed_step(self, step: TrainStep, state: TrainState, sound: Any, previous: Any, batch: Any) -> Taken:
        after, seen, gradients = step.with_gradients(state, batch)
        leaves = zip(leaves_of(batch, naming.INPUT), jax.tree_util.tree_leaves(batch), strict=True)
        named = {naming.key_of(naming.INPUT, leaf.name): array for leaf, array in leaves}
        inputs = step.observe(named)
        self.keys = (*inputs, *seen)
        self._inputs = {key: jax.ShapeDtypeStruct(named[key].shape, named[key].dtype) for key in inputs}
        self._outline = outline_of(seen.backward) if isinstance(seen.backward, Seen) else None
        sound = self._sound(sound, seen.loss, seen.grad_norm, gradients)
        before = named_leaves(previous)
        cosines = {name: cosine(gradient, before[name]) for name, gradient in named_leaves(gradients).items()}
        vectors = [*inputs.values(), *(seen[key].vector for key in seen)]
        trained = named_leaves(self._step.trained_of(state))
        new = named_leaves(self._step.trained_of(after))
        unchanged = {name: is_same(new[name], leaf) for name, leaf in trained.items()}
        made_of = named_leaves(gradients)
        directions = {
            name: cosine(new[name] - leaf, made_of[name].astype(leaf.dtype)) for name, leaf in trained.items()
        }
        stacked = jnp.stack(vectors) if vectors else jnp.zeros((0, 0))
        recorded = Recorded(stacked, cosines, seen.numbers, unchanged, directions)
        return Taken(self._kept(sound, after, state), sound, _shown(seen.numbers), recorded, gradients)

    def _sound(self, before: Any, loss: Any, norm: Any, gradients: Any) -> Any:
        if not self._check:
            return before
        # The norm overflows before the gradients do, and is NaN or infinite wherever one of them is.
        gradients_finite = jax.lax.cond(
            jnp.isfinite(norm), lambda _: jnp.bool_(True), _all_finite, jax.tree_util.tree_leaves(gradients)
        )
        return before & jnp.isfinite(loss) & gradients_finite

    def _kept(self, sound: Any, after: TrainState, before: TrainState) -> TrainState:
        if not self._check:
            return after
        return jax.tree_util.tree_map(lambda new, old: jnp.where(sound, new, old), after, before)


def _shown(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: numbers[name] for name in ("loss", "grad_norm", "update_norm", "learning_rate") if name in numbers}


def _all_finite(leaves: list[Any]) -> Any:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()
