"""What is public is documented: what it takes, returns and raises, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gradscope


def is_public_function(module: ModuleType, each: Any) -> bool:
    return inspect.isfunction(each) and each.__module__ == module.__name__ and not each.__name__.startswith("_")


def public() -> Iterator[tuple[str, Any]]:
    """Every public name, the functions of public modules, and the methods of `Dump` that are more than a value."""
    for name in gradscope.__all__:
        each = getattr(gradscope, name)
        if inspect.ismodule(each):
            yield from ((f"{name}.{key}", made) for key, made in vars(each).items() if is_public_function(each, made))
        else:
            yield name, each
    for name in ("findings", "stats", "table"):
        yield f"Dump.{name}", getattr(gradscope.Dump, name)


PUBLIC = dict(public())
FUNCTIONS = {name: each for name, each in PUBLIC.items() if inspect.isfunction(each)}
#: The kinds of failure are told by their base class's example.
WITH_EXAMPLE = {
    name: each
    for name, each in PUBLIC.items()
    if not (inspect.isclass(each) and issubclass(each, gradscope.GradscopeError)) or each is gradscope.GradscopeError
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_returns_and_raises(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    parameters = [each for each in inspect.signature(FUNCTIONS[name]).parameters if each != "self"]
    assert [each for each in parameters if f"\n    {each}: " not in text] == []
    assert "\nReturns:\n" in text
    assert "\nRaises:\n" in text or name == "tensor_stats"


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_its_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner()
    (example,) = doctest.DocTestFinder(recurse=False).find(WITH_EXAMPLE[name], name, globs={})
    assert example.examples
    shown: list[str] = []
    runner.run(example, out=shown.append)
    assert runner.failures == 0, "".join(shown)
