"""These functions observe inside the user's own programs, compute gradients of any values by name, and save both."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, ParamSpec, SupportsIndex, cast, overload

import jax

from gradscope.api.reading import Dump
from gradscope.capturing.execution.function_call import indices
from gradscope.capturing.gradients import Question, gradients_of
from gradscope.capturing.in_steps.seen import Seen, require_observable
from gradscope.capturing.in_steps.signature import Signature
from gradscope.capturing.in_steps.value_and_grad import observing_value_and_grad
from gradscope.capturing.records.distributed import Writer, dump_writer, reading_for
from gradscope.capturing.records.measure import TensorReading
from gradscope.capturing.run_environment import machine_provenance
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Manifest, Tier
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.errors import ArgumentTypeError, UsageError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.statistics.core_columns import CoreStatistics
from gradscope.instrument.statistics.core_statistics import core_statistics
from gradscope.naming import as_tuple
from gradscope.typed_arguments import typed

Parameters = ParamSpec("Parameters")

#: What a caller's own step can keep of each value.
_OBSERVED: Final = ("stats", "tensors")
_TIERS: Final = ("core", "full")


@overload
def value_and_grad(
    fun: Callable[Parameters, Any],
    argnums: SupportsIndex | Sequence[SupportsIndex] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[str] = (),
    *,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
    observe: Literal["stats"] = "stats",
    tier: Tier = "core",
) -> Callable[Parameters, tuple[tuple[Any, Any], Seen[CoreStatistics]]]: ...


@overload
def value_and_grad(
    fun: Callable[Parameters, Any],
    argnums: SupportsIndex | Sequence[SupportsIndex] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[str] = (),
    *,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
    observe: Literal["tensors"],
) -> Callable[Parameters, tuple[tuple[Any, Any], Seen[jax.Array]]]: ...


@typed("fun", "argnums", "reduce_axes")
def value_and_grad(  # noqa: PLR0917 - positional as in jax.value_and_grad
    fun: Callable[Parameters, Any],
    argnums: SupportsIndex | Sequence[SupportsIndex] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[str] = (),
    *,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    families: str | Collection[str] | None = None,
    depth: int | None = None,
    observe: Literal["stats", "tensors"] = "stats",
    tier: Tier = "core",
) -> Callable[Parameters, tuple[tuple[Any, Any], Seen[Any]]]:
    """Returns a drop-in for the function that `jax.value_and_grad` returns, which also observes.

    The result is pure: it composes with `jit`, `vmap`, `shard_map`, `lax.scan` and donation, and can be differentiated
    again. Value and gradients are those of `jax.value_and_grad`: bit for bit operation by operation
    (`jax.disable_jit`), else up to the rounding of fusions. `fun` is traced, as under `jit`: what is differentiated are
    tracers in it, and so is what `jax.numpy` computes; its control flow cannot depend on the elements of these. Arrays
    of JAX that are not differentiated are traced, too, unless `fun` needs their elements: it is then called again, with
    them as they are. Other arguments are passed as they are. Modules of Flax NNX that have variables beside their
    parameters are differentiated as by `nnx.value_and_grad`: they keep what `fun` makes of these, and the gradients are
    the state of the parameters.

    Args:
        fun: Returns a real scalar, or a pair of it and a pytree if `has_aux`. Its arguments are any pytrees.
        argnums: The position of the argument that is differentiated, or those of several; negative ones count from the
            last.
        has_aux: Whether `fun` returns a pair. Leaves of the second that are not arrays are returned as they
            are; out of a `jit` around the step only arrays may be returned, as JAX has it.
        holomorphic: Whether `fun` is holomorphic: differentiated arguments and value are then complex.
        allow_int: Whether differentiated arguments may have integers, whose gradients are of dtype float0.
        reduce_axes: Nothing, as in JAX, which has withdrawn it.
        select: Patterns of names to observe; all where empty. A string is one pattern.
        exclude: Patterns of names to leave out.
        families: Families to observe, of `activation`, `activation_grad`, `param` and `param_grad`; None for all four.
        depth: Only layers of at most so many scopes.
        observe: "stats" for statistics in place of each tensor, "tensors" for the tensors.
        tier: Of statistics: "core" for 13 numbers of each tensor, which cost next to nothing; "full" for those of a
            dump but the hash, too, which are read from a histogram: 35 KB for each tensor, and some ten times as long.

    Returns:
        A function of the arguments of `fun`. It returns `((value, gradients), seen)`, with has_aux
        `(((value, aux), gradients), seen)`: each gradient has the shape and dtype of what it belongs to, and `seen` is
        a pytree that maps keys, `activation_grad/encoder/block[3]/mlp`, to what was observed.

    Raises:
        TypeError: `fun` cannot be called, `argnums` is not a position; from the function returned: an argument or the
            value cannot be differentiated.
        UsageError: A family is not observed, a pattern is not one, there is no such `observe` or `tier`, `tier` is not
            of statistics, or `depth` is not positive; from the function returned: a pattern selects nothing, or such a
            module is among several arguments that are differentiated.
        NotImplementedError: `reduce_axes` names something.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import gradscope as gs
        >>> def loss(params, x, train):
        ...     with jax.named_scope("dense"):
        ...         out = jnp.tanh(x @ params["w"])
        ...     return (out**2).mean() * (1.0 if train else 0.5)
        >>> step = jax.jit(gs.value_and_grad(loss), static_argnames="train")
        >>> (value, grads), seen = step({"w": jnp.ones((3, 2))}, jnp.zeros((4, 3)), train=True)
        >>> float(value), grads["w"].shape
        (0.0, (3, 2))
        >>> float(seen["activation/dense"].zeros), float(seen["param/w"].rms)
        (8.0, 1.0)
    """
    if not callable(fun):
        raise TypeError(f"expected a function, got {fun!r}")
    if reduce_axes:
        raise NotImplementedError("JAX has withdrawn reduce_axes")
    if observe not in _OBSERVED:
        raise UsageError(f"observe is {observe!r}", hint=f"it is one of {', '.join(_OBSERVED)}")
    if tier not in _TIERS:
        raise UsageError(f"tier is {tier!r}", hint=f"it is one of {', '.join(_TIERS)}")
    if tier == "full" and observe == "tensors":
        raise UsageError("tier='full' is of statistics, and observe='tensors' keeps tensors", hint="leave out one")
    signature = Signature(argnums=indices(argnums), has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int)
    spec = CaptureSpec.of(select, exclude, families, depth)
    if families is not None:
        require_observable(spec.families)
    return observing_value_and_grad(fun, signature, spec, "full" if tier == "full" else observe)


@typed()
def gradients(
    fun: Callable[..., Any],
    args: Sequence[Any] | Mapping[str, Any],
    *,
    ys: str | Sequence[str],
    xs: str | Sequence[str],
    grad_ys: Any = None,
    stop_gradients: str | Sequence[str] = (),
) -> list[Any]:
    """Returns the gradients of the sum of some values of a function with respect to others, as `tf.gradients` does.

    A value is named by the path of an argument (`w1`, `params/head/kernel`), by the key or index of an output, by its
    layer or operation (`encoder/block[3]/mlp`), or by `jax.ad_checkpoint.checkpoint_name`. Composes with `jit`.

    Args:
        fun: Returns a pytree of arrays.
        args: Its arguments, by position or by name: pytrees of arrays. Truth values, strings and functions in them are
            passed as they are.
        ys: Names of the values that are differentiated; their gradients are summed. A string is one name.
        xs: Names of the values with respect to which they are differentiated.
        grad_ys: For each y its initial gradient, of the y's shape, or None for ones; of a single y that is a string,
            the gradient itself. None for ones throughout.
        stop_gradients: Names of the values that count as constant.

    Returns:
        For each x the gradient, of the x's shape and dtype; None, which is not zero, where no y depends on the x.

    Raises:
        UsageError: A name is unknown, an initial gradient does not fit, or a value cannot be differentiated.
        ModelError: Reverse mode cannot get from a y to an x.

    References:
        https://www.tensorflow.org/api_docs/python/tf/gradients

    Example:
        >>> import gradscope as gs
        >>> def fun(w1, w2):
        ...     return {"z1": 3 * w1 + w2, "z2": w1 * w1}
        >>> [each if each is None else float(each) for each in gs.gradients(fun, [2.0, 5.0], ys="z2", xs=["w1", "w2"])]
        [4.0, None]
        >>> [float(each) for each in gs.gradients(fun, [2.0, 5.0], ys=["z1", "z2"], xs="w1")]
        [7.0]
    """
    names = as_tuple(ys)
    if not isinstance(ys, str) and not isinstance(grad_ys, Iterable | None):
        raise ArgumentTypeError(f"grad_ys is {grad_ys!r}, expected one gradient for each y")
    initial = [None] * len(names) if grad_ys is None else [grad_ys] if isinstance(ys, str) else list(grad_ys)
    if len(initial) != len(names):
        raise UsageError(
            f"there are {len(initial)} initial gradients for {len(names)} values to differentiate",
            hint="give one for each y, None for ones",
        )
    question = Question(ys=names, xs=as_tuple(xs), grad_ys=initial, stops=as_tuple(stop_gradients))
    by_name = isinstance(args, Mapping)
    return gradients_of(fun, () if by_name else args, args if by_name else {}, question)


@typed("what")
def save(path: str | os.PathLike[str], what: Seen[Any] | Dump, *, force: bool = False) -> Manifest:
    """Writes the observations of a step, or a dump in memory, to a file.

    Under `jax.distributed` every process has to call it, and the dump is a folder that all of them can access. Each
    process writes the shards on its own devices, and none needs memory for a complete tensor.

    Args:
        path: The file, by convention `.npz`; under `jax.distributed` the folder.
        what: The observations of one step of a function of `value_and_grad`, or the result of `capture`.
        force: Whether a file that exists may be replaced.

    Returns:
        The manifest that was written: an entry for each tensor, layers, ledger and provenance.

    Raises:
        UsageError: The path cannot be used, a file exists there, the dump is in a file already, or the observations are
            those of several steps, or it is neither of both.
        MachineError: The folder is read-only, the disk full.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> (value, grads), seen = gs.value_and_grad(lambda w: (w**2).sum(), observe="tensors")(jnp.ones(3))
        >>> manifest = gs.save("step0.npz", seen)
        >>> len(manifest.entries), manifest.loss
        (4, 3.0)
        >>> with gs.load("step0.npz") as dump:
        ...     dump["param_grad/value"]
        array([2., 2., 2.], dtype=float32)
    """
    given = cast("object", what)
    if not isinstance(given, Dump | Seen):
        raise UsageError(
            f"gs.save writes observations or a dump, and this is a {type(given).__name__}",
            hint="observations are the last of what value_and_grad returns, as in (loss, grads), seen = ...; of "
            "gs.train_step they are seen.backward",
        )
    with dump_writer(path, force=force) as writer:
        if isinstance(what, Dump):
            return _save_dump(writer, what.source)
        session = what.session(reading_for(writer, TensorReading()))
        for record in session.records():
            writer.add(record)
        return writer.commit(
            replace(
                session.facts(),
                tier="core" if what.watching.plan.observe is core_statistics else "full",
                provenance=machine_provenance(),
            )
        )


def _save_dump(writer: Writer, source: DumpSource) -> Manifest:
    if not isinstance(source, MemoryDump):
        raise UsageError("the dump is in a file already", hint="copy the file")
    for record in source.records():
        writer.add(record)
    return writer.commit(source.manifest)
