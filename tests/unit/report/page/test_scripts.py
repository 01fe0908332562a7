"""The page's own modules: typed, and in an order in which each finds what it imports."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from gradscope.report.page import html_page

FORBIDDEN = re.compile(r"(?:inner|outer|insertAdjacent)HTML|document\.write|eval\(|new Function|fetch\(|import\(")
SCRIPTS = html_page.__file__.replace("html_page.py", "script")


def test_each_module_is_written_after_those_that_it_imports() -> None:
    written: list[str] = []
    for name in html_page._MODULES:
        imported = re.findall(r'from "\./(\w+)\.js"', html_page._text(f"script/{name}.js"))
        assert set(imported) <= set(written), name
        written.append(name)


def test_nothing_makes_markup_or_code_of_text() -> None:
    for name in html_page._MODULES:
        assert FORBIDDEN.findall(html_page._text(f"script/{name}.js")) == [], name


def test_the_types_of_the_modules_are_right() -> None:
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("NOT TESTED: the types of the page's scripts, because there is no tsc (npm install -g typescript)")
    done = subprocess.run([compiler, "-p", SCRIPTS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
