"""A port: the same network in PyTorch, NCHW and OIHW, and in JAX, NHWC and HWIO, by the names that each gives it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from tests.oracle.isolation.isolating import isolated, wrong

torch = pytest.importorskip("torch")

from gradscope.frameworks.torch import capture  # noqa: E402 - needs PyTorch

IMAGES = np.random.default_rng(0).normal(size=(4, 3, 6, 6)).astype(np.float32)


class Network(torch.nn.Module):
    """Convolution, rectifier, mean over positions, head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.relu = torch.nn.ReLU()
        self.hidden = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, images: Any) -> Any:
        return self.head(self.hidden(self.relu(self.conv(images)).mean(dim=(2, 3))))


def weights_of(network: Network, *, transposed: bool = False) -> Any:
    """The network's weights as JAX has them; or with a square kernel that somebody forgot to transpose."""
    weights = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}
    kernels = {name: weights[f"{name}.weight"].T for name in ("hidden", "head")}
    if transposed:
        kernels["hidden"] = kernels["hidden"].T
    params = {name: {"kernel": kernel, "bias": weights[f"{name}.bias"]} for name, kernel in kernels.items()}
    params["conv"] = {"kernel": weights["conv.weight"].transpose(2, 3, 1, 0), "bias": weights["conv.bias"]}
    return jax.tree_util.tree_map(jnp.asarray, params)


def port(params: Any, batch: Any, *, slope: float = 0.0, stopped: bool = False) -> jax.Array:
    """The network in JAX; or with a rectifier that leaks, or that passes no gradient."""
    with jax.named_scope("conv"):
        kernel, bias = params["conv"]["kernel"], params["conv"]["bias"]
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(batch["images"], kernel, (1, 1), "SAME", dimension_numbers=layout)
        x = x + bias[None, None, None]
    with jax.named_scope("relu"):
        x = jax.nn.leaky_relu(jax.lax.stop_gradient(x) if stopped else x, slope)
    with jax.named_scope("mean"):
        x = x.mean(axis=(1, 2))
    for name in ("hidden", "head"):
        with jax.named_scope(name):
            x = x @ params[name]["kernel"] + params[name]["bias"][None]
    return jnp.square(x).sum()


BATCH = {"images": jax.device_put(IMAGES.transpose(0, 2, 3, 1))}


def ported(network: Network, *, transposed: bool = False) -> gs.Dump:
    """What the network in JAX does with the same weights."""
    return gs.capture(port, weights_of(network, transposed=transposed), BATCH)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network()


@pytest.fixture(scope="module")
def original(network: Network) -> gs.Dump:
    return capture(network, lambda logits: logits.square().sum(), {"images": torch.from_numpy(IMAGES)})


@pytest.mark.slow
def test_a_right_port_is_the_same_however_axes_are_ordered(original: gs.Dump, network: Network) -> None:
    found = gs.compare(ported(network), original, allow_missing=[".*loss.*", ".*mean"])
    assert found.verdict == "same", found.sentence
    how = {f"{row.family}/{row.name}": (row.matched_by, row.made_by) for row in found.rows}
    assert how["param/conv/kernel"] == how["param_grad/conv/kernel"] == ("path", "transpose [2, 3, 1, 0]")
    assert how["param/hidden/kernel"] == how["param_grad/hidden/kernel"] == ("path", "transpose [1, 0]")
    assert how["activation/relu"] == how["activation_grad/relu"] == ("name", "transpose [0, 2, 3, 1]")
    assert how["param/conv/bias"] == ("name", "")


@pytest.mark.slow
def test_a_square_kernel_that_was_not_transposed_is_found_where_it_is_used(original: gs.Dump, network: Network) -> None:
    found = gs.compare(ported(network, transposed=True), original, allow_missing=[".*loss.*", ".*mean"])
    assert found.verdict == "different"
    assert found.first_divergence.forward is not None
    assert found.first_divergence.forward.name == "hidden"


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "differing"), [(0.0, []), (0.01, ["relu"])])
def test_a_ports_layers_run_isolated_on_the_values_of_pytorch(
    original: gs.Dump, network: Network, slope: float, differing: list[str]
) -> None:
    loss = partial(port, slope=slope)
    variables = weights_of(network)
    found = isolated(original, gs.capture(loss, variables, BATCH), loss, variables, BATCH)
    assert wrong(found) == differing
    assert len(found.arguments["reference"]) == 7
    assert [each.name for each in found.left_out if "activation" in each.why] == ["mean"]  # no module of PyTorch's


def test_a_gradient_that_the_port_lacks_has_the_layout_of_its_parameter(original: gs.Dump, network: Network) -> None:
    loss, variables = partial(port, stopped=True), weights_of(network)
    found = isolated(original, gs.capture(loss, variables, BATCH), loss, variables, BATCH)
    assert wrong(found) == ["relu"]
    (conv,) = (row for row in found.rows if row.name == "conv")  # its kernel and outputs are in another order
    assert conv.vjp is not None
    assert conv.vjp.status == "same"
