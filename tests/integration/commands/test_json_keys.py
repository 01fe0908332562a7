"""Every key of JSON output is explained in the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import gradscope

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"

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


@pytest.fixture(scope="module")
def explained() -> set[str]:
    """The words in code spans of the page, and the columns of statistics and metrics that it refers to."""
    pages = "".join(
        (REFERENCE / name).read_text(encoding="utf-8") for name in ("json.md", "statistics.md", "metrics.md")
    )
    return {word.partition("@")[0] for word in re.findall(r"`([^`\s]+)`", pages)}


@pytest.mark.parametrize("line", LINES)
def test_every_key_is_explained(line: str, dumps: Path, tmp_path: Path, explained: set[str]) -> None:
    found = gradscope(*line.format(out=tmp_path).split(), "--json", folder=dumps).json
    assert {key.partition("@")[0] for key in keys(found)} - explained == set()


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            if key not in BY_NAME or not isinstance(each, dict):
                yield from keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from keys(each)
