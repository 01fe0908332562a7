"""What the options name stays what it is, whatever a model does to the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.cli.options.shared import working_in


def test_a_folder_that_a_model_has_removed_is_left_for_the_one_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    with working_in(tmp_path):
        assert Path.cwd() == tmp_path
    assert Path.cwd() == tmp_path / "removed"
    (tmp_path / "removed").rmdir()
    with working_in(tmp_path):
        assert Path.cwd() == tmp_path
    assert Path.cwd() == tmp_path
