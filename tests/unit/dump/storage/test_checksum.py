"""The checksum of members is zlib's value, whichever library computes it."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Iterator

import pytest

from gradscope.dump.storage import checksum as module

CHUNKS = [b"", b"a", bytes(range(256)) * 4096, b"\x00" * 100_001]


@pytest.fixture(params=["zlib_ng", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Reloads the module with or without zlib-ng."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "zlib_ng", None)
        monkeypatch.delitem(sys.modules, "zlib_ng.zlib_ng", raising=False)
    else:
        pytest.importorskip("zlib_ng", reason="zlib-ng is absent: its checksums were NOT compared")
    importlib.reload(module)
    yield request.param
    monkeypatch.undo()
    importlib.reload(module)


def test_it_is_zlibs_over_chunks_of_any_size(library: str) -> None:
    assert module.checksum.__module__.partition(".")[0] == library
    ours = theirs = 0
    for chunk in CHUNKS:
        ours, theirs = module.checksum(memoryview(chunk), ours), zlib.crc32(chunk, theirs)
        assert ours == theirs
