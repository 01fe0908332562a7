"""A damaged dump is refused with `DumpError`, or reads as it was written."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from gradscope.dump.recover import recover
from gradscope.errors import DumpError
from tests.support.dumps import read_all, some_of_everything, write
from tests.support.sampled import sampled

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def read_or_refuse(path: Path, content: bytes) -> Tensors | None:
    """Returns all tensors of a file with some content, or None where it is refused."""
    # The file is overwritten without truncation, because some file systems flush a truncated file, which is slow.
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(content)
        file.truncate()
    try:
        return read_all(path)
    except DumpError:
        return None


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("damage") / "dump.npz", some_of_everything(), loss=1.0)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "foreign.npz"
    np.savez_compressed(path, a=np.arange(100.0), b=np.ones(3, np.int8))
    return path


def test_a_dump_cut_at_any_byte_is_refused(dump: Path, tmp_path: Path) -> None:
    content = dump.read_bytes()
    assert read_or_refuse(tmp_path / "cut.npz", content) is not None
    accepted = [
        size for size in range(len(content)) if read_or_refuse(tmp_path / "cut.npz", content[:size]) is not None
    ]
    assert accepted == []


def structure(content: bytes) -> list[int]:
    """Returns the positions of bytes that are not array data: zip records, npy headers, the directory."""
    positions: set[int] = set()
    for signature, length in ((b"PK\3\4", 120), (b"\x93NUMPY", 128), (b"PK\1\2", 90), (b"PK\5\6", 22)):
        start = content.find(signature)
        while start >= 0:
            positions.update(range(start, min(start + length, len(content))))
            start = content.find(signature, start + 1)
    return sorted(positions)


@pytest.mark.parametrize("kind", ["dump", "foreign"])
def test_flipped_bits_are_refused_or_harmless(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    content = request.getfixturevalue(kind).read_bytes()
    sound = read_or_refuse(tmp_path / "flipped.npz", content)
    chance = random.Random(0)
    outcomes = {"refused": 0, "harmless": 0}
    for position in chance.choices(structure(content), k=900) + chance.choices(range(len(content)), k=300):
        flipped = bytearray(content)
        flipped[position] ^= 1 << chance.randrange(8)
        found = read_or_refuse(tmp_path / "flipped.npz", bytes(flipped))
        outcomes["refused" if found is None else "harmless"] += 1
        assert found is None or found == sound, f"byte {position}"
    assert min(outcomes.values()) > 50


@sampled("kind", ["dump", "foreign"])
def test_numbers_written_over_the_structure_are_refused_or_harmless(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    content = request.getfixturevalue(kind).read_bytes()
    sound = read_or_refuse(tmp_path / "over.npz", content)
    chance = random.Random(1)
    for position in chance.choices(structure(content)[:-8], k=1000):
        number = chance.choice([0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, len(content), chance.randrange(2**32)])
        damaged = content[:position] + struct.pack("<L", number) + content[position + 4 :]
        found = read_or_refuse(tmp_path / "over.npz", damaged)
        assert found is None or found == sound, f"byte {position}"


def test_recovering_a_flipped_dump_saves_only_what_was_written(dump: Path, tmp_path: Path) -> None:
    content, sound = dump.read_bytes(), read_all(dump)
    chance = random.Random(2)
    for position in chance.choices(structure(content), k=20):
        flipped = bytearray(content)
        flipped[position] ^= 1 << chance.randrange(8)
        (tmp_path / "flipped.npz").write_bytes(flipped)
        (tmp_path / "saved.npz").unlink(missing_ok=True)
        try:
            recover(tmp_path / "flipped.npz", tmp_path / "saved.npz")
        except DumpError:
            continue
        saved = read_all(tmp_path / "saved.npz")
        assert {each[2] for each in saved.values()} <= {each[2] for each in sound.values()}, f"byte {position}"
