"""What the bench of reading measures: commands, what each is compared with, and the limit."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reading_bench.files import write_dump, write_foreign, write_unrelated

#: The number of tensors from which equal ones are left out, because writing them takes minutes.
_MOST_EQUAL = 70_000

#: A program of the same library without a command of ours.
_EMPTY = """
import typer
app = typer.Typer()

@app.command()
def main(name: str = "") -> None:
    "Does nothing."

app()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One figure.

    Attributes:
        what: What it is.
        command: The command.
        against: The command whose time is the unit; None for seconds.
        limit: What the figure should not exceed.
        wall: Whether time is that of the clock, and not of the processor.
        status: The exit status of the command.
        memory_limit: What its resident memory should not exceed, in MiB; None where memory is not of interest.
    """

    what: str
    command: tuple[str, ...]
    against: tuple[str, ...] | None = None
    limit: float
    wall: bool = False
    status: int = 0
    memory_limit: int | None = None


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Yields the cases, after writing the files of each into a folder.

    Args:
        folder: An empty folder, in which the commands run.
        quick: Whether the files are small: for a look at the trend, not for the limits.
    """
    ours, empty = (sys.executable, "-P", "-m", "gradscope"), (sys.executable, "-c", _EMPTY)
    yield Case(what="--version, of an empty typer program", command=(*ours, "--version"), against=empty, limit=1.3)
    yield Case(
        what="--help, of that of an empty typer program",
        command=(*ours, "--help"),
        against=(*empty, "--help"),
        limit=2.0,
    )
    tensors = 1_800 if quick else 18_002
    for name in ("a.npz", "b.npz"):
        _written(write_dump, folder / name, tensors, name="layer[{}]/w".format)
    yield Case(what=f"show, {tensors:,} tensors: CPU seconds", command=(*ours, "show", "a.npz"), limit=0.8)
    yield Case(
        what=f"compare, {tensors:,} tensors: CPU seconds", command=(*ours, "compare", "a.npz", "b.npz"), limit=2.0
    )
    members = 7_000 if quick else 70_000
    for name in ("c.npz", "d.npz"):
        _written(write_dump, folder / name, members, name="layer[{}]/w".format)
    for command, limit in (("show", 3.0), ("compare", 8.0)):
        files = ("c.npz", "d.npz") if command == "compare" else ("c.npz",)
        yield Case(
            what=f"{command}, {members:,} members: CPU seconds",
            command=(*ours, command, *files),
            limit=limit,
            memory_limit=300,
        )
    for count in (300, 1_000) if quick else (300, 1_000, 10_000, 70_000):
        for equal in (False, True) if count < _MOST_EQUAL else (False,):
            one, other = f"one{count}{equal}.npz", f"other{count}{equal}.npz"
            _written(write_dump, folder / one, count, name="layer[{}]/w".format, equal=equal)
            _written(write_dump, folder / other, count, name="block{}of.weight".format, equal=equal)
            yield Case(
                what=f"compare, {count:,} renamed tensors, {'all equal' if equal else 'all different'}: CPU seconds",
                command=(*ours, "compare", one, other),
                limit=10.0,
            )
    for count in (150, 300) if quick else (150, 300, 600, 1_200):
        one, other = (f"{side}unrelated{count}.npz" for side in ("one", "other"))
        _written(write_unrelated, folder / one, count, name="layer[{}]/w".format, seed=0)
        _written(write_unrelated, folder / other, count, name="block{}of.weight".format, seed=1)
        yield Case(
            what=f"compare, {count:,} kernels of nothing in common: CPU seconds",
            command=(*ours, "compare", one, other),
            limit=count / 60,
            status=2,
        )
    mebibytes = 64 if quick else 1024
    for name in ("x.npz", "y.npz"):
        _written(write_foreign, folder / name, mebibytes)
    yield Case(
        what=f"compare of np.savez files of {mebibytes} MiB, of cmp",
        command=(*ours, "compare", "x.npz", "y.npz"),
        against=("cmp", "x.npz", "y.npz"),
        limit=2.0,
        wall=True,
        memory_limit=200,
    )


def _written(write: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Writes a file in a process of its own: a command that is measured inherits the peak memory of this one."""
    process = multiprocessing.get_context("fork").Process(target=write, args=arguments, kwargs=options)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{arguments[0]} cannot be written")
