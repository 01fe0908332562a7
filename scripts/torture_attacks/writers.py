"""The commands that write, and how one sees whether what is at their output is whole."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.training.trained import contents, write_files
from torture_attacks.commands import GRADSCOPE, finish, losses

_MODEL: Final = """
import jax, jax.numpy as jnp

def init(key):
    return {"params": {"w": jax.random.normal(key, (64, 32))}}

def batch(key, size):
    return {"x": jax.random.normal(key, (size, 64))}

def loss(variables, batch):
    with jax.named_scope("dense"):
        return jnp.mean((batch["x"] @ variables["params"]["w"]) ** 2)
"""

STEPS: Final = 40

#: The model has Adam with a schedule, dropout, batch norm, and a pipeline of data.
TRAIN: Final = [
    *("train", "net.py", "--data", "data.py:batches", "--steps", str(STEPS), "--every", "1", "--save-every", "5"),
    *("--ema", "0.9", "--clip", "global_norm(1)", "-o", "run", "--quiet"),
]
_DUMP: Final = ("dump", "model.py", "-o", "dump.npz", "--force", "--quiet", "--seed")
_CALIBRATE: Final = ("calibrate", "model.py", "-o", "dump.npz", "--force", "--seed", "1")


@dataclass(frozen=True)
class Writer:
    """A command that writes.

    Attributes:
        name: Its name.
        command: The command, which runs in the folder.
        prepare: Fills a folder with what the command needs, and with an old output.
        whole: Returns the state of an output: a text that differs between the old and the new one; "" where neither.
    """

    name: str
    command: tuple[str, ...]
    prepare: Callable[[Path], None]
    whole: Callable[[Path], str]


def writers() -> Iterator[Writer]:
    """Yields the commands that write."""
    yield Writer("dump", _of(*_DUMP, "1"), _prepare, _sound("dump.npz"))
    segments = _of(*_DUMP, "1", "--ops", "--max-memory", "30KiB")
    yield Writer("segments", segments, _prepare, _sound("dump.npz"))
    yield Writer("processes", _by_two(*_DUMP, "1"), _prepare_of_two, _sound("dump.npz"))
    recover = _of("recover", "left.partial", "-o", "saved.npz")
    yield Writer("recover", recover, _prepare_partial, _sound("saved.npz"))
    compare = _of("compare", "dump.npz", "other.npz", "--write-map", "map.toml")
    yield Writer("map", compare, _prepare, _content("map.toml"))
    isolate = _of("isolate", "dense", "dump.npz", "model.py", "-o", "repro")
    yield Writer("isolate", isolate, _prepare, _content("repro"))
    yield Writer("calibrate", _of(*_CALIBRATE), _prepare, _sound("dump.npz"))
    yield Writer("train", _of(*TRAIN), write_files, _resumed)


def copied(source: Path, target: Path) -> Path:
    """Returns a folder that is made the copy of another one, whatever it was."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def _of(*arguments: str) -> tuple[str, ...]:
    return (*GRADSCOPE, *arguments)


def _by_two(*arguments: str) -> tuple[str, ...]:
    """Returns a shell's command that runs a command in two processes, and ends as the first of them does."""
    here, port = shlex.join(_of(*arguments, "--distributed")), "127.0.0.1:$((20000 + $$ % 20000))"
    return ("sh", "-c", f"{here} {port},2,1 & {here} {port},2,0; status=$?; wait; exit $status")


def _prepare(folder: Path) -> None:
    Path(folder, "model.py").write_text(_MODEL)
    for seed, name in ((0, "dump.npz"), (1, "other.npz")):
        finish(["dump", "model.py", "-o", name, "--quiet", "--seed", str(seed)], folder)


def _prepare_partial(folder: Path) -> None:
    _prepare(folder)
    written = Path(folder, "dump.npz").read_bytes()
    Path(folder, "left.partial").write_bytes(written[: len(written) * 2 // 3])


def _prepare_of_two(folder: Path) -> None:
    _prepare(folder)
    Path(folder, "dump.npz").unlink()
    subprocess.run(_by_two(*_DUMP, "0"), cwd=folder, check=True, capture_output=True)


def _resumed(folder: Path) -> str:
    if not (folder / "run").exists():
        return "none"
    # A run that failed before its history was complete is none, and is started again.
    begun = ["--resume"] if (folder / "run" / "history.sqlite").exists() else []
    done = subprocess.run([*GRADSCOPE, *TRAIN, *begun], cwd=folder, capture_output=True, text=True, check=False)
    return repr(contents(folder / "run", STEPS)) if done.returncode == 0 else ""


def _sound(name: str) -> Callable[[Path], str]:
    def state(folder: Path) -> str:
        if not (folder / name).exists():
            return "none"
        done = subprocess.run([*GRADSCOPE, "verify", name], cwd=folder, capture_output=True, check=False)
        return losses(folder, name) if done.returncode == 0 else ""

    return state


def _content(name: str) -> Callable[[Path], str]:
    def state(folder: Path) -> str:
        files = sorted(each for each in (folder / name, *(folder / name).rglob("*")) if each.is_file())
        return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()

    return state
