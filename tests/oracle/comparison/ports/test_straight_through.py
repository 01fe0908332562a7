"""What a straight-through estimator returns is what it has rounded to; their gradients tell them apart."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its estimators were NOT compared")
from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


class _Quantizer(nn.Module):
    """A vector quantiser with a straight-through estimator, which returns its loss, too."""

    def __init__(self) -> None:
        super().__init__()
        self.codebook = nn.Embedding(10, 6)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.cdist(z.reshape(-1, 6), self.codebook.weight).argmin(1)
        q = self.codebook(nearest).view(z.shape)
        loss = (q - z.detach()).square().mean() + 0.25 * (q.detach() - z).square().mean()
        return z + (q - z).detach(), loss


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.vq, self.decoder = nn.Linear(5, 6), _Quantizer(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        passed, loss = self.vq(torch.tanh(self.encoder(x)))
        return self.decoder(passed).square().mean() + loss


torch.manual_seed(4)
MODULE, BATCH = _Autoencoder(), torch.randn(3, 4, 5)


@pytest.fixture(scope="module")
def reference() -> Dump:
    return capture(MODULE, lambda loss: loss, {"x": BATCH})


@cache
def _port(*, estimator: bool = True, of_input: bool = False) -> Dump:
    """A port that looks codes up in no layer of its own, after whose loss the values come."""
    stop = jax.lax.stop_gradient
    params = {name.replace(".", "/"): np.asarray(value.detach()) for name, value in MODULE.named_parameters()}

    def loss(p: Any, batch: Any) -> Any:
        with jax.named_scope("encoder"):
            z = batch["x"] @ p["encoder/weight"].T + p["encoder/bias"]
        z = jnp.tanh(z)
        with jax.named_scope("vq"):
            codes = p["vq/codebook/weight"]
            q = codes[jnp.square(z[..., None, :] - codes).sum(-1).argmin(-1)]
            extra = jnp.square(q - stop(z)).mean() + 0.25 * jnp.square(stop(q) - z).mean()
            passed = z + stop(q - z) if estimator else q
        with jax.named_scope("decoder"):
            y = passed @ p["decoder/weight"].T + p["decoder/bias"]
        return jnp.square(y - batch["x"][..., :4] if of_input else y).mean() + extra

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, params, {"x": np.asarray(BATCH)}, origins=False)


@pytest.mark.slow
def test_what_an_estimator_returns_is_paired_with_what_it_returns_elsewhere(reference: Dump) -> None:
    found = gs.compare(reference, _port())
    assert found.verdict == "same", found.sentence
    pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation" and row.compared}
    assert pairs["vq.0"] == "vq.1"


@pytest.mark.slow
def test_an_estimator_that_is_missing_is_found(reference: Dump) -> None:
    found = gs.compare(reference, _port(estimator=False))
    assert found.verdict == "different"
    assert found.sentence.startswith("Backward only: forward agrees"), found.sentence


class _Flat(nn.Module):
    """An autoencoder that looks codes up itself, and of which the loss reads what it returns, and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codebook, self.decoder = MODULE.encoder, MODULE.vq.codebook, MODULE.decoder

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.encoder(x))
        q = self.codebook(torch.cdist(z.reshape(-1, 6), self.codebook.weight).argmin(1)).view(z.shape)
        loss = (q - z.detach()).square().mean() + 0.25 * (q.detach() - z).square().mean()
        return self.decoder(z + (q - z).detach()), loss


@pytest.mark.slow
def test_that_the_loss_reads_the_input_beside_an_estimator_counts_for_no_difference() -> None:
    read = BATCH[..., :4]
    reference = capture(_Flat(), lambda y: (y[0] - read).square().mean() + y[1], {"x": BATCH})
    found = gs.compare(reference, _port(of_input=True))
    assert found.verdict == "same", found.sentence
    assert "of `x`, which the loss reads" in found.sentence, found.sentence
