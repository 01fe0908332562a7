"""Dumps that several tests read, made once by the command itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import models
from tests.integration.command import gradscope


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to read from: `model.py`, its dump `a.npz`, and `b.npz` of another seed."""
    folder = tmp_path_factory.mktemp("dumps")
    models.write(folder, models.source())
    for name, seed in (("a.npz", 0), ("b.npz", 1)):
        done = gradscope("dump", "model.py", "-o", name, "--seed", seed, folder=folder)
        assert done.status == 0, done.errors
    return folder
