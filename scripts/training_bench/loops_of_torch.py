"""Loops in PyTorch, of a model of the same size: plain, and with hooks on each module, which read statistics."""

from __future__ import annotations

from typing import Any

import jax

from training_bench.contender import INTERVAL, Contender, Contest, Take
from training_bench.subjects import Subject


def contest(subject: Subject) -> Contest:
    """Returns the loops of a model."""
    what = "outputs of modules, their gradients and those of parameters"
    return Contest(
        plain=lambda: _loop(subject, None),
        contenders=(
            Contender(name="PyTorch with hooks", what=f"{what} every {INTERVAL} steps", turn=INTERVAL,
                      build=lambda _: _loop(subject, INTERVAL)),
            Contender(name="PyTorch with hooks", what=f"{what} every step", build=lambda _: _loop(subject, 1)),
        ),
    )  # fmt: skip


def _loop(subject: Subject, every: int | None) -> Take:
    import numpy as np
    import torch

    network, loss = subject.torch()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    made = subject.model.batch(jax.random.key(1), subject.batch_size)
    batch = {name: torch.from_numpy(np.array(each)) for name, each in made.items()}
    rows: list[list[float]] = []
    due, number = False, 0

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
        if due and isinstance(output, torch.Tensor):
            statistics_of(output)
            output.register_hook(statistics_of)

    for module in network.modules() if every is not None else ():
        if not list(module.children()):
            module.register_forward_hook(forward)

    def take(steps: int) -> None:
        nonlocal due, number
        for _ in range(steps):
            due = every is not None and number % every == 0
            optimizer.zero_grad()
            loss(network, batch).backward()
            if due:
                for parameter in network.parameters():
                    statistics_of(parameter)
                    statistics_of(parameter.grad)
            optimizer.step()
            number += 1
            rows.clear()

    return take
