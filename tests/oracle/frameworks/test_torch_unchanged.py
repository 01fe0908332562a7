"""A PyTorch module is as it was after a capture, whatever its forward pass changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent: what is captured of its models was NOT checked")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402


def _scaled(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(0.5)


def _scaled_data(layer: nn.Linear) -> None:
    layer.weight.data.mul_(0.5)


def _other_data(layer: nn.Linear) -> None:
    layer.weight.data = layer.weight.data * 0.5


def _replaced(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() * 0.5)


def _evaluated(layer: nn.Linear) -> None:
    layer.eval()


def _frozen(layer: nn.Linear) -> None:
    layer.weight.requires_grad_(requires_grad=False)


def _drawn(layer: nn.Linear) -> None:
    layer.scale = random.random() + np.random.rand()


class _Changing(nn.Module):
    """A module that changes one of its layers while it runs."""

    def __init__(self, change: Callable[[nn.Linear], None]) -> None:
        super().__init__()
        self.layer, self.head, self.change = nn.Linear(3, 4), nn.Linear(4, 2), change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self.layer)
        return self.head(self.layer(x))


def _state(model: nn.Module) -> list[Any]:
    parameters = [(id(each), each.data_ptr(), each.requires_grad, each.tolist()) for each in model.parameters()]
    generators = (random.getstate(), np.random.get_state()[1].tolist())
    return [*parameters, *(each.training for each in model.modules()), generators, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("change", [_scaled, _scaled_data, _other_data, _replaced, _evaluated, _frozen, _drawn])
def test_what_the_forward_pass_changes_is_put_back(change: Callable[[nn.Linear], None]) -> None:
    model, x = _Changing(change), torch.randn(5, 3)
    before = _state(model)
    first = capture(model, torch.sum, x)
    assert _state(model) == before
    second = capture(model, torch.sum, x)
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_a_parameter_that_the_run_changes_is_written_as_it_was_with_the_gradient_of_the_run() -> None:
    model, ids = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Linear(3, 2)), torch.tensor([[0, 1], [3, 3]])
    before = model[0].weight.detach().clone()
    dump = capture(model, lambda y: (y**2).sum(), ids)
    assert torch.equal(model[0].weight, before)
    assert np.array_equal(dump["param/0/weight"], before.numpy())
    (expected,) = torch.autograd.grad((model(ids) ** 2).sum(), model[0].weight)
    np.testing.assert_allclose(dump["param_grad/0/weight"], expected.numpy(), rtol=1e-5)


def test_a_sparse_parameter_is_left_alone() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.weight, x)

    dump = capture(Sparse(), torch.sum, torch.ones(3, 2))
    assert np.array_equal(dump["param/weight"], np.eye(3, dtype=np.float32))


def test_gradients_of_a_loss_function_are_put_back_behind_a_reentrant_checkpoint() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.layer, x, use_reentrant=True)

    head = nn.Linear(4, 1)
    head.weight.grad = kept = torch.ones(1, 4)
    capture(Checkpointed(), lambda y: head(y).sum(), torch.randn(5, 3))
    assert head.weight.grad is kept
    assert torch.equal(kept, torch.ones(1, 4))
    assert head.bias.grad is None
