"""Module scopes name modules of frameworks by their path from the outermost module, which is that of their parameters.

A module's scope is relative to the module that calls it, so that scopes of the user's own between the two stay in its
name. One that another module than its owner calls, as tied weights are, has its complete path for a scope, behind words
that no program opens by chance and the number of components that it shares with the path of the module that calls it:
`//gradscope/1/Net/encoder/embed` inside `Net/decoder` names the layer `Net/encoder/embed`. A method other than
`__call__` is a layer beside its module, `vae.encode`, and the modules that it calls are the module's, `vae/fc1`. A
module that calls itself, or the `__call__` of its base class, opens no second scope.

The module being called is stored per thread: modules may be built in one while a loss is traced in another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax

#: A scope that is not relative to the one around it, but to the outermost module.
_FROM_ROOT: Final = re.compile(r"//gradscope/([0-9]+)/([^/]+/.+)")


class _Call(NamedTuple):
    """A `_Call` is the call of a module by its path, or of one of its methods; without a path, there is none."""

    path: tuple[str, ...] = ()
    method: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        """The components of its path, the last with the method."""
        return (*self.path[:-1], f"{self.path[-1]}.{self.method}") if self.method else self.path


_NO_CALL: Final = _Call()

#: The call that is being traced.
_CALLED: Final[ContextVar[_Call]] = ContextVar("called", default=_NO_CALL)

#: The leaves of the arguments of the function that is being traced: the class of the outermost object, and the name.
_ARGUMENTS: Final[ContextVar[Mapping[int, tuple[str, str]]]] = ContextVar("arguments", default=MappingProxyType({}))


@contextmanager
def named_arguments(args: Sequence[Any], names: Sequence[str]) -> Generator[None]:
    """Makes the leaves of a function's arguments known while it is traced.

    Args:
        args: The arguments.
        names: The name of each leaf.
    """
    roots = [
        "" if type(each) in (dict, list, tuple) else type(each).__name__
        for each in args
        for _ in jax.tree_util.tree_leaves(each)
    ]
    leaves = jax.tree_util.tree_leaves(list(args))
    token = _ARGUMENTS.set(dict(zip(map(id, leaves), zip(roots, names, strict=True), strict=True)))
    try:
        yield
    finally:
        _ARGUMENTS.reset(token)


def name_of_argument(leaf: Any) -> tuple[str, str] | None:
    """Returns the class of the argument in which a leaf is, "" for a mapping or a sequence, and the leaf's name.

    Returns:
        Both; None for anything else than a leaf of the arguments.
    """
    return _ARGUMENTS.get().get(id(leaf))


@contextmanager
def module_scope(path: str, method: str = "") -> Generator[None]:
    """Opens the scope of a module for the duration of its call.

    Args:
        path: Attribute names joined by `/`, the class of the outermost module first: `Net/blocks/0/conv`.
        method: The method that is called; empty for `__call__`.
    """
    called = _Call(tuple(path.split("/")), method)
    around = _CALLED.get()
    if called == around:
        yield
        return
    token = _CALLED.set(called)
    try:
        with jax.named_scope(_scope_of(called, around)):
            yield
    finally:
        _CALLED.reset(token)


def _scope_of(called: _Call, around: _Call) -> str:
    """Returns the name of the scope of a call inside that of another."""
    depth = len(around.path)
    if len(called.path) == 1:
        return called.scopes[0]
    if len(called.path) > depth and called.path[:depth] == around.path and not (around.method and depth > 1):
        return "/".join(called.scopes[depth:])
    if depth and called.path[0] != around.path[0]:
        return "/".join(called.scopes[1:])
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(called.path, around.path, strict=False)))
    return f"//gradscope/{shared}/{'/'.join(called.scopes)}"


def path_from_root(scope: str) -> tuple[int, str] | None:
    """Returns the path of a module from the outermost one, for a scope that is not relative to the one around it.

    Returns:
        The number of components that it shares with the module around it, and the path; None for any other scope.
    """
    found = _FROM_ROOT.fullmatch(scope)
    return None if found is None else (int(found[1]), found[2])


def classes_of(base: type) -> set[type]:
    """Returns a class and all classes that inherit from it."""
    return {base}.union(*map(classes_of, base.__subclasses__()))


@contextmanager
def calls_replaced(calls: Mapping[type, Callable[..., Any]]) -> Generator[None]:
    """Gives classes of modules another `__call__`, as one that opens their scopes, while the block runs."""
    own = {cls: vars(cls)["__call__"] for cls in calls if "__call__" in vars(cls)}
    try:
        for cls, call in calls.items():
            setattr(cls, "__call__", call)  # noqa: B010 - the type checker does not allow setting it
        yield
    finally:
        for cls in calls:
            if cls in own:
                setattr(cls, "__call__", own[cls])  # noqa: B010
            elif "__call__" in vars(cls):
                delattr(cls, "__call__")
