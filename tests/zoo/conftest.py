"""What tests of foreign models run under: JAX as their authors know it, and a folder of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before it is imported: Keras on JAX.
os.environ["KERAS_BACKEND"] = "jax"


@pytest.fixture(autouse=True)
def _lenient_jax() -> Iterator[None]:
    """Foreign models mix dtypes and ranks as JAX's defaults allow."""
    import jax

    strict = {name: getattr(jax.config, name) for name in ("jax_numpy_dtype_promotion", "jax_numpy_rank_promotion")}
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    for name, value in strict.items():
        jax.config.update(name, value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of its own, and an interpreter that forgets the file `net.py` there."""
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("net", None)
