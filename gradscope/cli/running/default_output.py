"""The default output of `dump` replaces the dump of an earlier run of the same target, and nothing else."""

from __future__ import annotations

from pathlib import Path

from gradscope.errors import DumpError, UsageError
from gradscope.naming import printable

_HINT = "name another file with --output, or replace this one with --force"


def replaces_own_dump(path: Path, target: str) -> bool:
    """Returns whether a complete dump of a target is at a path, which the next run of the target replaces.

    A calibrated reference is no such dump: it took several runs.

    Args:
        path: The path that a run writes to where the user names none, or names this one.
        target: The target, as the provenance of its dumps has it.

    Returns:
        True for such a dump, False where no file is there.

    Raises:
        UsageError: Another file is there.
        MachineError: The file cannot be read.
    """
    from gradscope.comparison.judging.limits.noise import NOISE
    from gradscope.dump.reader import open_dump

    if not path.is_file():
        return False
    shown = printable(str(path))
    try:
        with open_dump(path) as source:
            manifest = source.manifest
    except DumpError as error:
        raise UsageError(
            f"{shown} exists, and is no dump: {error.message.removeprefix(f'{path}: ')}", hint=_HINT
        ) from error
    states = {
        "an incomplete dump": not manifest.complete,
        f"no dump of {printable(target)}": manifest.provenance.get("target") != target,
        "a calibrated reference": any(NOISE in entry.stats for entry in manifest.entries),
    }
    if state := next((state for state, holds in states.items() if holds), None):
        raise UsageError(f"{shown} exists, and is {state}", hint=_HINT)
    return True
