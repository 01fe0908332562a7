"""The adapter of Flax Linen takes modules, which carry no variables and open a scope for every submodule themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import flax.linen as nn
import jax
from flax.core import DenyList
from jax import Array

from gradscope.frameworks.modules.adapter import RNGS, CalledObject, Variables
from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.input_spec import InputSpec

#: Names of the keys that a module may use. Flax uses `params` for any other name.
_STREAMS: Final = ("params", "dropout")

#: Collections that an application may not change: parameters, and the zeros that `perturb` would add to values.
_FIXED: Final = DenyList(["params", "perturbations"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LinenAdapter(CalledObject):
    """A `LinenAdapter` adapts a Linen module that is not bound to variables."""

    net: nn.Module
    framework: str = "Flax Linen"
    supplied: Collection[str] = ()
    initialised: bool = False
    inputs: tuple[InputSpec, ...] = ()

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:
        """Returns variables by collection, and the keys of its random streams."""
        positional, keyword = call.arguments(inputs)
        made = self.net.init(_streams(key), *positional, **keyword)
        own = {name: made[name] for name in made if name != "perturbations"}
        return {**own, RNGS: _streams(jax.random.fold_in(key, 1))}

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns outputs and updated collections, also those that `sow` fills."""
        positional, keyword = call.arguments(inputs)
        own = {name: collection for name, collection in variables.items() if name != RNGS}
        outputs, updated = self.net.apply(own, *positional, rngs=variables[RNGS], mutable=_FIXED, **keyword)
        return outputs, updated


def adapt(found: Any, *, train: bool) -> LinenAdapter | None:  # noqa: ARG001 - a Linen module receives the mode when it is called
    """Returns the adapter of a Linen module; None for another object."""
    return LinenAdapter(net=found) if isinstance(found, nn.Module) else None


def builder(found: Any, *, seed: int) -> Callable[..., nn.Module] | None:  # noqa: ARG001 - building uses no random numbers
    """Returns a class of Linen modules itself; None for another object."""
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def _streams(key: Array) -> dict[str, Array]:
    return dict(zip(_STREAMS, jax.random.split(key, len(_STREAMS)), strict=True))
