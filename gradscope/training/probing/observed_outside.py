"""Makes what is recorded of a step, or of many, from observations that the user's program returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.in_steps.seen import Seen
from gradscope.errors import UsageError
from gradscope.instrument.statistics.core_columns import CoreStatistics
from gradscope.instrument.statistics.core_statistics import core_statistics
from gradscope.training.optimizers.tree_norm import tree_norm
from gradscope.training.probing.collected import Collected
from gradscope.training.recording.recorded import outline_of
from gradscope.training.state import named_leaves
from gradscope.training.step_seen import StepSeen


def steps_in(seen: Seen[Any] | StepSeen) -> int | None:
    """Returns of how many steps observations are; None where they are of one, without an axis.

    Raises:
        UsageError: They are of something else than statistics of one step, or of several in a row.
    """
    if not isinstance(cast("object", seen), Seen | StepSeen):  # a caller need not have checked types
        raise UsageError(
            f"probe.write takes what was observed, not {type(seen).__name__}",
            hint="it is what gs.value_and_grad returns beside value and gradients, or gs.train_step beside the state",
        )
    backward = seen.backward if isinstance(seen, StepSeen) else seen
    if isinstance(backward, Seen) and not backward.watching.statistics:
        raise UsageError(
            "a run has statistics, and these are tensors", hint="observe with observe='stats', which is the default"
        )
    loss = seen.loss if isinstance(seen, StepSeen) else seen.observed.loss
    if jnp.ndim(loss) > 1:
        raise UsageError(
            f"these are observations over {jnp.ndim(loss)} axes, and a scan over steps has one",
            hint="write one index of the others: jax.tree.map(lambda leaf: leaf[:, 0], seen)",
        )
    return jnp.shape(loss)[0] if jnp.ndim(loss) else None


def outlines_of(seen: Seen[Any] | StepSeen) -> list[Seen]:
    """Returns the shapes of the observations of one step's loss; none where nothing of it was observed."""
    backward = seen.backward if isinstance(seen, StepSeen) else seen
    return [outline_of(backward)] if isinstance(backward, Seen) else []


def collected_from(seen: Seen[Any] | StepSeen, loss: Any, updates: Any) -> Collected:
    """Returns what is recorded of observations; of several steps, each array has a leading axis.

    Args:
        seen: The observations.
        loss: The loss to record; None for the one in the observations.
        updates: The updates, a pytree of arrays with the same leading axis; None where they are not recorded.

    Raises:
        UsageError: Loss or updates are not of as many steps.
    """
    number = steps_in(seen)
    axis = () if number is None else (number,)
    if loss is not None and jnp.shape(loss) != axis:
        raise UsageError(f"the loss has shape {list(jnp.shape(loss))}, expected {list(axis)}, as of the observations")
    for name, leaf in named_leaves(updates).items():
        if leaf.shape[: len(axis)] != axis:
            raise UsageError(
                f"the update of {name} has shape {list(leaf.shape)}, and the observations are of {number} steps",
                hint="hand over what the scan over steps stacked, with the same leading axis",
            )
    return (_of_one if number is None else _of_several)(seen, loss, updates)


@jax.jit
def _of_one(seen: Any, loss: Any, updates: Any) -> Collected:
    vectors = {key: seen[key].vector for key in seen}
    numbers: dict[str, Any] = _numbers(seen, vectors)
    named = {} if updates is None else named_leaves(updates)
    if named:
        keyed = {naming.key_of(naming.UPDATE, name): leaf for name, leaf in named.items()}
        vectors |= {key: core_statistics(leaf) for key, leaf in keyed.items()}
        numbers["update_norm"] = tree_norm(updates)
    if loss is not None:
        numbers["loss"] = loss
    return Collected(
        keys=tuple(vectors),
        vectors=jnp.stack(list(vectors.values())) if vectors else jnp.zeros((0, 0)),
        numbers={name: jnp.asarray(each, jnp.float32) for name, each in numbers.items()},
        gradients={},
        unchanged={},
        directions={},
        changes={},
        applied={},
    )


def _numbers(seen: Any, vectors: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(seen, StepSeen):
        return dict(seen.numbers)
    numbers = {"loss": seen.observed.loss}
    params = [
        leaf.name for leaf in seen.watching.trace.arguments if leaf.family == naming.PARAM and leaf.differentiated
    ]
    for family, name in ((naming.PARAM_GRAD, "grad_norm"), (naming.PARAM, "param_norm")):
        keys = [naming.key_of(family, each) for each in params]
        if set(keys) <= vectors.keys():  # a norm over some of the parameters is another number
            squares = jnp.stack([CoreStatistics(vectors[key]).l2 ** 2 for key in keys])
            numbers[name] = jnp.sqrt(squares.sum())
    return numbers


_of_several = jax.jit(jax.vmap(_of_one))
