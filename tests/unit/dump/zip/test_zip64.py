"""Sizes and counts beyond the old zip limits."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from gradscope.dump.storage.input_file import InputFile
from gradscope.dump.storage.writing.partial_file import PartialFile
from gradscope.dump.zip.directory import read_directory
from gradscope.dump.zip.members import data_offset
from gradscope.dump.zip.structures import WrittenMember, directory_record, end_records, local_header
from gradscope.dump.zip.zip_writer import Payload, ZipWriter

LARGE = (1 << 32) + 5
SMALL = b"behind four gibibytes"


def sparse_zip(path: Path) -> None:
    """Writes a sparse zip file of a member of more than 4 GiB and one behind it, which takes no space on the disk."""
    first = WrittenMember(name=b"large.npy", crc32=0, size_bytes=LARGE, header_offset=0, facts=b"")
    first_header = local_header(first)
    offset = len(first_header) + LARGE
    second = WrittenMember(
        name=b"small.npy", crc32=zlib.crc32(SMALL), size_bytes=len(SMALL), header_offset=offset, facts=b""
    )
    rest = local_header(second) + SMALL
    directory = directory_record(first) + directory_record(second)
    end = end_records(members=2, directory_offset=offset + len(rest), directory_bytes=len(directory))
    with path.open("wb") as file:
        file.write(first_header)
        file.seek(offset)
        file.write(rest + directory + end)


def test_a_member_of_more_than_four_gibibytes_and_one_behind_it(tmp_path: Path) -> None:
    sparse_zip(tmp_path / "large.zip")
    with InputFile(tmp_path / "large.zip") as file:
        directory = read_directory(file)
        large, small = directory.members["large.npy"], directory.members["small.npy"]
        assert large.size_bytes == LARGE
        assert data_offset(file, large, directory.limit("large.npy")) % 64 == 0
        offset = data_offset(file, small, directory.limit("small.npy"))
        assert offset > LARGE
        assert offset % 64 == 0
        assert file.read(offset, len(SMALL)) == SMALL
    with zipfile.ZipFile(tmp_path / "large.zip") as archive:
        assert archive.getinfo("large.npy").file_size == LARGE
        assert archive.read("small.npy") == SMALL


@pytest.mark.slow
def test_more_members_than_sixteen_bits_can_count(tmp_path: Path) -> None:
    count = 65_600
    file = PartialFile(tmp_path / "many.zip")
    file.create()
    writer = ZipWriter(file)
    for number in range(count):
        writer.add(f"{number}", Payload(head=b"", array=np.empty(0)), 0)
    file.publish(tmp_path / "many.zip", writer.finish(), replace=True)
    file.close()
    with InputFile(tmp_path / "many.zip") as opened:
        assert len(read_directory(opened).members) == count
    with zipfile.ZipFile(tmp_path / "many.zip") as archive:
        assert len(archive.namelist()) == count
