"""What the proofs share: dumps that real commands wrote, each once in a run of the tests."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.oracle.proof.commands import Dumped, Finished, gradscope
from tests.oracle.zoo import ZOO


@pytest.fixture(scope="session")
def dumped() -> Callable[..., Dumped]:
    """Dumps a model of the zoo, by its name and options of `gradscope dump`; asked again, gives the same dump."""
    shared = Path(os.environ["XDG_CACHE_HOME"]) / "dumped"  # of this run alone, and of all its workers

    def dump(name: str, *options: str) -> Dumped:
        folder = shared / hashlib.sha256(repr((name, options)).encode()).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        path, ended = folder / "run.npz", folder / "command.json"
        with alone(folder / "lock"):
            if not ended.exists():
                size = ("--batch-size", ZOO[name].examples)
                command = gradscope("dump", ZOO[name].target, "-o", path, *size, "--json", "--quiet", *options)
                ended.write_text(json.dumps(dataclasses.asdict(command)))
        return Dumped(path=path, command=Finished(**json.loads(ended.read_text())))

    return dump


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One worker at a time."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
