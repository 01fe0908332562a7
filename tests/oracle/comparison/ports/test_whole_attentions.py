"""An attention that PyTorch has as one module, whose last projection nothing calls, and a port that has its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its attention were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

WIDTH, HEADS, QUERIES, KEYS = 8, 2, 5, 6


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X, MEMORY = (drawn(seed, 3, size, WIDTH) for seed, size in ((1, QUERIES), (2, KEYS)))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(QUERIES, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.head(x + self.attention(x + self.positions, memory, memory, need_weights=False)[0])


def _module() -> Decoder:
    module = Decoder()
    for at, parameter in enumerate(module.parameters()):
        parameter.data.copy_(torch.from_numpy(drawn(10 + at, *parameter.shape) / 2))
    return module


def _ported(module: Decoder, *, scale: float) -> gs.Dump:
    state = {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}
    packed, biases = (np.split(state[f"attention.in_proj_{name}"], 3) for name in ("weight", "bias"))
    params = {name: {"kernel": each.T, "bias": bias} for name, each, bias in zip("qkv", packed, biases, strict=True)}
    for name, old in (("o", "attention.out_proj"), ("head", "head")):
        params[name] = {"kernel": state[f"{old}.weight"].T, "bias": state[f"{old}.bias"]}

    def loss(params: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ params[name]["kernel"] + params[name]["bias"]

        def heads(name: str, x: Any) -> Any:
            return dense(name, x).reshape(*x.shape[:2], HEADS, WIDTH // HEADS)

        x, memory = batch["x"], batch["memory"]
        q, k, v = heads("q", x + params["positions"]), heads("k", memory), heads("v", memory)
        shares = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) * scale)
        x = x + dense("o", jnp.einsum("nhqk,nkhd->nqhd", shares, v).reshape(x.shape))
        return jnp.square(dense("head", x)).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, params | {"positions": state["positions"]}, {"x": X, "memory": MEMORY}, origins=False)


def test_a_whole_attention_is_the_last_projection_of_a_port_whatever_is_wrong_inside() -> None:
    module, batch = _module(), {"x": torch.from_numpy(X), "memory": torch.from_numpy(MEMORY)}
    ref = capture(module, lambda y: y.square().mean(), batch)
    right = gs.compare(ref, _ported(module, scale=0.5))
    assert right.verdict == "same", right.sentence
    found = gs.compare(ref, _ported(module, scale=4.0))
    assert found.verdict == "different"
    counterparts = {row.counterpart for row in found.rows if row.name == "attention"}
    assert counterparts == {"o"}
