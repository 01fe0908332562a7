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

from gradscope.errors import ModelError, UsageError  # noqa: E402
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


class _Product(nn.Module):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix @ self.layer(x)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_of_any_layout_are_stored_as_dense_ones(layout: torch.layout) -> None:
    matrix, x = torch.eye(4) * 2, torch.randn(4, 3)
    model = _Product(matrix.to_sparse(layout=layout))
    dump = capture(model, lambda y: (y**2).sum(), x)
    assert np.array_equal(dump["state/matrix"], matrix.numpy())
    (expected,) = torch.autograd.grad((model(x) ** 2).sum(), model.layer.weight)
    np.testing.assert_allclose(dump["param_grad/layer/weight"], expected.numpy(), rtol=1e-5)


class _Nesting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(3, 2), _Rows()

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(self.layer(x)).to_padded_tensor(0.0)


class _Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nested.as_nested_tensor([x[:1], x])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="a nested tensor cannot be stored"):
        capture(_Nesting(), torch.sum, torch.randn(4, 3))


class _Scaled(nn.Module):
    def forward(self, x: Tensor, scale: float, shift: Any, *, flip: bool = False) -> Tensor:
        return (x.flip(0) if flip else x) * scale + torch.as_tensor(shift)


def test_numbers_that_are_no_tensors_are_inputs_without_a_gradient() -> None:
    x, shift = torch.randn(3), np.arange(3, dtype=np.float32)
    dump = capture(_Scaled(), lambda y: (y**2).sum(), {"x": x, "scale": 2.0, "shift": shift, "flip": True})
    assert dump["input/scale"] == 2.0
    np.testing.assert_array_equal(dump["input/shift"], shift)
    absent = {line.name: line.reason for line in dump.manifest.ledger.missing if line.family == "input_grad"}
    assert absent == {"scale": "frozen", "shift": "frozen"}
    flipped = x.flip(0).requires_grad_()
    (gradient,) = torch.autograd.grad(((flipped * 2.0 + torch.as_tensor(shift)) ** 2).sum(), [flipped])
    np.testing.assert_array_equal(dump["input_grad/x"], gradient.flip(0))


@pytest.mark.parametrize(
    ("module", "loss_fn", "words"),
    [
        (_Scaled, torch.sum, "module must be a torch.nn.Module, and is a class"),
        (torch.sum, _Scaled(), "module must be a torch.nn.Module, and is of type builtin_function_or_method"),
        (_Scaled(), torch.ones(3), "loss_fn must be a function of the module's output, and is of type Tensor"),
    ],
)
def test_arguments_of_another_kind_are_refused(module: Any, loss_fn: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        capture(module, loss_fn, torch.ones(3))


class Named(nn.Module):
    """A module with an argument that is a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, fields: Any) -> Any:
        return self.layer(fields["x"])


@pytest.mark.parametrize(
    ("inputs", "said", "hint"),
    [
        ([torch.ones(3, 4)], "Linear failed on a list: TypeError: linear(): argument", "several are a tuple"),
        (None, "Linear failed on None: TypeError", "a tuple of positional arguments"),
        (np.ones((3, 4), np.float32), "Linear failed on the input 0, which is of type ndarray", "torch.from_numpy"),
        ({"x": torch.ones(3, 4)}, "forward of Linear cannot take these inputs: missing", "(inputs,)"),
        ((), "forward of Linear cannot take these inputs: missing a required argument: 'input'", "one tensor, a tuple"),
        ((torch.ones(3, 4), 1), "forward of Linear cannot take these inputs: too many", "one tensor, a tuple"),
    ],
)
def test_inputs_that_the_module_does_not_take_are_refused_with_what_they_are(inputs: Any, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        capture(nn.Linear(4, 2), torch.sum, inputs)
    assert refused.value.message.startswith(said)
    assert hint in str(refused.value.hint)


def test_a_mapping_that_is_an_argument_is_put_into_a_tuple() -> None:
    inputs = {"x": torch.ones(3, 4)}
    with pytest.raises(UsageError, match="forward of Named cannot take these inputs"):
        capture(Named(), torch.sum, inputs)
    assert capture(Named(), torch.sum, (inputs,))["input_grad/fields/x"].shape == (3, 4)


def test_a_failure_that_has_nothing_to_do_with_the_kind_of_the_inputs_is_the_modules_own() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        capture(nn.Linear(4, 2), torch.sum, torch.ones(3, 5))


def test_a_module_that_was_made_in_inference_mode_is_refused_and_inputs_of_it_are_not() -> None:
    with torch.inference_mode():
        module, x = nn.BatchNorm1d(4), torch.randn(3, 4)
    with pytest.raises(ModelError, match="weight was made in inference mode"):
        capture(module, torch.sum, x)
    dump = capture(nn.Linear(4, 2), torch.sum, x)
    assert np.array_equal(dump["input/input"], x.numpy())


def test_a_path_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="path must be a file to write, and is of type int"):
        capture(nn.Linear(4, 2), torch.sum, torch.ones(3, 4), 3)  # pyright: ignore[reportArgumentType]
