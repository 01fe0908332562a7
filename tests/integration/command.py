"""The `gradscope` command: in this process, in one of its own with pipes, and in a terminal as a person runs it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.in_process import run_at_terminal, run_in_process, run_program_in_process

#: Seconds after which a command counts as hanging.
TIMEOUT = 60.0

#: `-P` keeps the working directory, which may hold anything, off the path.
GRADSCOPE = (sys.executable, "-P", "-m", "gradscope")

#: Variables that Python, JAX and XLA read once, by the beginnings of their names.
READ_EARLY = ("PYTHON", "JAX_", "XLA_", "OPENBLAS_", "LC_", "LANG", "XDG_CACHE_HOME")

#: A terminal that has colours.
TERM = {"TERM": "xterm-256color"}

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that has ended; what a terminal showed is all `output`."""

    status: int
    output: str
    errors: str = ""

    @property
    def lines(self) -> list[str]:
        """Lines of standard error."""
        return self.errors.splitlines()

    @property
    def plain(self) -> str:
        """The output without colours and movements of the cursor."""
        return _CONTROLS.sub("", self.output)

    @property
    def json(self) -> Any:
        """The output, read as JSON."""
        return json.loads(self.output)


def gradscope(*arguments: object, folder: Path, **environment: str) -> Finished:
    """Run `gradscope ARGUMENTS` in a folder, in this process, with files for streams."""
    early = [name for name in environment if name.startswith(READ_EARLY)]
    assert not early, f"{early} are read when a process starts: run it by gradscope_process"
    return _finished(run_in_process(list(map(str, arguments)), folder, _environment(environment)))


def python(program: Path, *, folder: Path) -> Finished:
    """Run `python PROGRAM` in a folder, in this process, with files for streams."""
    return _finished(run_program_in_process(program, folder, _environment({})))


def _finished(done: tuple[int, bytes, bytes]) -> Finished:
    status, *streams = done
    output, errors = (written.decode(errors="surrogateescape") for written in streams)
    return Finished(status=status, output=output, errors=errors)


def gradscope_process(*arguments: object, folder: Path, **environment: str) -> Finished:
    """Run `gradscope ARGUMENTS` in a folder, in a process of its own, with pipes for streams."""
    with started_process(*arguments, folder=folder, **environment) as process:
        return ended(process)


def started_process(*arguments: object, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """`gradscope ARGUMENTS` under way in a folder, in a process of its own, with pipes for streams."""
    return subprocess.Popen(
        [*GRADSCOPE, *map(str, arguments)],
        cwd=folder,
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
    )


def ended(process: subprocess.Popen[str]) -> Finished:
    """Wait until a process that was started has ended."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Finished(status=process.returncode, output=output, errors=errors)


def in_shell(line: str, folder: Path) -> Finished:
    """Run a line of shell in which `$gradscope` is the command."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=_environment({"gradscope": " ".join(GRADSCOPE)}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return Finished(status=done.returncode, output=done.stdout, errors=done.stderr)


def largest_file(kib: int) -> str:
    """A line of shell after which no file may have more KiB."""
    # Python keeps as much of a module's bytecode as such a limit lets it write, which no later process can read.
    return f"export PYTHONDONTWRITEBYTECODE=1; ulimit -f {kib}"


def in_terminal(*arguments: object, folder: Path, columns: int, **environment: str) -> Finished:
    """Run `gradscope ARGUMENTS` in a folder, in this process, in a terminal of some width.

    What is drawn while a command runs takes its width from the process's own terminal: run it by `terminal_process`.
    """
    ours, theirs = _terminal(columns)
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_all, ours)
        try:
            status = run_at_terminal(list(map(str, arguments)), folder, _environment(TERM | environment), theirs)
        finally:
            os.close(theirs)
        return _shown(status, shown.result())


def terminal_process(*arguments: object, folder: Path, columns: int, **environment: str) -> Finished:
    """Run `gradscope ARGUMENTS` in a folder, in a process of its own, in a terminal of some width."""
    ours, theirs = _terminal(columns)
    command = [*GRADSCOPE, *map(str, arguments)]
    changed = _environment(TERM | environment)
    with subprocess.Popen(command, cwd=folder, env=changed, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = _read_all(ours)
    return _shown(process.returncode, shown)


def _terminal(columns: int) -> tuple[int, int]:
    """The two ends of a terminal: what is written to the second is read from the first."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    return ours, theirs


def _shown(status: int, shown: bytes) -> Finished:
    return Finished(status=status, output=shown.decode().replace("\r\n", "\n"))


def _read_all(terminal: int) -> bytes:
    """All that is written to a terminal until its last writer is gone; closes it."""
    shown, deadline = b"", time.monotonic() + TIMEOUT
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        while select.select([screen], [], [], deadline - time.monotonic())[0]:
            try:
                part = screen.read(1 << 16)
            except OSError:  # how Linux tells that nobody writes any more
                return shown
            if not part:
                return shown
            shown += part
    raise TimeoutError(shown)


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, without what would change how output looks."""
    unwanted = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if name not in unwanted} | dict(changes)
