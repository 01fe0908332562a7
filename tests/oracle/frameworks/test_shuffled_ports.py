"""A module captured from PyTorch, and a port whose batch has its examples in another order, tokens in another type."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

torch = pytest.importorskip("torch", reason="PyTorch is absent: shuffled ports of its modules were NOT compared")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")

#: Examples, tokens of each, and features: also as many of one as of the others.
SIZES = ((6, 7, 5), (6, 6, 6))


class _Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb, self.inner, self.out = nn.Embedding(20, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(self.emb(tokens))).mean(1))


@cache
def _pair(sizes: tuple[int, int, int], fault: str = "", *, tokens_first: bool = False) -> tuple[Dump, Dump]:
    """A module whose tokens are of 64 bits, and its port with tokens of 32, and perhaps the axis of tokens before."""
    torch.manual_seed(6)
    examples, steps, width = sizes
    module, tokens = _Net(width), torch.randint(0, 20, (examples, steps))
    labels = torch.randint(0, 3, (examples,))
    reference = capture(module, lambda logits: F.cross_entropy(logits, labels), tokens)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    weights = {
        "embed": {"embedding": state["emb.weight"]},
        "dense": {"kernel": state["inner.weight"].T.copy(), "bias": state["inner.bias"]},
        "head": {"kernel": state["out.weight"].T.copy(), "bias": state["out.bias"]},
    }

    def dense(v: Any, name: str, x: Any) -> Any:
        with jax.named_scope(name):
            return x @ v[name]["kernel"] + v[name]["bias"]

    def loss(v: Any, batch: Any) -> Any:
        with jax.named_scope("embed"):
            x = v["embed"]["embedding"][batch["ids"].T if tokens_first else batch["ids"]]
        x = (jnp.sin if fault else jnp.tanh)(dense(v, "dense", x))
        chosen = jax.nn.log_softmax(dense(v, "head", x.mean(0 if tokens_first else 1)))
        return -jnp.take_along_axis(chosen, batch["classes"][:, None], 1).mean()

    order = np.random.default_rng(3).permutation(examples)
    batch = {"ids": tokens.numpy()[order].astype(np.int32), "classes": labels.numpy()[order].astype(np.int32)}
    with jax.numpy_rank_promotion("allow"):
        return reference, gs.capture(loss, weights, batch, origins=False)


@sampled("tokens_first", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_shuffled_port_agrees(sizes: tuple[int, int, int], tokens_first: bool) -> None:
    found = gs.compare(*_pair(sizes, tokens_first=tokens_first))
    assert found.verdict == "same", found.sentence
    assert found.sentence.endswith("; the batch has its examples in another order.")


@sampled(("sizes", "tokens_first"), [(SIZES[0], False), (SIZES[0], True), (SIZES[1], False)])
def test_a_fault_of_a_shuffled_port_is_told_at_its_layer(sizes: tuple[int, int, int], tokens_first: bool) -> None:
    found = gs.compare(*_pair(sizes, "activation", tokens_first=tokens_first))
    assert found.verdict == "different"
    assert "Forward first differs at `out`" in found.sentence, found.sentence


class _Causal(nn.Module):
    """Convolutions that are padded at both ends, whose last results are cut off."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv1d(width, width, 3, padding=2) for _ in range(2))
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = torch.tanh(layer(x)[:, :, :-2])
        return self.out(x.mean(2))


@pytest.mark.parametrize("fault", ["", "activation"])
@pytest.mark.parametrize(("examples", "width", "steps"), [(5, 6, 9), (5, 5, 5)])
def test_a_shuffled_port_that_pads_at_one_end_is_compared(examples: int, width: int, steps: int, fault: str) -> None:
    torch.manual_seed(1)
    module, x = _Causal(width), torch.randn(examples, width, steps)
    reference = capture(module, lambda y: y.square().mean(), x)
    state = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    weights = {
        name: {"kernel": state[f"{name}.weight"].T.copy(), "bias": state[f"{name}.bias"]}
        for name in ("first", "second", "out")
    }

    def loss(v: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in ("first", "second"):
            with jax.named_scope(name):
                kernel, layouts = v[name]["kernel"], ("NWC", "WIO", "NWC")
                x = jax.lax.conv_general_dilated(x, kernel, (1,), [(2, 0)], dimension_numbers=layouts) + v[name]["bias"]
            x = (jnp.sin if fault and name == "first" else jnp.tanh)(x)
        with jax.named_scope("out"):
            y = x.mean(1) @ v["out"]["kernel"] + v["out"]["bias"]
        return jnp.square(y).mean()

    order = np.random.default_rng(2).permutation(examples)
    with jax.numpy_rank_promotion("allow"):
        port = gs.capture(loss, weights, {"x": x.numpy()[order].swapaxes(1, 2).copy()}, origins=False)
    found = gs.compare(reference, port)
    assert found.verdict == ("different" if fault else "same"), found.sentence
    assert not fault or "Forward first differs at `second`" in found.sentence, found.sentence
