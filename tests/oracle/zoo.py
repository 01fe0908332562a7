"""The models of the zoo at sizes that have everything the large ones have: a table that the proofs go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import models
from models import linear_regression, mlp, resnet50, transformer
from tests.support import explicit
from tests.support.explicit import Explicit

FOLDER = Path(models.__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model.

    Attributes:
        name: What tests call it.
        model: Has `init`, `batch` and `loss`.
        target: How the command line finds the same model.
        explicit: The same model in plain arithmetic.
        has_aux: Whether its loss returns a pair.
        examples: Number of examples in a batch.
    """

    name: str
    model: Any
    target: str
    explicit: Explicit
    has_aux: bool = False
    examples: int = 2

    @property
    def loss(self) -> Callable[[Any, Any], Any]:
        return self.model.loss

    def arguments(self) -> tuple[Any, Any]:
        """Variables and batch in the widest dtype that JAX is set to.

        The variables are noise: those of `init` have norms that scale by 1 and biases of 0, which would hide mistakes.
        """
        random = np.random.default_rng(0)
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        variables = jax.tree.map(lambda leaf: (0.1 * random.standard_normal(leaf.shape)).astype(leaf.dtype), shapes)
        batch = jax.jit(self.model.batch, static_argnums=1)(jax.random.key(1), self.examples)
        return variables, jax.tree.map(np.asarray, batch)


def in_float64() -> Any:
    """JAX with 64-bit types inside a `with` statement."""
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


class ShortResNet(resnet50.ResNet):
    """A ResNet of a block of each kind: with a projected shortcut, without, and with one that halves the image."""

    def blocks(self) -> list[resnet50.Block]:
        # Where blocks are basic, the first needs no projection already.
        kept = {"stage1_block1", "stage2_block1"} | ({"stage1_block2"} if self.depth >= 50 else set())
        return [each for each in super().blocks() if each.name in kept]


def _transformer(layers: int = 2, **options: bool) -> tuple[Any, str]:
    sizes = {"layers": layers, "width": 8, "heads": 2, "vocabulary": 11, "length": 5}
    arguments = ", ".join(f"{name}={value}" for name, value in {**sizes, **options}.items())
    return transformer.Transformer(**sizes, **options), f"{FOLDER / 'transformer.py'}:Transformer({arguments})"


def _short_resnet(depth: int, image_size: int) -> tuple[Any, str]:
    arguments = f"depth={depth}, classes=10, image_size={image_size}"
    return ShortResNet(depth, 10, image_size), f"{__file__}:ShortResNet({arguments})"


def _cases() -> dict[str, Case]:
    found = {
        "linear_regression": ((linear_regression, "linear_regression"), explicit.linear_regression, False, 32),
        "mlp": ((mlp, "mlp"), explicit.mlp, False, 8),
        "transformer, scanned and checkpointed": (_transformer(), explicit.transformer, False, 2),
        "transformer, unrolled": (_transformer(unroll=True, checkpoint=False), explicit.transformer, False, 2),
        "transformer, one layer": (_transformer(1, unroll=True, checkpoint=False), explicit.transformer, False, 2),
        "resnet18, short": (_short_resnet(18, 32), explicit.resnet, True, 2),
        "resnet50, short": (_short_resnet(50, 64), explicit.resnet, True, 2),
    }
    return {
        name: Case(name=name, model=model, target=target, explicit=written_out, has_aux=has_aux, examples=examples)
        for name, ((model, target), written_out, has_aux, examples) in found.items()
    }


#: By name.
ZOO = _cases()

#: Those whose tensors and steps are proved. The short ResNet-50 takes long to compile, and is run against PyTorch. The
#: transformer of one layer is proved operation by operation, which is more.
QUICK = {name: ZOO[name] for name in ZOO if name not in {"resnet50, short", "transformer, one layer"}}
