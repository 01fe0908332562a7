"""Which dumps are compared with which, for the paths on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPaths:
    """`ComparedPaths` are the comparisons that some paths ask for.

    Attributes:
        members: The name, the reference and the candidate of each.
        series: Whether they are a series, even of one: several candidates, or the steps of two runs.
        steps: Whether they are the steps of two runs.
        missing: Names of steps that only the reference has.
        extra: Names of steps that only the candidate has.
    """

    members: tuple[tuple[str, Path, Path], ...]
    series: bool = False
    steps: bool = False
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def compared_paths(ref: Path, cands: Sequence[Path]) -> ComparedPaths:
    """Returns the comparisons of a reference with candidates, or of the steps in two folders.

    Args:
        ref: A dump, or a folder of dumps.
        cands: At least one of the same.

    Raises:
        DumpError: A file in a folder that starts like a dump is damaged.
        MachineError: A file cannot be read.
    """
    from gradscope.dump.reader import dumps_in

    if len(cands) > 1:
        return ComparedPaths(members=tuple((str(cand), ref, cand) for cand in cands), series=True)
    ref_steps, cand_steps = dumps_in(ref), dumps_in(cands[0])
    if not ref_steps or not cand_steps:
        return ComparedPaths(members=((str(cands[0]), ref, cands[0]),))
    return ComparedPaths(
        members=tuple((name, path, cand_steps[name]) for name, path in ref_steps.items() if name in cand_steps),
        series=True,
        steps=True,
        missing=tuple(name for name in ref_steps if name not in cand_steps),
        extra=tuple(name for name in cand_steps if name not in ref_steps),
    )
