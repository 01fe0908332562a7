"""A file that does not exist: which files beside it have a similar name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.dump.storage import input_file
from gradscope.dump.storage.input_file import InputFile
from gradscope.errors import DumpError


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnt.npz", "did you mean {folder}/resnet.npz?"),
        ("resnet", "did you mean {folder}/resnet.npz?"),
        ("mlp.npz", None),  # what it shares with the others is the suffix
        ("resnt.safetensors", None),
        ("none/resnet.npz", "there is no folder {folder}/none"),
        ("transformer.npz/dump.npz", None),
        ("link.npz", "it is a link to nowhere.npz, which is not there"),
    ],
)
def test_a_file_that_does_not_exist_is_answered_by_what_has_a_similar_name(
    tmp_path: Path, name: str, hint: str | None
) -> None:
    for file in ("resnet.npz", "notes.txt", "transformer.npz"):
        (tmp_path / file).touch()
    (tmp_path / "link.npz").symlink_to("nowhere.npz")
    with pytest.raises(DumpError) as error:
        InputFile(tmp_path / name)
    assert error.value.hint == (None if hint is None else hint.format(folder=tmp_path))


def test_of_a_large_folder_only_some_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "_MOST_NEIGHBOURS", 3)
    for number in range(9):
        (tmp_path / f"f{number}.npz").touch()
    seen: list[str] = []

    def nearest(_: str, names: list[str], **__: float) -> list[str]:
        seen.extend(names)
        return names[:1]

    monkeypatch.setattr(input_file, "nearest", nearest)
    with pytest.raises(DumpError, match="cannot be opened") as error:
        InputFile(tmp_path / "f.npz")
    assert len(seen) == 3
    assert error.value.hint is not None


def test_a_pointer_of_git_lfs_is_told_from_the_file_that_it_stands_for(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / "saved.safetensors").write_text(pointer)
    with pytest.raises(DumpError, match="it is a pointer of Git LFS") as error:
        InputFile(tmp_path / "saved.safetensors")
    assert error.value.hint == "fetch the file: git lfs pull"
    (tmp_path / "saved.safetensors").write_text(pointer.ljust(2000))
    InputFile(tmp_path / "saved.safetensors").close()
