"""A run may change a module, which has to be as it was afterwards.

A forward pass changes buffers as a rule, and sometimes parameters: an embedding with `max_norm` scales its rows, and a
momentum encoder follows another one. It may switch modes, freeze parameters, and draw random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from gradscope.frameworks.torch.conversion import to_numpy


class ModuleState:
    """A `ModuleState` is a module as it was before a run.

    Copies of parameters are on the host, until the forward pass has ended that did not change them.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.modules())
        self._training = [(each, each.training) for each in modules]
        names = {buffer: name for name, buffer in module.named_buffers()}
        self._buffers = [
            (each, name, buffer, buffer.detach().clone())
            for each in modules
            for name, buffer in each.named_buffers(recurse=False)
        ]
        self._by_name = {names[buffer]: copied for *_, buffer, copied in self._buffers}
        self._parameters = [
            (each, name, parameter)
            for each in modules
            for name, parameter in each.named_parameters(recurse=False, remove_duplicate=False)
            if parameter.layout is torch.strided  # a sparse one has no storage of its own
        ]
        own = {parameter: None for *_, parameter in self._parameters}
        self._differentiated = {parameter: parameter.requires_grad for parameter in own}
        self._storages = {parameter: parameter.detach() for parameter in own}
        self._copies = {parameter: parameter.detach().to("cpu", copy=True) for parameter in own}

    def forward_ended(self) -> None:
        """Forgets the copies of parameters that the forward pass has not changed."""
        changed = {each: copied for each, copied in self._copies.items() if not _is_same(each, copied)}
        self._copies = changed

    def value(self, parameter: nn.Parameter) -> Tensor:
        """Returns the value that a parameter had before the run."""
        return self._copies.get(parameter, parameter)

    def has_changed(self, name: str, buffer: Tensor) -> bool:
        """Returns whether the run has changed a buffer; False for one that was not there before.

        Args:
            name: PyTorch's name of it.
            buffer: Its value now.
        """
        return name in self._by_name and not _is_same(buffer, self._by_name[name])

    def restore(self) -> None:
        """Puts back what the run has changed."""
        for each, training in self._training:
            each.training = training
        for parameter, differentiated in self._differentiated.items():
            parameter.requires_grad_(differentiated)
        with torch.no_grad():
            for each, name, parameter in self._parameters:
                storage = self._storages[parameter]
                if parameter.data_ptr() != storage.data_ptr():
                    parameter.data = storage
                if _is_assigned_anew(parameter, getattr(each, name, None)):
                    setattr(each, name, parameter)
            for parameter, copied in self._copies.items():
                if not _is_same(parameter, copied):
                    parameter.copy_(copied)
            for each, name, buffer, copied in self._buffers:
                buffer.copy_(copied)
                if _is_assigned_anew(buffer, getattr(each, name, None)):
                    setattr(each, name, buffer)


@contextmanager
def unchanged(module: nn.Module) -> Generator[ModuleState]:
    """Restores a module and the random number generators of PyTorch, NumPy and Python after a `with` statement."""
    state = ModuleState(module)
    of_python, of_numpy = random.getstate(), np.random.get_state()
    devices = sorted({tensor.device.index for tensor in module.parameters() if tensor.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices):
            yield state
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        state.restore()


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same bits."""
    return one.shape == other.shape and to_numpy(one).tobytes() == to_numpy(other).tobytes()


def _is_assigned_anew(before: Tensor, now: Tensor | None) -> bool:
    """Returns whether a module replaced a tensor by its next value; one of another shape is a cache that grew."""
    # Other attributes of the module tell the size of such a cache, and would no longer fit the former one.
    return now is not None and now is not before and now.shape == before.shape and now.dtype == before.dtype
