"""PyTorch has the results of a module when that ends, and a port has each where it is computed, or another module."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its captures were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

LENGTH, FEATURES = 4, 6


class _Attention(nn.Module):
    """An attention that returns its position bias, too, for layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(4))
        self.bias = nn.Embedding(LENGTH, LENGTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, bias = self.q(x), self.k(x), self.v(x), self.bias(torch.arange(LENGTH)).T
        return self.o(torch.softmax(query @ key.transpose(1, 2) + bias, -1) @ value), bias


class _Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = _Attention(), nn.Linear(FEATURES, FEATURES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        read, bias = self.attention(x)
        return self.out(torch.tanh(read)) * bias.sum()


def _port(weights: dict[str, Any], x: Any, scale: float) -> Dump:
    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(f"{name}_proj"):
                return x @ weights[name]

        with jax.named_scope("mixer"):
            query, key, value = (dense(name, batch["x"]) for name in "qkv")
            with jax.named_scope("table"):
                bias = weights["bias"][jnp.arange(LENGTH)]
            bias = bias.T
            scores = scale * jnp.einsum("nqf,nkf->nqk", query, key) + bias[None]
            x = dense("o", jax.nn.softmax(scores) @ value)
        return jnp.square(dense("out", jnp.tanh(x)) * bias.sum()).mean()

    return gs.capture(loss, weights, {"x": x}, origins=False)


def test_one_of_several_results_does_not_divide_what_is_computed_behind_it() -> None:
    torch.manual_seed(3)
    module, x = _Module(), torch.randn(2, LENGTH, FEATURES)
    reference = capture(module, lambda output: output.square().mean(), {"x": x})
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    weights = {name.split(".")[-2]: value if "bias" in name else value.T for name, value in state.items()}
    assert gs.compare(reference, _port(weights, x.numpy(), 1.0)).verdict == "same"
    found = gs.compare(reference, _port(weights, x.numpy(), FEATURES**-0.5))
    assert found.sentence.startswith("Forward first differs at `attention/o`")
    assert "an attention with scores times 1.0, and in the candidate with scores times 0.41." in found.sentence
    first = found.first_divergence.forward
    assert first is not None
    assert first.counterpart == "mixer/o_proj"


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 9), nn.Linear(9, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.tanh(self.a(x))))


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.out = _Encoder(), nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x))


@pytest.mark.slow
def test_a_model_is_not_the_module_of_its_name_inside_of_the_other_one() -> None:
    torch.manual_seed(0)
    model, x = _Classifier(), torch.randn(3, FEATURES)
    stored = {key.rpartition(".")[0]: value.numpy() for key, value in model.state_dict().items() if "weight" in key}
    biases = {key.rpartition(".")[0]: value.numpy() for key, value in model.state_dict().items() if "bias" in key}

    def port(function: Any) -> Dump:
        def loss(weights: dict[str, Any], x: Any) -> Any:
            def dense(name: str, x: Any) -> Any:
                with jax.named_scope(name):
                    return x @ weights[name]["kernel"] + weights[name]["bias"][None]

            with jax.named_scope("Encoder"):
                x = dense("out", function(dense("b", jnp.tanh(dense("a", x)))))
            return jnp.square(x).mean()

        names = {"a": "encoder.a", "b": "encoder.b", "out": "out"}
        weights = {key: {"kernel": stored[own].T, "bias": biases[own]} for key, own in names.items()}
        return gs.capture(loss, weights, x.numpy(), origins=False)

    reference = capture(model, lambda y: y.square().mean(), x)
    for one, other in ((reference, port(jnp.tanh)), (port(jnp.tanh), reference)):
        found = gs.compare(one, other)
        assert found.verdict == "same", found.sentence
    wrong = gs.compare(reference, port(jax.nn.sigmoid))
    assert "first differs at `encoder`" in wrong.sentence, wrong.sentence


class _Steps(nn.Module):
    """A recurrent layer that is called for one step at a time, of which it returns the state as its output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.rnn, self.out = nn.Linear(5, FEATURES), nn.RNN(5, FEATURES), nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, found = torch.sin(self.start(x[0]))[None], []
        for step in x:
            output, state = self.rnn(step[None], state)
            found.append(self.out(output))
        return torch.cat(found)


@pytest.mark.parametrize("stops", [False, True])
def test_a_value_that_is_returned_twice_has_the_gradient_of_both(stops: bool) -> None:
    torch.manual_seed(0)
    module, x = _Steps(), torch.randn(3, 4, 5)
    params = {name.replace(".", "/"): each.detach().numpy().copy() for name, each in module.named_parameters()}

    def dense(params: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name):
            return x @ params[f"{name}/weight"].T + params[f"{name}/bias"]

    def loss(params: Any, x: Any) -> Any:
        state, found = jnp.sin(dense(params, "start", x[0])), []
        state = jax.lax.stop_gradient(state) if stops else state
        for step in x:
            with jax.named_scope("rnn"):
                sums = [
                    value @ params[f"rnn/weight_{kind}_l0"].T + params[f"rnn/bias_{kind}_l0"]
                    for kind, value in (("ih", step), ("hh", state))
                ]
                state = jnp.tanh(sums[0] + sums[1])
            found.append(dense(params, "out", state))
        return jnp.square(jnp.stack(found)).mean()

    reference = capture(module, lambda y: y.square().mean(), {"x": x})
    with jax.numpy_rank_promotion("allow"):
        found = gs.compare(reference, gs.capture(loss, params, x.numpy(), origins=False))
    assert bool(found) is not stops, found.sentence
    if stops:
        assert found.sentence.startswith(
            "Backward only: forward agrees, backward first differs at `start` (no gradient"
        )
        assert "made anew" not in found.sentence
