"""A run that was stopped, by whatever, and resumed is bit for bit the run that was not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import gradscope as gs
from tests.integration.command import GRADSCOPE, TIMEOUT, gradscope, largest_file
from tests.integration.training.trained import contents, rows, write_files

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

STEPS = 40
#: Everything that a state can hold: slots, a schedule, averages, batch norm, a random key, a place in the data.
TRAIN = (
    *("train", "net.py", "--data", "data.py:batches", "--steps", STEPS, "--every", 3, "--save-every", 5),
    *("--ema", 0.9, "--clip", "global_norm(1)", "-q"),
)
#: What starts the soonest, and never ends.
ENDLESS = (
    *("train", "to_nan.py", "--optimizer", "sgd(1e-9)", "-q"),
    *("--steps", 1_000_000_000, "--every", 1_000_000_000, "--save-every", 1_000_000_000),
)
USUAL = {"JAX_NUMPY_DTYPE_PROMOTION": "standard"}


@pytest.fixture(scope="module")
def folder(usual_promotion: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, and `uninterrupted`, a run that nothing stopped."""
    path = tmp_path_factory.mktemp("resuming")
    write_files(path)
    done = gradscope(*TRAIN, "-o", "whole", folder=path)
    assert done.status == 0, done.errors
    return path


def started(folder: Path, *arguments: object, limit: str = "true") -> subprocess.Popen[str]:
    """The command under way, in a shell that has run another command before."""
    command = ["bash", "-c", f'{limit}; exec "$@"', "-", *GRADSCOPE, *map(str, arguments)]
    environment = {**os.environ, **USUAL}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits until a condition holds or the process ends."""
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def recorded(run: Path) -> int:
    return len(rows(run, "steps")) if (run / "history.sqlite").exists() else 0


def test_a_killed_run_opens_and_resumes_bit_for_bit(folder: Path) -> None:
    run = folder / "killed"
    process = started(folder, *TRAIN, "-o", run.name)
    until(lambda: recorded(run) >= 7, process)
    time.sleep(0.01)
    process.kill()
    process.communicate()
    with gs.load(run) as found:
        uninterrupted = [step for step, *_ in rows(folder / "whole", "steps")]
        assert found.steps["step"].tolist() == uninterrupted[: len(found.steps["step"])]
    done = gradscope(*TRAIN, "-o", run.name, "--resume", folder=folder)
    assert done.status == 0, done.errors
    assert contents(run, STEPS) == contents(folder / "whole", STEPS)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_process_is_refused_and_a_signal_saves_the_state(folder: Path, number: int, status: int) -> None:
    run = folder / f"stopped{number}"
    with started(folder, *ENDLESS, "-o", run.name) as process:
        until(lambda: recorded(run) >= 1, process)
        second = gradscope(*ENDLESS, "-o", run.name, "--resume", folder=folder)
        with gs.load(run) as found:  # reading is not refused
            assert found.steps["step"].tolist() == [0]
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == status, errors
    assert (second.status, f"{run.name} is being written, by another process" in second.errors) == (2, True)
    (state,) = run.glob("state-*.npz")
    with gs.load(state) as saved:
        assert (taken := int(saved["aux/step"])) == int(state.stem.removeprefix("state-")) > 0
    with gs.load(run) as found:  # also of those that were on their way when the signal came
        assert found.losses["step"].tolist() == list(range(taken))


def test_a_full_disk_ends_the_run_and_leaves_the_state_before_it(folder: Path) -> None:
    # No file can grow beyond 100 KiB, which a write reports as a full disk is.
    line = (*TRAIN, "--every", 1, "--steps", 4000, "-o", "full")
    with started(folder, *line, limit=largest_file(100)) as process:
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 5, errors
    assert "cannot write to" in errors
    last = max((folder / "full").glob("state-*.npz"))
    with gs.load(last) as state, gs.load(folder / "full") as run:
        assert int(state["aux/step"]) == int(last.stem.removeprefix("state-"))
        assert len(run.steps["step"]) >= int(state["aux/step"])


def test_a_torn_state_is_named_and_the_one_before_it_goes_on(folder: Path) -> None:
    shutil.copytree(folder / "whole", folder / "torn")
    last = folder / "torn" / f"state-{STEPS:06}.npz"
    last.write_bytes(last.read_bytes()[:-100])
    torn = gradscope(*TRAIN, "-o", "torn", "--resume", folder=folder)
    assert torn.status == 3
    hint = f"hint: remove state-{STEPS:06}.npz from the folder of the run to resume from state-{STEPS - 5:06}.npz"
    assert hint in torn.errors
    last.unlink()
    arguments = [word for word in TRAIN if word != "-q"]
    resumed = gradscope(*arguments, "-o", "torn", "--resume", folder=folder)
    line = f"going on from state-{STEPS - 5:06}.npz; remove it to go on from state-{STEPS - 10:06}.npz"
    assert (resumed.status, line in resumed.errors) == (0, True), resumed.errors
    assert contents(folder / "torn", STEPS) == contents(folder / "whole", STEPS)


@pytest.mark.usefixtures("usual_promotion")
def test_a_run_without_a_state_says_that_it_begins_again(folder: Path) -> None:
    shutil.copytree(folder / "whole", folder / "stateless")
    for state in (folder / "stateless").glob("state-*.npz"):
        state.unlink()
    steps = recorded(folder / "stateless")
    resumed = gradscope(*(word for word in TRAIN if word != "-q"), "-o", "stateless", "--resume", folder=folder)
    line = f"no state is saved: beginning at step 0 again, in place of {steps} recorded steps"
    assert (resumed.status, line in resumed.errors) == (0, True), resumed.errors
    assert contents(folder / "stateless", STEPS) == contents(folder / "whole", STEPS)


@pytest.mark.usefixtures("usual_promotion")
def test_a_run_that_ended_earlier_goes_on_as_if_it_had_not(folder: Path) -> None:
    """The record of its last step is one that a longer run does not have: nothing later depends on it."""
    between = STEPS - 8
    assert (between - 1) % 3, "its last step is recorded only as the last"
    assert gradscope(*TRAIN, "--steps", between, "-o", "longer", folder=folder).status == 0
    assert gradscope(*TRAIN, "--resume", "-o", "longer", folder=folder).status == 0
    states, tables = contents(folder / "longer", STEPS)
    expected, without = contents(folder / "whole", STEPS)
    assert states == expected
    assert [row for row in tables["stats"] if row[0] != between - 1] == without["stats"]


def test_data_that_changed_are_other_data(folder: Path) -> None:
    own = folder / "own.py"
    own.write_text((folder / "data.py").read_text(encoding="utf-8"), encoding="utf-8")
    command = ("train", "net.py", "--data", "own.py:batches", "--every", 3, "-q", "-o", "own")
    assert gradscope(*command, "--steps", 3, folder=folder).status == 0
    own.write_text(own.read_text(encoding="utf-8").replace("rng.normal(", "3 * rng.normal("), encoding="utf-8")
    done = gradscope(*command, "--steps", 6, "--resume", folder=folder)
    assert (done.status, done.errors.splitlines()[0]) == (
        2, "gradscope: error: the data file has changed since the run in own began",
    )  # fmt: skip
    assert gradscope(*command, "--steps", 6, "--resume", "--force", folder=folder).status == 0


def test_a_state_under_the_name_of_another_is_not_gone_on_from(folder: Path) -> None:
    shutil.copytree(folder / "whole", folder / "renamed")
    last = max((folder / "renamed").glob("state-*.npz"))
    last.rename(last.with_name("state-000041.npz"))
    done = gradscope(*TRAIN, "--steps", 42, "-o", "renamed", "--resume", folder=folder)
    assert done.status == 3
    assert "state-000041.npz: it is the state after 40 steps" in done.lines[0]


@pytest.mark.usefixtures("usual_promotion")
def test_a_run_that_is_resumed_without_its_optimizer_says_which_it_was(tmp_path: Path) -> None:
    write_files(tmp_path)
    command = ("train", "to_nan.py", "-q", "-o", "run")
    given = ("--optimizer", "sgd", "--learning-rate", "0.25")
    assert gradscope(*command, *given, "--steps", 2, folder=tmp_path).status in (0, 1)
    done = gradscope(*command, "--steps", 4, "--resume", folder=tmp_path)
    again = "the run was started with --optimizer 'sgd' --learning-rate '0.25': give it again"
    assert (done.status, again in done.errors) == (2, True), done.errors
