"""A folder that was made for an output does not stay behind where there is no output."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradscope.dump.storage.writing.atomic_folder import made_folder


@contextmanager
def failing() -> Generator[None]:
    yield
    raise KeyError


def fail(folder: Path, *, in_it: str = "") -> None:
    with pytest.raises(KeyError), made_folder(folder), failing():
        (folder / in_it).touch()


def test_folders_that_were_made_are_removed_where_the_block_fails(tmp_path: Path) -> None:
    fail(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_folders_stay_where_they_existed_or_have_something_in_them_or_nothing_failed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    fail(tmp_path / "old")
    fail(tmp_path / "full", in_it="a.txt")
    with made_folder(tmp_path / "new" / "inner"):
        pass
    assert sorted(each.name for each in tmp_path.iterdir()) == ["full", "new", "old"]


def test_a_folder_that_another_process_makes_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists

    def made_after_the_look(path: Path) -> bool:
        found = exists(path)
        if path == tmp_path / "theirs":
            path.mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(Path, "exists", made_after_the_look)
    fail(tmp_path / "theirs" / "ours")
    assert [each.name for each in tmp_path.iterdir()] == ["theirs"]
