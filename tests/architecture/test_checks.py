"""What runs before a commit is what `scripts/check` runs, without the tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_commit_is_checked_by_the_steps_of_the_check_but_for_the_tests() -> None:
    steps = re.findall(r"^step (.+)$", (REPOSITORY / "scripts/check").read_text(encoding="utf-8"), re.MULTILINE)
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^ +entry: (.+)$", hooks, re.MULTILINE) == steps[:-1]
    assert "pytest" in steps[-1]


def test_what_the_scripts_import_of_gradscope_is_there() -> None:
    """They are long programs that import what a part needs where it begins, and are not run by tests."""
    scripts = [path for path in (REPOSITORY / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".py")]
    imported = {
        (node.module, alias.name)
        for path in scripts
        if path.suffix or "python" in path.read_text(encoding="utf-8").partition("\n")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("gradscope")
        for alias in node.names
    }
    assert len(imported) > 50
    assert sorted(each for each in imported if each[1] not in _names_in(each[0])) == []


@cache
def _names_in(module: str) -> set[str]:
    """Returns the names at the top of a module, and the modules in it, without importing anything."""
    path = REPOSITORY.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8")) if source.exists() else ast.Module([], [])
    names = {path.stem for path in path.glob("*")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names
