"""Real processes that are killed, race each other, or write more than memory holds.

Each test runs one program that never imports JAX and therefore may fork its victims.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

PROLOGUE = """
import json, os, random, resource, signal, sys, time
from collections import Counter
from pathlib import Path

import numpy as np

from gradscope.dump.reader import open_dump
from gradscope.dump.recover import recover
from gradscope.dump.verify import verify
from gradscope.errors import GradscopeError
from tests.support.dumps import litter, read_all, record, write

path = Path("dump.npz")
TENSORS = 24

def records(mark):
    return [record(str(number), np.full(1 << 14, mark * 1000 + number, np.float32)) for number in range(TENSORS)]

def mark_of(path):
    '''Which run wrote the dump; raises where it is not whole.'''
    with open_dump(path) as dump:
        verify(path)
        assert len(dump.keys()) == TENSORS
        marks = {float(dump.array(key)[0]) // 1000 for key in dump.keys()}
    (mark,) = marks
    return int(mark)

def child(mark):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        write(path, records(mark))
        status = 0
    finally:
        os._exit(status)
"""

KILLS = """
write(path, records(0))
durations = []
for _ in range(3):  # a machine that is busy for a while would let all of them be killed after they have written
    start = time.perf_counter()
    os.waitpid(child(0), 0)
    durations.append(time.perf_counter() - start)
duration = min(durations)
chance, results = random.Random(0), []
for number in range(36):
    how = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[number % 3]
    write(path, records(0))
    pid = child(1)
    time.sleep(chance.uniform(0.1, 1.1) * duration)
    os.kill(pid, how)
    os.waitpid(pid, 0)
    results.append({"how": how.name, "mark": mark_of(path), "litter": len(litter(Path()))})
    for name in litter(Path()):
        try:
            recover(name, "saved.npz", force=True)
        except GradscopeError as error:
            assert "no tensor in it is complete" in str(error)
        else:
            saved = read_all(Path("saved.npz"))
            expected = {f"activation/{each.name}": each.array.tobytes() for each in records(1)}
            assert all(expected[key] == found[2] for key, found in saved.items())
            results[-1]["saved"] = len(saved)
write(path, records(0))
print(json.dumps({"results": results, "litter": len(litter(Path()))}))
"""

RACES = """
marks = Counter()
for _ in range(12):
    children = [child(1), child(2)]
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    assert statuses == [0, 0], statuses
    marks[mark_of(path)] += 1
    assert litter(Path()) == []
reads = 0
for mark in range(8):
    pid = child(mark)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        mark_of(path)
        reads += 1
print(json.dumps({"marks": sum(marks.values()), "reads": reads}))
"""

MEMORY = """
import ml_dtypes

def streamed():
    for number in range(16):
        yield record(f"plain/{number}", np.ones(1 << 22, np.float32))
    yield record("fortran", np.ones((1 << 11, 1 << 11), np.float32, order="F"))
    yield record("narrow", np.ones(1 << 24, np.int8).astype(ml_dtypes.int4))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

write(path, records(0))
verify(path)
before = peak()
size = verify(write(path, streamed())).size_bytes
print(json.dumps({"size": size >> 20, "growth": peak() - before}))
"""


def run(program: str, folder: Path) -> Any:
    """What a program prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", PROLOGUE + program],
        cwd=folder,
        # One thread: a process of several may not fork.
        env={"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(KILLS, tmp_path_factory.mktemp("kills"))


def test_a_killed_writer_leaves_the_old_dump_or_the_whole_new_one(kills: Any) -> None:
    assert {each["mark"] for each in kills["results"]} <= {0, 1}
    assert any(each["mark"] == 0 for each in kills["results"]), "some were killed in time"


def test_an_interrupted_writer_removes_its_file_at_once(kills: Any) -> None:
    assert {each["litter"] for each in kills["results"] if each["how"] == "SIGINT"} == {0}


def test_what_a_killed_writer_leaves_the_next_one_removes(kills: Any) -> None:
    assert any(each["litter"] for each in kills["results"])
    assert kills["litter"] == 0


def test_what_a_killed_writer_had_finished_can_be_recovered(kills: Any) -> None:
    assert any(each.get("saved", 0) > 0 for each in kills["results"])


def test_two_writers_to_one_path_and_a_reader_never_meet_a_mixture(tmp_path: Path) -> None:
    found = run(RACES, tmp_path)
    assert found["marks"] == 12
    assert found["reads"] > 0


def test_memory_is_that_of_one_tensor_whatever_the_dump_takes(tmp_path: Path) -> None:
    found = run(MEMORY, tmp_path)
    assert found["size"] == 16 * 16 + 16 + 16
    assert found["growth"] < 80, (
        "MiB: two tensors of 16 as they are made, 33 for the narrow one and what it is made from"
    )
