"""The provenance of a run in PyTorch is stated in the terms that a dump from JAX uses."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from gradscope.dump.manifest.provenance import command_line, content_hash, versions
from gradscope.dump.record import Json
from gradscope.frameworks.torch.conversion import to_numpy

_DISTRIBUTIONS: Final = ("gradscope-jax", "torch", "numpy", "ml_dtypes")

#: JAX's names of PyTorch's precisions of float32 matrix multiplications.
_PRECISIONS: Final = {"highest": "highest", "high": "tensorfloat32", "medium": "bfloat16"}


def provenance(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Json]:
    """Returns everything on which a run of a module on some inputs depends."""
    device = _device(module, inputs)
    return {
        "model": type(module).__name__,
        "training": module.training,
        "batch_sha256": content_hash([to_numpy(tensor) for tensor in inputs]),
        "python": platform.python_version(),
        "versions": versions(_DISTRIBUTIONS),
        "backend": f"torch {device.type}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "matmul_precision": _PRECISIONS[torch.get_float32_matmul_precision()],
        "argv": command_line(),
    }


def _device(module: nn.Module, inputs: Sequence[Tensor]) -> Any:
    tensors = [*module.parameters(), *inputs]
    return tensors[0].device if tensors else torch.device("cpu")
