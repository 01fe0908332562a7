"""Every key of JSON output is in the reference, and `explain` knows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradscope as gs
from gradscope.presentation.reports.explaining.explanation import explained_names
from tests.integration.command import gradscope

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"

PACKAGE = Path(gs.__file__).parent

#: Keys whose values are objects by names: of parameters, phases, reasons, settings.
BY_NAME = frozenset({"ledger", "timings", "provenance", "rel_l2", "noise"})

LINES = (
    "show a.npz",
    "show a.npz --tensor activation/first",
    "show a.npz --ledger",
    "show a.npz --tensor param/first/w --diff b.npz",
    "compare a.npz b.npz",
    "compare a.npz b.npz a.npz",
    "compare a.npz b.npz --isolate model.py",
    "explain noise",
    "explain dead",
    "explain opaque",
    "inspect model.py --ops --fetch first",
    "check model.py",
    "train model.py --optimizer sgd(1e-3) --steps 2 -o {out}/run",
    "dump model.py --force --self-check --per-example -o {out}/c.npz",
)

#: What makes objects of JSON, and nothing else that is written as JSON, such as states of training.
MAKERS = ("comparison", "history/views", "inspection", "presentation", "proof")


@pytest.fixture(scope="module")
def explained() -> set[str]:
    """The words in code spans of the page, and the columns of statistics and metrics that it refers to."""
    pages = "".join(
        (REFERENCE / name).read_text(encoding="utf-8") for name in ("json.md", "statistics.md", "metrics.md")
    )
    return {word.partition("@")[0] for word in re.findall(r"`([^`\s]+)`", pages)}


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_every_key_is_explained(line: str, dumps: Path, tmp_path: Path, explained: set[str]) -> None:
    found = gradscope(*line.format(out=tmp_path).split(), "--json", folder=dumps).json
    printed = {key.partition("@")[0] for key in keys(found)}
    known = {name.partition("@")[0] for name in explained_names()}
    assert (printed - explained, printed - known) == (set(), set())


def test_every_key_of_the_source_is_explained(explained: set[str]) -> None:
    written = {key for maker in MAKERS for path in (PACKAGE / maker).rglob("*.py") for key in keys_of_source(path)}
    known = {name.partition("@")[0] for name in explained_names()}
    assert {"matched_by", "made_by", "left_out", "may_be_meant"} <= written
    assert (written - explained, written - known) == (set(), set())


def keys_of_source(path: Path) -> Iterator[str]:
    """The keys of dictionaries in functions that make JSON."""
    functions = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(node, ast.FunctionDef) and "json" in node.name)  # fmt: skip
    for node in (node for function in functions for node in ast.walk(function)):
        keys = node.keys if isinstance(node, ast.Dict) else [node.slice] if isinstance(node, ast.Subscript) else []
        yield from (each.value for each in keys if isinstance(each, ast.Constant) and isinstance(each.value, str))


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            if key not in BY_NAME or not isinstance(each, dict):
                yield from keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from keys(each)
