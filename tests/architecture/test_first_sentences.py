"""The first sentence of a docstring is a sentence: it has a subject, or a function for one, and a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "gradscope"

#: Words with which a free relative clause begins, or a sentence about something that is not named.
NO_SUBJECT = ["What", "Which", "Whose", "Who", "Whoever", "How", "Where", "Whether", "When", "Why", "Its", "Those"]
#: A function is the subject of its own docstring, whose first word is a verb in the third person.
VERB = re.compile(r"[A-Z][a-z]*s,?")
#: "A `Name` ...": the subject is the class that is documented.
NAMES_A_CLASS = re.compile(r"(?:An? |The |One |Every )?`([A-Za-z_]\w*)`")

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Documented(NamedTuple):
    where: str
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    text: str


def test_modules_and_classes_begin_with_a_subject() -> None:
    found = [each for each in documented() if isinstance(each.node, ast.Module | ast.ClassDef)]
    assert [each.where for each in found if not has_subject(each.text)] == []


def test_a_class_that_names_itself_names_itself() -> None:
    found = [each for each in documented() if isinstance(each.node, ast.ClassDef)]
    assert [each.where for each in found if named_in(each.text) not in {None, each.node.name}] == []


def test_functions_begin_with_a_verb() -> None:
    """A property is a value, and is documented as one; the texts of commands are imperatives, as in every shell."""
    functions = [each for each in documented() if isinstance(each.node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [each for each in functions if not is_property(each.node) and not is_help(each)]
    assert [each.where for each in found if not begins_with_verb(each.text)] == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("What is wrong with a run: one cause.", False),
        ("How often a condition held.", False),
        ("Its rows.", False),
        ("A `Finding` states what is wrong with a run.", True),
    ],
)
def test_a_subject_is_distinguished_from_a_relative_clause(text: str, sentence: bool) -> None:
    assert has_subject(text) == sentence


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("Returns the rows.", True),
        ("Traces, compiles and runs a function.", True),
        ("The rows of a table.", False),
        ("Whether a value is read.", False),
        ("`same` as before.", False),
    ],
)
def test_a_verb_is_distinguished_from_a_noun(text: str, verb: bool) -> None:
    assert begins_with_verb(text) == verb


@pytest.mark.parametrize(
    ("text", "name"),
    [("A `Frame` is a jaxpr.", "Frame"), ("`Marks` state it.", "Marks"), ("Peak is the first of `values`.", None)],
)
def test_the_name_of_a_class_is_found_in_its_docstring(text: str, name: str | None) -> None:
    assert named_in(text) == name


@cache
def documented() -> list[Documented]:
    """The modules, classes and functions of the package that have a docstring."""
    return list(read_documented())


def read_documented() -> Iterator[Documented]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                name = node.name if isinstance(node, DEFINITIONS) else "module"
                if text is not None:
                    yield Documented(f"{path.relative_to(PACKAGE).as_posix()}: {name}", node, text)


def has_subject(text: str) -> bool:
    return text.split(maxsplit=1)[0] not in NO_SUBJECT


def begins_with_verb(text: str) -> bool:
    return has_subject(text) and VERB.fullmatch(text.split(maxsplit=1)[0]) is not None


def named_in(text: str) -> str | None:
    found = NAMES_A_CLASS.match(text)
    return None if found is None else found[1]


def is_property(node: ast.AST) -> bool:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return any("property" in ast.unparse(each) or ast.unparse(each) == "column" for each in node.decorator_list)


def is_help(each: Documented) -> bool:
    """Whether a docstring is what `--help` prints."""
    name = each.where.rpartition(": ")[2]
    command = each.where.startswith("cli/commands/") and not name.startswith("_")
    return command or each.where == "cli/program.py: _help"
