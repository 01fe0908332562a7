"""Ctrl-C and SIGTERM while `gradscope dump` is at each of its stages: a prompt end, an old dump, no litter."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration import models
from tests.integration.command import GRADSCOPE, TIMEOUT, gradscope, gradscope_process

#: Seconds from signal to end: one on a machine of one's own, more where others compute, too.
PROMPTLY = 2.5

#: What a model says when it has come to where it is to be interrupted.
HERE = 'print("here", flush=True)'

_LOOP = "import time\nwhile True:\n    time.sleep(0.01)"

MODELS = {
    "importing": f"{HERE}\n{_LOOP}\n",
    "tracing": models.source(
        loss=f'def loss(variables, batch):\n    {HERE}\n    x = batch["x"]\n    while True:\n        x = jnp.sin(x)\n'
    ),
    "compiling": models.source(
        loss="def loss(variables, batch):\n    x = forward(variables, batch)\n    for n in range(300):\n"
        f"        x = jnp.cumsum(jnp.sin(x) * jnp.tanh(x + n))\n    {HERE}\n    return x.sum()\n"
    ),
    "running": models.source(
        more=f"import time\n\ndef on_host(x):\n    {HERE}\n    time.sleep(60)\n    return x\n",
        loss="def loss(variables, batch):\n    x = forward(variables, batch).sum()\n"
        "    jax.debug.callback(on_host, x)\n    return x\n",
    ),
}


@contextmanager
def dumping(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A `gradscope dump` under way, killed at the end if nothing else ended it."""
    command = [*GRADSCOPE, "dump", "model.py", "--no-cache", "--force", *options]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def interrupted(running: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal and assert that the process ends as it should."""
    running.send_signal(number)
    assert running.wait(PROMPTLY) == 128 + number
    assert running.stdout is not None
    assert running.stdout.read() == ""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("importing", signal.SIGTERM),
        ("tracing", signal.SIGINT),
        ("compiling", signal.SIGTERM),
        ("running", signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_dump_at_once_whatever_it_is_at(tmp_path: Path, stage: str, number: signal.Signals) -> None:
    models.write(tmp_path, MODELS[stage])
    (tmp_path / "model.npz").write_bytes(b"old")
    with dumping(tmp_path) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "here\n"
        time.sleep(0.3)  # the stage after tracing is compiling
        interrupted(running, number)
        assert running.stderr.read() == "gradscope: interrupted\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "model.py"} == {
        "model.npz": b"old"
    }


def test_a_signal_while_writing_leaves_the_old_dump(tmp_path: Path) -> None:
    """After the third tensor: `test_interrupts` has signals at any moment of writing."""
    slow = (
        "import time\nfrom gradscope.dump.writer import DumpWriter\nadd, added = DumpWriter.add, []\n\n"
        "def slowly(self, record):\n    add(self, record)\n    added.append(record)\n"
        f"    if len(added) == 3:\n        {HERE}\n        time.sleep(60)\n\nDumpWriter.add = slowly\n"
    )
    models.write(tmp_path, models.source(more=slow))
    (tmp_path / "model.npz").write_bytes(b"old")
    with dumping(tmp_path) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "here\n"
        assert any(path.stat().st_size for path in tmp_path.glob(".gradscope-*.partial"))
        interrupted(running, signal.SIGINT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.npz", "model.py"]
    assert (tmp_path / "model.npz").read_bytes() == b"old"


@pytest.mark.parametrize("delay", [0.2, 0.5])
def test_a_signal_while_it_starts_is_not_lost(tmp_path: Path, delay: float) -> None:
    models.write(tmp_path, MODELS["importing"])
    with dumping(tmp_path) as running:
        wait_until(lambda: any(threads(child) > 1 for child in children(running.pid)))
        time.sleep(delay)
        interrupted(running, signal.SIGINT)
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def children(pid: int) -> list[int]:
    """Child processes of a process: the supervisor of a command that runs a model has one."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def threads(pid: int) -> int:
    """Threads of a process; the second is the one that waits for signals."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_killed_dump_is_recovered(tmp_path: Path) -> None:
    models.write(tmp_path, MODELS["running"].replace("time.sleep(60)", "pass"))
    kill = "import os, signal\nimport gradscope.dump.writer as writer\n"
    kill += "writer.DumpWriter.commit = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
    models.write(tmp_path, kill + (tmp_path / "model.py").read_text())
    done = gradscope_process("dump", "model.py", folder=tmp_path)
    assert done.status == -signal.SIGKILL
    (partial,) = tmp_path.glob(".gradscope-*.partial")
    assert gradscope("recover", partial.name, "-o", "saved.npz", folder=tmp_path).status == 0
    assert gradscope("show", "saved.npz", "--tensor", "activation/last", folder=tmp_path).status == 0
