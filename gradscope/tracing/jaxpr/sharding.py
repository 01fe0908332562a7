"""Types of values state their sharding, which JAX spells differently from version to version (0.6 to 0.12).

Inside a `shard_map` a type states over which mesh axes a value *varies*; under a mesh with explicit axes it states how
the value is *sharded*. Branches, iterations and backward rules must agree on both, and so must their observations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradscope.tracing.jaxpr.jaxcompat import Equation, manual_axes

_Returned = TypeVar("_Returned")


def varying(value: Any, axes: Sequence[str]) -> Any:
    """Returns `value` typed as varying over mesh axes, as `shard_map` requires of outputs that differ by shard."""
    missing = same_axes(value, axes)
    if not missing:
        return value
    lax: Any = jax.lax
    if hasattr(lax, "pcast"):
        return lax.pcast(value, missing, to="varying")
    return lax.pvary(value, missing)  # its name before 0.9


def varying_axes(values: Iterable[Any]) -> tuple[str, ...]:
    """Returns the mesh axes that any of some values varies over, where they are inside a `shard_map`."""
    return tuple(sorted({axis for value in values for axis in _varying_axes(jax.typeof(value), ())}))


def axes_of_type(aval: Any) -> tuple[str, ...]:
    """Returns the mesh axes over which values of a type vary, inside a `shard_map`."""
    return tuple(sorted(_varying_axes(aval, ())))


def same_axes(value: Any, axes: Sequence[str]) -> tuple[str, ...]:
    """Returns the mesh axes of which all shards have the same value."""
    return tuple(axis for axis in axes if axis not in _varying_axes(jax.typeof(value), axes))


def once(value: Any, axes: Sequence[str]) -> Any:
    """Returns a value in the first shard along some mesh axes, and zeros in the others, which have the same one.

    Backwards, what arrives at the value is then what arrives at that shard, where it would be the sum over all of them.
    """
    return _only(value, jax.lax.axis_index(axes) == 0) if axes else value


def in_any(condition: Any, axes: Sequence[str]) -> Any:
    """Returns whether a condition holds in any shard along some mesh axes, the same for all of them."""
    return jax.lax.psum(condition.astype(jnp.int32), axes) > 0


def of_first(value: Any, condition: Any, axes: Sequence[str]) -> Any:
    """Returns the value of the first shard along some mesh axes in which a condition holds, in all of them."""
    numbers = jax.lax.axis_index(axes)
    first = jax.lax.pmin(jnp.where(condition, numbers, jax.lax.axis_size(axes)), axes)
    return jax.lax.psum(_only(value, numbers == first), axes)


def _only(value: Any, condition: Any) -> Any:
    """Returns a value where a condition holds, and zeros elsewhere."""
    return jax.lax.select(jnp.broadcast_to(condition, value.shape), value, jnp.zeros_like(value))


def _varying_axes(aval: Any, unknown: Sequence[str]) -> Collection[str]:
    if hasattr(aval, "manual_axis_type"):
        return aval.manual_axis_type.varying
    return getattr(aval, "vma", unknown)  # its name before 0.10; types did not state it before 0.7


def meshes_of(equation: Equation) -> Iterator[Any]:
    """Yields the meshes that an equation names: that of a `shard_map`, and those of shardings."""
    if equation.params.get("mesh") is not None:  # a kernel of Pallas may have one, and has None without
        yield equation.params["mesh"]
    named = [each for value in equation.params.values() for each in (value if isinstance(value, tuple) else (value,))]
    of_types = [getattr(variable.aval, "sharding", None) for variable in equation.outvars]
    yield from meshes_of_shardings(*named, *of_types)


def meshes_of_shardings(*shardings: Any) -> Iterator[Any]:
    """Yields the meshes of those values that are shardings on a mesh."""
    for sharding in shardings:
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            yield sharding.mesh


def sharding_of(aval: Any) -> NamedSharding | None:
    """Returns the sharding that is part of a value's type; None where its type has none."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty or not any(sharding.spec):
        return None
    return sharding


def zeros_of(aval: Any) -> Any:
    """Returns zeros of a type, in place of a value that nothing requested depends on."""
    zeros = jnp.zeros(aval.shape, aval.dtype, device=sharding_of(aval))
    return varying(zeros, tuple(_varying_axes(aval, ())))


def sharded_as(value: Any, other: Any) -> Any:
    """Returns the other value, sharded over explicit axes as `value` is, so that backward rules have the same types."""
    sharding = sharding_of(jax.typeof(value))
    return other if sharding is None else jax.sharding.reshard(other, sharding)


def under_leading_axes(sharding: Any, number: int) -> NamedSharding | None:
    """Returns the sharding of a stack of values with `number` more leading axes, none of which is split."""
    if sharding is None:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*[None] * number, *sharding.spec))


def dealt(value: Any, mesh: Any, axes: Sequence[str]) -> Any:
    """Returns `value` with its leading axis split over mesh axes, as a `shard_map` over explicit axes requires."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if any(kinds[axis] != AxisType.Explicit for axis in axes):
        return value
    return jax.sharding.reshard(value, NamedSharding(mesh, PartitionSpec(tuple(axes))))


def with_whole_axis(value: Any) -> Any:
    """Returns `value` with its leading axis on every device, where it is split over explicit axes: it can be sliced."""
    sharding = sharding_of(jax.typeof(value))
    if sharding is None or sharding.spec[0] is None:
        return value
    return jax.sharding.reshard(value, NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:])))


def in_whole(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function of an array and with a small result, for arrays that are sharded over explicit axes, too.

    There each operation has to state how its result is sharded. The function is left to the compiler, and its result
    is the same on all devices.
    """

    def call(value: Any) -> Any:
        sharding = sharding_of(jax.typeof(value))
        if sharding is None:
            return function(value)
        # The mesh is that of the value's type, and need not be set: of none that is, no axis would be left.
        with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):
            if hasattr(jax.sharding, "auto_axes"):
                return jax.sharding.auto_axes(function, out_sharding=PartitionSpec())(value)
            experimental: Any = import_module("jax.experimental.shard")  # its place and its keyword before 0.7
            return experimental.auto_axes(function, out_shardings=PartitionSpec())(value)

    return call


def in_shards(splits: Iterable[Equation], function: Callable[[], _Returned]) -> _Returned:
    """Returns what a function returns that is called in one shard, where mesh axes have their names.

    Args:
        splits: The `shard_map`s around, the innermost first.
        function: It traces something, and computes nothing.
    """
    found: list[_Returned] = []
    body: Callable[[], Any] = lambda: found.append(function())  # noqa: E731
    for split in splits:
        body = jax.shard_map(
            body,
            mesh=split.params["mesh"],
            in_specs=(),
            out_specs=None,
            axis_names=frozenset(manual_axes(split)),
            check_vma=bool(split.params.get("check_vma", True)),
        )
    jax.eval_shape(body)
    return found[0]
