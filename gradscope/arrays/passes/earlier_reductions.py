"""Earlier processes leave a count of the bytes that they reduced without the compiled loops.

How often a user will come again is not known. Whoever rents until the rent is in the order of the price, and then buys,
pays no more than a few times what the better choice had cost, however often that is (the ski rental problem). So the
loops are compiled when all processes of this user together have waited for NumPy half as long as compiling takes.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from gradscope.user_cache import cache_folder

#: A file has one byte for each of so many bytes. Processes append to it, so that none overwrites what another counted.
_COUNTED: Final = 1 << 20

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def reduced_earlier() -> int:
    """Returns the bytes that earlier processes counted, to a mebibyte; 0 where none could."""
    try:
        kept = _path().lstat()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return 0
    return kept.st_size * _COUNTED if stat.S_ISREG(kept.st_mode) else 0


def count_reduced(size_bytes: int, most: int) -> None:
    """Counts bytes for later processes, where the user's cache can be written.

    Args:
        size_bytes: What this process reduces.
        most: Bytes that are enough to know of, beyond which nothing is counted.
    """
    counted = min(size_bytes, most - reduced_earlier()) // _COUNTED
    if counted > 0:
        with suppress(OSError, RuntimeError):
            path = _path()
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, _FLAGS, 0o600)  # a pipe that nobody reads is refused, and none is waited for
            try:
                os.write(file, bytes(counted))
            finally:
                os.close(file)


def _path() -> Path:
    return cache_folder("kernels") / "reduced-without"
