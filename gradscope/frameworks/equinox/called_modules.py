"""Called modules open a scope with their attribute path while a function is traced that takes their arrays.

A step of the user's own passes the module itself, or its arrays apart from the rest, as `eqx.partition` parts them and
`eqx.combine` joins them again: then no copy of the module can be passed instead (`scoped_modules`). So the classes of
modules open the scopes, for as long as the trace takes. A module's path follows from its arrays: the array that it
calls `l1/weight` is the argument `blocks/0/l1/weight`, so it is `blocks/0`.

Sharp edge: inside of `eqx.filter_vmap`, `jax.lax.scan` or `eqx.filter_jit` over a module's own arrays these are other
ones, and the module has no path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import equinox as eqx
import jax

from gradscope.frameworks.equinox.scoped_modules import has_path, without_scope
from gradscope.frameworks.modules.module_scopes import calls_replaced, classes_of, module_scope, name_of_argument
from gradscope.frameworks.modules.tree_names import tree_names

#: Equinox's packages whose modules are layers; others have wrappers of functions.
_LAYERS: Final = "equinox.nn"


@contextmanager
def opening_scopes() -> Generator[None]:
    """Makes the modules whose arrays are arguments of the function being traced open their scopes."""
    with calls_replaced(
        {cls: _opening(call) for cls in classes_of(eqx.Module) if (call := _own_call(cls)) is not None}
    ):
        yield


def _own_call(cls: type) -> Any:
    """Returns the `__call__` of a class of layers, as it is; None for any other class."""
    package = cls.__module__
    if package.startswith("equinox.") and not package.startswith(_LAYERS):
        return None
    return next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)


def _opening(call: Any) -> Callable[..., Any]:
    @functools.wraps(call)
    def opened(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = None if has_path(type(self)) else _path(self)
        if path is None:
            return call.__get__(self, type(self))(*args, **kwargs)
        with module_scope(path):
            return without_scope(call).__get__(self, type(self))(*args, **kwargs)

    return opened


def _path(module: Any) -> str | None:
    """Returns the attribute path of a module from the argument that it is part of; None where that is not known."""
    found: set[tuple[str, str]] = set()
    for own, leaf in zip(tree_names(module), jax.tree_util.tree_leaves(module), strict=True):
        argument = name_of_argument(leaf)
        if argument is not None:
            root, name = argument
            if name != own and not name.endswith(f"/{own}"):
                return None
            found.add((root, name[: -len(own)].removesuffix("/")))
    if len(found) != 1:
        return None
    ((root, prefix),) = found
    return "/".join(filter(None, (root, prefix))) or type(module).__name__
