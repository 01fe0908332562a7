"""The adapter of Flax NNX takes modules that carry their variables, and open no scopes.

The trace runs a merged copy of the user's module. Each module of the copy has its attribute path as a plain string,
which is static metadata: it survives the splitting and merging inside `nnx.jit`, `nnx.scan` and `nnx.remat`, where a
map from a module's identity would not. For as long as the trace lasts, `__call__` of each of these classes opens the
scope that the string names.

In a user's own step, modules are arguments of the function that is traced, or merged inside it. There every class of
modules opens scopes, and the outermost module that is called gives those inside it their paths for the duration of the
call.

Sharp edge: methods other than `__call__` open no scope; their operations belong to the module that calls them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import jax
from flax import nnx
from flax.errors import TraceContextError
from jax import Array

from gradscope.frameworks.modules.adapter import PARAMS, RNGS, CalledObject, Variables
from gradscope.frameworks.modules.calling import CallShape, parameters_to_build
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.module_scopes import calls_replaced, classes_of, module_scope
from gradscope.naming.paths import unique_names

#: The attribute with a module's path. NNX's wrapper of Linen modules takes every attribute for a collection of
#: variables unless it begins with `to_nnx__`.
_PATH: Final = "to_nnx__gradscope_path"

#: The paths of the modules inside the outermost one that is being called, by identity; empty outside of calls.
_PATHS: Final[ContextVar[Mapping[int, str]]] = ContextVar("paths", default=MappingProxyType({}))

#: The collection of variables of a type; the first that fits. Other collections have the name of the type.
_COLLECTIONS: Final = ((nnx.Param, PARAMS), (nnx.BatchStat, "batch_stats"), (nnx.RngState, RNGS))

#: What modules are, and random streams and optimizers as well; the name of older versions is the second one.
NNX_OBJECT: Final[type] = getattr(nnx, "Pytree", None) or nnx.Object


@dataclass(frozen=True, slots=True, kw_only=True)
class NnxStructure:
    """An `NnxStructure` is an NNX module without its values.

    Attributes:
        graph: Its graph definition.
        variables: Its variables by path, without values.
    """

    graph: Any
    variables: Sequence[tuple[Any, Any]]

    @property
    def module(self) -> None:
        """None: the files of its values have names."""

    def calling(self, values: Variables, function: Callable[[Any], Any]) -> tuple[Any, Variables]:
        """Returns the result of a function of the module with these values, and the collections that it updated.

        Args:
            values: The module's variables by collection.
            function: Takes the module, whose inner modules open their scopes for the duration of this call.

        Returns:
            The result and the updated collections.
        """
        named = _named(self.variables)
        filled = [(path, _with_value(each, values[collection_of(each)][name])) for name, (path, each) in named]
        copy = nnx.merge(self.graph, nnx.from_flat_state(filled))
        with _named_calls(copy):
            returned = function(copy)
        updated = _collections(nnx.to_flat_state(nnx.state(copy)))
        # The counters of random streams are not an update that a user wants to see.
        return returned, {name: each for name, each in updated.items() if name not in (PARAMS, RNGS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NnxAdapter(CalledObject):
    """An `NnxAdapter` adapts an NNX module, with its variables."""

    net: nnx.Module
    structure: NnxStructure
    variables: Variables
    framework: str = "Flax NNX"
    supplied: Collection[str] = ()
    initialised: bool = True
    inputs: tuple[InputSpec, ...] = ()

    def init(self, key: Array, call: CallShape, inputs: Mapping[str, Any]) -> Variables:  # noqa: ARG002 - they exist already
        """Returns the module's variables, by collection and attribute path."""
        return self.variables

    def apply(self, variables: Variables, call: CallShape, inputs: Mapping[str, Any]) -> tuple[Any, Variables]:
        """Returns outputs and updated collections."""
        positional, keyword = call.arguments(inputs)
        return self.structure.calling(variables, lambda net: net(*positional, **keyword))


def adapt(found: Any, *, train: bool) -> NnxAdapter | None:
    """Returns the adapter of an NNX module; None for another object."""
    if not isinstance(found, nnx.Module):
        return None
    copy = nnx.clone(found)
    (copy.train if train else copy.eval)()
    structure, variables = _split(copy)
    return NnxAdapter(net=found, structure=structure, variables=variables)


def builder(found: Any, *, seed: int) -> Callable[..., Any] | None:
    """Returns a class or function that takes `rngs`, with the seed's streams, or another class of modules itself."""
    if "rngs" in parameters_to_build(found):
        return functools.partial(found, rngs=nnx.Rngs(seed))
    return found if isinstance(found, type) and issubclass(found, nnx.Module) else None


def split_variables(found: Any) -> tuple[NnxStructure, Variables] | None:
    """Returns the structure of one NNX module or several, and the variables by collection; None for other objects."""
    return _split(found) if isinstance(found, nnx.Module) or _has_modules(found) else None


def _has_modules(found: Any) -> bool:
    """Returns whether an object is a container of modules, beside which are only arrays and random streams."""
    if not isinstance(found, Mapping | list):  # a tuple may be the arguments of a call
        return False
    held = jax.tree_util.tree_leaves(found, is_leaf=lambda node: isinstance(node, NNX_OBJECT))
    return any(isinstance(each, nnx.Module) for each in held) and all(
        isinstance(each, (NNX_OBJECT, Array)) for each in held
    )


def _split(net: Any) -> tuple[NnxStructure, Variables]:
    graph, state = nnx.split(net)
    flat = nnx.to_flat_state(state)
    structure = NnxStructure(graph=graph, variables=[(path, _with_value(each, 0)) for path, each in flat])
    return structure, _collections(flat)


def _collections(state: Iterable[tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the values of variables by collection and attribute path."""
    found: dict[str, dict[str, Any]] = {}
    for name, (_, variable) in _named(state):
        found.setdefault(collection_of(variable), {})[name] = _value(variable)
    return found


def _value(variable: Any) -> Any:
    return variable.get_value() if isinstance(variable, nnx.Variable) else variable


def _with_value(variable: Any, value: Any) -> Any:
    """Returns a variable with another value; an array, which a container has beside its modules, is its own value."""
    return variable.replace(value) if isinstance(variable, nnx.Variable) else value


def _named(state: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yields paths and variables, each with its name: no two of one collection have the same."""
    by_collection: dict[str, list[tuple[Any, Any]]] = {}
    for path, variable in state:
        by_collection.setdefault(collection_of(variable), []).append((path, variable))
    for found in by_collection.values():
        yield from zip(unique_names([tuple(map(str, path)) for path, _ in found]), found, strict=True)


def collection_of(variable: Any) -> str:
    """Returns the name of the collection that a variable belongs to; an array beside modules is a parameter."""
    if not isinstance(variable, nnx.Variable):
        return PARAMS
    kind = type(variable)
    known = (name for base, name in _COLLECTIONS if issubclass(kind, base))
    return next(known, kind.__name__.lower())


def _name(path: Iterable[Any]) -> str:
    return "/".join(map(str, path))


@contextmanager
def _named_calls(net: Any) -> Generator[None]:
    """Makes each module inside `net` open its scope when it is called; its classes are restored afterwards.

    Args:
        net: A copy that no other code uses, of a module or of a container of several, which has no name of its own.
    """
    root = (type(net).__name__,) if isinstance(net, nnx.Module) else ()
    callables = [(path, module) for path, module in nnx.iter_modules(net) if _call_of(type(module)) is not None]
    for path, module in callables:
        setattr(module, _PATH, _name((*root, *path)))
    with _opening_scopes({type(module) for _, module in callables}):
        yield


@contextmanager
def naming_calls() -> Generator[None]:
    """Makes modules open their scopes, whichever they are: also those that the function being traced builds itself."""
    with _opening_scopes({cls for cls in classes_of(nnx.Module) if _call_of(cls) is not None}):
        yield


def _opening_scopes(classes: Collection[type]) -> AbstractContextManager[None]:
    # All calls are looked up before any is set, because classes inherit them.
    return calls_replaced({cls: _opening(_call_of(cls)) for cls in classes})


def _call_of(cls: type) -> Any:
    """Returns the `__call__` of a class or its bases, unbound; None where its instances cannot be called."""
    return next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)


def _opening(call: Any) -> Callable[..., Any]:
    @functools.wraps(call)
    def opened(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = call.__get__(self, type(self))  # a function, or one wrapped by `nnx.jit`
        path = getattr(self, _PATH, None) or _PATHS.get().get(id(self))
        if path is not None:
            with module_scope(path):
                return bound(*args, **kwargs)
        if _PATHS.get():  # made during the call, or not part of the model
            return bound(*args, **kwargs)
        with _outermost(self), module_scope(type(self).__name__):
            return bound(*args, **kwargs)

    return opened


@contextmanager
def _outermost(net: nnx.Module) -> Generator[None]:
    """Gives the modules inside one their paths from it, as long as it is called."""
    paths = {id(module): (module, _name((type(net).__name__, *path))) for path, module in nnx.iter_modules(net)}
    marked: list[nnx.Module] = []
    token = _PATHS.set({number: path for number, (_, path) in paths.items()})
    try:
        for module, path in paths.values():
            # A string survives `nnx.scan` and its like. Where an outer trace made the module, it cannot be set.
            with suppress(TraceContextError):
                setattr(module, _PATH, path)
                marked.append(module)
        yield
    finally:
        _PATHS.reset(token)
        for module in marked:
            with suppress(AttributeError, TraceContextError):
                delattr(module, _PATH)
