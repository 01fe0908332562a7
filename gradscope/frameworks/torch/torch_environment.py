"""The provenance of a run in PyTorch is stated in the terms that a dump from JAX uses."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gradscope.dump.manifest.provenance import command_line, content_hash, versions
from gradscope.dump.record import Json
from gradscope.frameworks.torch.conversion import to_numpy
from gradscope.frameworks.torch.module_names import plain_name

_DISTRIBUTIONS: Final = ("gradscope-jax", "torch", "numpy", "ml_dtypes")

#: JAX's names of PyTorch's precisions of float32 matrix multiplications.
_PRECISIONS: Final = {"highest": "highest", "high": "tensorfloat32", "medium": "bfloat16"}

_CONVOLUTIONS: Final = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


def provenance(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Json]:
    """Returns everything on which a run of a module on some inputs depends."""
    device = _device(module, inputs)
    return {
        "model": type(module).__name__,
        "training": module.training,
        **_switched(module),
        "batch_sha256": content_hash([to_numpy(tensor) for tensor in inputs]),
        "python": platform.python_version(),
        "versions": versions(_DISTRIBUTIONS),
        "backend": f"torch {device.type}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "matmul_precision": _precision(module, device),
        "argv": command_line(),
    }


def _switched(module: nn.Module) -> dict[str, Json]:
    """Returns the names of the modules that are in another mode than the one around them, where there are any."""
    modes = {plain_name(name): each.training for name, each in module.named_modules()}
    switched: list[Json] = [
        name for name, mode in modes.items() if name and mode is not modes.get(name.rpartition("/")[0], mode)
    ]
    return {"training_switched": switched} if switched else {}


def _precision(module: nn.Module, device: torch.device) -> str:
    """Returns JAX's name of the precision of float32 products, the coarser of that of matrices and of convolutions."""
    precision = torch.get_float32_matmul_precision()
    # On a GPU, PyTorch computes convolutions in TensorFloat-32 by default, and products of matrices in float32.
    convolves = any(isinstance(each, _CONVOLUTIONS) for each in module.modules())
    if precision == "highest" and convolves and device.type == "cuda" and torch.backends.cudnn.allow_tf32:
        precision = "high"
    return _PRECISIONS[precision]


def _device(module: nn.Module, inputs: Sequence[Tensor]) -> torch.device:
    tensors = [*module.parameters(), *inputs]
    return tensors[0].device if tensors else torch.device("cpu")
