"""`typed` refuses an argument of a public function that is of another type than its annotation states.

Without it, a path that is a number fails somewhere inside, with an error that names neither the argument nor the
function. What the annotations of the standard library and of `typing` state is checked: strings, paths, numbers, truth
values, functions, sequences and mappings of these, and classes. `Literal`, `Any` and type variables are not: which word
of several an argument is, a function says itself.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import (
    Any,
    Final,
    NamedTuple,
    ParamSpec,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from gradscope.errors import ArgumentTypeError

P = ParamSpec("P")
R = TypeVar("R")

#: The most characters of a value that a message shows.
_SHOWN: Final = 60


class Kind(NamedTuple):
    """A `Kind` is what an annotation accepts.

    Attributes:
        words: What it is called in a message, of one and of several.
        accepts: Returns whether a value is one.
    """

    words: tuple[str, str]
    accepts: Callable[[Any], bool]


def typed(*but: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator for a function whose arguments are checked when it is called.

    Args:
        but: The names of the arguments that are not checked, because the function says more of them itself.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            positional, kinds = _parameters(function, but)
            for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
                _require(name, value, kinds.get(name))
            return function(*args, **kwargs)

        return checked

    return decorated


def require_typed_fields(value: Any) -> None:
    """Refuses an object of a dataclass of which a field is of another type than its annotation.

    Raises:
        ArgumentTypeError: There is one.
    """
    for name, kind in _fields(type(value)).items():
        _require(name, getattr(value, name), kind)


def _require(name: str, value: object, kind: Kind | None) -> None:
    if kind is None or kind.accepts(value):
        return
    shown = ascii(value)
    shown = shown if len(shown) <= _SHOWN else f"of type {type(value).__name__}"
    raise ArgumentTypeError(f"{name} is {shown}, expected {kind.words[0]}")


@functools.cache
def _parameters(function: Callable[..., Any], but: tuple[str, ...]) -> tuple[list[str], dict[str, Kind]]:
    """Returns the names of the positional parameters of a function, and what those accept that are checked."""
    parameters = inspect.signature(function).parameters.values()
    positional = [each.name for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    several = {each.name for each in parameters if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}}
    annotations = {
        name: text for name, text in function.__annotations__.items() if name not in {*but, *several, "return"}
    }
    return positional, _kinds(annotations, vars(inspect.getmodule(function)))


@functools.cache
def _fields(of: type) -> dict[str, Kind]:
    annotations = {each.name: each.type for each in fields(of)}
    return _kinds(annotations, vars(inspect.getmodule(of)))


def _kinds(annotations: Mapping[str, Any], names: dict[str, Any]) -> dict[str, Kind]:
    hints = get_type_hints(SimpleNamespace(__annotations__=dict(annotations)), names)
    kinds = {name: _kind(annotation) for name, annotation in hints.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(annotation: Any) -> Kind | None:
    """Returns what an annotation accepts; None for anything."""
    origin, of = get_origin(annotation) or annotation, get_args(annotation)
    if origin in {Union, types.UnionType}:
        return _union([_kind(each) for each in of])
    if origin in _SIMPLE:
        return _SIMPLE[origin]
    if not isinstance(origin, type) or origin in {Any, object}:
        return None
    if issubclass(origin, Mapping):
        return _mapping(*map(_kind, of[:2])) if of else None
    if issubclass(origin, Iterable) and origin.__module__ == "collections.abc":
        return _several(_kind(of[0]) if of else None)
    name = f"{origin.__module__.partition('.')[0]}.{origin.__name__}"
    return Kind((name, name), lambda value: isinstance(value, origin))


def _union(kinds: list[Kind | None]) -> Kind | None:
    known = [each for each in kinds if each is not None]
    if len(known) < len(kinds):
        return None
    of_one, of_several = (_either(words) for words in zip(*(each.words for each in known), strict=True))
    return Kind((of_one, of_several), lambda value: any(each.accepts(value) for each in known))


def _either(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def _several(of: Kind | None) -> Kind:
    words = "a sequence" if of is None else f"a sequence of {of.words[1]}"

    def accepts(value: Any) -> bool:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            return value is None and of is _STRING  # no names, see `naming.as_tuple`
        # A generator is read by the function alone.
        return of is None or not isinstance(value, Collection) or all(map(of.accepts, value))

    return Kind((words, words), accepts)


def _mapping(key: Kind | None, of: Kind | None) -> Kind:
    kinds = [each for each in (key, of) if each is not None]
    words = " ".join(
        ["a mapping", *(f"{word} {each.words[1]}" for word, each in zip(("of", "to"), kinds, strict=False))]
    )

    def accepts(value: Any) -> bool:
        if not isinstance(value, Mapping):
            return False
        return all((not key or key.accepts(name)) and (not of or of.accepts(each)) for name, each in value.items())

    return Kind((words, words), accepts)


def _is_scalar(value: Any) -> bool:
    return getattr(value, "ndim", 0) == 0


def _is_real(value: Any) -> bool:
    if isinstance(value, numbers.Number) and not isinstance(value, numbers.Real):
        return False
    return isinstance(value, SupportsFloat) and _is_scalar(value)


def _is_truth_value(value: Any) -> bool:
    # Zero and one count as one, in Python too; that a text does would make "no" a yes.
    return isinstance(value, int) or (getattr(getattr(value, "dtype", None), "kind", "") == "b" and _is_scalar(value))


_STRING: Final = Kind(("a string", "strings"), lambda value: isinstance(value, str))
_WHOLE_NUMBER: Final = Kind(("a whole number", "whole numbers"), lambda value: isinstance(value, SupportsIndex))
_SIMPLE: Final[Mapping[Any, Kind]] = {
    types.NoneType: Kind(("None", "None"), lambda value: value is None),
    str: _STRING,
    os.PathLike: Kind(("a path", "paths"), lambda value: isinstance(value, os.PathLike)),
    int: _WHOLE_NUMBER,
    SupportsIndex: _WHOLE_NUMBER,
    float: Kind(("a number", "numbers"), _is_real),
    bool: Kind(("True or False", "truth values"), _is_truth_value),
    Callable: Kind(("a function", "functions"), callable),
}
