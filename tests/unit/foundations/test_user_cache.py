"""The folder of the user's cache is the same wherever a command starts, or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.user_cache import cache_folder


def test_it_is_below_the_variable_or_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder("a") == tmp_path / "cache" / "gradscope" / "a"
    for value in ("", "relative", "./relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder("a") == tmp_path / "home" / ".cache" / "gradscope" / "a"


@pytest.mark.parametrize(("home", "why"), [("relative", "'relative' is not absolute"), ("/\udcff", "is no UTF-8")])
def test_a_home_that_is_no_folder_of_its_own_is_none(home: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    with pytest.raises(RuntimeError, match=why):
        cache_folder("a")
