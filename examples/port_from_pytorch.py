"""A PyTorch network and its port to JAX, compared layer by layer, forward and backward.

    python examples/port_from_pytorch.py

The port has two versions. The first uses JAX's GELU with its default, the tanh approximation, where PyTorch's is exact:
a mistake that training hides. The comparison names the layer. The second version is right, and the comparison finds
that both are the same within tolerance.

Without PyTorch the example reports that it was skipped: `pip install 'gradscope-jax[torch]'`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs

WIDTH = 16
CLASSES = 4


def original() -> tuple[gs.Dump, dict[str, Any], dict[str, Any]]:
    """What PyTorch computes: its dump, its parameters, and the batch."""
    import torch
    from torch import nn

    from gradscope.frameworks.torch import capture

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, WIDTH)
            self.gelu = nn.GELU()
            self.norm = nn.LayerNorm(WIDTH)
            self.last = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(self.gelu(self.first(x))))

    torch.manual_seed(0)
    network, x, labels = Network(), torch.randn(32, 8), torch.randint(CLASSES, (32,))
    dump = capture(network, lambda logits: nn.functional.cross_entropy(logits, labels), x)
    parameters: dict[str, Any] = {}
    for name, value in network.state_dict().items():
        layer, _, kind = name.partition(".")
        parameters.setdefault(layer, {})[kind] = jnp.asarray(value.numpy())
    return dump, parameters, {"x": jnp.asarray(x.numpy()), "labels": jnp.asarray(labels.numpy().astype(np.int32))}


def loss(variables: dict[str, Any], batch: dict[str, Any], *, approximate: bool) -> jax.Array:
    """The port: the same layers under the same names."""
    x = linear("first", variables, batch["x"])
    with jax.named_scope("gelu"):
        x = jax.nn.gelu(x, approximate=approximate)
    with jax.named_scope("norm"):
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        x = (x - mean) / jnp.sqrt(variance + 1e-5) * variables["norm"]["weight"] + variables["norm"]["bias"]
    logits = linear("last", variables, x)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][:, None], axis=1)
    return -chosen.mean()


def linear(name: str, variables: dict[str, Any], x: jax.Array) -> jax.Array:
    with jax.named_scope(name):
        return x @ variables[name]["weight"].T + variables[name]["bias"]


def main() -> int:
    try:
        reference, variables, batch = original()
    except ModuleNotFoundError as error:
        print(f"SKIPPED, nothing was compared: {error}; pip install 'gradscope-jax[torch]'")
        return 0
    verdicts = []
    for approximate in (True, False):
        port = gs.capture(partial(loss, approximate=approximate), variables, batch)
        # The two programs name their batch and their loss differently; the layers have the same names.
        found = gs.compare(reference, port, select=["first*", "gelu", "norm*", "last*"])
        print(f"gelu(approximate={approximate}): {found.sentence}")
        verdicts.append(found.verdict)
    return int(verdicts != ["different", "same"])


if __name__ == "__main__":
    sys.exit(main())
