"""Inputs whose gradients, or values, one program of a port alone can have are no reason why nothing passes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its captures were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * kept)


@cache
def _compared(factor: float) -> gs.Comparison:
    """A port that selects by a mask that PyTorch multiplies by, and has labels in its batch."""
    torch.manual_seed(0)
    module, x = _Masked(), torch.randn(4, 5)
    kept = (torch.rand(4, 6) < 0.5).float()
    labels = torch.tensor([0, 2, 1, 2])
    state = {name: value.numpy() for name, value in module.state_dict().items()}

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(name):
                return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None]

        x = factor * jnp.tanh(dense("first", batch["x"]))
        logits = jax.nn.log_softmax(dense("second", jnp.where(batch["kept"] > 0, x, 0.0)))
        return -jnp.take_along_axis(logits, batch["labels"][:, None], axis=1).mean()

    reference = capture(module, lambda logits: nn.functional.cross_entropy(logits, labels), {"x": x, "kept": kept})
    batch = {"x": x.numpy(), "kept": kept.numpy(), "labels": labels.numpy().astype("int32")}
    return gs.compare(reference, gs.capture(loss, state, batch, origins=False))


@pytest.mark.slow
def test_a_mask_needs_no_tolerance_where_another_tensor_does() -> None:
    assert _compared(1.0).verdict == "same"
    found = _compared(1.01)
    assert found.verdict == "different"
    assert [row.name for row in found.rows if row.needed == math.inf] == []


def test_labels_that_no_capture_of_pytorch_has_are_not_counted_where_all_else_differs() -> None:
    found = _compared(2.0)
    assert "only in the candidate" not in found.sentence, found.sentence
    assert [row.name for row in found.rows if row.status == "extra" and row.counts] == []
