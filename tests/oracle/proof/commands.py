"""The command line as its users have it: a process of its own for every command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Ends what hangs; a command of these tests takes seconds.
TIMEOUT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that has ended."""

    status: int
    output: str
    messages: str

    @property
    def report(self) -> Any:
        """What it wrote with `--json`."""
        assert self.output, self.messages
        return json.loads(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumped:
    """A dump on disk, and the command that wrote it."""

    path: Path
    command: Finished


def gradscope(*arguments: object) -> Finished:
    """`gradscope ARGUMENTS`."""
    return python("-m", "gradscope", *arguments)


def python(*arguments: object) -> Finished:
    """`python ARGUMENTS`."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT)
    return Finished(status=done.returncode, output=done.stdout, messages=done.stderr)
