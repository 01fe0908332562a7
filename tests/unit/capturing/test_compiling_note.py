"""A terminal says that a step is being compiled where it takes long, and nothing is left of it."""

from __future__ import annotations

import io
import time

import pytest

from gradscope.capturing.in_steps import compiling_note
from gradscope.capturing.in_steps.compiling_note import CompilingNote


class Terminal(io.StringIO):
    def __init__(self, *, is_one: bool) -> None:
        super().__init__()
        self._is_one = is_one

    def isatty(self) -> bool:
        return self._is_one


@pytest.mark.parametrize(("is_one", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)])
def test_a_terminal_alone_says_what_takes_long(
    *, is_one: bool, patience: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal(is_one=is_one)
    monkeypatch.setattr(compiling_note, "_PATIENCE", patience)
    monkeypatch.setattr("sys.stderr", stream)
    with CompilingNote("compiling step ..."):
        end = time.monotonic() + 5
        while shown and not stream.getvalue() and time.monotonic() < end:
            time.sleep(0.001)
    assert stream.getvalue() == ("\r\033[Kgradscope: compiling step ...\r\033[K" if shown else "")


@pytest.mark.parametrize("stream", [None, object()])
def test_a_stream_that_is_none_is_no_failure(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    with CompilingNote("compiling step ..."):
        pass
