"""The gradient with respect to what a parametrization computes is that of a twin whose parameter has those values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent: what is captured of parametrizations was NOT checked")

from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402


class Doubled(nn.Module):
    """A user's own: what it adds is of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.lora = nn.Linear(4, 4, bias=False)

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight + self.lora.weight


class Same(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight


def registered(part: type[nn.Module]) -> Callable[[nn.Module], nn.Module]:
    return lambda layer: parametrize.register_parametrization(layer, "weight", part())


#: What makes a layer one with a parametrization of its weight.
PARAMETRIZED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "weight norm by a hook": torch.nn.utils.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "spectral norm by a hook": torch.nn.utils.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
    "a user's own": registered(Doubled),
    "nothing": registered(Same),
}


class Net(nn.Module):
    """One layer is called three times: twice by itself, and once where gradients are computed later."""

    def __init__(self, change: Callable[[nn.Module], nn.Module], *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.cell = change(nn.Linear(4, 4))
        self.out = nn.Linear(4, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.cell(torch.tanh(self.cell(x))))
        if self.reentrant is None:
            return self.out(self.cell(h))
        return self.out(checkpoint(self.cell, h, use_reentrant=self.reentrant))


def loss_of(output: Tensor) -> Tensor:
    return output.square().mean()


def same(module: nn.Module) -> nn.Module:
    return module


def twin_of(net: Net) -> Net:
    """The same network with a weight that is a parameter of the values that the parametrization computes."""
    x = torch.zeros(1, 4, dtype=torch.float64)
    with torch.no_grad():
        net.cell(x)
        twin = Net(same).double()
        twin.out.load_state_dict(net.out.state_dict())
        twin.cell.weight.copy_(net.cell.weight)
        twin.cell.bias.copy_(net.cell.bias)
    return twin


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_the_gradient_of_all_calls_is_that_of_a_parameter(kind: str, reentrant: bool | None) -> None:
    torch.manual_seed(0)
    net = Net(PARAMETRIZED[kind], reentrant=reentrant).double().eval()
    twin = twin_of(net)
    x = torch.randn(5, 4, dtype=torch.float64)

    dump = capture(net, loss_of, x)

    (expected,) = torch.autograd.grad(loss_of(twin(x)), [twin.cell.weight])
    assert np.array_equal(dump["param/cell/weight"], twin.cell.weight.detach().numpy())
    assert np.allclose(dump["param_grad/cell/weight"], expected.numpy(), rtol=1e-12, atol=1e-14)
    assert not any(name.startswith("act/cell/parametrizations") for name in dump.keys())  # noqa: SIM118
    originals = [each for each in dump.manifest.entries if each.site.of == "param/cell/weight"]
    named = {name.replace(".", "/") for name, _ in net.named_parameters() if name.startswith("cell.")}
    assert {each.name for each in originals if each.family == "param"} == named - {"cell/bias"}


@pytest.mark.parametrize("kind", ["weight norm", "spectral norm", "a user's own"])
def test_the_gradients_of_the_originals_are_those_of_autograd(kind: str) -> None:
    torch.manual_seed(0)
    net = Net(PARAMETRIZED[kind]).double().eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    dump = capture(net, loss_of, x)

    parameters = dict(net.named_parameters())
    expected = torch.autograd.grad(loss_of(net(x)), list(parameters.values()))
    for name, gradient in zip(parameters, expected, strict=True):
        assert np.array_equal(dump[f"param_grad/{name.replace('.', '/')}"], gradient.numpy()), name


def test_a_loss_that_reads_the_weight_is_differentiated_by_it() -> None:
    torch.manual_seed(0)
    net = Net(parametrizations.weight_norm).double()
    twin = twin_of(net)
    x = torch.randn(5, 4, dtype=torch.float64)

    def loss(module: Net) -> Callable[[Tensor], Tensor]:
        return lambda output: loss_of(output) + 0.3 * module.cell.weight.square().sum()

    dump = capture(net, loss(net), x)

    (expected,) = torch.autograd.grad(loss(twin)(twin(x)), [twin.cell.weight])
    assert np.allclose(dump["param_grad/cell/weight"], expected.numpy(), rtol=1e-12, atol=1e-14)


def test_a_layer_reads_the_weight_and_not_its_originals() -> None:
    net = Net(parametrizations.weight_norm)
    layers = {each.path: each for each in capture(net, loss_of, torch.randn(5, 4)).manifest.layers}
    plain = {each.path: each for each in capture(Net(same), loss_of, torch.randn(5, 4)).manifest.layers}
    assert list(layers) == list(plain)
    assert {*layers["cell"].params} == {"cell/weight", "cell/bias"}
    assert [{*each.sources} for each in layers.values()] == [{*each.sources} for each in plain.values()]


def test_a_weight_that_only_the_module_around_its_layer_reads_is_of_that_one() -> None:
    attention = nn.MultiheadAttention(4, 2)
    parametrizations.weight_norm(attention.out_proj)
    net = nn.Sequential()
    net.add_module("attention", attention)

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    dump = capture(Around(), loss_of, torch.randn(3, 2, 4))
    entry = next(each for each in dump.manifest.entries if each.name == "attention/out_proj/weight")
    assert entry.site.layer == "attention"
    assert dump["param_grad/attention/out_proj/weight"].any()


def test_a_module_that_is_given_a_weight_is_computed_from_it() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.mix = parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(x) @ self.mix(self.cell.weight)

    dump = capture(Given(), loss_of, torch.randn(5, 4))
    mix = next(each for each in dump.manifest.layers if each.path == "mix")
    assert mix.inputs == ()
    assert {*mix.sources} == {"param/cell/weight", "param/mix/weight", "param/mix/bias"}


def test_what_is_frozen_has_no_gradient() -> None:
    net = Net(parametrizations.weight_norm)
    for each in net.cell.parametrizations.parameters():
        each.requires_grad_(False)
    dump = capture(net, loss_of, torch.randn(5, 4))
    gradient = next(e for e in dump.manifest.entries if (e.family, e.name) == ("param_grad", "cell/weight"))
    assert gradient.absent == "frozen"


def test_weights_of_a_spectral_norm_in_training_are_those_of_the_first_call() -> None:
    torch.manual_seed(0)
    net: Any = Net(parametrizations.spectral_norm).double().train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    first = net.cell.weight.detach().numpy()
    net.load_state_dict(state)
    dump = capture(net, loss_of, torch.randn(5, 4, dtype=torch.float64))
    assert np.array_equal(dump["param/cell/weight"], first)
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
