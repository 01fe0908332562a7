"""A port has the weight that a weight norm computes, or what it is computed from; either is compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its parametrizations were NOT compared")

from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402
from tests.support.sampled import sampled  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("compiled_in_a_hurry"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

#: The ways in which a layer becomes one whose weight is computed.
NORMS: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "weight norm by a hook": torch.nn.utils.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
}
WEIGHT_NORMS = tuple(NORMS)[:2]


class _Net(nn.Module):
    """The second layer is called twice."""

    def __init__(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.first, self.cell, self.out = norm(nn.Linear(6, 8)), norm(nn.Linear(8, 8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.out(torch.tanh(self.cell(torch.tanh(self.cell(h)))))


def _net(norm: str, *, trained: bool) -> _Net:
    torch.manual_seed(3)
    module = _Net(NORMS[norm])
    for name, each in module.named_parameters():
        if trained and name.endswith(("original0", "weight_g")):
            nn.init.uniform_(each, 0.5, 1.5)  # before training, the directions are the weights
    return module.eval()


X = np.asarray(np.random.default_rng(1).normal(size=(5, 6)), np.float32)


def _reference(module: nn.Module) -> Dump:
    return capture(module, lambda y: y.square().mean(), {"x": torch.from_numpy(X)})


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy().copy()


def _originals(layer: Any) -> tuple[Any, Any]:
    if hasattr(layer, "weight_g"):
        return _array(layer.weight_g), _array(layer.weight_v)
    own = layer.parametrizations.weight
    return _array(own.original0), _array(own.original1)


def _unit(directions: Any, axis: int = 1) -> Any:
    return directions / jnp.sqrt((directions**2).sum(axis, keepdims=True))


def _port(module: Any, fault: str = "", *, kept: bool = False) -> Dump:
    """A port with folded norms, or one that normalises its kernels by itself."""
    params: dict[str, dict[str, Any]] = {}
    for name in ("first", "cell", "out"):
        layer = getattr(module, name)
        params[name] = {"kernel": _array(layer.weight).T, "bias": _array(layer.bias)}
        if kept and name != "out":
            norms, directions = _originals(layer)
            params[name] |= {"kernel": directions.T, "scale": norms[:, 0]}
    if fault == "axis":
        norms, directions = _originals(module.cell)
        params["cell"]["kernel"] = np.asarray(_unit(directions, axis=0) * norms).T
    if fault == "layer":
        params["cell"]["kernel"] = params["cell"]["kernel"][:, ::-1].copy()
    if fault == "bias":
        del params["cell"]["bias"]

    def applied(name: str, p: Any, x: Any) -> Any:
        with jax.named_scope(name):
            kernel = jax.lax.stop_gradient(p["kernel"]) if (fault, name) == ("stopped", "cell") else p["kernel"]
            if "scale" in p:
                kernel = _unit(kernel, axis=0) * p["scale"] * (1.01 if (fault, name) == ("scale", "cell") else 1)
            return x @ kernel + p.get("bias", 0)

    def loss(p: Any, batch: Any) -> Any:
        h = (jax.nn.elu if fault == "activation" else jax.nn.relu)(applied("first", p["first"], batch["x"]))
        h = jnp.tanh(applied("cell", p["cell"], jnp.tanh(applied("cell", p["cell"], h))))
        return jnp.square(applied("out", p["out"], h)).mean()

    with jax.numpy_rank_promotion("allow"):
        return gs.capture(loss, params, {"x": X}, origins=False)


@sampled("trained", [True, False], ids=["trained", "untrained"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_port_of_folded_norms_agrees(norm: str, trained: bool) -> None:
    module = _net(norm, trained=trained)
    found = gs.compare(_reference(module), _port(module))
    assert found.verdict == "same", found.sentence
    pairs = {row.name: row.counterpart for row in found.rows if row.compared and row.family == "param_grad"}
    assert pairs["cell/weight"] == "cell/kernel"


@sampled("trained", [True, False], ids=["trained", "untrained"])
@pytest.mark.parametrize("norm", WEIGHT_NORMS)
def test_a_port_that_normalises_its_kernels_agrees(norm: str, trained: bool) -> None:
    module = _net(norm, trained=trained)
    found = gs.compare(_reference(module), _port(module, kept=True))
    assert found.verdict == "same", found.sentence
    counterparts = {row.counterpart for row in found.rows if row.compared and row.family == "param_grad"}
    assert {"first/scale", "first/kernel", "cell/scale", "cell/kernel"} <= counterparts


def test_a_network_without_its_norms_agrees_with_one_that_has_them() -> None:
    module = _net("weight norm", trained=True)
    reference = _reference(module)
    for each in (module.first, module.cell):
        nn.utils.parametrize.remove_parametrizations(each, "weight")
    folded = _reference(module)
    assert gs.compare(reference, folded).verdict == "same"
    assert gs.compare(folded, reference).verdict == "same"


@pytest.mark.parametrize("norm", WEIGHT_NORMS)
@sampled(
    ("fault", "kept", "told"),
    [
        ("axis", False, "(`cell/weight`)"),
        ("layer", False, "`cell/weight`"),
        ("bias", False, "Forward first differs at `cell`"),
        ("activation", False, "Forward first differs at `cell`"),
        ("bias", True, "Forward first differs at `cell`"),
        ("scale", True, "Forward first differs at `cell`"),
    ],
)
def test_a_fault_of_a_port_is_told_at_its_layer(norm: str, fault: str, kept: bool, told: str) -> None:
    module = _net(norm, trained=True)
    found = gs.compare(_reference(module), _port(module, fault, kept=kept))
    assert found.verdict == "different"
    assert told in found.sentence, found.sentence


def test_a_weight_at_which_no_gradient_arrives_is_different() -> None:
    module = _net("weight norm", trained=True)
    assert gs.compare(_reference(module), _port(module, "stopped")).verdict == "different"
