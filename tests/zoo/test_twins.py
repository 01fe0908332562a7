"""One network with the same weights in several frameworks: dumps that compare, and are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradscope as gs
from tests.zoo import agreement

WEIGHTS = """
import numpy as np

def weights(shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)
"""

LINEN = """
import flax.linen as nn, jax.numpy as jnp
from weights import weights

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        fixed = lambda key, shape, dtype: jnp.asarray(weights(shape, dtype))
        x = nn.Dense(5, kernel_init=fixed, name="first")(x)
        return nn.Dense(3, kernel_init=fixed, name="last")(nn.tanh(x))
"""

NNX = """
import jax.numpy as jnp
from flax import nnx
from weights import weights

class Net(nnx.Module):
    def __init__(self, rngs):
        fixed = lambda key, shape, dtype: jnp.asarray(weights(shape, dtype))
        self.first = nnx.Linear(4, 5, kernel_init=fixed, rngs=rngs)
        self.last = nnx.Linear(5, 3, kernel_init=fixed, rngs=rngs)
    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))
"""


def test_linen_and_nnx_give_the_same_dump(folder: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    for name, text in {"weights": WEIGHTS, "linen": LINEN, "nnx": NNX}.items():
        (folder / f"{name}.py").write_text(text)
    linen, nnx = (agreement.dump(f"{name}.py:Net", "float32[6,4]", loss="cross-entropy") for name in ("linen", "nnx"))
    result = gs.compare(linen, nnx)
    assert result, result.sentence
    names = {"Net", "first", "last", "loss"}
    assert agreement.family(linen, "activation").keys() == agreement.family(nnx, "activation").keys() == names
    assert agreement.family(linen, "param_grad").keys() == agreement.family(nnx, "param_grad").keys()
    assert linen.loss == pytest.approx(nnx.loss, rel=1e-6)


BLOCKS = """
import flax.linen as nn, jax.numpy as jnp
from weights import weights

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        fixed = lambda key, shape, dtype: jnp.asarray(weights(shape, dtype)) / 4
        return nn.tanh(nn.Dense(4, kernel_init=fixed, name="fc")(x)) + x, None

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
"""
SCANNED = """
        axes = {"params": 0}
        return nn.scan(nn.remat(Block), variable_axes=axes, split_rngs=axes, length=3)(name="blocks")(x, None)[0]
"""
UNROLLED = """
        for number in range(3):
            x, _ = Block(name=f"blocks_{number}")(x, None)
        return x
"""


def test_a_scanned_network_and_the_same_unrolled_give_dumps_that_line_up(folder: Path) -> None:
    pytest.importorskip("flax", reason="flax is not installed: pip install 'gradscope-jax[flax]'")
    for name, text in {"weights": WEIGHTS, "scanned": BLOCKS + SCANNED, "unrolled": BLOCKS + UNROLLED}.items():
        (folder / f"{name}.py").write_text(text)
    scanned, unrolled = (
        agreement.dump(f"{name}.py:Net", "float32[6,4]", loss="mse") for name in ("scanned", "unrolled")
    )
    rows = [row for row in gs.compare(scanned, unrolled).rows if row.family != "state"]  # keys that a scan splits
    assert {row.status for row in rows} == {"same"}
    assert sum(row.family == "activation_grad" and "fc" in str(row.name) for row in rows) == 3
