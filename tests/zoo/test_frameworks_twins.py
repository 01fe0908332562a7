"""One network with the same weights in several frameworks: dumps that compare, and are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradscope as gs
from tests.zoo import held

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
    linen, nnx = (held.dump(f"{name}.py:Net", "float32[6,4]", loss="cross-entropy") for name in ("linen", "nnx"))
    result = gs.compare(linen, nnx)
    assert result, result.sentence
    names = {"Net", "Net/first", "Net/last", "loss"}
    assert held.family(linen, "activation").keys() == held.family(nnx, "activation").keys() == names
    assert held.family(linen, "param_grad").keys() == held.family(nnx, "param_grad").keys()
    assert linen.loss == pytest.approx(nnx.loss, rel=1e-6)
