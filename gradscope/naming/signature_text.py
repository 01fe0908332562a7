"""`signature_text` writes a signature for a message, with what its reader can type; `typed_expression` reads that."""

from __future__ import annotations

import ast
import inspect
from typing import Any, Final

#: The types of defaults that read as they are written.
_LITERALS: Final = (type(None), type(...), bool, int, float, complex, str, bytes)

#: The most expressions inside of each other: what walks through more of them ends in an error of its own.
_DEEPEST: Final = 100


def typed_expression(text: str) -> ast.expr:
    """Returns what a text says in Python, which is not evaluated.

    Raises:
        ValueError: It says nothing, or has too much inside of each other.
    """
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no expression: {error}") from error
    level: list[ast.AST] = [expression]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in ast.iter_child_nodes(each)]
        if not level:
            return expression
    raise ValueError(f"it has more than {_DEEPEST} expressions inside of each other")


def signature_text(signature: inspect.Signature) -> str:
    """Returns a signature without annotations, which may fill a screen, and without the addresses of objects.

    Args:
        signature: The signature. A default that is a function or a class is shown by its name, any other object that is
            no literal as `...`.
    """
    return str(inspect.Signature([_plain(each) for each in signature.parameters.values()]))


def parameter_text(parameter: inspect.Parameter) -> str:
    """Returns a parameter as `signature_text` writes it."""
    return str(_plain(parameter))


class _Written:
    """A `_Written` default is a text whose `repr` it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    has_default = parameter.default is not inspect.Parameter.empty
    default = _Written(_default_text(parameter.default)) if has_default else inspect.Parameter.empty
    return parameter.replace(annotation=inspect.Parameter.empty, default=default)


def _default_text(default: Any) -> str:
    if isinstance(default, _LITERALS):
        return repr(default)
    if isinstance(default, tuple) and all(isinstance(each, _LITERALS) for each in default):
        return repr(default)
    name = getattr(default, "__name__", "")
    return name if isinstance(name, str) and name.isidentifier() else "..."
