"""Scoped modules are Equinox modules that open a scope with their attribute path when they are called.

Equinox's own layers open a scope named after their class, the same for each of them. Here every module with a
`__call__` becomes an instance of a generated subclass, which has the module's attribute path as a static field. So a
module is still an instance of its class, and its name survives transformations that rebuild modules from their leaves
(`jit`, `vmap`, `scan`, `tree_at`). Leaves and their order stay the same; the user's tree is not changed.

Sharp edge: inside the trace `type(module)` is the subclass: a test for the exact class fails where `isinstance` is
true.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Final

import equinox as eqx

from gradscope.frameworks.modules.module_scopes import module_scope

#: The static field with a module's path.
_PATH: Final = "_gradscope_path"

#: The folder of Equinox's own code.
_EQUINOX: Final = str(Path(eqx.__file__).parent)


def named_tree(module: eqx.Module) -> Any:
    """Returns a copy of a module in which each module, itself included, opens its scope when it is called."""
    return _named(module, (type(module).__name__,))


def _named(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, eqx.Module):
        return _rebuilt(value, path)
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return type(value)(*(_named(each, (*path, name)) for name, each in zip(names, value, strict=True)))
    if type(value) in (list, tuple):
        return type(value)(_named(each, (*path, str(number))) for number, each in enumerate(value))
    if type(value) is dict:
        return {key: _named(each, (*path, str(key))) for key, each in value.items()}
    return value


def _rebuilt(module: eqx.Module, path: tuple[str, ...]) -> Any:
    call = call_of(type(module))
    made = object.__new__(type(module) if call is None else _opening_class(type(module)))
    for field in dataclasses.fields(module):  # pyright: ignore[reportArgumentType] - every module is a dataclass
        if hasattr(module, field.name):
            value = getattr(module, field.name)
            static = field.metadata.get("static", False)
            object.__setattr__(made, field.name, value if static else _named(value, (*path, field.name)))
    if call is not None:
        object.__setattr__(made, _PATH, "/".join(path))
    return made


@functools.cache
def _opening_class(cls: type) -> type:
    """Returns the subclass whose instances open their scope; one per class, so that trees stay equal."""
    call = call_of(cls)

    def opened(self: Any, *args: Any, **kwargs: Any) -> Any:
        with module_scope(getattr(self, _PATH)):
            return call.__get__(self, type(self))(*args, **kwargs)

    members = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__annotations__": {_PATH: str},
        _PATH: eqx.field(static=True, default=""),
        "__call__": functools.wraps(call)(opened),
    }
    return type(cls)(cls.__name__, (cls,), members)


def has_path(cls: type) -> bool:
    """Returns whether the instances of a class have a path, and open its scope by themselves."""
    return hasattr(cls, _PATH)


def call_of(cls: type) -> Any:
    """Returns the `__call__` of a class or its bases, unbound, without the scope of Equinox's own; None without any."""
    return without_scope(next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None))


def without_scope(call: Any) -> Any:
    """Returns a `__call__` without the scope of Equinox's own around it, if there is one."""
    while _is_equinox_scope(call):
        call = call.__wrapped__
    return call


def _is_equinox_scope(call: Any) -> bool:
    """Returns whether a method is one of Equinox's own under a decorator of JAX's, which is `jax.named_scope`."""
    code = getattr(call, "__code__", None)
    if code is None or not hasattr(call, "__wrapped__"):
        return False
    return str(call.__module__).startswith("equinox.") and not code.co_filename.startswith(_EQUINOX)
