"""Saves the states of a run in the format of dumps, and restores them bit for bit.

Parameters, collections, slots and averages have the families that a dump gives them, so that `--checkpoint` of every
command takes a state. What else there is has the family `aux`: `aux/step`, `aux/optimizer/PATH`. The gradients of the
last recorded step, with which those of the next are compared, are `param_grad`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from gradscope import naming
from gradscope.dump.manifest.manifest import RunFacts
from gradscope.dump.reader import DumpFile, open_dump
from gradscope.dump.record import Json
from gradscope.dump.writer import DumpWriter
from gradscope.errors import DumpError
from gradscope.naming import printable
from gradscope.tracing.leaves import variable_leaves
from gradscope.training.loop.placement import placed
from gradscope.training.recording.array_records import array_like, record_of
from gradscope.training.state import TrainState, named_leaves, optimizer_leaves

_STEP: Final = naming.key_of(naming.AUX, "step")
_MOST_PROBLEMS: Final = 3
#: What the watch for alarms remembers, as JSON in bytes.
_WATCH: Final = naming.key_of(naming.AUX, "alarm_watch")

#: The hint of an error about a state that is whole, and of another run.
OTHER_RUN: Final = (
    "resume with the options that the run was started with, or begin a new run from the parameters of this state: "
    "--checkpoint STATE, another --output, and no --resume"
)


class Saved(NamedTuple):
    """A `Saved` has what is read from the file of a state.

    Attributes:
        state: The state.
        previous: The gradients of the last recorded step; None where it has none.
        watch: What the watch for alarms remembers; None where it has nothing.
    """

    state: TrainState
    previous: Any
    watch: Any


def save_state(
    path: Path, state: TrainState, previous: Any, facts: Mapping[str, Json], *, watch: Mapping[str, Any] | None = None
) -> None:
    """Writes a state; on return it is synced to disk, and the old file is there until then.

    Args:
        path: The file; one that exists is replaced.
        state: The state.
        previous: The gradients of the last recorded step; None where none was recorded.
        facts: What the manifest states about the run.
        watch: What the watch for alarms remembers; None where nothing goes on from this state.

    Raises:
        MachineError: The disk is full or fails.
        UsageError: A dtype cannot be stored.
    """
    with DumpWriter(path, force=True) as writer:
        for key, leaf in {**_leaves(state), **_gradients(previous)}.items():
            writer.add(record_of(key, leaf))
        if watch is not None:
            writer.add(record_of(_WATCH, np.frombuffer(dumps(watch).encode(), np.uint8)))
        writer.commit(RunFacts(provenance=facts))


def restored(path: Path, like: TrainState, previous_like: Any) -> Saved:
    """Returns a saved state, and what was saved with it.

    Args:
        path: The file.
        like: A state of the same run, whose structure, shapes and dtypes the file must have.
        previous_like: Gradients of the same run.

    Raises:
        DumpError: It cannot be read, or is a state of another run; the message names tensors that differ.
    """
    with open_dump(path) as dump:
        expected = {**_leaves(like), **_gradients(previous_like)}
        known = set(dump.keys())
        watch = loads(dump.array(_WATCH).tobytes()) if _WATCH in known else None
        known.discard(_WATCH)
        has_gradients = any(naming.split_key(key)[0] == naming.PARAM_GRAD for key in known)
        required = expected if has_gradients else _leaves(like)
        problems = [
            *(f"it has no {printable(key)}" for key in required if key not in known),
            *(f"{printable(key)} is not of this run" for key in sorted(known) if key not in required),
            *(problem for key in required if key in known and (problem := _problem(dump, key, required[key]))),
        ]
        if problems:
            more = f" and {len(problems) - _MOST_PROBLEMS:,} more" if len(problems) > _MOST_PROBLEMS else ""
            raise DumpError(
                f"{printable(str(path))} is not a state of this run: {'; '.join(problems[:_MOST_PROBLEMS])}{more}",
                hint=OTHER_RUN,
            )
        found = {key: placed(array_like(dump.array(key), leaf), leaf.sharding) for key, leaf in required.items()}
    state = _rebuilt(like, found)
    return Saved(state, _rebuilt_gradients(previous_like, found) if has_gradients else None, watch)


def _leaves(state: TrainState) -> dict[str, Any]:
    """Returns everything in a state by key: variables, optimizer, averages and the step, each in its own order."""
    variables = dict(zip(_variable_keys(state.variables), jax.tree_util.tree_leaves(state.variables), strict=True))
    optimizer = optimizer_leaves(state.optimizer, named_leaves(state.params))
    return {**variables, **optimizer, **state.averages(), _STEP: state.step}


def _variable_keys(variables: Any) -> list[str]:
    return [naming.key_of(leaf.family, leaf.name) for leaf in variable_leaves(variables)]


def _gradients(previous: Any) -> dict[str, Any]:
    return {naming.key_of(naming.PARAM_GRAD, name): leaf for name, leaf in named_leaves(previous).items()}


def _problem(dump: DumpFile, key: str, leaf: Any) -> str | None:
    entry = dump.entry(key)
    shape, dtype = tuple(leaf.shape), str(leaf.dtype)
    if (entry.shape, entry.dtype) == (shape, dtype):
        return None
    return f"{printable(key)} is {entry.dtype}{list(entry.shape)}, expected {dtype}{list(shape)}"


def _rebuilt(like: TrainState, found: Mapping[str, Any]) -> TrainState:
    params = named_leaves(like.params)
    return replace(
        like,
        step=found[_STEP],
        variables=_unflattened(like.variables, [found[key] for key in _variable_keys(like.variables)]),
        optimizer=_unflattened(like.optimizer, [found[key] for key in optimizer_leaves(like.optimizer, params)]),
        average=_unflattened(like.average, [found[key] for key in like.averages()]),
    )


def _rebuilt_gradients(like: Any, found: Mapping[str, Any]) -> Any:
    return _unflattened(like, [found[key] for key in _gradients(like)])


def _unflattened(like: Any, leaves: list[Any]) -> Any:
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(like), leaves)
