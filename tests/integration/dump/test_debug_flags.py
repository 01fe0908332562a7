"""A model's file may turn on JAX's flags for debugging, for which commands do not stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gradscope.tracing.debug_flags import turn_debug_flags_off
from tests.integration.command import gradscope
from tests.support.sampled import sampled

MODEL: Final = """\
import jax
import jax.numpy as jnp

jax.config.update("jax_debug_nans", True)
jax.config.update("jax_disable_jit", True)
jax.config.update("jax_transfer_guard", "disallow")


def init(key):
    return {"w": jax.random.normal(key, (3,))}


def batch(key, size):
    return {"x": jax.random.normal(key, (size, 3))}


def loss(params, batch):
    return jnp.sqrt(jnp.square(batch["x"] @ params["w"] * 0)).mean()
"""


@pytest.fixture(autouse=True)
def flags() -> Iterator[None]:
    yield
    turn_debug_flags_off()


@sampled(
    "command", [("dump", "model.py", "--batch-size", 4), ("train", "model.py", "--optimizer", "sgd(0.1)", "--steps", 3)]
)
def test_the_nan_is_found_and_explained(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    output = "run" if command[0] == "train" else "dump.npz"
    done = gradscope(*command, "--no-cache", "-o", output, folder=tmp_path)
    assert done.status == (1 if command[0] == "train" else 0), done.errors
    assert "the derivative of sqrt at 0" in done.output
