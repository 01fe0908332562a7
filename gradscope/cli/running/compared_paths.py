"""The paths on a command line state which dumps are compared with which, and dumps which programs made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gradscope.comparison import CompareOptions, Comparison
    from gradscope.comparison.result import Series
    from gradscope.dump.record import Json

#: The bytes of the largest source that is looked at: anybody may have written the dump that names it.
_MOST_SOURCE_BYTES: Final = 16 << 20
#: The most runs in a folder that are named.
_NAMED: Final = 3


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

    def series_of(self, comparisons: Mapping[str, Comparison], options: CompareOptions) -> Series:
        """Returns the comparisons of all members as a series.

        Args:
            comparisons: The comparison of each member, by its name.
            options: The options of the comparisons; a step that they allow to be missing does not count.
        """
        from gradscope.comparison.result import Series, SeriesMember

        return Series(
            members=tuple(SeriesMember(name=name, comparison=comparisons[name]) for name, _, _ in self.members),
            steps=self.steps,
            missing=tuple(name for name in self.missing if not options.may_be_missing(name)),
            extra=tuple(name for name in self.extra if not options.may_be_missing(name)),
        )


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


def are_runs(paths: Sequence[Path]) -> bool:
    """Returns whether paths are folders of training runs.

    Raises:
        UsageError: Some are, and others are not; or one is a folder of several.
        DumpError: Some are, and another does not exist.
    """
    from gradscope.errors import DumpError, UsageError
    from gradscope.history.folder.run_files import folder_hint, is_run
    from gradscope.naming import printable

    runs = [path for path in paths if is_run(path)]
    for path in paths:
        if path not in runs:
            _refuse_folder_of_runs(path)
    other = next((path for path in paths if path not in runs), None)
    if runs and other is not None:
        one, another = printable(str(runs[0])), printable(str(other))
        if not other.exists():
            raise DumpError(f"{another}: it cannot be opened: No such file or directory")
        raise UsageError(
            f"{one} is a training run, and {another} is none",
            hint=folder_hint(other) or "compare two runs, or two dumps; a run has dumps and states in its folder",
        )
    return bool(runs)


def _refuse_folder_of_runs(path: Path) -> None:
    """Refuses a folder in which training runs are, beside which dumps are no steps of one."""
    from gradscope.errors import UsageError
    from gradscope.history.folder.run_files import is_run
    from gradscope.naming import printable
    from gradscope.naming.wording import counted

    try:
        inside = sorted(each.name for each in path.iterdir() if is_run(each))
    except (OSError, ValueError):  # no folder
        return
    if inside:
        shown = ", ".join(map(printable, inside[:_NAMED]))
        more = f" and {counted(len(inside) - _NAMED, 'other')}" if len(inside) > _NAMED else ""
        raise UsageError(
            f"{printable(str(path))} is a folder of training runs, {shown}{more}",
            hint=f"name one, or several: {printable(str(path / inside[0]))}",
        )


def refuse_for_runs(options: Mapping[str, object]) -> None:
    """Refuses options that are of dumps, for training runs.

    Args:
        options: Their values, None for those that were not given, as they are spelled.

    Raises:
        UsageError: One was given.
    """
    from gradscope.errors import UsageError

    wrong = next((name for name, value in options.items() if value is not None), None)
    if wrong is not None:
        raise UsageError(f"{wrong} is of dumps, and these are training runs", hint="leave it out")


def target_of(provenance: Mapping[str, Json]) -> str:
    """Returns the target of a dump's run as `target_here` does.

    Args:
        provenance: The provenance of the dump.
    """
    target, known = provenance.get("target"), provenance.get("model_sha256")
    return target_here((target, known)) if isinstance(target, str) and isinstance(known, str) else ""


def target_here(program: tuple[str, str]) -> str:
    """Returns the target of a dump's run where its file is found from here and is as it was; "" otherwise.

    Args:
        program: The target, and the SHA-256 of its file.
    """
    import hashlib

    target, known = program
    path = Path(target.partition(":")[0])
    try:
        is_source = path.is_file() and path.stat().st_size <= _MOST_SOURCE_BYTES
        return target if is_source and hashlib.sha256(path.read_bytes()).hexdigest() == known else ""
    except (OSError, ValueError):
        return ""
