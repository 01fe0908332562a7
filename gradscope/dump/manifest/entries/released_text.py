"""A long text is in memory of its own, which goes back to the system as the text is read.

Of a manifest, what is made of it takes about as much as its text. Without the part that has been read, both are never
in memory at once.
"""

from __future__ import annotations

import mmap
from typing import TypeAlias

#: A text; one that is mapped is given back when it has been read.
Text: TypeAlias = bytes | mmap.mmap


def new_text(size_bytes: int) -> mmap.mmap:
    """Returns memory for a text that can be given back; it is private, because what is shared stays in memory.

    Args:
        size_bytes: The length of the text, at least 1.
    """
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def give_back(text: Text, start: int, stop: int) -> None:
    """Gives the memory of what has been read of a text back to the system, which then has zeros there.

    Args:
        text: The text; nothing is given back of one that is not mapped.
        start: Where the part that has been read begins; the page around that is kept.
        stop: Where it ends.
    """
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if isinstance(text, mmap.mmap) and first < last:
        text.madvise(mmap.MADV_DONTNEED, first, last - first)
