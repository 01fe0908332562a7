"""Inputs of a PyTorch module in containers of other classes have the gradients of `torch.autograd.grad`."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is absent: what is captured of its models was NOT checked")

from torch import Tensor, nn  # noqa: E402

from gradscope.frameworks.torch import capture  # noqa: E402


@dataclass(frozen=True)
class _Frozen:
    x: Tensor
    late: Tensor = field(init=False)


class _ByAttribute(OrderedDict[str, Any]):
    @property
    def x(self) -> Tensor:
        return self["x"]


class _User(UserDict[str, Any]):
    @property
    def x(self) -> Tensor:
        return self["x"]


class _Listed(list[Tensor]):
    @property
    def x(self) -> Tensor:
        return self[0]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch: Any) -> Tensor:
        x = batch.x if hasattr(batch, "x") else batch["x"]
        return self.layer(x.mul_(2))


@pytest.mark.parametrize(
    "batch",
    [
        _Frozen,
        lambda x: _ByAttribute(x=x),
        lambda x: _User(x=x),
        lambda x: _Listed([x]),
        lambda x: MappingProxyType({"x": x}),
    ],
)
def test_inputs_in_any_container_have_gradients_and_stay_as_they_were(batch: Callable[[Tensor], Any]) -> None:
    model, x = _Model(), torch.randn(4, 3)
    before, leaf = x.clone(), x.clone().requires_grad_()
    dump = capture(model, lambda y: (y**3).sum(), (batch(x),))
    (expected,) = torch.autograd.grad((model.layer(leaf * 2) ** 3).sum(), leaf)
    found = [dump[key] for key in dump if key.startswith("input_grad/")]
    assert len(found) == 1
    np.testing.assert_allclose(found[0], expected.numpy(), rtol=1e-5)
    assert torch.equal(x, before)
