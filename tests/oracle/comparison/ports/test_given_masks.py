"""A port may make a mask by itself that a module of PyTorch is given, and may not ignore one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import gradscope as gs
from gradscope.comparison.follow_ups.tensor_diff import element_difference

torch = pytest.importorskip("torch", reason="PyTorch is absent: ports of its captures were NOT compared")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402
from tests.support.sampled import sampled  # noqa: E402

LENGTH, FEATURES = 4, 6


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.o(torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) + mask, -1) @ self.v(x))


@sampled(
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


def _attention(fill: float, *, scale: float = 1.0, ahead: int = 0) -> Any:
    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        x = batch["x"]
        with jax.named_scope("scores"):
            scores = jnp.einsum("nqf,nkf->nqk", x @ weights["q"], x @ weights["k"]) * scale
            scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool), ahead)[None], scores, fill)
        with jax.named_scope("shares"):
            shares = jax.nn.softmax(scores)
        return jnp.square(shares @ x).mean()

    keys = jax.random.split(jax.random.key(0), 3)
    weights = {name: jax.random.normal(key, (FEATURES, FEATURES)) for name, key in zip("qk", keys, strict=False)}
    return gs.capture(loss, weights, {"x": jax.random.normal(keys[2], (2, LENGTH, FEATURES))}, origins=False)


@pytest.mark.slow
@sampled("fill", [-1e9, -1e6, -jnp.inf, float(jnp.finfo("float32").min)])
def test_a_mask_may_write_any_number_that_outweighs_all_others(fill: float) -> None:
    reference, port = _attention(-1e9), _attention(fill)
    for found in (gs.compare(reference, port), gs.compare(port, reference)):
        assert found.verdict == "same", found.sentence
    for other in (_attention(fill, scale=2.5), _attention(fill, scale=1.01), _attention(fill, ahead=1)):
        found = gs.compare(reference, other)
        assert found.sentence.startswith("Forward first differs at `scores`")
        assert "anew" not in found.sentence  # what follows is no error of its own


class _Padded(_Attention):
    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        return super().forward(x, (1 - kept[:, None]).float() * -10000.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "own", "other"),
    [("no mask", "`kept` as the mask", "no mask"), ("scale", "scores times 1.0", "scores times 0.41")],
)
def test_a_mask_that_is_made_of_whole_numbers_is_told(fault: str, own: str, other: str) -> None:
    torch.manual_seed(0)
    module, x = _Padded(), torch.randn(2, LENGTH, FEATURES)
    kept = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    state = {name: value.numpy().T for name, value in module.state_dict().items()}

    def loss(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
        def dense(name: str, x: Any) -> Any:
            with jax.named_scope(f"{name}_proj"):
                return x @ weights[f"{name}.weight"]

        scores = jnp.einsum("nqf,nkf->nqk", dense("q", batch["x"]), dense("k", batch["x"]))
        scores = scores / FEATURES**0.5 if fault == "scale" else scores
        if fault != "no mask":
            scores = jnp.where(batch["kept"][:, None] == 1, scores, -10000.0)
        return jnp.square(dense("o", jax.nn.softmax(scores) @ dense("v", batch["x"]))).mean()

    reference = capture(module, lambda output: output.square().mean(), {"x": x, "kept": kept})
    batch = {"x": x.numpy(), "kept": kept.numpy().astype("int32")}
    found = gs.compare(reference, gs.capture(loss, state, batch, origins=False))
    assert f"which reads an attention with {own}, and in the candidate with {other}." in found.sentence, found.sentence


def test_what_masks_write_is_neither_in_reverse_nor_among_the_worst_elements() -> None:
    reference = _attention(-1e9)
    assert "in reverse" not in gs.compare(reference, _attention(-1e9, scale=1.5)).sentence
    assert "in reverse" not in gs.compare(reference, _attention(-jnp.inf, ahead=1)).sentence
    found = element_difference(reference.source, _attention(-jnp.inf, scale=1.01).source, "activation/scores")
    assert all(abs(each.ref) < 100 and abs(each.cand) < 100 for each in found.worst)
    assert found.worst
