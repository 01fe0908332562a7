"""Command lines and programs run in this process as if they had one of their own: nothing is found, nothing remains.

A process of its own imports JAX, which takes longer than most commands, and shares no trace and no compiled program
with the next one. What such a process is born with is set up here and put back: arguments, working directory,
environment, streams, the settings of JAX and the functions of its cache, warning filters, imported modules, the garbage
collector.

Sharp edges: what Python, JAX and XLA read from the environment when they start has been read; `command.gradscope`
refuses such variables. Signals and closed streams need a process, too.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import runpy
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import jax
from jax._src import compilation_cache

import gradscope
from gradscope.cli.error_boundary import guarded
from gradscope.cli.program import run

#: What `python -m gradscope` has for the name of the program.
PROGRAM = str(Path(gradscope.__file__).with_name("__main__.py"))

#: A fresh interpreter ignores these categories; everything else is shown once for each line.
IGNORED = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)

#: What takes cleanups in case of a signal, and never gets one.
UNINTERRUPTED: Any = SimpleNamespace(on_interrupt=lambda cleanup: None, asking=lambda ask: contextlib.nullcontext())


#: Standard input, output and errors.
Streams = tuple[TextIO, TextIO, TextIO]


def run_in_process(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run the command line in a folder; returns its exit status and what it wrote to its two output streams."""
    return _run_with_files([PROGRAM, *arguments], _command(arguments), folder, environment)


def run_at_terminal(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], terminal: int) -> int:
    """Run the command line in a folder, with the descriptor of a terminal for its streams; returns its exit status."""
    with open(terminal, closefd=False) as keys, _screen(terminal) as output, _screen(terminal) as errors:
        return _run_as([PROGRAM, *arguments], _command(arguments), folder, environment, (keys, output, errors))


def _command(arguments: Sequence[str]) -> Callable[[], int]:
    return lambda: guarded(partial(run, UNINTERRUPTED), arguments)


def run_program_in_process(program: Path, folder: Path, environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run a file as `python FILE` does, in a folder; returns its exit status and what it wrote to both streams."""

    def run_program() -> int:
        sys.path.insert(0, str(program.parent))
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            return 1
        return 0

    return _run_with_files([str(program)], run_program, folder, environment)


def _run_with_files(
    words: Sequence[str], program: Callable[[], int], folder: Path, environment: Mapping[str, str]
) -> tuple[int, bytes, bytes]:
    with _file() as output, _file() as errors, Path(os.devnull).open() as nothing:
        status = _run_as(words, program, folder, environment, (nothing, output, errors))
        return status, _written(output), _written(errors)


def _run_as(
    words: Sequence[str], program: Callable[[], int], folder: Path, environment: Mapping[str, str], streams: Streams
) -> int:
    with contextlib.ExitStack() as surroundings:
        for each in (_jax_settings(), _jax_log(), _warnings(), _collector(), _modules(), contextlib.chdir(folder)):
            surroundings.enter_context(each)
        surroundings.enter_context(_replaced(os.environ, environment))
        surroundings.enter_context(_attribute(sys, "argv", list(words)))
        # A command puts functions in the place of these that call what they find there: that of the command before.
        for name in ("get_executable_and_time", "put_executable_and_time"):
            surroundings.enter_context(_attribute(compilation_cache, name, getattr(compilation_cache, name)))
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            surroundings.enter_context(_attribute(sys, name, stream))
        # A thread has a stack of its own: the user's lines that JAX remembers are the model's, and no test's.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(program).result()


def _file() -> TextIO:
    """A file in the place of a standard stream, which is no terminal."""
    return TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", errors="backslashreplace")


def _screen(terminal: int) -> TextIO:
    return open(terminal, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _written(stream: TextIO) -> bytes:
    stream.flush()
    stream.seek(0)
    return stream.buffer.read()


@contextlib.contextmanager
def _attribute(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextlib.contextmanager
def _replaced(mapping: Any, content: Mapping[str, Any]) -> Iterator[None]:
    """A mapping with other content."""
    before = dict(mapping)
    mapping.clear()
    mapping.update(content)
    try:
        yield
    finally:
        mapping.clear()
        mapping.update(before)


@contextlib.contextmanager
def _jax_settings() -> Iterator[None]:
    before = dict(jax.config.values)
    try:
        yield
    finally:
        for name, value in jax.config.values.items():
            if value != before[name]:
                jax.config.update(name, before[name])


@contextlib.contextmanager
def _jax_log() -> Iterator[None]:
    log = logging.getLogger("jax")
    before = list(log.handlers)
    try:
        yield
    finally:
        log.handlers[:] = before


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """Warnings as a fresh interpreter has them, on its standard error."""

    def show(*warning: Any, **more: Any) -> None:
        sys.stderr.write(warnings.formatwarning(*warning[:4]))

    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in IGNORED:
            warnings.simplefilter("ignore", category)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextlib.contextmanager
def _modules() -> Iterator[None]:
    """Folders that a command puts on the path are gone afterwards, and the modules that it found there."""
    path, known = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        added = set(sys.path) - set(path)
        sys.path[:] = path
        for name in sys.modules.keys() - known:
            file = getattr(sys.modules[name], "__file__", None)
            if name.startswith("gradscope_model_") or (file is not None and str(Path(file).parent) in added):
                del sys.modules[name]
