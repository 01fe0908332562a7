"""Program notes remember which compiled programs a command needed when it ran last."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from json import dumps, loads
from pathlib import Path
from typing import Final, cast

from gradscope.user_cache import cache_folder

#: The most programs that are noted for one command, and the most commands that are.
_MOST_PROGRAMS: Final = 8
_MOST_COMMANDS: Final = 32

#: The bytes of the largest file that is read: options have some hundred.
_MOST_BYTES: Final = 4 << 20


class ProgramNotes:
    """`ProgramNotes` are about a command, in a file of the user's cache that has them for some commands.

    What is wrong with the file, or cannot be written, is as if nothing had been noted.

    Args:
        programs_of: What the programs depend on: the model's options, the target, and more options.
    """

    def __init__(self, programs_of: Sequence[object]) -> None:
        self._path = cache_folder("compiled").with_name("expected-programs.json")
        self._command = _digest(programs_of)

    def read(self) -> dict[str, bytes]:
        """Returns for the name of each program that this command needed the options for which it was compiled."""
        noted = self._all().get(self._command)
        found: dict[str, bytes] = {}
        for name, options in list(cast("dict[str, object]", noted).items()) if isinstance(noted, dict) else ():
            if isinstance(options, str) and len(found) < _MOST_PROGRAMS:
                with suppress(ValueError):
                    found[name] = bytes.fromhex(options)
        return found

    def write(self, programs: Mapping[str, bytes]) -> None:
        """Notes the programs that this command needed."""
        known = self._all()
        known.pop(self._command, None)
        others = list(known.items())[1 - _MOST_COMMANDS :]
        noted = {name: options.hex() for name, options in list(programs.items())[:_MOST_PROGRAMS]}
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):
            partial.write_text(dumps({**dict(others), self._command: noted}))
            partial.replace(self._path)

    def _all(self) -> dict[str, object]:
        try:
            # A FIFO would be waited for.
            usable = self._path.is_file() and self._path.stat().st_size <= _MOST_BYTES
            found: object = loads(self._path.read_text()) if usable else {}
        except (OSError, ValueError, RecursionError):
            return {}
        return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _digest(programs_of: Sequence[object]) -> str:
    """Returns a digest of what programs depend on, and of the state of the files that it names."""
    files = [_file_state(each.partition(":")[0]) for each in programs_of if isinstance(each, str)]
    parts = (Path.cwd(), sys.version, os.environ.get("XLA_FLAGS", ""), *programs_of, *files)
    return hashlib.sha256("\0".join(map(repr, parts)).encode(errors="surrogatepass")).hexdigest()


def _file_state(path: str) -> str:
    """Returns what changes when a file is edited; "" where there is none."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"
