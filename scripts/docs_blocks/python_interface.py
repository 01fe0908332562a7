"""The Python interface: the signature and docstring of each name that can be imported.

These are the names of `gradscope`, and `capture` for PyTorch, which nothing in it imports. They are read from the
source and not from the objects, so that neither JAX nor PyTorch need be imported.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import gradscope
from gradscope.stats.columns import columns_of
from scripts.docs_blocks.markdown import as_sentence, first_sentence, table

Definition: TypeAlias = ast.FunctionDef | ast.ClassDef

#: A section of a docstring: its title and its lines.
_SECTION: Final = re.compile(
    r"^(Args|Attributes|Returns|Raises|References|Example):\n((?:(?: {4}.*)?\n)*)", re.MULTILINE
)
#: Where an entry of a section begins.
_ENTRY: Final = re.compile(r"^(?=\w[\w.]*: )", re.MULTILINE)
_WIDTH: Final = 100
#: Decorators of what is read and not called.
_READ: Final = frozenset({"property", "cached_property", "column"})
_TORCH_CAPTURE: Final = "gradscope.frameworks.torch.capture"
_COLUMNS: Final = {each.base: each for each in columns_of("tensor")}


def functions() -> str:
    return "\n\n".join(section(name, each) for name, each in names() if isinstance(each, ast.FunctionDef))


def classes() -> str:
    return "\n\n".join(section(name, each) for name, each in names() if isinstance(each, ast.ClassDef))


def torch_functions() -> str:
    found = definition(_TORCH_CAPTURE, "capture")
    return section("capture", found, heading=_TORCH_CAPTURE)


def names() -> Iterator[tuple[str, Definition]]:
    for name in gradscope.__all__:
        if name in gradscope._MODULES:
            for each in source_of(gradscope._MODULES[name]).body:
                if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
                    yield f"{name}.{each.name}", each
        else:
            yield name, definition(gradscope._HOMES[name], name)


def definition(module: str, name: str) -> Definition:
    """The definition of a name, wherever its module has it from."""
    tree = source_of(module)
    own = [node for node in tree.body if isinstance(node, Definition) and node.name == name]
    if own:
        return own[-1]  # behind its overloads
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            return definition(node.module or "", name)
    raise LookupError(f"{module} has no {name}")


@cache
def source_of(module: str) -> ast.Module:
    # The file is found by its path: importing the packages around `capture` for PyTorch would import PyTorch.
    path = Path(gradscope.__file__).parents[1].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def section(name: str, found: Definition, heading: str = "") -> str:
    title = f"### `{heading or name}`"
    if isinstance(found, ast.ClassDef):
        return "\n\n".join(filter(None, [title, prose(found), members(found)]))
    return "\n\n".join([title, f"```python\n{signature(name, found)}\n```", prose(found)])


def signature(name: str, found: ast.FunctionDef) -> str:
    arguments = found.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    parts = [argument(each, default) for each, default in zip(positional, defaults, strict=True)]
    parts += [f"*{argument(arguments.vararg, None)}"] if arguments.vararg else ["*"] if arguments.kwonlyargs else []
    parts += [argument(each, value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    parts += [f"**{argument(arguments.kwarg, None)}"] if arguments.kwarg else []
    returns = "" if found.returns is None else f" -> {ast.unparse(found.returns)}"
    line = f"{name}({', '.join(parts)}){returns}"
    lines = [f"{name}(", *(f"    {each}," for each in parts), f"){returns}"]
    return line if len(line) <= _WIDTH else "\n".join(lines)


def argument(each: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(each) + ("" if default is None else f" = {ast.unparse(default)}")


def prose(found: Definition) -> str:
    """A docstring as Markdown: its text, then its sections as lists, the example as code."""
    text = f"{ast.get_docstring(found) or ''}\n"
    parts = [_SECTION.sub("", text).strip()]
    parts += [shown(title, inspect.cleandoc(body)) for title, body in _SECTION.findall(text)]
    return "\n\n".join(filter(None, parts))


def shown(title: str, body: str) -> str:
    """A section of a docstring as Markdown."""
    if title == "Example":
        return f"```pycon\n{body}\n```"
    entries = [" ".join(entry.split()) for entry in _ENTRY.split(body) if entry.strip()]
    if title in ("Returns", "References"):
        return f"{title}: {' '.join(entries)}"
    return f"{title}:\n\n" + "\n".join(re.sub(r"^(\w[\w.]*): ", r"- `\1`: ", entry) for entry in entries)


def members(found: ast.ClassDef) -> str:
    """The table of a class's public properties and methods; nothing where it has none."""
    methods = [each for each in found.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    rows = [(f"`{call(each)}`", meaning(each)) for each in methods]
    return table(["member", "meaning"], rows) if rows else ""


def meaning(member: ast.FunctionDef) -> str:
    """What a member's docstring says first; of a column of statistics, what their table says."""
    if "column" in decorators(member):
        return as_sentence(_COLUMNS[member.name].sentence)
    return first_sentence(ast.get_docstring(member))


def decorators(function: ast.FunctionDef) -> list[str]:
    return [ast.unparse(each) for each in function.decorator_list]


def call(method: ast.FunctionDef) -> str:
    """How a property is read or a method is called."""
    if _READ & {*decorators(method)}:
        return method.name
    arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
    return f"{method.name}({', '.join(each.arg for each in arguments if each.arg not in ('self', 'cls'))})"


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "python-functions": functions,
    "python-classes": classes,
    "python-torch": torch_functions,
}
