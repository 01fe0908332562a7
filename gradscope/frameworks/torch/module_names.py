"""Modules, parameters and buffers have PyTorch's names, with slashes and without those of compiled modules."""

from __future__ import annotations

from typing import Final

from torch import nn

#: The attribute in which a compiled module has the one that the user wrote.
_COMPILED: Final = "_orig_mod"


def as_written(module: nn.Module) -> nn.Module:
    """Returns the module itself; of the one that `torch.compile` returns, the one that the user wrote."""
    return getattr(module, _COMPILED, module)


def plain_name(name: str) -> str:
    """Returns PyTorch's name of a module, parameter or buffer with slashes, without those of compiled modules."""
    return "/".join(part for part in name.split(".") if part != _COMPILED)
