"""The adapter of Haiku: functions that create modules as they run, transformed into a pair of `init` and `apply`.

A target may name the result of `hk.transform` or `hk.transform_with_state`; a class of modules, called or not, which is
built inside the transformation, as Haiku requires; or a function of a file that imports Haiku, not yet transformed.

Scopes are Haiku's own; parameters are named as in Haiku's dictionaries, `mlp/~/linear_0/w`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import haiku as hk
import jax
from jax import Array

from gradscope.frameworks.modules.adapter import PARAMS, RNGS, Variables
from gradscope.frameworks.modules.calling import CallShape, method_signature
from gradscope.frameworks.modules.input_spec import InputSpec

_STATE: Final = "state"
_KEY: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaikuAdapter:
    """A `HaikuAdapter` adapts a transformed function."""

    net: hk.TransformedWithState
    module: str
    framework: str = "Haiku"
    supplied: Collection[str] = ()
    initialised: bool = False
    inputs: tuple[InputSpec, ...] = ()

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function; `init` has the key before it."""
        return method_signature(self.net.init)

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:
        """Returns parameters, state, and the key of an application."""
        positional, keyword = call.arguments(inputs)
        init_key, apply_key = jax.random.split(key)
        params, state = self.net.init(init_key, *positional, **keyword)
        return {PARAMS: params, RNGS: {_KEY: apply_key}} | ({_STATE: state} if state else {})

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns outputs and updated state."""
        positional, keyword = call.arguments(inputs)
        state, key = variables.get(_STATE, {}), variables[RNGS][_KEY]
        outputs, updated = self.net.apply(variables[PARAMS], state, key, *positional, **keyword)
        return outputs, {_STATE: updated}


def adapt(found: Any, *, train: bool) -> HaikuAdapter | None:  # noqa: ARG001 - a Haiku function receives the mode when it is called
    """Returns the adapter of a transformed function, or of one that can be transformed; None for another object."""
    match found:
        case HaikuAdapter():
            return found
        case hk.TransformedWithState():
            return HaikuAdapter(net=found, module="the Haiku function")
        case hk.Transformed():
            return HaikuAdapter(net=hk.with_empty_state(found), module="the Haiku function")
        case FunctionType() if any(value is hk for value in found.__globals__.values()):
            return HaikuAdapter(net=hk.transform_with_state(found), module=found.__name__)
        case _:
            return None


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:  # noqa: ARG001 - building uses no random numbers
    """Returns a function of the arguments of a class of modules, which are built when it runs; None for others."""
    if not (isinstance(found, type) and issubclass(found, hk.Module)):
        return None

    def build(*arguments: Any, **keyword: Any) -> HaikuAdapter:
        def forward(*inputs: Any, **named: Any) -> Any:
            module: Any = found(*arguments, **keyword)
            return module(*inputs, **named)

        _declare(forward, method_signature(found.__call__))
        return HaikuAdapter(net=hk.transform_with_state(forward), module=found.__name__)

    _declare(build, method_signature(found.__init__))
    return build


def _declare(function: Any, signature: inspect.Signature) -> None:
    """Gives a function that passes its arguments on the signature of the function that receives them."""
    function.__signature__ = signature
