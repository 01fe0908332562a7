"""Loops in PyTorch, of a model of the same size: plain, and with hooks on each module, which read statistics."""

from __future__ import annotations

from typing import Any

import jax

from training_bench.contender import Contender, Contest, Take
from training_bench.subjects import Subject

#: The loop whose figure another is computed from.
HOOKS = ("PyTorch with hooks", "outputs of modules, their gradients and those of parameters every step")


def contest(subject: Subject) -> Contest:
    """Returns the loops of a model."""
    hooked = Contender(name=HOOKS[0], what=HOOKS[1], build=lambda _: _loop(subject, watched=True))
    return Contest(plain=lambda: _loop(subject, watched=False), contenders=(hooked,))


def _loop(subject: Subject, *, watched: bool) -> Take:
    import numpy as np
    import torch

    network, loss = subject.torch()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    made = subject.model.batch(jax.random.key(1), subject.batch_size)
    batch = {name: torch.from_numpy(np.array(each)) for name, each in made.items()}
    rows: list[list[float]] = []

    def statistics_of(tensor: Any) -> None:
        values = tensor.detach().float()
        row = (
            values.norm(),
            values.mean(),
            values.std(),
            values.abs().max(),
            (values == 0).sum(),
            values.isnan().sum(),
        )
        rows.append([each.item() for each in row])

    def forward(_module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            statistics_of(output)
            output.register_hook(statistics_of)

    for module in network.modules() if watched else ():
        if not list(module.children()):
            module.register_forward_hook(forward)

    def take(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(network, batch).backward()
            if watched:
                for parameter in network.parameters():
                    statistics_of(parameter)
                    statistics_of(parameter.grad)
            optimizer.step()
            rows.clear()

    return take
