"""A port may make a mask by itself that a module of PyTorch is given, and may not ignore one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its captures were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

LENGTH, FEATURES = 4, 6


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.o(torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) + mask, -1) @ self.v(x))


@pytest.mark.parametrize(
    ("given", "made", "verdict"),
    [("causal", "causal", "same"), ("causal", "none", "different"), ("none", "none", "different")],
)
def test_a_mask_that_a_port_makes_by_itself_is_not_missed(given: str, made: str, verdict: str) -> None:
    torch.manual_seed(0)
    module, x = _Attention(), torch.randn(2, LENGTH, FEATURES)
    state = {name: value.numpy().T for name, value in module.state_dict().items()}

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(f"{name}_proj"):
                return x @ weights[f"{name}.weight"]

        with jax.named_scope("attention"):
            scores = jnp.einsum("nqf,nkf->nqk", dense("q", batch["x"]), dense("k", batch["x"]))
            if made == "causal":
                scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool))[None], scores, -jnp.inf)
            x = dense("o", jax.nn.softmax(scores) @ dense("v", batch["x"]))
        return jnp.square(x).mean()

    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH) if given == "causal" else torch.zeros(LENGTH, LENGTH)
    reference = capture(module, lambda output: output.square().mean(), {"x": x, "mask": mask})
    found = gs.compare(reference, gs.capture(loss, state, {"x": x.numpy()}, origins=False))
    assert found.verdict == verdict, found.sentence
