"""Expressions name optimizers, schedules and ways to clip: `adam(1e-3, b1=0.9)`, `global_norm(1)`.

An expression is a name, or a call of one whose arguments are literals, expressions, and lists of both. It is parsed,
and a table decides what each name means; nothing in it is ever evaluated.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradscope.errors import UsageError
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.naming.signature_text import parameter_text, typed_expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """An `Expression` is a name with arguments.

    Attributes:
        text: The expression as written.
        name: The name, possibly dotted.
        positional: Its positional arguments: literals, expressions, or lists of them.
        keyword: Its keyword arguments.
    """

    text: str
    name: str
    positional: tuple[Any, ...]
    keyword: Mapping[str, Any]

    def of(self, function: Callable[..., Any], value_of: Callable[[Expression], Any]) -> Any:
        """Returns the result of a function for the arguments; see `bound` and `called`."""
        return self.called(function, self.bound(function, value_of))

    def bound(self, function: Callable[..., Any], value_of: Callable[[Expression], Any]) -> inspect.BoundArguments:
        """Returns the arguments as a function takes them, defaults included.

        Args:
            function: What the name means.
            value_of: Returns the value of an expression among the arguments.

        Raises:
            UsageError: The function does not take these arguments.
        """
        positional = [_resolved(argument, value_of) for argument in self.positional]
        keyword = {name: _resolved(argument, value_of) for name, argument in self.keyword.items()}
        signature = inspect.signature(function)
        try:
            signature.bind_partial(*positional, **keyword)  # it minds unknown arguments before missing ones
            bound = signature.bind(*positional, **keyword)
        except TypeError as error:
            unknown = next((name for name in keyword if name not in signature.parameters), None)
            raise UsageError(
                f"{self.text!r} cannot be used: {error}",
                hint=f"it takes {_listed(signature)}"
                if unknown is None
                else nearest_hint(unknown, signature.parameters),
            ) from error
        bound.apply_defaults()
        return bound

    def called(self, function: Callable[..., Any], arguments: inspect.BoundArguments) -> Any:
        """Returns the result of a function.

        Args:
            function: What the name means.
            arguments: What it takes, of `bound`.

        Raises:
            UsageError: The function refuses the values of the arguments.
        """
        try:
            return function(*arguments.args, **arguments.kwargs)
        except (AttributeError, TypeError, ValueError) as error:  # optax looks into some arguments
            reason = str(error).replace(f"{function.__name__}()", self.name)
            raise UsageError(f"{self.text!r} cannot be used: {reason}") from error


def parse_expression(text: str) -> Expression | float:
    """Returns the expression that a text holds, or the number that it is.

    Raises:
        UsageError: The text is neither a number nor a name with literal arguments.
    """
    try:
        node = typed_expression(text)
    except ValueError as error:
        raise _malformed(text) from error
    found = _argument(text, node)
    if isinstance(found, Expression):
        return found
    if isinstance(found, int | float) and not isinstance(found, bool):
        return float(found)
    raise _malformed(text)


def _argument(text: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return _call(text, node)
    if isinstance(node, ast.Name | ast.Attribute):
        return Expression(text=ast.unparse(node), name=_dotted(text, node), positional=(), keyword={})
    if isinstance(node, ast.List | ast.Tuple):
        return [_argument(text, element) for element in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:  # TypeError: an unhashable key of a dictionary
        raise _malformed(text) from error


def _call(text: str, node: ast.Call) -> Expression:
    keyword: dict[str, Any] = {}
    for argument in node.keywords:
        if argument.arg is None:
            raise _malformed(text)
        keyword[argument.arg] = _argument(text, argument.value)
    positional = tuple(_argument(text, argument) for argument in node.args)
    return Expression(text=ast.unparse(node), name=_dotted(text, node.func), positional=positional, keyword=keyword)


def _dotted(text: str, node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(text, node.value)}.{node.attr}"
    raise _malformed(text)


def _resolved(argument: Any, value_of: Callable[[Expression], Any]) -> Any:
    if isinstance(argument, list):
        return [_resolved(element, value_of) for element in argument]
    return value_of(argument) if isinstance(argument, Expression) else argument


def _listed(signature: inspect.Signature) -> str:
    """Returns the parameters of a function as in its definition, without their types."""
    return ", ".join(map(parameter_text, signature.parameters.values()))


def _malformed(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a name with literal arguments",
        hint="write it as in 'adam(1e-3, b1=0.9)'; nothing is evaluated",
    )
