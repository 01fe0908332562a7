"""A module of which parts are frozen, and its port to JAX, whose optimizer leaves them out: gradients are of all."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of frozen modules were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

X = np.asarray(np.random.default_rng(4).normal(size=(6, 5)), np.float32)
FROZEN = "; the reference does not differentiate `trunk/"


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.trunk, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return self.head(torch.tanh(self.trunk(torch.tanh(self.stem(x))))) * scale


@cache
def _captured(*, frozen: bool) -> tuple[Dump, dict[str, Any]]:
    torch.manual_seed(2)
    module = _Net()
    module.trunk.requires_grad_(not frozen)
    dump = capture(module, lambda y: y.square().mean(), {"x": torch.from_numpy(X), "scale": 1.5})
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    layers = ("stem", "trunk", "head")
    return dump, {name: {kind: state[f"{name}.{kind}"] for kind in ("weight", "bias")} for name in layers}


def _port(weights: dict[str, Any], fault: str = "", *, stopped: bool = False) -> Dump:
    def dense(v: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name):
            return x @ v[name]["weight"].T + v[name]["bias"]

    def loss(v: Any, batch: Any) -> Any:
        v = v | {"trunk": jax.lax.stop_gradient(v["trunk"])} if stopped else v
        x = jnp.tanh(dense(v, "stem", batch["x"]))
        x = (jnp.sin if fault == "activation" else jnp.tanh)(dense(v, "trunk", x))
        x = jax.lax.stop_gradient(x) if fault == "stopped" else x
        return jnp.square(dense(v, "head", x) * batch["scale"]).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, weights, {"x": X, "scale": np.float32(1.5)}, origins=False)


@pytest.mark.parametrize("stopped", [False, True])
def test_gradients_of_what_a_module_freezes_are_no_difference(stopped: bool) -> None:
    reference, weights = _captured(frozen=True)
    port = _port(weights, stopped=stopped)
    found = gs.compare(reference, port)
    assert found.verdict == "same", found.sentence
    assert (FROZEN in found.sentence) is not stopped
    turned = gs.compare(port, reference)
    assert turned.verdict == "same", turned.sentence
    assert (FROZEN.replace("reference", "candidate") in turned.sentence) is not stopped


@pytest.mark.parametrize(("fault", "first"), [("activation", "Forward first differs at `head`"), ("stopped", "`stem")])
def test_a_fault_beside_what_a_module_freezes_is_told(fault: str, first: str) -> None:
    reference, weights = _captured(frozen=True)
    found = gs.compare(reference, _port(weights, fault))
    assert found.verdict == "different"
    assert first in found.sentence, found.sentence


def test_two_modules_of_which_one_is_frozen_are_different() -> None:
    assert gs.compare(_captured(frozen=False)[0], _captured(frozen=True)[0]).verdict == "different"
