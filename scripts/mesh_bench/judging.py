"""Runs the programs on one device and on four, each number in a process, and counts what is said of them rightly."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jax

import gradscope as gs
from gradscope.comparison import CompareOptions
from gradscope.comparison.follow_ups.mesh_comparison import mesh_member
from gradscope.dump.reader import open_dump
from mesh_bench import examples_divided, features_divided, otherwise_arranged, positions_divided
from mesh_bench.networks import Program, batch, init

PROGRAMS: Final[Mapping[str, Program]] = {
    **examples_divided.PROGRAMS,
    **features_divided.PROGRAMS,
    **positions_divided.PROGRAMS,
    **otherwise_arranged.PROGRAMS,
}
DEVICES: Final = (1, 4)
EXAMPLES: Final = 32

_SCRIPTS: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was said of a program.

    Attributes:
        name: The program's name.
        kind: The kind of its fault; "" for none.
        found: The kind that was found.
        right: Whether the verdict, the kind and the axis are those expected.
        sentence: What was said.
    """

    name: str
    kind: str
    found: str
    right: bool
    sentence: str


def judged() -> Iterator[Judged]:
    """Yields what is said of each program."""
    with tempfile.TemporaryDirectory() as folder:
        for count in DEVICES:
            environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(count), "PYTHONPATH": str(_SCRIPTS)}
            command = [sys.executable, "-m", "mesh_bench.judging", folder]
            subprocess.run(command, env=environment, check=True)
        for number, (name, program) in enumerate(PROGRAMS.items()):
            paths = [_path(Path(folder), number, count) for count in DEVICES]
            with open_dump(paths[0]) as one, open_dump(paths[1]) as several:
                member = mesh_member(DEVICES[1], one, several, CompareOptions())
            fault = member.fault
            found = ("", "") if fault is None else (fault.kind, fault.axis)
            right = found == (program.kind, program.axis) and (member.verdict == "same") == (not program.kind)
            sentence = member.sentence if fault is None else fault.sentence
            yield Judged(name=name, kind=program.kind, found=found[0], right=right, sentence=sentence)


def _path(folder: Path, number: int, count: int) -> Path:
    return folder / f"{number}.{count}.npz"


def _dump_all(folder: Path) -> None:
    """Writes the dump of each program on the devices of this process."""
    init_key, batch_key = jax.random.split(jax.random.key(0))
    arguments = init(init_key), batch(batch_key, EXAMPLES)
    for number, program in enumerate(PROGRAMS.values()):
        gs.save(_path(folder, number, jax.device_count()), gs.capture(program.loss, *arguments, ops=program.ops))


def write_page(path: Path, found: list[Judged]) -> None:
    """Writes the page of the documentation."""
    right, faulty = ([each for each in found if bool(each.kind) is wrong] for wrong in (False, True))
    counts = (
        f"{sum(each.right for each in right)} of {len(right)} right programs are the same; of {len(faulty)} faults "
        f"{sum(each.right for each in faulty)} have the kind and the axis that are expected. "
        f"Judged with jax {jax.__version__}."
    )
    head = ("| program | fault | found |", "| --- " * 3 + "|")
    rows = [f"| {each.name} | {each.kind or 'none'} | {each.found or 'the same'} |" for each in found]
    path.write_text(_HEAD + "\n".join([counts, "", *head, *rows]) + "\n", encoding="utf-8")


_HEAD: Final = """# The bench of meshes

`scripts/bench mesh` runs small programs on one device and on four, right ones and such with one fault, judges them as
`gradscope mesh` does, and writes this page.

"""

if __name__ == "__main__":
    _dump_all(Path(sys.argv[1]))
