"""Opens the folder of a run, new or to be continued, and says how a run differs from the one it is to continue."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax

from gradscope.errors import DumpError, UsageError
from gradscope.history.database.schema import RUN_OPTION
from gradscope.history.folder.run_files import is_run, states_in
from gradscope.history.folder.run_folder import RunFolder
from gradscope.history.history_reader import History
from gradscope.history.views.run_ending import is_empty, settle
from gradscope.naming import printable
from gradscope.naming.wording import counted
from gradscope.training.loop.processes import Processes
from gradscope.training.loop.state_files import OTHER_RUN, restored
from gradscope.training.state import TrainState


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A `Start` is the state from which a run goes on, new or resumed.

    Attributes:
        state: The state.
        previous: The gradients of the last recorded step; None where none was recorded.
        number: The number of steps taken before.
        watch: What the watch for alarms remembers; None for nothing.
    """

    state: TrainState
    previous: Any
    number: int
    watch: Mapping[str, Any] | None = None


def opened(
    path: Path,
    options: Mapping[str, str],
    *,
    resume: bool,
    force: bool,
    processes: Processes,
    inputs: Iterable[Path] = (),
) -> RunFolder:
    """Returns the folder of a run, which has to be closed; in the process that writes it, it is locked.

    Args:
        path: The folder.
        processes: The processes that take the run's steps; each of them has to call this.
        options: The options that decide the run's numbers, by name.
        resume: Whether the run in it is continued.
        force: Whether a run in it may be replaced, or continued with other options.
        inputs: Files that the run reads, which are not removed with one that is replaced.

    Raises:
        UsageError: There is no run to resume or one that would be lost, or it has other options.
        DumpError: Its history cannot be read.
        MachineError: The folder cannot be written.
    """
    folder = processes.at_first(lambda: _locked(path, options, resume=resume, force=force, inputs=inputs))
    return RunFolder(path, writes=False) if folder is None else folder


def start(folder: Path, first: TrainState, no_gradients: Any, *, steps: int, notify: Callable[[str], None]) -> Start:
    """Returns where a run continues: at its last checkpoint, or at the beginning where it has none.

    Args:
        folder: The folder of the run.
        first: The state before the first step, whose structure a checkpoint must have.
        no_gradients: Gradients of the run.
        steps: The number of steps that the run shall have in the end.
        notify: Receives a line that names the checkpoint, and how to continue at the one before.

    Raises:
        UsageError: The run has more steps already.
        DumpError: The checkpoint or the history is damaged, or the checkpoint is of another run.
    """
    states = states_in(folder)
    with History(folder) as history:
        _require_sound(history, states)
        if not states:
            if recorded := len(history.step_numbers()):
                steps_before = counted(recorded, "recorded step")
                notify(f"no state is saved: beginning at step 0 again, in place of {steps_before}")
            return Start(state=first, previous=None, number=0)
    number, path = list(states.items())[-1]
    if number > steps:
        raise UsageError(
            f"the run in {printable(str(folder))} has taken {number:,} steps already, more than the {steps:,} of "
            "--steps",
            hint=f"give --steps {number} or more",
        )
    before = [each for each in states if each < number]
    try:
        saved = restored(path, first, no_gradients)
    except DumpError as error:
        other = f"from {states[before[-1]].name}" if before else "from the beginning"
        repair = f"remove {path.name} from the folder of the run to resume {other}"
        raise DumpError(error.message, hint=error.hint if error.hint == OTHER_RUN else repair) from error
    if (taken := int(saved.state.step)) != number:
        raise DumpError(f"{printable(str(path))}: it is the state after {counted(taken, 'step')}", hint=OTHER_RUN)
    earlier = f"; remove it to go on from {states[before[-1]].name}" if before else ""
    notify(f"going on from {path.name}{earlier}")
    return Start(state=saved.state, previous=saved.previous, number=number, watch=saved.watch)


def _require_sound(history: History, states: Mapping[int, Path]) -> None:
    try:
        history.require_sound()  # now, and not when all steps have been taken
    except DumpError as error:
        last = [*states.values()][-1:]
        begin = f"begin another run from its last state: --checkpoint {printable(str(last[0]))}" if last else None
        raise DumpError(error.message, hint=begin) from error


#: What is called so among the options decides the numbers of a run, too: the target's file, and that of `--data`.
MODEL_FILE: Final = "a model file of SHA-256"
DATA_FILE: Final = "a data file of SHA-256"

#: Files that are known by what they hold, and how messages call them.
_FILES: Final = {MODEL_FILE: "model file", DATA_FILE: "data file"}


def option_facts(options: Mapping[str, str]) -> dict[str, str]:
    """Returns options as facts of a history."""
    return {f"{RUN_OPTION}{name}": value for name, value in options.items()}


def owned(state: TrainState) -> TrainState:
    """Returns a copy of a state in arrays of its own, so that it can be donated: a first average is the parameters."""
    return jax.tree_util.tree_map(lambda leaf: leaf.copy(), state)


def _locked(path: Path, options: Mapping[str, str], *, resume: bool, force: bool, inputs: Iterable[Path]) -> RunFolder:
    shown = printable(str(path))
    if resume and not is_run(path):
        raise UsageError(f"there is no run in {shown} to resume", hint="start it without --resume")
    if not resume and is_run(path) and not force and not is_empty(path):
        raise UsageError(f"{shown} holds a run", hint="continue it with --resume, or replace it with --force")
    folder = RunFolder(path)
    try:
        if resume and not force:
            _require_same_options(path, options)
        elif not resume and is_run(path):
            folder.clear(inputs)
        elif folder.others and not force:
            raise UsageError(
                f"{shown} holds other files, such as {printable(folder.others[0])}", hint="name a folder of its own"
            )
    except BaseException:
        folder.close()
        raise
    return folder


@contextmanager
def leaving_no_empty_run(folder: RunFolder) -> Generator[None]:
    """Removes the history that was begun in a context which fails before anything is recorded.

    Args:
        folder: The folder of the run.
    """
    try:
        yield
    except BaseException:
        settle(folder)
        raise


def options_before(path: Path) -> dict[str, str]:
    """Returns the options that the run in a folder was started with, by name; none where there is no run.

    Raises:
        DumpError: Its history cannot be read.
    """
    if not is_run(path):
        return {}
    with History(path) as history:
        facts = history.facts
    return {name.removeprefix(RUN_OPTION): value for name, value in facts.items() if name.startswith(RUN_OPTION)}


def _require_same_options(path: Path, options: Mapping[str, str]) -> None:
    before = options_before(path)
    for name in dict.fromkeys([*options, *before]):
        old, new = before.get(name, ""), options.get(name, "")
        if name == DATA_FILE and not old:
            continue  # a run that an older gradscope began
        if old != new and name in _FILES:
            raise UsageError(
                f"the {_FILES[name]} has changed since the run in {printable(str(path))} began",
                hint="put it back as it was, or continue with the new one by --force",
            )
        if old != new:
            raise UsageError(
                f"the run in {printable(str(path))} has {_stated(name, old)}, and this command {_stated(name, new)}",
                hint="give the options that it was started with, or continue with the new ones by --force",
            )


def _stated(name: str, value: str) -> str:
    return f"{name} {printable(value)}" if value else f"no {name}"
