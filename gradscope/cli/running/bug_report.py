"""A bug report has what to send about an error that nothing explains."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradscope.cli.running.version import version_of


def bug_report(failure: BaseException, arguments: Sequence[str]) -> list[str]:
    """Returns the lines that report an unexpected error of the command with these arguments."""
    frames = traceback.extract_tb(failure.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    text = str(failure).partition("\n")[0]
    return [
        f"gradscope: error: this is a bug in gradscope: {type(failure).__name__}: {text}{where}",
        f"seen in: gradscope {version_of('gradscope-jax')}, jax {version_of('jax')}, Python {sys.version.split()[0]}",
        f"command: {shlex.join(['gradscope', *arguments])}",
        "hint: please report these lines, and what --traceback adds to them",
        *_about_programs(),
    ]


def _about_programs() -> Iterator[str]:
    """Yields a line about the user's own cache of compiled programs, where one is in use."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder and "jax" in sys.modules:  # JAX runs whatever program a file there has
        yield f"hint: if JAX_ENABLE_COMPILATION_CACHE=false helps, {folder} has a wrong program: empty it"
