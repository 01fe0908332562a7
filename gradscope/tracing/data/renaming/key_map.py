r"""Key maps rename a checkpoint's tensors to a model's variables, by regular expressions.

A key map is a file of lines, `REGEX -> REPLACEMENT`, as `re.sub` takes them, but that `.*` is the whole name and not
its end besides. They apply one after the other to every name. A tensor whose name becomes empty is left out. Blank
lines and lines that begin with `#` are ignored.

    ^encoder\.layers\.(\d+)\. -> blocks_\1/
    \.weight$                 -> /kernel
    ^optimizer.*              ->
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradscope.dump.storage.bounded_text import bounded_text
from gradscope.errors import DumpError, UsageError
from gradscope.naming import printable
from gradscope.naming.selecting.bounded_regex import BoundedRegex, MatchingTime

#: What a key map is, in a message.
KEY_MAP: Final = (
    "--map-keys FILE renames the checkpoint's tensors: each line of FILE is REGEX -> REPLACEMENT, the lines apply in "
    "order to every name, and a name that becomes empty is left out"
)

_LARGEST_FILE_BYTES: Final = 16 << 20
_LINE: Final = re.compile(r"(?P<regex>.*?)\s*->\s*(?P<replacement>.*)")


@dataclass(frozen=True, slots=True)
class KeyMap:
    """A `KeyMap` has substitutions, in order."""

    substitutions: tuple[tuple[BoundedRegex, str], ...] = ()

    def renamed(self, names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """Returns the new name of each tensor, "" where it is left out, and the expressions that change no name."""
        found, unused = {name: name for name in names}, list[str]()
        for regex, replacement in self.substitutions:
            changed = {old: regex.sub(replacement, name) for old, name in found.items()}
            unused += [regex.pattern] if changed == found else []
            found = changed
        return found, unused


def read_key_map(path: Path) -> KeyMap:
    """Returns the key map of a file.

    Raises:
        DumpError: There is no such file, or it is not text.
        UsageError: A line in it is not a rule; the message names it.
    """
    try:
        text = bounded_text(path, _LARGEST_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DumpError(f"{printable(str(path))}: it cannot be read as a key map: {reason}") from error
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    together = MatchingTime()
    return KeyMap(tuple(_rule(f"{path}:{number}", line, together) for number, line in lines if line and line[0] != "#"))


def _rule(location: str, line: str, matching_time: MatchingTime) -> tuple[BoundedRegex, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        raise UsageError(f"{location}: {printable(line)!r} is not a rule", hint="write REGEX -> REPLACEMENT")
    try:
        regex = BoundedRegex(found["regex"], matching_time)
        regex.sub(found["replacement"], "")  # to check the replacement, too
    except (re.error, IndexError) as error:
        raise UsageError(f"{location}: {printable(line)!r} is not a rule: {error}") from error
    return regex, found["replacement"]
