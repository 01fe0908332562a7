"""The batch of a step is the model's own, with a key folded with the step, or one of an input pipeline or a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.execution.arguments import NEEDS_VALUES, Arguments, converted
from gradscope.errors import DumpError, UsageError
from gradscope.tracing.loading.batches import batch_from_file, checked
from gradscope.tracing.loading.loader import source_of
from gradscope.tracing.loading.model import Model
from gradscope.tracing.loading.pipelines import Pipeline
from gradscope.tracing.user_frames import user_code


def own_batches(model: Model, arguments: Arguments, *, seed: int, dtype: str | None) -> Callable[[int], Any]:
    """Returns the function that makes the batch of a step by the model's own `batch`.

    Args:
        model: The model.
        arguments: Its arguments, for the number of examples.
        seed: Seeds the key, of which each step has its own.
        dtype: Floating-point leaves are converted to it; None keeps their dtypes.
    """
    _, key = jax.random.split(jax.random.key(seed))
    size = arguments.batch_size or 1

    def made(number: Any) -> Any:
        return converted("batch", model.batch(jax.random.fold_in(key, number), size), dtype)

    compiled = jax.jit(made)

    def batch(number: int) -> Any:
        nonlocal compiled
        with user_code(f"batch of {model.name}"):
            try:
                return compiled(np.uint32(number))
            except NEEDS_VALUES:  # it reads files or branches on values
                compiled = made
                return jax.tree_util.tree_map(jnp.asarray, made(number))

    return batch


def data_batches(location: str, arguments: Arguments, *, seed: int) -> Callable[[int], Any]:
    """Returns the function that reads the batch of a step: the batches of a pipeline in order, or the one of a file.

    Args:
        location: A pipeline as a target names it, or a file.
        arguments: The model's arguments, whose batch states what is expected.
        seed: Seeds the generators that the pipeline may use without a key.

    Raises:
        UsageError: There is no such pipeline.
        DumpError: The file cannot be read.
    """
    expected = arguments.shapes[1]
    if _is_file(location):
        only = jax.tree_util.tree_map(jnp.asarray, batch_from_file(Path(location), expected).batch)
        return lambda _number: only
    pipeline = Pipeline(location, seed)

    def batch(number: int) -> Any:
        try:
            leaves = pipeline.leaves(number)
        except UsageError as error:
            hint = f"give --steps {number}, or let it begin again" if number else None
            raise UsageError(error.message, hint=error.hint or hint) from error
        what = f"batch {number} of {location}"
        found = checked(what, expected, leaves).batch
        _require_shapes(what, found, expected)
        return jax.tree_util.tree_map(jnp.asarray, found)

    return batch


def data_sha256(location: str) -> str | None:
    """Returns the SHA-256 of the file that has the batches, or the pipeline that makes them; None where it has none.

    Args:
        location: A pipeline that was loaded, as a target names it, or a file.
    """
    file = Path(location) if _is_file(location) else source_of(location)
    if file is None or not file.is_file():
        return None
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _is_file(location: str) -> bool:
    return ":" not in location or Path(location).exists()


def _require_shapes(what: str, batch: Any, expected: Any) -> None:
    """Raises `DumpError` where a batch has another number of examples than the first: the step would compile anew."""
    expected_leaves = jax.tree_util.tree_leaves(expected)
    for (path, leaf), like in zip(jax.tree_util.tree_leaves_with_path(batch), expected_leaves, strict=True):
        if leaf.shape != like.shape:
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "value"
            raise DumpError(
                f"{what} has another shape than the first: {name} is {list(leaf.shape)}, it was {list(like.shape)}",
                hint="make all batches equal: drop the last examples, or pad them",
            )
