"""A model to train with everything that a state can hold, a pipeline of data, and what tests compare of two runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import gradscope as gs

#: A schedule in Adam, batch norm's statistics, dropout with a key in the state.
MODEL = """
import jax
import jax.numpy as jnp
import optax


def init(key):
    first, second, dropout = jax.random.split(key, 3)
    params = {
        "hidden": {"kernel": 0.5 * jax.random.normal(first, (6, 16))},
        "head": {"kernel": 0.5 * jax.random.normal(second, (16, 2))},
    }
    stats = {"mean": jnp.zeros(16), "var": jnp.ones(16)}
    return {"params": params, "batch_stats": stats, "rngs": {"dropout": dropout}}


def batch(key, size=8):
    x = jax.random.normal(key, (size, 6))
    return {"x": x, "y": jnp.stack([x.sum(1), x.prod(1)], 1)}


def loss(variables, batch):
    params, stats = variables["params"], variables["batch_stats"]
    with jax.named_scope("hidden"):
        hidden = batch["x"] @ params["hidden"]["kernel"]
    mean, var = hidden.mean(0), hidden.var(0)
    hidden = jnp.tanh((hidden - mean[None, :]) / jnp.sqrt(var + 1e-5)[None, :])
    keep = jax.random.bernoulli(variables["rngs"]["dropout"], 0.8, hidden.shape)
    with jax.named_scope("head"):
        out = jnp.where(keep, hidden / 0.8, 0) @ params["head"]["kernel"]
    new = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
    return ((out - batch["y"]) ** 2).mean(), {"batch_stats": new}


def optimizer():
    return optax.adam(optax.exponential_decay(0.05, 20, 0.9))
"""

#: As many batches as one likes, from a generator of random numbers, and ten.
DATA = """
import itertools

import numpy as np


def batches():
    rng = np.random.default_rng(7)
    while True:
        x = rng.normal(size=(8, 6)).astype(np.float32)
        yield {"x": x, "y": np.stack([x.sum(1), x.prod(1)], 1)}


def numbered(number):
    return next(itertools.islice(batches(), number, None))


def ten():
    return itertools.islice(batches(), 10)


def smaller_last():
    yield from ten()
    yield {name: leaf[:3] for name, leaf in next(batches()).items()}
"""

#: Becomes NaN at step 5, when the only parameter is below zero.
TO_NAN = """
import jax
import jax.numpy as jnp


def init(key):
    return {"w": jnp.float32(1.1)}


def batch(key, size=4):
    return {"x": jnp.ones(size)}


def loss(variables, batch):
    with jax.named_scope("root"):
        return jnp.sqrt(variables["w"]) + 0 * batch["x"].mean() + 0.25 * variables["w"]
"""


def write_files(folder: Path) -> None:
    """Writes `net.py`, `data.py` and `to_nan.py` into a folder."""
    for name, text in (("net.py", MODEL), ("data.py", DATA), ("to_nan.py", TO_NAN)):
        (folder / name).write_text(text, encoding="utf-8")


def contents(run: Path, steps: int) -> tuple[dict[str, bytes], dict[str, list[Any]]]:
    """Everything that has to be the same in two runs: the last state, and the history without the time of day."""
    with gs.load(run / f"state-{steps:06}.npz") as state:
        tensors = {key: state[key].tobytes() for key in state}
    return tensors, {table: rows(run, table) for table in ("steps", "losses", "stats", "tensors", "alarms")}


def rows(run: Path, table: str) -> list[Any]:
    """The rows of a table of a history, without the time of day."""
    connection = sqlite3.connect(run / "history.sqlite")
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})") if name != "time"]
    listed = ", ".join(f'"{name}"' for name in names)
    found = connection.execute(f"SELECT {listed} FROM {table}").fetchall()
    connection.close()
    return found
