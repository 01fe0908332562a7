"""`TrainState` is what a training step turns into its successor, and the names of everything in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax

from gradscope import naming
from gradscope.naming.sizes import shown_size

#: Flax's collection of parameters. Variables without it are parameters throughout.
_PARAMS: Final = "params"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TrainState:
    """A `TrainState` is the state of a training run between two steps, a pytree.

    Attributes:
        step: The number of steps taken, int32.
        variables: What the model's `init` returns: parameters, or Flax's collections with `params` among them.
        optimizer: The optimizer's state, as optax has it, of the trained parameters.
        average: Moving averages of the trained parameters; None without.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> step = gs.train_step(lambda w, x: ((w["a"] * x) ** 2).sum(), "momentum(0.1, 0.9)")
        >>> state = step.init({"a": jnp.ones(2)})
        >>> int(state.step), sorted(state.slots())
        (0, ['slot/trace/a'])
    """

    step: Any
    variables: Any
    optimizer: Any
    average: Any

    def __repr__(self) -> str:
        leaves = jax.tree_util.tree_leaves((self.variables, self.optimizer, self.average))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "dtype"))
        return f"<gradscope.TrainState after {self.step} steps: {len(leaves):,} arrays, {shown_size(size)}>"

    @property
    def params(self) -> Any:
        """The parameters, without other collections."""
        return params_of(self.variables)

    def slots(self) -> dict[str, Any]:
        """Returns the optimizer's variables for each parameter by key, `slot/mu/dense/kernel`."""
        return slots_of(self.optimizer, named_leaves(self.params))

    def averages(self) -> dict[str, Any]:
        """Returns the moving averages by key, `average/dense/kernel`."""
        return {naming.key_of(naming.AVERAGE, name): leaf for name, leaf in named_leaves(self.average).items()}


def params_of(variables: Any) -> Any:
    """Returns the parameters among a model's variables."""
    return variables[_PARAMS] if has_collections(variables) else variables


def with_params(variables: Any, params: Any) -> Any:
    """Returns a model's variables with other parameters."""
    return {**variables, _PARAMS: params} if has_collections(variables) else params


def with_collections(variables: Any, collections: Mapping[str, Any]) -> Any:
    """Returns a model's variables with other collections than its parameters."""
    return {**variables, **collections} if has_collections(variables) else variables


def collections_of(variables: Any) -> dict[str, Any]:
    """Returns the collections of a model's variables other than its parameters, by name."""
    if not has_collections(variables):
        return {}
    return {name: value for name, value in variables.items() if name != _PARAMS}


def has_collections(variables: Any) -> bool:
    """Returns whether variables are Flax's collections, and not parameters throughout."""
    return isinstance(variables, Mapping) and _PARAMS in variables


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by path: `dense/kernel`; of a single leaf by the name `value`."""
    return {_joined(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def slots_of(optimizer: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of an optimizer's state that belong to a parameter each, by key.

    A part belongs to the parameter whose path ends its own, if it has its shape. The slot's name is what comes before:
    optax's field, `mu`, with a number where an optimizer has several of the name.

    Args:
        optimizer: The state, of any optimizer of optax.
        params: The parameters by name.
    """
    leaves = optimizer_leaves(optimizer, params)
    return {key: leaf for key, leaf in leaves.items() if key.startswith(f"{naming.SLOT_PREFIX}/")}


def optimizer_leaves(optimizer: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every leaf of an optimizer's state by key, in the order of its leaves.

    The keys of slots are those of `slots_of`, all others are `aux/optimizer/PATH`.

    Args:
        optimizer: The state, of any optimizer of optax.
        params: The parameters by name.
    """
    prefixes: dict[str, list[str]] = {}
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(optimizer):
        found = _slot_and_parameter(path, leaf, params)
        if found is None:
            leaves[naming.key_of(naming.AUX, f"optimizer/{_joined(path)}")] = leaf
            continue
        slot, prefix, name = found
        known = prefixes.setdefault(slot, [])
        if prefix not in known:
            known.append(prefix)
        spelled = slot if known[0] == prefix else f"{slot}#{known.index(prefix) + 1}"
        leaves[naming.key_of(f"{naming.SLOT_PREFIX}/{spelled}", name)] = leaf
    return leaves


def _slot_and_parameter(path: Any, leaf: Any, params: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Returns the slot's name, the path before the parameter's, and the parameter; None where it belongs to none."""
    for length in range(len(path), -1, -1):
        name = _joined(path[len(path) - length :])
        param = params.get(name)
        before = path[: len(path) - length]
        if param is not None and before and tuple(param.shape) == tuple(getattr(leaf, "shape", ())):
            return _field(before), jax.tree_util.keystr(before), name
    return None


def _field(path: Any) -> str:
    """Returns the name of the innermost field of a path, or else of the innermost entry, that has a name."""
    fields = [str(key.name) for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
    entries = [key.key for key in path if isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, str)]
    # A name with slashes would be read as that of a slot and of a parameter.
    return [_joined(path), *entries, *fields][-1].replace("/", ".")


def _joined(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "value"
