"""How much work a piece of code does, not in seconds: the same number on busy and on idle machines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(function: Callable[[], Any]) -> int:
    """The number of calls, of Python and of C functions, that running `function` makes."""
    made = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return made


def steps(function: Callable[[], Any]) -> int:
    """The number of instructions of Python that running `function` takes; those of C functions are not counted."""
    made = 0

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal made
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        made += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return made
