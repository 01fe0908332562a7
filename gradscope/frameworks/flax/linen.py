"""The adapter of Flax Linen takes modules, which carry no variables.

Flax opens a scope for every call by the name of the module, wherever that is called: `Sequential_0/Dense_0` for a
layer whose parameters are `Dense_0`. While a function is traced, scopes by the module's path are opened in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import flax.linen as nn
import jax
from flax.core import DenyList
from jax import Array

from gradscope.frameworks.modules.adapter import RNGS, CalledObject, Variables
from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.module_scopes import module_scope

#: Names of the keys that a module may use. Flax uses `params` for any other name.
_STREAMS: Final = ("params", "dropout")

#: Collections that an application may not change: parameters, and the zeros that `perturb` would add to values.
_FIXED: Final = DenyList(["params", "perturbations"])

#: The name of the outermost module that is being called; empty where there is none.
_ROOT: Final[ContextVar[str]] = ContextVar("root", default="")


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


@contextmanager
def naming_calls() -> Generator[None]:
    """Makes modules open scopes by their paths, and not those that Flax opens."""
    with nn.override_named_call(enable=False), nn.intercept_methods(_opening):
        yield


def _opening(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    path, method = context.module.path, context.method_name
    if method == "__call__" or not hasattr(type(context.module), method):  # a function that `nn.scan` or its like calls
        method = ""
    root = (_ROOT.get() if path else "") or _root_of(context.module)
    token = _ROOT.set(root)
    try:
        with module_scope("/".join(filter(None, (root, *path))), method):
            return call(*args, **kwargs)
    finally:
        _ROOT.reset(token)


def _root_of(module: Any) -> str:
    """Returns the name of the outermost module around one, or of its own class where a bound one states none."""
    while isinstance(module.parent, nn.Module):
        module = module.parent
    return (not module.path and module.name) or type(module).__name__


def _streams(key: Array) -> dict[str, Array]:
    return dict(zip(_STREAMS, jax.random.split(key, len(_STREAMS)), strict=True))
