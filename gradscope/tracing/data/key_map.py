r"""Key maps: renaming what a checkpoint calls its tensors to what a model does, by regular expressions.

A file of lines, `REGEX -> REPLACEMENT`, as `re.sub` takes them; they apply one after the other to every name. A name
that becomes empty is left out. Blank lines and lines that begin with `#` say nothing.

    ^encoder\.layers\.(\d+)\. -> blocks_\1/
    \.weight$                 -> /kernel
    ^optimizer.*              ->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradscope.errors import DumpError, UsageError
from gradscope.naming import printable

_LINE: Final = re.compile(r"(?P<regex>.*?)\s*->\s*(?P<replacement>.*)")


@dataclass(frozen=True, slots=True)
class KeyMap:
    """Substitutions, in order."""

    substitutions: tuple[tuple[re.Pattern[str], str], ...] = ()

    def renamed(self, name: str) -> str:
        """What a name becomes; "" where it is to be left out."""
        for regex, replacement in self.substitutions:
            name = regex.sub(replacement, name)
        return name


def read_key_map(path: Path) -> KeyMap:
    """The key map that a file holds.

    Raises:
        DumpError: There is no such file, or it is no text.
        UsageError: A line in it is no rule; which is said.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DumpError(f"{printable(str(path))}: it cannot be read as a key map: {error}") from error
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return KeyMap(tuple(_rule(f"{path}:{number}", line) for number, line in lines if line and line[0] != "#"))


def _rule(place: str, line: str) -> tuple[re.Pattern[str], str]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise UsageError(f"{place}: {printable(line)!r} is no rule", hint="write REGEX -> REPLACEMENT")
    try:
        regex = re.compile(found["regex"])
        regex.sub(found["replacement"], "")  # which checks the replacement, too
    except (re.error, IndexError) as error:
        raise UsageError(f"{place}: {printable(line)!r} is no rule: {error}") from error
    return regex, found["replacement"]
