"""Pinned arguments are the arguments with which an isolated candidate runs.

They are the reference's where the reference has them. An argument that it lacks is taken from the candidate's dump. One
that neither dump has is made by the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import as_numpy_dtype, is_key
from gradscope.capturing.execution.arguments import Arguments, model_arguments
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json
from gradscope.errors import ModelError, UsageError
from gradscope.naming.wording import some_of
from gradscope.tracing.leaves import leaves_of, variable_leaves
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import Trace, trace_loss
from gradscope.tracing.user_frames import user_code

#: What to do where a dump is of another program, and where that program is the one which a model is a port of.
_NAME_MODEL: Final = "name the model from which the dump was made"
_PORT: Final = (
    "where this model is a port of that program, dump the port with the same weights and batch, and name both: "
    "gradscope isolate LAYER PORT.npz TARGET --reference THIS.npz"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedArguments:
    """`PinnedArguments` are a candidate's loss and the arguments with which it is called.

    Attributes:
        trace: The loss, traced on the shapes of the candidate's dump.
        leaves: Its flat arguments.
        origins: Their keys by where they come from: `reference`, `candidate` or `model`.
    """

    trace: Trace
    leaves: Sequence[Any]
    origins: Mapping[str, Sequence[str]]


def pinned_arguments(model: Model, dumps: Dumps, placing: ReversePairing) -> PinnedArguments:
    """Traces a candidate's model on the shapes of its dump, and finds its arguments.

    Args:
        model: The candidate's model.
        dumps: The reference's dump and the candidate's.
        placing: The reference's tensors by the candidate's keys.

    Returns:
        The loss and its arguments.

    Raises:
        UsageError: The candidate's dump is of another model, nothing tells what its batch or its parameters were, or
            the reference has statistics alone.
        ModelError: The user's code failed on arguments of its own.
    """
    if not any(map(dumps.ref.has_tensor, dumps.ref.keys())):
        raise UsageError(
            "the dump whose values layers are run on has statistics and no tensors",
            hint="make it without --stats-only",
        )
    own = _own_arguments(model, dumps.cand.manifest.provenance)
    leaves, tree = jax.tree_util.tree_flatten(own.shapes)
    keys = _keys(own)
    hint = _NAME_MODEL if dumps.ref is not dumps.cand else f"{_NAME_MODEL}, or {_PORT}"
    known = _known(model, keys, dumps.cand, hint)
    shapes = [_as_dumped(leaf, known.get(key)) for leaf, key in zip(leaves, keys, strict=True)]
    operations = any(layer.operation for layer in dumps.cand.manifest.layers)
    try:
        with user_code(f"loss of {model.name}"):
            trace = trace_loss(model.loss, *jax.tree_util.tree_unflatten(tree, shapes), operations=operations)
    except ModelError as error:
        other = _other_program(model, dumps.cand)
        if not other:
            raise
        raise UsageError(
            f"{model.name} does not run on the arguments of the dump, which is {other}: {error.message}", hint=hint
        ) from error

    @cache
    def made() -> list[Any]:
        return jax.tree_util.tree_leaves(own.make())

    origins: dict[str, list[str]] = {"reference": [], "candidate": [], "model": []}
    values: list[Any] = []
    for number, key in enumerate(keys):
        origin, value = _found(key, dumps, placing) if key in known else ("model", None)
        origins[origin].append(key)
        values.append(made()[number] if value is None else jnp.asarray(value))
    drawn = {key for key, leaf in zip(keys, leaves, strict=True) if is_key(str(leaf.dtype))}
    _require_made_again(dumps.cand, [key for key in origins["model"] if key not in drawn])
    return PinnedArguments(trace=trace, leaves=values, origins=origins)


def _require_made_again(cand: DumpSource, made: Sequence[str]) -> None:
    """Raises a UsageError where arguments that the model made by itself need not be those of the candidate's run."""
    if made and not isinstance(cand.manifest.provenance.get("seed"), int):
        which = ", ".join(map(naming.printable, made))
        raise UsageError(
            f"the values of {which} are in neither dump, and the candidate's states no seed from which they are made",
            hint="capture the families input and param, too",
        )


def _own_arguments(model: Model, provenance: Mapping[str, Json]) -> Arguments:
    """Returns the arguments that the model makes with the seed and the batch size of the candidate's run."""
    seed, size = provenance.get("seed"), provenance.get("batch_size")
    return model_arguments(
        model,
        seed=seed if isinstance(seed, int) else 0,
        batch_size=size if isinstance(size, int) and size > 0 else None,
    )


def _keys(arguments: Arguments) -> list[str]:
    variables, batch = arguments.shapes
    leaves = (*variable_leaves(variables), *leaves_of(batch, naming.INPUT))
    return [naming.key_of(leaf.family, leaf.name) for leaf in leaves]


def _other_program(model: Model, dump: DumpSource) -> str:
    """Returns what a dump is of which the arguments need not have a model's layout; "" where it is the model's own."""
    provenance = dump.manifest.provenance
    if str(provenance.get("backend")).startswith("torch"):
        return "a capture from PyTorch"
    name = provenance.get("model")
    return f"one of {name}" if isinstance(name, str) and name != model.name else ""


def _known(model: Model, keys: Sequence[str], cand: DumpSource, hint: str) -> dict[str, Entry]:
    """Returns the candidate's entries of the arguments that its dump contains; random keys are not among them.

    Raises:
        UsageError: There is none, or it has other parameters: the dump is of another model.
    """
    entries = {key: cand.entry(cand.resolve(key)) for key in frozenset(cand.keys()).intersection(keys)}
    params = [key for key in cand.keys() if naming.split_key(key)[0] == naming.PARAM]  # noqa: SIM118 - no mapping
    unknown_parameter = next((key for key in params if key not in entries), None)
    if unknown_parameter is not None or not entries:
        has = "none of its arguments" if unknown_parameter is None else naming.printable(unknown_parameter)
        params_first = sorted(keys, key=lambda key: naming.split_key(key)[0] != naming.PARAM)
        expected = some_of([*map(naming.printable, params_first)])
        raise UsageError(f"the dump is not one of {model.name}: it has {has}, expected {expected}", hint=hint)
    return {key: entry for key, entry in entries.items() if not is_key(entry.dtype)}


def _as_dumped(own: Any, entry: Entry | None) -> Any:
    """Returns an argument's shape and dtype in a dump; the model's own where the dump does not have it."""
    return own if entry is None else jax.ShapeDtypeStruct(entry.shape, as_numpy_dtype(entry.dtype))


def _found(key: str, dumps: Dumps, placing: ReversePairing) -> tuple[str, Array | None]:
    array = placing.array(key)
    if array is not None:
        return "reference", array
    return ("candidate", dumps.cand.array(key)) if dumps.cand.has_tensor(key) else ("model", None)
