"""The arguments that an isolated candidate is run on.

They are the reference's, as far as the reference has them. An argument that it lacks is the candidate's own, as the
candidate's dump has it; one that neither dump has is made by the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import as_numpy_dtype, is_key
from gradscope.capturing.execution.arguments import Arguments, model_arguments
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.pairing.reverse import Placing
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry
from gradscope.dump.record import Json
from gradscope.errors import UsageError
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import Trace, leaves_of, trace_loss, variable_leaves
from gradscope.tracing.user_frames import user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenArguments:
    """A candidate's loss, and what it is called with.

    Attributes:
        trace: The loss, traced on arguments such as the candidate's dump has.
        leaves: Its flat arguments.
        origins: Their keys by where they are from: `reference`, `candidate` or `model`.
    """

    trace: Trace
    leaves: Sequence[Any]
    origins: Mapping[str, Sequence[str]]


def given_arguments(model: Model, dumps: Dumps, placing: Placing) -> GivenArguments:
    """Trace a candidate's model on the shapes that its dump has, and find its arguments.

    Raises:
        UsageError: The candidate's dump is of another model.
        ModelError: The user's code failed.
    """
    own = _own_arguments(model, dumps.cand.manifest.provenance)
    leaves, tree = jax.tree_util.tree_flatten(own.shapes)
    keys = _keys(own)
    known = _known(model, keys, dumps.cand)
    shapes = [_as_dumped(leaf, known.get(key)) for leaf, key in zip(leaves, keys, strict=True)]
    with user_code(f"loss of {model.name}"):
        operations = any(layer.operation for layer in dumps.cand.manifest.layers)
        trace = trace_loss(model.loss, *jax.tree_util.tree_unflatten(tree, shapes), operations=operations)

    @cache
    def made() -> list[Any]:
        return jax.tree_util.tree_leaves(own.make())

    origins: dict[str, list[str]] = {"reference": [], "candidate": [], "model": []}
    values: list[Any] = []
    for number, key in enumerate(keys):
        origin, value = _found(key, dumps, placing) if key in known else ("model", None)
        origins[origin].append(key)
        values.append(made()[number] if value is None else jnp.asarray(value))
    return GivenArguments(trace=trace, leaves=values, origins=origins)


def _own_arguments(model: Model, provenance: Mapping[str, Json]) -> Arguments:
    """The arguments that the model would make itself, with the seed and the size that the candidate's run had."""
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


def _known(model: Model, keys: Sequence[str], cand: DumpSource) -> dict[str, Entry]:
    """The candidate's entries of those arguments that its dump can hold: random keys are made again.

    Raises:
        UsageError: There is none, or it has other parameters: the dump is of another model.
    """
    entries = {key: cand.entry(cand.resolve(key)) for key in frozenset(cand.keys()).intersection(keys)}
    params = [key for key in cand.keys() if naming.split_key(key)[0] == naming.PARAM]  # noqa: SIM118 - no mapping
    strange = next((key for key in params if key not in entries), None)
    if strange is not None or not entries:
        has = "none of its arguments" if strange is None else naming.printable(strange)
        raise UsageError(
            f"the dump is not one of {model.name}: it has {has}, expected {', '.join(map(naming.printable, keys))}",
            hint="name the model that the dump was made of",
        )
    return {key: entry for key, entry in entries.items() if not is_key(entry.dtype)}


def _as_dumped(own: Any, entry: Entry | None) -> Any:
    """The shape and dtype that an argument has in a dump; the model's own where it has none there."""
    return own if entry is None else jax.ShapeDtypeStruct(entry.shape, as_numpy_dtype(entry.dtype))


def _found(key: str, dumps: Dumps, placing: Placing) -> tuple[str, Array | None]:
    array = placing.array(key)
    if array is not None:
        return "reference", array
    return ("candidate", dumps.cand.array(key)) if dumps.cand.has_tensor(key) else ("model", None)
