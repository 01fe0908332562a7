"""A target is the text with which a user names a model, `PLACE` or `PLACE:NAME`.

The *location* is searched for in this order, and the first rule that fits decides:

- `path`: it ends in `.py`, contains a slash, or is a file: `model.py`, `../runs/model.py`;
- `module`: Python would find a module of that name from the working directory: `package.module`;
- `zoo`: it is a model that comes with gradscope: `resnet50`.

A dotted location that fits no rule is taken for a module, so that the error names the module that is missing.

The *name* is a dotted attribute of the location, and may be followed by a call with literal arguments: `configs.small`,
`ResNet(depth=18)`. Arguments are read by `ast.literal_eval`; nothing in a target is ever evaluated.

Sharp edge: only the outermost package of a module is looked for here, because looking further would import it, which
runs the user's code. Folders without `__init__.py` are not modules: a folder of results called `resnet50` does not hide
the zoo's.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from gradscope.errors import UsageError
from gradscope.naming.selecting.nearest_names import did_you_mean, nearest
from gradscope.naming.signature_text import typed_expression
from gradscope.tracing.loading.zoo import zoo_names

#: The rule by which a target's location was found.
Rule: TypeAlias = Literal["path", "module", "zoo"]

#: The functions that make random keys.
_RANDOMNESS: Final = frozenset({"PRNGKey", "Rngs", "key"})

#: The suffix of a file, and the least share of letters that similar names have in common.
_SUFFIX: Final = ".py"
_SIMILAR: Final = 0.6

_FORMS: Final = "write model.py, model.py:NAME, package.module:NAME or a name of the zoo: {zoo}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralCall:
    """A `LiteralCall` has the literal arguments of a call in a target."""

    positional: tuple[Any, ...] = ()
    keyword: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def of(self, function: Callable[..., Any]) -> Any:
        """Returns the result of `function` for these arguments."""
        return function(*self.positional, **self.keyword)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """An `Attribute` is the part of a target after the colon.

    Attributes:
        text: As written.
        path: The dotted name, split.
        call: The call after the name; None where there is none.
    """

    text: str
    path: tuple[str, ...]
    call: LiteralCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A `Target` is a parsed target.

    Attributes:
        text: As written.
        rule: The rule that matched its location.
        location: The path, module or zoo name before the colon.
        attribute: The part after the colon; None without one.
    """

    text: str
    rule: Rule
    location: str
    attribute: Attribute | None = None


def parse_target(text: str) -> Target:
    """Returns the target that a text names; it looks at the file system and runs nothing.

    Raises:
        UsageError: The text is not of the form of a target, or its location is neither a path, a module nor in the zoo.
    """
    location, colon, name = text.partition(":")
    if not location:
        raise _malformed(text, "there is no file, module or zoo name" + " before the colon" * bool(colon))
    if colon and not name:
        raise _malformed(text, "there is no name after the colon")
    return Target(
        text=text, rule=_rule(text, location), location=location, attribute=_attribute(text, name) if name else None
    )


def _rule(text: str, location: str) -> Rule:
    if location.endswith(".py") or "/" in location or Path(location).is_file():
        return "path"
    parts = location.split(".")
    called, parenthesis, arguments = location.partition("(")
    if parenthesis and called:
        hint = f"a call follows a colon and its name: {called}:NAME({arguments}"
        raise UsageError(f"{text!r} does not name a model: {called} is called, and no name in it", hint=hint)
    if not all(part.isidentifier() for part in parts):
        raise _malformed(text, f"{location!r} is neither a file nor the name of a module or of a zoo model")
    if _is_module(parts[0]):
        return "module"
    if location in zoo_names():
        return "zoo"
    if len(parts) > 1:
        return "module"
    near = near_files(location, [*zoo_names(), *python_files(Path.cwd())])
    raise UsageError(
        f"there is no file, module or zoo model called {location!r}",
        hint=did_you_mean(near) if near else _FORMS.format(zoo=", ".join(zoo_names())),
    )


def near_files(requested: str, names: Iterable[str]) -> list[str]:
    """Returns the few of some names that one that does not exist is near to; often none.

    Args:
        requested: The name, with or without the suffix of a file.
        names: The names that there are, of files with their suffix.
    """
    # What all files have in common, the suffix, is no similarity.
    stem, by_stem = requested.removesuffix(_SUFFIX), {name.removesuffix(_SUFFIX): name for name in names}
    found = nearest(stem, list(by_stem), similar=_SIMILAR)
    return [by_stem[each] for each in found if _is_of_length(each, stem)]


def _is_of_length(name: str, requested: str) -> bool:
    """Returns whether a name may be a slip of another, or the beginning of it, or has it within: no other word."""
    longer = max(len(name), len(requested))
    return requested in name or requested.startswith(name) or 3 * abs(len(name) - len(requested)) < longer


def _is_module(name: str) -> bool:
    """Returns whether Python would find a module or a package with code under a top-level name."""
    if name in sys.modules:
        return True
    spec = PathFinder.find_spec(name, [str(Path.cwd())]) or find_spec(name)
    return spec is not None and spec.origin is not None


def python_files(folder: Path) -> list[str]:
    """Returns the names of the Python files of a folder, sorted; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(each.name for each in entries if each.name.endswith(".py"))
    except OSError:
        return []


def _attribute(text: str, name: str) -> Attribute:
    try:
        node = typed_expression(name)
    except ValueError as error:
        raise _malformed(text, f"{name!r} is not a name, nor a call of one") from error
    if not isinstance(node, ast.Call):
        return Attribute(text=name, path=_dotted(text, node))
    return Attribute(text=name, path=_dotted(text, node.func), call=_call(text, node))


def _dotted(text: str, node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*_dotted(text, node.value), node.attr)
    raise _malformed(text, f"{ast.unparse(node)!r} is not a dotted name")


def _call(text: str, node: ast.Call) -> LiteralCall:
    keyword: dict[str, Any] = {}
    for argument in node.keywords:
        if argument.arg is None:
            raise _malformed(text, f"'**{ast.unparse(argument.value)}' is not a keyword argument")
        keyword[argument.arg] = _literal(text, node, argument.value)
    return LiteralCall(positional=tuple(_literal(text, node, argument) for argument in node.args), keyword=keyword)


def _literal(text: str, call: ast.Call, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:  # TypeError: an unhashable key of a dictionary
        raise UsageError(
            f"{text!r} does not name a model: argument {ast.unparse(node)!r} is not a literal",
            hint=_hint_for(text.partition(":")[0], call),
        ) from error


def _hint_for(location: str, call: ast.Call) -> str:
    """Returns what to write in the place of a call whose arguments are not all literals."""
    arguments = [each for each in call.args if not _makes_randomness(each)]
    keywords = [each for each in call.keywords if not _makes_randomness(each.value)]
    plain = ast.unparse(ast.Call(func=call.func, args=arguments, keywords=keywords))
    if len(arguments) + len(keywords) < len(call.args) + len(call.keywords):
        return f"leave the random key out, it is made of --seed: '{location}:{plain}'"
    file = location if location.endswith(".py") else "FILE.py"
    own = "build" if ast.unparse(call.func) != "build" else "make"
    return f"define a function that calls it, def {own}(): return {plain}, and write '{file}:{own}()'"


def _makes_randomness(node: ast.expr) -> bool:
    """Returns whether an expression makes a random key, `jr.key(0)`, or Flax's streams of them, `nnx.Rngs(0)`."""
    name = node.func if isinstance(node, ast.Call) else None
    last = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    return last in _RANDOMNESS


def _malformed(text: str, reason: str) -> UsageError:
    return UsageError(f"{text!r} does not name a model: {reason}", hint=_FORMS.format(zoo=", ".join(zoo_names())))
