"""A text file is read whole or refused, and never further than its limit: a device may have no end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.comparison.judging.tolerance_rules import read_rules
from gradscope.comparison.pairing.map_file import read_map
from gradscope.dump.storage.bounded_text import bounded_text
from gradscope.errors import DumpError
from gradscope.tracing.data.renaming.key_map import read_key_map


def test_a_text_of_the_limit_is_read_and_a_longer_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("é" * 4)
    assert bounded_text(path, 8) == "é" * 4
    with pytest.raises(OSError, match="too large"):
        bounded_text(path, 7)


@pytest.mark.parametrize("read", [read_rules, read_map, read_key_map])
def test_a_file_without_end_is_refused(read: object) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    assert callable(read)
    with pytest.raises(DumpError, match="too large"):
        read(Path("/dev/zero"))
