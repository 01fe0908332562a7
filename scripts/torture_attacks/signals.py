"""Sends signals to commands at random moments, and looks at how they end and what they leave.

A signal goes to the command's first process or to its group, once or twice, as from Ctrl-C, `kill`, `timeout`, a closed
terminal, and Ctrl-Z with `fg` behind it. Afterwards:

- the exit status is that of the signal, or the one without it;
- standard error has no traceback, no process of the session is left, and no temporary file but SQLite's own;
- what the command read, and what was at its output, is unchanged.

A signal before Python has imported what handles signals is Python's own, and is counted apart.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.integration.training.trained import write_files
from torture_attacks.commands import GRADSCOPE, finish

#: By name: what is sent, each to the process or to its group, and the statuses with which a command may end.
_SENT: Final = {
    "Ctrl-C": ((signal.SIGINT, True), {130}),
    "SIGINT": ((signal.SIGINT, False), {130}),
    "SIGTERM": ((signal.SIGTERM, False), {143}),
    "SIGHUP": ((signal.SIGHUP, True), {129}),
    "SIGTSTP": ((signal.SIGTSTP, True), set[int]()),
}
_TRAIN: Final = ("train", "net.py", "--data", "data.py:batches", "--every", "1", "--quiet", "-o")
COMMANDS: Final = {
    "dump": ("dump", "net.py", "-o", "new.npz"),
    "train": (*_TRAIN, "new", "--steps", "20"),
    "resume": (*_TRAIN, "run", "--steps", "40", "--resume"),
    "compare": ("compare", "a.npz", "b.npz"),
    "map": ("compare", "a.npz", "b.npz", "--write-map", "new.toml"),
    "show": ("show", "run"),
    "report": ("report", "a.npz", "-o", "new.html"),
    "export": ("export", "run", "--to", "csv", "-o", "new.csv"),
    "check": ("check", "net.py"),
    "calibrate": ("calibrate", "net.py", "-o", "new.npz"),
    "recover": ("recover", "left", "-o", "new.npz"),
    "verify": ("verify", "a.npz"),
}
_SECONDS: Final = 60

#: The modules of gradscope that are imported before it handles signals.
_MODULE: Final = re.compile(r"gradscope/[\w/]+\.py")
_FIRST: Final = {
    f"gradscope/{each}.py" for each in ("__init__", "__main__", "cli/__init__", "cli/main", "cli/interrupts")
}


def signals(root: Path, name: str, times: int, moments: random.Random, report: Callable[[str], None]) -> Counter[str]:
    """Returns how a command ended that was sent each kind of signal so many times, once and twice."""
    prepared = root / "prepared"
    if not prepared.exists():
        _prepare(prepared)
    begin = time.perf_counter()
    usual = _run(name, shutil.copytree(prepared, root / "usual")).wait()
    seconds = time.perf_counter() - begin
    found: Counter[str] = Counter()
    for kind, ((number, to_group), ends) in _SENT.items():
        for repeated in range(2 * times):
            folder = Path(shutil.copytree(prepared, root / "run"))
            running = _run(name, folder)
            time.sleep(moments.uniform(0.03, seconds))
            for _ in range(1 + repeated % 2):
                _send(running, number, to_group=to_group)
                time.sleep(moments.choice((0.0, 0.02, 0.1)))
            _, errors = running.communicate(timeout=_SECONDS)
            wrong = _wrong(running, errors, prepared, folder, {*ends, usual})
            early = {*_MODULE.findall(errors)} <= _FIRST and running.returncode in (1, -number)
            found["signals"] += 1
            found["before gradscope began" if early else "wrong" if wrong else "as they should"] += 1
            if wrong and not early:
                report(f"{name}: {kind}: {wrong}")
            shutil.rmtree(folder)
    shutil.rmtree(root / "usual")
    return found


def _prepare(folder: Path) -> None:
    folder.mkdir()
    write_files(folder)
    for seed, output in ((0, "a.npz"), (1, "b.npz")):
        finish(["dump", "net.py", "-o", output, "--quiet", "--seed", str(seed)], folder)
    finish([*_TRAIN, "run", "--steps", "10"], folder)
    written = (folder / "a.npz").read_bytes()
    (folder / "left").write_bytes(written[: len(written) * 2 // 3])


def _run(name: str, folder: Path) -> subprocess.Popen[str]:
    # Where this process was started in the background, Ctrl-C is ignored, and a command keeps to that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [*GRADSCOPE, *COMMANDS[name]], cwd=folder, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _send(running: subprocess.Popen[str], number: signal.Signals, *, to_group: bool) -> None:
    if running.poll() is not None:
        return
    try:
        (os.killpg if to_group else os.kill)(running.pid, number)
        if number == signal.SIGTSTP:
            time.sleep(0.2)
            os.killpg(running.pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def _wrong(running: subprocess.Popen[str], errors: str, prepared: Path, folder: Path, ends: set[int]) -> str:
    """Returns what is wrong with how a command ended; "" for nothing."""
    if running.returncode not in ends or "Traceback" in errors:
        return f"status {running.returncode}: {errors.strip()[-600:]}"
    time.sleep(0.05)
    if left := _session(running.pid):
        return f"it leaves the processes {left}"
    litter = [str(path.relative_to(folder)) for path in folder.rglob("*") if ".partial" in path.name]
    if litter:
        return f"it leaves {', '.join(litter)}"
    inputs = ("a.npz", "b.npz", "left")
    changed = [each for each in inputs if (folder / each).read_bytes() != (prepared / each).read_bytes()]
    return f"it changed {', '.join(changed)}" if changed else ""


def _session(number: int) -> list[int]:
    """Returns the living processes of a session."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == number and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found
