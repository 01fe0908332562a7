"""Tables of the packages, from the contracts of import-linter in pyproject.toml."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from scripts.docs_blocks.markdown import code, first_sentence, table

PYPROJECT: Final = Path(__file__).resolve().parents[2] / "pyproject.toml"


@cache
def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


def packages_table() -> str:
    """The packages from the top layer to the bottom one, with what each may import."""
    layers = [line.replace("gradscope.", "").split(" | ") for line in contracts()[0]["layers"]]
    rows = []
    for number, names in enumerate(layers):
        below = [each for lower in layers[number + 1 :] for each in lower]
        for name in names:
            # What never imports JAX imports nothing that does.
            allowed = [each for each in below if "jax" not in banned(name) or "jax" in banned(each)]
            duty = first_sentence(importlib.import_module(f"gradscope.{name}").__doc__)
            never = ["jax"] if "jax" in banned(name) else []
            never += [each for each in ("rich", "typer") if each in banned(name)]
            rows.append(
                (code(name), duty, code(*allowed) if allowed else "none of them", code(*never) if never else "")
            )
    return table(["package", "what it is", "may import", "never imports"], rows)


def banned(package: str) -> set[str]:
    """What contracts forbid a package to import."""
    forbidding = (each for each in contracts() if f"gradscope.{package}" in each.get("source_modules", ()))
    return {module for each in forbidding for module in each["forbidden_modules"]}


def sub_packages_table() -> str:
    rows = []
    for contract in contracts():
        for container in contract.get("containers", ()):
            order = (code(*layer.split(" | ")) for layer in reversed(contract["layers"]))
            rows.append((code(container.removeprefix("gradscope.")), " → ".join(order)))
    return table(["package", "its modules and sub-packages, lower to higher"], rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {"packages": packages_table, "sub-packages": sub_packages_table}
