"""The command line as its users have it, and programs in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.in_process import run_in_process

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
    """`gradscope ARGUMENTS`, in this process."""
    status, output, messages = run_in_process(list(map(str, arguments)), Path.cwd(), os.environ)
    return Finished(status=status, output=output.decode(), messages=messages.decode())


def python(*arguments: object) -> Finished:
    """`python ARGUMENTS`."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT)
    return Finished(status=done.returncode, output=done.stdout, messages=done.stderr)
