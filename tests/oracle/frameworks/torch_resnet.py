"""ResNet-50 in PyTorch, or one of fewer blocks, written from the paper, as a second opinion on `models/resnet50.py`.

It shares no code with the JAX model, only names: its modules are called as the JAX model's scopes are, so that
`named_modules` yields gradscope's layer paths once dots are slashes. Arrays go in and come out in the JAX layout:
images and activations NHWC, convolution kernels HWIO, dense kernels [in, out].

One difference is meant to be: PyTorch's running variance is the unbiased one, so running statistics are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradscope.api.reading import Dump
from gradscope.frameworks.torch import capture


def run(
    variables: Mapping[str, Any],
    batch: Mapping[str, Any],
    *,
    change: Callable[[TorchResNet50], None] = lambda model: None,
) -> dict[str, np.ndarray]:
    """Run the twin in training mode on variables and batch of the JAX model, in the variables' dtype.

    Args:
        variables: The JAX model's variables.
        batch: Its batch.
        change: What is to be done to the twin before it runs.

    Returns:
        What `capture` finds, by the JAX model's keys and in its layout.
    """
    model = twin(variables)
    change(model)
    dump = captured(model, batch)
    return {
        jax_key(model, key): to_jax_layout(key, dump[key]) for key in dump if not key.startswith(("input/", "state/"))
    }


def twin(variables: Mapping[str, Any]) -> TorchResNet50:
    """The twin with the JAX model's variables, in their dtype."""
    head = np.array(variables["params"]["head"]["kernel"])
    model = TorchResNet50(head.shape[1], set(variables["params"])).to(torch.from_numpy(head).dtype)
    copy_variables(model, variables)
    return model


def captured(model: TorchResNet50, batch: Mapping[str, Any], path: Path | None = None) -> Dump:
    """What `capture` finds of the twin, in PyTorch's names and layouts."""
    image, label = (torch.from_numpy(np.array(batch[name])) for name in ("image", "label"))
    return capture(model, lambda loss: loss, {"image": image.permute(0, 3, 1, 2), "label": label.long()}, path)


class TorchResNet50(nn.Module):
    """The network and its loss, in training mode; of the sixteen blocks those that are named."""

    def __init__(self, classes: int, names: Collection[str]) -> None:
        super().__init__()
        self.stem = Stem()
        channels = 64
        for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
            for number in range(1, blocks + 1):
                if f"stage{stage}_block{number}" not in names:
                    continue
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


def jax_key(model: nn.Module, key: str) -> str:
    """The JAX model's name for a tensor: what PyTorch calls `weight` is a scale or a kernel there."""
    layer, _, name = key.partition("/")[2].rpartition("/")
    if not key.startswith("param") or name == "bias":
        return key
    norm = isinstance(model.get_submodule(layer.replace("/", ".")), nn.BatchNorm2d)
    return key.removesuffix(name) + ("scale" if norm else "kernel")


def to_jax_layout(key: str, array: np.ndarray) -> np.ndarray:
    """Of parameters OIHW to HWIO and [out, in] to [in, out], of other tensors NCHW to NHWC; the rest as it is."""
    axes = {4: (2, 3, 1, 0), 2: (1, 0)} if key.startswith("param") else {4: (0, 2, 3, 1)}
    return array.transpose(axes[array.ndim]) if array.ndim in axes else array
