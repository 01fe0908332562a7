"""ResNet-50 in PyTorch, written from the paper, as a second opinion on `models/resnet50.py`.

It shares no code with the JAX model, only names: its modules are called as the JAX model's scopes are, so that
`named_modules` yields gradscope's layer paths once dots are slashes. Arrays go in and come out in the JAX layout:
images and activations NHWC, convolution kernels HWIO, dense kernels [in, out].

One difference is meant to be: PyTorch's running variance is the unbiased one, so running statistics are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One forward and backward pass.

    Attributes:
        loss: Mean cross-entropy.
        tensors: By dump key (`activation/stem/conv`, `activation_grad/...`, `param/...`, `param_grad/...`,
            `input_grad/image`).
    """

    loss: float
    tensors: dict[str, np.ndarray]


def run(
    variables: Mapping[str, Any],
    batch: Mapping[str, Any],
    *,
    change: Callable[[TorchResNet50], None] = lambda model: None,
) -> Run:
    """Run the twin in training mode on variables and batch of the JAX model, in the variables' dtype.

    Args:
        variables: The JAX model's variables.
        batch: Its batch.
        change: What is to be done to the twin before it runs.
    """
    head = np.array(variables["params"]["head"]["kernel"])
    model = TorchResNet50(classes=head.shape[1]).to(torch.from_numpy(head).dtype)
    copy_variables(model, variables)
    change(model)
    outputs = record_outputs(model)
    image = torch.from_numpy(np.array(batch["image"])).requires_grad_()
    loss = model(image.permute(0, 3, 1, 2), torch.from_numpy(np.array(batch["label"])).long())
    loss.backward()
    activations = {
        key: to_jax_layout(tensor)
        for name, output in outputs.items()
        for key, tensor in ((f"activation/{name}", output), (f"activation_grad/{name}", output.grad))
        if tensor is not None
    }
    assert image.grad is not None
    inputs = {"input_grad/image": image.grad.numpy()}
    return Run(loss=loss.item(), tensors=activations | parameters(model) | inputs)


class TorchResNet50(nn.Module):
    """The network and its loss, in training mode."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = Stem()
        channels = 64
        for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
            for number in range(1, blocks + 1):
                stride = 2 if number == 1 and stage > 1 else 1
                self.add_module(f"stage{stage}_block{number}", Bottleneck(channels, width, stride))
                channels = 4 * width
        self.pool = GlobalMean()
        self.head = nn.Linear(channels, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = image
        for name, module in self.named_children():
            if name != "loss":
                x = module(x)
        return self.loss(x, label)


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.relu(self.bn(self.conv(x))))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, 4 * width, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        if stride != 1 or channels != 4 * width:
            self.proj_conv = nn.Conv2d(channels, 4 * width, kernel_size=1, stride=stride, bias=False)
            self.proj_bn = nn.BatchNorm2d(4 * width)
        self.add = Add()
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if hasattr(self, "proj_conv"):
            x = self.proj_bn(self.proj_conv(x))
        return self.relu3(self.add(x, y))


class Add(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class GlobalMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


def copy_variables(model: nn.Module, variables: Mapping[str, Any]) -> None:
    """Give the model the JAX model's parameters and running statistics."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fill(module.weight, at(variables["params"], name)["kernel"], (3, 2, 0, 1))  # HWIO to OIHW
        elif isinstance(module, nn.Linear):
            fill(module.weight, at(variables["params"], name)["kernel"], (1, 0))
            fill(module.bias, at(variables["params"], name)["bias"], (0,))
        elif isinstance(module, nn.BatchNorm2d):
            fill(module.weight, at(variables["params"], name)["scale"], (0,))
            fill(module.bias, at(variables["params"], name)["bias"], (0,))
            fill(module.running_mean, at(variables["batch_stats"], name)["mean"], (0,))
            fill(module.running_var, at(variables["batch_stats"], name)["var"], (0,))


def at(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The part of a nested dictionary that a module's dotted name leads to."""
    for part in name.split("."):
        tree = tree[part]
    return tree


def fill(target: Tensor | None, source: Any, axes: tuple[int, ...]) -> None:
    """Copy an array, its axes transposed, into a tensor of exactly that shape."""
    transposed = torch.from_numpy(np.array(source)).permute(axes)
    assert target is not None
    assert target.shape == transposed.shape
    with torch.no_grad():
        target.copy_(transposed)


def record_outputs(model: nn.Module) -> dict[str, Tensor]:
    """A dictionary that the next forward pass fills with every module's output, under its layer path."""
    outputs: dict[str, Tensor] = {}

    def hook_for(path: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            output.retain_grad()
            outputs[path] = output

        return hook

    for name, module in model.named_modules():
        if name:  # all but the model itself, whose output is its loss's
            module.register_forward_hook(hook_for(name.replace(".", "/")))
    return outputs


def parameters(model: nn.Module) -> dict[str, np.ndarray]:
    """Parameters and their gradients by dump key, in the JAX layout."""
    tensors: dict[str, np.ndarray] = {}
    for name, module in model.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False):
            path = f"{name.replace('.', '/')}/{jax_name(module, attribute)}"
            tensors[f"param/{path}"] = kernel_to_jax_layout(parameter)
            assert parameter.grad is not None
            tensors[f"param_grad/{path}"] = kernel_to_jax_layout(parameter.grad)
    return tensors


def jax_name(module: nn.Module, attribute: str) -> str:
    """What Flax calls PyTorch's `weight`."""
    if attribute == "bias":
        return "bias"
    return "scale" if isinstance(module, nn.BatchNorm2d) else "kernel"


def kernel_to_jax_layout(parameter: Tensor) -> np.ndarray:
    """OIHW to HWIO, [out, in] to [in, out], vectors as they are."""
    axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[parameter.ndim]
    return parameter.detach().permute(axes).numpy().copy()


def to_jax_layout(activation: Tensor) -> np.ndarray:
    """NCHW to NHWC, everything else as it is."""
    activation = activation.detach()
    return (activation.permute(0, 2, 3, 1) if activation.ndim == 4 else activation).numpy().copy()
