"""Kills commands that write at random moments, and counts what is left.

A kill is SIGKILL, to every process of the command, after a time drawn between none and that of a whole run.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gradscope.history.folder.run_files import is_run
from tests.integration.training.trained import contents, write_files
from torture_attacks.commands import GRADSCOPE, finish, losses
from torture_attacks.writers import STEPS, TRAIN, Writer, copied

DUMP = ["dump", "net.py", "-o", "dump.npz", "--force", "--quiet", "--seed"]


def dumps(folder: Path, kills: int, moments: random.Random) -> Counter[str]:
    """Returns how often a killed dump left the dump before it, the new one, and neither."""
    write_files(folder)
    known = {}
    for seed in (0, 1):
        seconds = timed(lambda seed=seed: finish([*DUMP, str(seed)], folder))
        known[losses(folder)] = seed
    found: Counter[str] = Counter()
    while found["kills"] < kills:
        before = known[losses(folder)]
        needed = kill([*GRADSCOPE, *DUMP, str(1 - before)], folder, moments.uniform(0, seconds))
        if needed is not None:  # a busy machine is faster at times
            seconds = needed
            continue
        read = subprocess.run([*GRADSCOPE, "verify", "dump.npz"], cwd=folder, check=False, capture_output=True)
        sound = read.returncode == 0
        left = known.get(losses(folder)) if sound else None
        found["kills"] += 1
        found["lost" if left is None else "old" if left == before else "new"] += 1
    return found


def runs(folder: Path, kills: int, moments: random.Random) -> Counter[str]:
    """Returns how many kills were of runs that were then resumed to the bits of one that was not killed, or not."""
    write_files(folder)
    begin, seconds = timed_run(folder)
    expected = contents(folder / "run", STEPS)
    found: Counter[str] = Counter()
    while found["kills"] < kills:
        shutil.rmtree(folder / "run")
        killed = 0
        # Up to three kills of one run, each of a run that was resumed; few of them before it takes steps.
        for _ in range(moments.randint(1, 3)):
            resumed = ["--resume"] if is_run(folder / "run") else []
            needed = kill([*GRADSCOPE, *TRAIN, *resumed], folder, moments.uniform(0.9 * begin, seconds))
            killed += needed is None
            seconds = seconds if needed is None else needed
        found["kills"] += killed
        if not is_run(folder / "run"):
            found["before the first file"] += killed
            finish(TRAIN, folder)
            continue
        done = subprocess.run([*GRADSCOPE, *TRAIN, "--resume"], cwd=folder, check=False, capture_output=True, text=True)
        same = done.returncode == 0 and contents(folder / "run", STEPS) == expected
        found["of runs resumed to the same bits" if same else "lost"] += killed
        if not same:
            print(f"  status {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
    return found


def outputs(each: Writer, folder: Path, kills: int, moments: random.Random) -> Counter[str]:
    """Returns how often a killed command left the output before it, the new one, and neither."""
    prepared = folder / "prepared"
    prepared.mkdir()
    each.prepare(prepared)
    old = each.whole(prepared)
    run = copied(prepared, folder / "run")
    seconds = timed(lambda: subprocess.run(each.command, cwd=run, check=False, capture_output=True))
    new = each.whole(run)
    if not new or new == old:
        raise SystemExit(f"{each.name}: the command does not write ({old!r}, {new!r})")
    found: Counter[str] = Counter()
    while found["kills"] < kills:
        run = copied(prepared, folder / "run")
        needed = kill(each.command, run, moments.uniform(0, seconds))
        if needed is not None:
            seconds = needed
            continue
        left = each.whole(run)
        found["kills"] += 1
        found["old" if left == old else "new" if left == new else "lost"] += 1
    return found


def timed_run(folder: Path) -> tuple[float, float]:
    """Returns the seconds after which a run has its history, and those that it takes."""
    begin = time.perf_counter()
    process = subprocess.Popen([*GRADSCOPE, *TRAIN], cwd=folder, stdout=subprocess.DEVNULL)
    while process.poll() is None and not is_run(folder / "run"):
        time.sleep(0.01)
    started = time.perf_counter() - begin
    if process.wait():
        raise SystemExit("the run that is not killed fails")
    return started, time.perf_counter() - begin


def kill(command: Sequence[str], folder: Path, seconds: float) -> float | None:
    """Starts a command, and kills it and its children after a time; returns the seconds it took if it ended before."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return None if process.wait() == -signal.SIGKILL else time.perf_counter() - begin


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds that something takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
