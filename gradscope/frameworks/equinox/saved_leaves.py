"""Equinox's `.eqx` files have the leaves of a module one after the other, without names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gradscope.frameworks.equinox.partition import STATE, split
from gradscope.frameworks.modules.adapter import Described
from gradscope.frameworks.modules.tree_names import tree_names

SUFFIX: Final = ".eqx"


@dataclass(frozen=True, slots=True, kw_only=True)
class EquinoxFormat:
    """An `EquinoxFormat` reads a file of leaves into a module, or into a pair of a module and its state."""

    module: Any
    checkpoint: Path
    built: bool = True
    exact: bool = True

    def layouts(self) -> tuple[Mapping[str, Described], None]:
        """Returns the leaves that Equinox saves of this module, and None: the file has only an order."""
        expected = {
            path: leaf if _is_shape(leaf) else jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))
            for path, leaf in zip(self._names(), jax.tree_util.tree_leaves(self.module), strict=True)
            if _is_saved(leaf)
        }
        return expected, None

    def hint(self, saved: int) -> str | None:
        """Returns what to do about a file of a model with state that was saved without it, or of one that has more."""
        own = self.without_state
        whole = sum(map(_is_saved, jax.tree_util.tree_leaves(self.module)))
        stateful = own < whole  # the state that comes with a class of modules may be empty
        if stateful and saved == own:
            return (
                f"the file has the {own} tensors of the model and none of its state: save the pair, "
                "eqx.tree_serialise_leaves(FILE, (model, state))"
            )
        if saved > whole and stateful:
            return (
                "if the file has more than the pair, such as an optimizer's state, save (model, state) first, or alone"
            )
        if saved > own and not stateful:
            if self.leads:
                return (
                    "if the file has more than the model, such as an optimizer's state, save the model first, or alone"
                )
            return "if the file has a model and its state, name the pair that eqx.nn.make_with_state(...)(...) returns"
        return None

    @property
    def without_state(self) -> int:
        """The number of leaves of the module alone."""
        net = self.module[0] if self._has_state else self.module
        return sum(map(_is_saved, jax.tree_util.tree_leaves(net)))

    @property
    def leads(self) -> bool:
        """False for a module with state that is named without it: what follows in the file is most often that state."""
        leaves = jax.tree_util.tree_leaves(self.module, is_leaf=_is_index)
        return self._has_state or not any(map(_is_index, leaves))

    @property
    def _has_state(self) -> bool:
        """Whether it is a pair of a module and its state, and not of two modules."""
        return isinstance(self.module, tuple) and len(self.module) == 2 and isinstance(self.module[1], eqx.nn.State)

    def _names(self) -> list[str]:
        """Returns the names of all leaves, in order; of a module with state, as without a file: those of the layers."""
        taken = split(self.module) if self._has_state else None
        if taken is None:
            return tree_names(self.module)
        net, state = self.module[0], taken[0].state
        paths = {id(leaf): path for path, leaf in taken[0].state_values(state).items()}
        of_state = [f"{STATE}/{paths[id(leaf)]}" for leaf in jax.tree_util.tree_leaves(state)]
        names = [*tree_names(net), *of_state]
        return names if len({*names}) == len(names) else tree_names(self.module)

    def restore(self, behind: int = 0) -> Any:
        """Returns a module with the file's leaves, behind a number of others."""
        with self.checkpoint.open("rb") as file:
            if file.peek(1).startswith(b"{"):  # what the model is built of, on a line of its own
                file.readline()
            for _ in range(behind):
                np.load(file)  # as Equinox writes every leaf, one after the other
            return eqx.tree_deserialise_leaves(file, self.module)


def _is_saved(leaf: Any) -> bool:
    """Returns whether Equinox saves a leaf, or the array whose shape it is."""
    return _is_shape(leaf) or eqx.is_array_like(leaf)


def _is_shape(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _is_index(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.StateIndex)
