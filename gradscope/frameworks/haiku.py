"""The adapter of Haiku takes functions that create modules as they run, transformed into `init` and `apply`.

A target may name the result of `hk.transform` or `hk.transform_with_state`; a class of modules, called or not, which is
built inside the transformation, as Haiku requires; or a function of a file that imports Haiku, not yet transformed.

Scopes are Haiku's own. Parameters and state are named as the layers that have them, `mlp/linear_0/w`: Haiku's
dictionaries have two components more, for which it opens no scope, `~` in the names of modules that are built in a
constructor, and the name of a stack of layers. Where two modules would have one name, they keep those of Haiku.

A network is initialised in training mode, also where it then runs in evaluation mode: a batch norm creates its averages
only there.

A file's own `init` may return the pair that the `init` of `hk.transform_with_state` does. Both are plain dictionaries,
as the parameters of two networks are, which are a pair, too: so Haiku is watched while it makes them.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

import haiku as hk
import jax
from jax import Array

from gradscope.frameworks.modules.adapter import PARAMS, RNGS, Variables
from gradscope.frameworks.modules.calling import CallShape, method_signature
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.outputs import parted

_STATE: Final = "state"

#: Components of Haiku's names for which it opens no scope.
_UNSCOPED: Final = re.compile(r"~|__layer_stack_(no|with)_per_layer(_\d+)?")
_KEY: Final = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaikuAdapter:
    """A `HaikuAdapter` adapts a transformed function.

    Attributes:
        net: The function, with state.
        module: Its name in messages.
        takes_key: Whether its `apply` takes a random key, which that of `hk.without_apply_rng` does not.
        names: Haiku's names of the modules in a collection by those of their layers, known once it is initialised.
    """

    net: hk.TransformedWithState
    module: str
    takes_key: bool = True
    framework: str = "Haiku"
    supplied: Collection[str] = ()
    initialised: bool = False
    inputs: tuple[InputSpec, ...] = ()
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function; `init` has the key before it."""
        return method_signature(self.net.init)

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:
        """Returns parameters, state, and the key of an application."""
        positional, keyword = call.in_training().arguments(inputs)
        init_key, apply_key = jax.random.split(key)
        params, state = self.net.init(init_key, *positional, **keyword)
        made = {PARAMS: self._scoped(params)} | ({_STATE: self._scoped(state)} if state else {})
        return made | ({RNGS: {_KEY: apply_key}} if self.takes_key else {})

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns outputs and updated state."""
        positional, keyword = call.arguments(inputs)
        params, state = self._haikus(variables[PARAMS]), self._haikus(variables.get(_STATE, {}))
        key = (variables[RNGS][_KEY],) if self.takes_key else ()
        outputs, updated = self.net.apply(params, state, *key, *positional, **keyword)
        return outputs, {_STATE: self._scoped(updated)}

    def _scoped(self, collection: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a collection by the names of layers, and remembers Haiku's own."""
        scoped = {
            name: "/".join(part for part in name.split("/") if not _UNSCOPED.fullmatch(part)) for name in collection
        }
        counts = Counter(scoped.values())
        named = {name if counts[short] > 1 or not short else short: name for name, short in scoped.items()}
        self.names.update(named)
        return {short: collection[name] for short, name in named.items()}

    def _haikus(self, collection: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a collection by Haiku's names."""
        return {self.names.get(name, name): each for name, each in collection.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HaikuPair:
    """A `HaikuPair` is the parameters and the state of a transformed function, as `init` returns them, without values.

    Attributes:
        state: The structure of the state.
    """

    state: Any

    @property
    def module(self) -> None:
        """Haiku has no format of its own."""

    def calling(self, values: Variables, function: Callable[[Any], Any]) -> tuple[Any, Variables]:
        """Returns what a function of the pair returns, with None in the place of the state, and that state."""
        remaining, state = parted(function((values[PARAMS], values[_STATE])), self.state)
        return remaining, {} if state is None else {_STATE: state}


@contextmanager
def noting_pairs(noted: set[Any]) -> Generator[None]:
    """Notes what parameters and state, by their structures, transformed functions make.

    Args:
        noted: Receives the pairs of structures.
    """
    # Haiku has no public place to watch it; without this one, a pair is what it was before: two trees of parameters.
    context = getattr(sys.modules.get("haiku._src.base"), "HaikuContext", None)
    collect = getattr(context, "collect_initial_state", None)
    if context is None or collect is None:
        yield
        return

    def noting(self: Any) -> Any:
        state = collect(self)
        noted.add(tuple(map(jax.tree_util.tree_structure, (self.collect_params(), state))))
        return state

    context.collect_initial_state = noting
    try:
        yield
    finally:
        context.collect_initial_state = collect


def split_pair(found: Any, noted: Collection[Any]) -> tuple[HaikuPair, Variables] | None:
    """Returns the structure and the variables of a pair that was noted; None for another object."""
    if not (type(found) in (tuple, list) and len(found) == 2):
        return None
    structures = tuple(map(jax.tree_util.tree_structure, found))
    if structures not in noted:
        return None
    return HaikuPair(state=structures[1]), {PARAMS: found[0], _STATE: found[1]}


def adapt(found: Any, *, train: bool) -> HaikuAdapter | None:  # noqa: ARG001 - a Haiku function receives the mode when it is called
    """Returns the adapter of a transformed function, or of one that can be transformed; None for another object."""
    match found:
        case HaikuAdapter():
            return found
        case hk.TransformedWithState():
            return HaikuAdapter(net=found, module="the Haiku function", takes_key=_takes_key(found, before=2))
        case hk.Transformed():
            takes_key = _takes_key(found, before=1)
            net = _with_empty_state(found, takes_key=takes_key)
            return HaikuAdapter(net=net, module="the Haiku function", takes_key=takes_key)
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


def _takes_key(net: hk.Transformed | hk.TransformedWithState, before: int) -> bool:
    """Returns whether `apply` takes a key after its first arguments, as `init` takes one before the inputs."""
    init, apply = (len(inspect.signature(each).parameters) for each in (net.init, net.apply))
    return apply - before == init


def _with_empty_state(net: hk.Transformed, *, takes_key: bool) -> hk.TransformedWithState:
    """Returns a function without state as one whose state is empty."""
    if takes_key:
        return hk.with_empty_state(net)

    def init(key: Any, *inputs: Any, **named: Any) -> Any:
        return net.init(key, *inputs, **named), {}

    def apply(params: Any, state: Any, *inputs: Any, **named: Any) -> Any:
        return net.apply(params, *inputs, **named), state

    _declare(init, inspect.signature(net.init))
    return hk.TransformedWithState(init, apply)


def _declare(function: Any, signature: inspect.Signature) -> None:
    """Gives a function that passes its arguments on the signature of the function that receives them."""
    function.__signature__ = signature
