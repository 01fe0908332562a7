"""A module that `init` makes may have an array in a static field, as a table of frequencies: `init` is run for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo import agreement

pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
import numpy as np

NET = """
import equinox as eqx
import jax
import jax.numpy as jnp

class Rotated(eqx.Module):
    fc: eqx.nn.Linear
    frequencies: jax.Array = eqx.field(static=True)

    def __init__(self, key):
        self.fc = eqx.nn.Linear(4, 4, key=key)
        self.frequencies = 1.0 / (10.0 ** jnp.arange(0.0, 4.0))

    def __call__(self, x):
        return jnp.sin(self.fc(x) * self.frequencies)

def init(key):
    return {"layers": [Rotated(key)]}

def batch(key, size):
    return {"x": jax.random.normal(key, (size, 4))}

def loss(held, batch):
    return jnp.square(jax.vmap(held["layers"][0])(batch["x"])).mean()
"""


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_an_array_in_a_static_field_is_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = agreement.dump(agreement.source(tmp_path, NET))
    kernel, bias, x = seen["param/layers/0/fc/weight"], seen["param/layers/0/fc/bias"], seen["input/x"]
    expected = np.sin((x @ kernel.T + bias) / 10.0 ** np.arange(4.0))
    np.testing.assert_allclose(seen["activation/layers/0"], expected, rtol=1e-4, atol=1e-6)
