"""The command line as its users have it: what it prints, and the dump that it writes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.in_process import run_in_process


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
