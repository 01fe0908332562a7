"""Untrusted files: each is refused quickly, with one line that states the problem, and no code of it runs."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.dump.reader import open_dump
from gradscope.dump.recover import recover
from gradscope.dump.sources import safetensors
from gradscope.dump.verify import verify
from gradscope.errors import DumpError, GradscopeError
from gradscope.naming import key_of
from gradscope.presentation import Screen, tensor_report, to_json, to_text
from gradscope.stats import find
from tests.support.dumps import record
from tests.support.hostile import FOREIGN, MANIFESTS, OURS, SAFETENSORS, Alteration, of_one_hash, relaid
from tests.support.report_samples import report_of


@pytest.fixture(autouse=True)
def contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks that a test creates no file and allocates little memory."""
    monkeypatch.chdir(tmp_path)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert not (tmp_path / "canary").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 << 10, "KiB"


def assert_refused(path: Path, problem: str) -> None:
    with pytest.raises(DumpError, match=problem) as refused:
        verify(path)
    assert refused.value.message.startswith(str(path))
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("case", FOREIGN)
def test_a_hostile_npz_is_refused(tmp_path: Path, case: str) -> None:
    content, problem = FOREIGN[case]
    path = tmp_path / "hostile.npz"
    path.write_bytes(content)
    assert_refused(path, problem)


@pytest.mark.parametrize("case", SAFETENSORS)
def test_a_hostile_safetensors_file_is_refused(tmp_path: Path, case: str) -> None:
    content, problem = SAFETENSORS[case]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    assert_refused(path, problem)


def test_a_safetensors_header_of_very_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "_HEADER_MEMORY", 1 << 20)
    header = b'{"__metadata__":{"a":[%b0]}}' % (b'"b",' * 50_000)
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DumpError, match="more than 1 MiB of memory"):
        open_dump(path)


@pytest.mark.parametrize("case", OURS)
def test_a_dump_that_contradicts_itself_is_refused(tmp_path: Path, case: str) -> None:
    alter, problem = OURS[case]
    assert_refused(relaid(tmp_path, alter), problem)


@pytest.mark.slow
def test_shapes_of_one_hash_are_refused_as_soon_as_others(tmp_path: Path) -> None:
    def alter(_members: dict[str, bytes], document: Any) -> None:
        for number, entry in enumerate(document["entries"]):
            entry["shape"] = of_one_hash(number)

    path = relaid(tmp_path, alter, [record(f"layer{number}", np.zeros(1)) for number in range(4000)])
    begin = time.process_time()
    assert_refused(path, "states shape")
    assert time.process_time() - begin < 0.5  # 1 where each is compared with each


@pytest.mark.parametrize("case", MANIFESTS)
def test_statistics_of_no_tensor_are_read_and_shown(case: str) -> None:
    manifest = MANIFESTS[case]
    for screen in (Screen(), Screen(width=80)):
        assert to_text(report_of(manifest), screen)
    assert to_json(report_of(manifest))
    for entry in manifest.entries:
        with suppress(DumpError):  # statistics that contradict each other
            assert tensor_report("run.npz", manifest, key_of(entry.family, entry.name), find(manifest))


def test_an_unaltered_dump_is_not_refused(tmp_path: Path) -> None:
    nothing: Alteration = lambda members, document: None  # noqa: E731
    assert verify(relaid(tmp_path, nothing)).tensors == 8


@pytest.mark.parametrize("case", FOREIGN)
def test_recovering_a_hostile_file_does_no_harm(tmp_path: Path, case: str) -> None:
    path = tmp_path / "hostile.partial"
    path.write_bytes(FOREIGN[case][0])
    try:
        recover(path, tmp_path / "out.npz")
    except GradscopeError:
        assert not (tmp_path / "out.npz").exists()
    else:
        verify(tmp_path / "out.npz")


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    for path, problem in {
        tmp_path / "fifo": "not a regular file",
        Path("/dev/zero"): "not a regular file",
        tmp_path / "loop": "symbolic links",
        tmp_path / "missing.npz": "No such file",
        tmp_path / "folder": "no tensors",
        tmp_path / ("n" * 300): "too long",
    }.items():
        assert_refused(path, problem)


def test_a_name_with_a_null_byte_is_refused() -> None:
    with pytest.raises(DumpError, match="null"):
        open_dump("a\0b")


def test_control_characters_of_a_path_do_not_reach_the_message(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as refused:
        open_dump(tmp_path / "\x1b[2J\n.npz")
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("count", [1, 100])
def test_bytes_behind_a_dump_are_refused(tmp_path: Path, count: int) -> None:
    path = relaid(tmp_path, lambda members, document: None)
    path.write_bytes(path.read_bytes() + b"x" * count)
    assert_refused(path, f"{count} bytes follow its end")
