"""The arguments of a loss are described by their shapes and made when they are needed.

They come from the model's own `init` and `batch`, or from a checkpoint, a data file or an input pipeline.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.execution.function_call import is_traceable
from gradscope.errors import DumpError, ModelError, UsageError
from gradscope.frameworks.detect import hint_without_adapter
from gradscope.naming import printable
from gradscope.tracing.data.checkpoints import variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.layers.convolution_kernels import ConvolutionKernel, convolution_kernels
from gradscope.tracing.leaves import changed
from gradscope.tracing.loading.batches import DataRequest
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import trace_loss
from gradscope.tracing.user_frames import user_code

#: Number of examples in a batch where neither the user nor the model gives one.
BATCH_SIZE: Final = 8

#: The errors with which JAX reports that a function needs values where it received shapes.
NEEDS_VALUES: Final = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """`Arguments` holds the shapes of a loss's arguments and a function that makes their values.

    Attributes:
        shapes: The pair (variables, batch) as pytrees of `jax.ShapeDtypeStruct`.
        make: Makes the pair; slow, and free of side effects, so it may run in a thread.
        batch_size: Number of examples; None where it is not known.
        notes: Sentences about what was done to a batch from a file.
        absent: Names of the leaves of the batch that the file lacks; their values are zeros.
    """

    shapes: tuple[Any, Any]
    make: Callable[[], tuple[Any, Any]]
    batch_size: int | None = None
    notes: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()

    @classmethod
    def of(cls, variables: Any, batch: Any) -> Arguments:
        """Returns the arguments that are these values: pytrees of arrays and numbers."""
        values = jax.tree_util.tree_map(_as_jax_has_it, (variables, batch))
        shapes, make = _existing(lambda: values)
        return cls(shapes=shapes, make=make)

    def require(self, names: Collection[str]) -> None:
        """Raises `DumpError` where the file lacks leaves of the batch that are needed.

        Args:
            names: Names of the leaves that are needed.

        Raises:
            DumpError: The file lacks some of them.
        """
        lacking = [printable(name) for name in names if name in self.absent]
        if lacking:
            raise DumpError(
                f"the batch lacks {', '.join(lacking)}, which the requested values need",
                hint="add it to the file, or request values that do not need it",
            )


def _as_jax_has_it(leaf: Any) -> Any:
    """Returns a leaf with the dtype that a program receives it in: float64 is float32 unless JAX has 64-bit types."""
    if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape")):  # a model of Keras has a dtype, too
        if not is_traceable(leaf):
            raise TypeError(f"{leaf!r:.80} is of type {type(leaf).__name__}, which is no array and no number")
        return jnp.asarray(leaf)
    own = isinstance(leaf, (np.ndarray, np.generic))
    return jnp.asarray(leaf) if own and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype else leaf


def model_arguments(
    model: Model,
    *,
    seed: int,
    batch_size: int | None = None,
    dtype: str | None = None,
    data: DataRequest | None = None,
    checkpoint: CheckpointRequest | None = None,
) -> Arguments:
    """Returns the arguments of a model's loss.

    Args:
        model: The model.
        seed: Seeds one key, split for `init` and `batch`.
        batch_size: Number of examples of the model's own batch; None for the model's own default.
        dtype: Floating-point leaves are converted to it; None keeps their dtypes.
        data: Where the batch comes from; None for the model's own.
        checkpoint: Where the variables come from; None for those that `init` makes.

    Returns:
        The arguments.

    Raises:
        ModelError: `init` or `batch` failed, or a pipeline.
        UsageError: There is no such pipeline, or the checkpoint was read by the model's framework and its tensors are
            to be renamed.
        DumpError: The files do not contain variables and a batch such as the model's own.
    """
    init_key, batch_key = jax.random.split(jax.random.key(seed))
    size = _default_size(model) if batch_size is None else batch_size
    with user_code(f"init of {model.name}"):
        maker = _existing if model.initialised else _deferred
        variables, make_variables = maker(lambda: converted("init", model.init(init_key), dtype))
    with user_code(f"batch of {model.name}"):
        batch, make_batch = _deferred(lambda: converted("batch", model.batch(batch_key, size), dtype))
    notes: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    if checkpoint is not None and model.restored is not None:
        _require_no_map(checkpoint)
        notes = model.restored
    elif checkpoint is not None and (own := model.restore(checkpoint.path)) is not None:
        _require_no_map(checkpoint)
        notes = own.notes
        variables, make_variables = _restored(converted("checkpoint", own.value, dtype), variables)
    elif checkpoint is not None:
        saved = variables_from_file(checkpoint, variables, make_variables, lambda: _kernels(model, variables, batch))
        notes = saved.notes
        variables, make_variables = _restored(converted("checkpoint", saved.variables, dtype), variables)
    if data is not None:
        read = data.batch(batch)
        size, notes, absent = read.size, (*notes, *read.notes), read.absent
        batch, make_batch = _deferred(lambda: jax.tree_util.tree_map(jnp.asarray, read.batch))

    def make() -> tuple[Any, Any]:
        with user_code(f"init of {model.name}"):
            made = make_variables()
        with user_code(f"batch of {model.name}"):
            return made, make_batch()

    return Arguments(shapes=(variables, batch), make=make, batch_size=size, notes=notes, absent=absent)


def _kernels(model: Model, variables: Any, batch: Any) -> Mapping[int, ConvolutionKernel]:
    """Returns the variables that a model convolves with, by position."""
    with user_code(f"loss of {model.name}"):
        return convolution_kernels(trace_loss(model.loss, variables, batch).root)


def _require_no_map(checkpoint: CheckpointRequest) -> None:
    """Raises `UsageError` where tensors are to be renamed or kept that a framework has read by position."""
    if checkpoint.has_rules or checkpoint.keep_init:
        raise UsageError(
            f"{printable(str(checkpoint.path))} was read by the model's framework, without tensor names",
            hint="leave --map-keys, --map and --keep-init out, or save the module as .npz, by the names of its leaves",
        )


def _restored(saved: Any, expected: Any) -> tuple[Any, Callable[[], Any]]:
    """Returns the shapes of saved variables, and a function that puts them on the devices of the model's own."""

    def placed(array: Any, leaf: Any) -> Any:
        # Not by `jnp.asarray`, which compiles the identity for each shape of NumPy's arrays.
        return jax.device_put(array, leaf.sharding)

    shapes = jax.tree_util.tree_map(
        lambda array, leaf: changed(leaf, dtype=jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)),
        saved,
        expected,
    )
    return shapes, lambda: jax.tree_util.tree_map(placed, saved, expected)


def _default_size(model: Model) -> int:
    """Returns the default of the batch size in a model's `batch`, or `BATCH_SIZE` where it has none."""
    default = list(inspect.signature(model.batch).parameters.values())[1].default
    return default if isinstance(default, int) else BATCH_SIZE


def _deferred(function: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """Returns a function's output shapes, and a function that makes its values, compiled where it can be traced."""
    try:
        shapes, make = jax.eval_shape(function), jax.jit(function)
    except NEEDS_VALUES:
        return _existing(function)  # it reads files or branches on values: run it without tracing, once
    if jax.device_count() == 1 and all(leaf.sharding is None for leaf in jax.tree_util.tree_leaves(shapes)):
        return shapes, make
    # Over which devices the values will be spread is known only once this is compiled.
    compiled = make.lower().compile()
    return _placed(shapes, compiled.output_shardings), compiled


def _existing(function: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """Returns the shapes of the values that a function returns, and a function that returns these values."""
    values = function()  # run and not compiled: the values exist already
    shardings = jax.tree_util.tree_map(lambda leaf: getattr(leaf, "sharding", None), values)
    return _placed(jax.eval_shape(lambda: values), shardings), lambda: values


def _placed(shapes: Any, shardings: Any) -> Any:
    """Returns shapes that carry the sharding of their values, where these are spread over devices or axes of a mesh."""
    leaves, tree = jax.tree_util.tree_flatten(shapes)
    placed = [
        # A type with explicit axes names a mesh without its devices, also where that is one.
        leaf
        if sharding is None or (sharding.num_devices == 1 and leaf.sharding is None)
        else changed(leaf, sharding=sharding)
        for leaf, sharding in zip(leaves, tree.flatten_up_to(shardings), strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, placed)


def converted(maker: str, tree: Any, dtype: str | None) -> Any:
    """Returns the output of the model's `init` or `batch`, its floating-point leaves converted to `dtype`.

    Raises:
        ModelError: It has a leaf that is no array.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        _require_array(f"{maker}()" + jax.tree_util.keystr(path), leaf)
    if dtype is None:
        return tree
    target_dtype = jnp.dtype(dtype)
    return jax.tree_util.tree_map(lambda leaf: leaf.astype(target_dtype) if _is_floating(leaf) else leaf, tree)


def _require_array(name: str, leaf: Any) -> None:
    try:
        jax.typeof(leaf)
    except TypeError as error:
        raise ModelError(
            f"{name} is of type {type(leaf).__name__}, expected an array or a number",
            hint=hint_without_adapter(leaf) or "return a pytree of arrays; what is no number does not go into a loss",
        ) from error


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
