"""Writes the page of the documentation."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from training_bench.measuring import Figure
from training_bench.subjects import Subject

_PACKAGES: Final = ("gradscope-jax", "jax", "optax", "torch", "numpy", "numba")


def write_page(path: Path, figures: Mapping[Subject, Sequence[Figure]]) -> None:
    """Writes a table for each model."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    head = _HEAD.format(measured=f"Measured with {versions}, Python {platform.python_version()}.")
    sections = [f"## {subject.title}\n\n{_table(rows)}\n" for subject, rows in figures.items()]
    path.write_text("\n".join([head, *sections]), encoding="utf-8")


_HEAD = """# The bench of training

`scripts/bench train` measures on the CPU what it costs to watch a training loop, and writes this page; it takes an
hour. `scripts/bench train --limits` measures only what has a limit, `scripts/bench train --quick` small models; both
write nothing. A figure is the time of a loop over that of the plain loop, which has the same step and nothing that
watches it; PyTorch's is over a plain loop of PyTorch. The two take a step in turn, and wait for it: ten in a round
where every tenth is watched, else two. `ratio` is the median of the steps; where every tenth is watched, a tenth of the
median of these and nine tenths of that of the others. `least` and `most` are of one round; what is computed is so from
the figures of every step. `CPU` is the same ratio of the seconds that all cores worked, which other programs of the
machine change less.
What is to be held is for models of the full size: a step of a small one is short, and a recorded step takes at least
some milliseconds.

{measured}
"""


def _table(figures: Sequence[Figure]) -> str:
    rows = [
        f"| {each.name} | {each.what} | {each.ratio:.3f} | {each.least:.3f} | {each.most:.3f} | {each.cpu:.3f} | "
        f"{_or_nothing(each.limit)} | {_or_nothing(each.seconds)} |"
        for each in figures
    ]
    return "\n".join(
        [
            "| loop | what is watched | ratio | least | most | CPU | to hold | seconds of a step |",
            "| --- " * 8 + "|",
            *rows,
        ]
    )


def _or_nothing(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
