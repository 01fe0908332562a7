"""Saves a step of the user's loop: its state, its batch, and a dump of its loss; and gives its arguments back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope import naming
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments as LossArguments
from gradscope.capturing.execution.function_call import Call, is_array_or_real, loss_of, positions
from gradscope.capturing.in_steps.signature import Signature
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.manifest import Manifest, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import Json
from gradscope.dump.storage.storage_errors import machine_errors
from gradscope.dump.writer import DumpWriter
from gradscope.errors import DumpError
from gradscope.frameworks.modules.tree_names import tree_names
from gradscope.naming import printable
from gradscope.tracing.loading.model import Model
from gradscope.tracing.loading.module_models import with_array_variables
from gradscope.training.probing.collecting import collecting
from gradscope.training.probing.step_replay import Arguments
from gradscope.training.recording.array_records import array_like, record_of

#: Where the state is that a step got, and where the rest of its arguments: each record has the number of its leaf.
_FILES: Final = ("state.npz", "batch.npz")


class _CapturedError(Exception):
    """Ends a step when its loss has been captured: what comes after it is of no use."""


class _Capturing:
    """Stands in for a collector: the first loss that the step differentiates is dumped.

    Attributes:
        manifest: The manifest of the dump; None before.
    """

    def __init__(self, path: Path, facts: Mapping[str, Json]) -> None:
        self._path = path
        self._facts = facts
        self.manifest: Manifest | None = None

    def value_and_grad(self, function: Callable[..., Any], signature: Signature, args: Any, kwargs: Any) -> Any:
        """Dumps a loss, and ends the step."""
        call = Call(function, args, kwargs, positions(signature.argnums, len(args)), is_array_or_real)
        name = getattr(function, "__name__", "loss")
        loss = loss_of(call, has_aux=signature.has_aux)
        model = with_array_variables(Model.of_values(name, loss, call.variables, call.batch))
        request = DumpRequest(reading=TensorReading(keep=False), facts=dict(self._facts))
        with DumpWriter(self._path, force=True) as writer:
            arguments = LossArguments.of(model.init(None), call.batch)
            self.manifest = dump_model(model, arguments, request, writer, Timings())
        raise _CapturedError

    def record(self, updates: Any, optimizer: Any, params: Any) -> None:
        """Records nothing."""


def save_step(
    function: Callable[..., Any], arguments: Arguments, *, state: frozenset[int], names: Mapping[int, str],
    folder: Path, facts: Mapping[str, Json],
) -> Manifest | None:  # fmt: skip
    """Saves a step: the state before it, its batch, and a dump of its first loss with statistics and origins.

    Args:
        function: The step.
        arguments: Its arguments.
        state: The numbers of the leaves of the arguments that are state.
        names: The keys of the leaves that the step hands to its loss.
        folder: Where to; it is made.
        facts: What the manifests state about the run.

    Returns:
        The manifest of the dump; None where the step differentiates no loss outside of `jax.jit`.

    Raises:
        MachineError: The disk is full or fails.
        ModelError: The step failed.
    """
    with machine_errors("write to", folder):
        folder.mkdir(exist_ok=True)
    leaves = jax.tree_util.tree_leaves(arguments)
    paths = tree_names(arguments)
    arrays = _arrays(leaves)
    for name, chosen in zip(_FILES, (state, arrays.keys() - state), strict=True):
        with DumpWriter(folder / name, force=True) as writer:
            for at in sorted(chosen):
                key = names.get(at, naming.key_of(naming.AUX, f"arguments/{paths[at]}"))
                writer.add(record_of(_as_state(key, names) if at in state else key, arrays[at], index=at))
            writer.commit(RunFacts(provenance=facts))
    capturing = _Capturing(folder / "dump.npz", facts)
    args, kwargs = arguments
    with collecting(capturing), suppress(_CapturedError):
        function(*args, **kwargs)
    return capturing.manifest


def _as_state(key: str, names: Mapping[int, str]) -> str:
    """Returns the key of a leaf that the loop hands on: what the loss takes beside its parameters is no batch then."""
    family, name = naming.split_key(key)
    own = naming.key_of(naming.STATE, name)
    return own if family == naming.INPUT and own not in names.values() else key


def saved_arguments(folder: Path, like: Arguments) -> Arguments:
    """Returns the arguments of a step that `save_step` saved.

    Args:
        folder: The folder.
        like: Arguments of the same step: what is no array is taken from them, and arrays are put on their devices.

    Raises:
        DumpError: The files cannot be read, or are of a step with other arguments.
    """
    leaves, tree = jax.tree_util.tree_flatten(like)
    arrays, found = _arrays(leaves), dict[int, Any]()
    # Such as the count of steps of a state that has taken none: a step makes an array of it.
    numbers = {at for at, leaf in enumerate(leaves) if isinstance(leaf, bool | int | float | complex)}
    for name in _FILES:
        with open_dump(folder / name) as dump:
            for entry in dump.manifest.entries:
                leaf, key = arrays.get(entry.site.index), naming.key_of(entry.family, entry.name)
                if entry.site.index in numbers and not entry.shape:
                    found[entry.site.index] = jnp.asarray(dump.array(key))
                    continue
                if leaf is None or (entry.shape, entry.dtype) != (tuple(leaf.shape), str(leaf.dtype)):
                    raise _other_step(folder, f"{printable(key)} is {entry.dtype}{list(entry.shape)}")
                array = array_like(dump.array(key), leaf)
                found[entry.site.index] = jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array
    if not arrays.keys() <= found.keys():
        raise _other_step(folder, f"it has {len(found):,} arrays, and these arguments {len(arrays):,}")
    return tree.unflatten([found.get(at, leaf) for at, leaf in enumerate(leaves)])


def _arrays(leaves: Sequence[Any]) -> dict[int, Any]:
    return {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) or hasattr(leaf, "dtype")}


def _other_step(folder: Path, why: str) -> DumpError:
    return DumpError(
        f"{printable(str(folder))} has not the arguments of this step: {why}",
        hint="give the step's arguments as the loop hands them over, in their order; of a run of gradscope train, go "
        "on with --checkpoint",
    )
