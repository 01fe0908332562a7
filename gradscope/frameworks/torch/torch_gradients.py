"""`gradients_of` runs the backward pass of a loss, also where a checkpoint computes a part of the model again in it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.frameworks.torch.module_calls import ModuleCalls
from gradscope.frameworks.torch.torch_values import REENTRANT, Values


def gradients_of(
    loss: Tensor, parameters: Sequence[nn.Parameter], leaves: Sequence[Tensor], calls: ModuleCalls, values: Values
) -> dict[int, Tensor | None]:
    """Runs the backward pass, and returns the gradients of parameters by their identities."""
    nodes = _nodes(loss)
    values.begin_backward(nodes)
    if all(node.name() != REENTRANT for node in nodes):
        found = torch.autograd.grad(loss, [*parameters, *leaves], allow_unused=True)
        return dict(zip(map(id, parameters), found, strict=False))
    # Such a checkpoint runs its modules again in the backward pass, which has to accumulate into `grad`.
    # So does what else the loss depends on, as the parameters of a loss function.
    others = (node.variable for node in nodes if type(node).__name__ == "AccumulateGrad")
    before = [(leaf, leaf.grad) for leaf in dict.fromkeys((*parameters, *others))]
    try:
        for leaf, _ in before:
            leaf.grad = None
        with calls.recomputing(), _without_updates(parameters):
            loss.backward()
        return {id(parameter): parameter.grad for parameter in parameters}
    finally:
        for leaf, gradient in before:
            leaf.grad = gradient


@contextmanager
def _without_updates(parameters: Sequence[nn.Parameter]) -> Generator[None]:
    """Keeps hooks that run once a gradient is accumulated, such as an optimizer's step, from running meanwhile."""
    attributes = [getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters]
    hooks = [(each, dict(each)) for each in attributes if each]
    try:
        for each, _ in hooks:
            each.clear()  # autograd holds the dictionary itself
        yield
    finally:
        for each, registered in hooks:
            each.update(registered)


def _nodes(loss: Tensor) -> list[Any]:
    """Returns the autograd nodes from which a loss is computed."""
    seen: dict[Any, None] = {}
    left: list[Any] = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen[node] = None
            left += [each for each, _ in node.next_functions]
    return list(seen)
