"""A network that predicts noise at integer times, and its port: PyTorch differentiates neither times nor the noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

torch = pytest.importorskip("torch", reason="PyTorch is absent: the port of a denoiser was NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

_RANDOM = np.random.default_rng(4)
BATCH = {
    "x": np.asarray(_RANDOM.normal(size=(6, 5)), np.float32),
    "noise": np.asarray(_RANDOM.normal(size=(6, 5)), np.float32),
    "t": np.arange(1, 61, 10, dtype=np.int32),
}
FREQUENCIES = np.exp(-np.arange(4) / 2).astype(np.float32)


class _Waves(nn.Module):
    def forward(self, t: Tensor) -> Tensor:
        return torch.sin(t[:, None] * torch.from_numpy(FREQUENCIES))


class _Denoiser(nn.Module):
    """A denoiser, of which the loss alone reads the noise, as training loops hand on a whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.waves, self.time, self.stem, self.head = _Waves(), nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(torch.tanh(self.stem(batch["x"]) + self.time(self.waves(batch["t"]))))


@cache
def _captured() -> tuple[Dump, dict[str, Any]]:
    torch.manual_seed(2)
    module, batch = _Denoiser(), {name: torch.from_numpy(each) for name, each in BATCH.items()}
    dump = capture(module, lambda y: (y - batch["noise"]).square().mean(), (batch,))
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    return dump, {
        layer: {kind: state[f"{layer}.{kind}"] for kind in ("weight", "bias")} for layer in ("time", "stem", "head")
    }


def _port(fault: str = "") -> Dump:
    def dense(v: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name):
            return x @ v[name]["weight"].T + v[name]["bias"]

    def loss(v: Any, batch: Any) -> Any:
        with jax.named_scope("waves"):
            waves = jnp.sin(batch["t"][:, None].astype(jnp.float32) * FREQUENCIES)
        times = dense(v, "time", waves)
        times = jax.lax.stop_gradient(times) if fault == "times stopped" else times
        x = jnp.tanh(dense(v, "stem", batch["x"]) + times)
        x = x + 0.1 * batch["noise"] if fault == "noise" else x
        return jnp.square(dense(v, "head", x) - batch["noise"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, _captured()[1], BATCH, origins=False)


def test_what_is_computed_from_integers_alone_needs_no_gradient_and_noise_has_the_losss() -> None:
    reference = _captured()[0]
    absent = {line.name: line.reason for line in reference.manifest.ledger.missing if line.family == "activation_grad"}
    assert absent == {"waves": "frozen"}
    found = gs.compare(reference, _port())
    assert found.verdict == "same", found.sentence
    assert "1 input gradient differs, of `batch/noise`, which the loss reads" in found.sentence, found.sentence
    assert "the reference does not differentiate `waves`" in found.sentence, found.sentence


@pytest.mark.parametrize(
    ("fault", "first"), [("times stopped", "backward first differs at `time`"), ("noise", "differs at `head`")]
)
def test_a_fault_beside_them_is_told(fault: str, first: str) -> None:
    found = gs.compare(_captured()[0], _port(fault))
    assert found.verdict == "different"
    assert first in found.sentence, found.sentence


class _Coder(nn.Module):
    """A code, which the module returns as it scales it, and what is decoded of that."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x) * 2
        return code, self.decoder(torch.tanh(code))


def test_what_a_module_makes_between_its_parts_is_placed_between_them() -> None:
    dump = capture(_Coder(), lambda y: y[0].square().mean() + y[1].square().mean(), torch.from_numpy(BATCH["x"]))
    places = {each.name: each.site.index for each in dump.manifest.entries if each.family == "activation"}
    assert places["encoder"] <= places["_Coder"] < places["decoder"]
