"""The page's own modules: typed, and in an order in which each finds what it imports."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from posixpath import dirname, normpath

import pytest

from gradscope.presentation.page import html_page

FORBIDDEN = re.compile(r"(?:inner|outer|insertAdjacent)HTML|document\.write|eval\(|new Function|fetch\(|import\(")
SCRIPTS = Path(html_page.__file__).with_name("script")


def test_each_module_is_written_after_those_that_it_imports() -> None:
    written: list[str] = []
    for path in html_page._MODULES:
        imported = re.findall(r'from "(\..+)\.js"', html_page._text(f"script/{path}.js"))
        assert {normpath(f"{dirname(path)}/{each}".lstrip("/")) for each in imported} <= set(written), path
        written.append(path)


def test_every_module_is_written_under_a_name_of_its_own() -> None:
    """A module is a constant of the page, whatever folder it is in."""
    modules = [path.relative_to(SCRIPTS).with_suffix("").as_posix() for path in SCRIPTS.rglob("*.js")]
    assert sorted(html_page._MODULES) == sorted(modules)
    assert len({path.rpartition("/")[2] for path in modules}) == len(modules)


def test_nothing_makes_markup_or_code_of_text() -> None:
    for path in html_page._MODULES:
        assert FORBIDDEN.findall(html_page._text(f"script/{path}.js")) == [], path


def test_the_types_of_the_modules_are_right() -> None:
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("NOT TESTED: the types of the page's scripts, because there is no tsc (npm install -g typescript)")
    done = subprocess.run([compiler, "-p", SCRIPTS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
