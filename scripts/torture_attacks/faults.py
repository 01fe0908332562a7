"""Makes each system call with which a command writes fail with each error, or kills there, and looks at what is left.

strace injects the errors, and SIGKILL. A first run lists the calls on files in the folder, with their numbers in their
thread; then there is one run for each of them and each error. Afterwards, whatever the command was told:

- at its output there is what was there before, or the complete new output, and `verify` reads it;
- exit status 0 means the new output; any other is documented, and comes with a message and without a traceback;
- no other file is left, but the tensors that a dump had (`.incomplete`), what a call that failed was to remove, and
  what the next command takes up: of a library that ended the process (`.partial`), and SQLite's own beside a history
  whose opening failed (`-wal`, `-shm`).

Of a command that was killed at a call only the first is asked, and that the kill ended it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torture_attacks.writers import Writer, copied

#: The calls that change files, as strace names them.
CALLS = (
    *("write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate", "fallocate", "flock", "fchmod"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "openat"),
)
#: What strace does to a call.
ERRORS = tuple(f"error={name}" for name in ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EINTR"))
KILL = "signal=KILL"

#: The statuses that the reference documents, beside that of a bug.
DOCUMENTED = frozenset({0, 1, 2, 3, 4, 5})

_LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")

#: Calls whose failure may leave a file behind.
_REMOVING = ("unlink", "unlinkat", "rename", "renameat", "renameat2")


#: The states of a run that had not ended, which `--resume` goes on from.
_STATE = re.compile(r"state-\d+\.npz")


@dataclass(frozen=True)
class Call:
    """A system call of a run: its name, its number among those of its name in its thread, and what it was about."""

    name: str
    number: int
    about: str


def attack(each: Writer, injected: tuple[str, ...], most: int | None, report: Callable[[str], None]) -> Counter[str]:
    """Returns how often a command survived the failure of a call, and how: see the module.

    Args:
        each: The command.
        injected: What is done to each call, as strace writes it: `ERRORS`, or `KILL` alone.
        most: The most calls to which it is done; None for all.
        report: Receives a line for each failure that was not survived.
    """
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        prepared = Path(root, "prepared")
        prepared.mkdir()
        each.prepare(prepared)
        old = each.whole(prepared)
        folder = copied(prepared, Path(root, "traced"))
        usual, calls = _traced(each.command, folder)
        new = each.whole(folder)
        expected = {path.relative_to(folder) for path in folder.rglob("*")}
        if not new or new == old or not calls:
            raise SystemExit(f"{each.name}: the command does not write, or strace does not see it ({old!r}, {new!r})")
        points = [(call, error) for call in calls for error in injected]
        step = 1 if most is None else max(1, -(-len(points) // most))
        for call, error in points[::step]:
            folder = copied(prepared, Path(root, "run"))
            done = _failing(each.command, folder, call, error)
            left = {path.relative_to(folder) for path in folder.rglob("*")} - expected
            state = each.whole(folder)
            wrong = "" if state in (old, new) else f"neither old nor new; {_ending(done)}"
            if error != KILL:
                wrong = wrong or _wrong_status(done, usual, is_new=state == new) or _litter(left, done, call)
            elif done.returncode == usual:  # threads do not make the same calls in each run
                found["ended before the kill"] += 1
            found["points"] += 1
            found["lost" if wrong else "new" if state == new else "old"] += 1
            if wrong:
                report(f"{each.name}: {error} at {call.name} {call.number} ({call.about:.80}): {wrong}")
            shutil.rmtree(folder)
    return found


def _wrong_status(done: subprocess.CompletedProcess[str], usual: int, *, is_new: bool) -> str:
    """Returns what is wrong with what a run says; "" for nothing. `usual` is its exit status without a failure."""
    if done.returncode not in DOCUMENTED or "Traceback" in done.stderr:
        return _ending(done)
    if done.returncode != usual and not done.stderr.strip():
        return f"status {done.returncode} without a message"
    if done.returncode == usual and not is_new:
        return f"status {usual}, and the output is the old one"
    return ""


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    return f"status {done.returncode}: {done.stderr.strip():.600}"


def _litter(left: set[Path], done: subprocess.CompletedProcess[str], call: Call) -> str:
    """Returns which of the files that a run left should not be there; "" for none."""
    ended = "ended the process" in done.stderr
    taken_up = (".partial",) * ended + (".sqlite-wal", ".sqlite-shm")
    litter = [
        str(path)
        for path in left
        if ".incomplete" not in str(path) and path.suffix not in taken_up and not _STATE.fullmatch(path.name)
    ]
    return f"it leaves {', '.join(sorted(litter))}" if litter and call.name not in _REMOVING else ""


def _is_inside(arguments: str, folder: Path) -> bool:
    """Returns whether a call with arguments as strace writes them is about a file in a folder, the current one."""
    named = re.search(r'"([^"]*)"', arguments)
    opened = re.search(r"^\d+<([^>]*)>", arguments)
    if opened is not None:
        return opened[1].startswith(str(folder))
    return named is not None and (not named[1].startswith("/") or named[1].startswith(str(folder)))


def _traced(command: tuple[str, ...], folder: Path) -> tuple[int, list[Call]]:
    """Returns the exit status of a run, and its calls that change files in a folder."""
    calls: list[Call] = []
    with tempfile.NamedTemporaryFile("r") as log:
        traced = ["strace", "-f", "--seccomp-bpf", "-y", "-o", log.name, "-e", f"trace={','.join(CALLS)}", *command]
        done = subprocess.run(traced, check=False, cwd=folder, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{command} ended with status {done.returncode}: {done.stderr}")
        numbers: Counter[tuple[str, str]] = Counter()
        for line in log:
            matched = _LINE.match(line)
            if matched is None or matched[2] not in CALLS:
                continue
            thread, name, rest = matched.groups()
            numbers[thread, name] += 1
            reading = name == "openat" and not re.search(r"O_WRONLY|O_RDWR|O_CREAT", rest)
            if _is_inside(rest, folder) and not reading:
                calls.append(Call(name, numbers[thread, name], rest.split(") = ")[0]))
    return done.returncode, calls


def _failing(command: tuple[str, ...], folder: Path, call: Call, error: str) -> subprocess.CompletedProcess[str]:
    # A filter stops only at the calls of one name, which is much faster, and lets no signal through.
    filtered = [] if error == KILL else ["--seccomp-bpf"]
    injected = [
        *("strace", "-f", *filtered, "-o", "/dev/null", "-e", f"trace={call.name}"),
        *("-e", f"inject={call.name}:{error}:when={call.number}"),
    ]
    return subprocess.run([*injected, *command], check=False, cwd=folder, capture_output=True, text=True, timeout=300)
