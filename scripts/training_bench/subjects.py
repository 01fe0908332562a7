"""The models whose training is watched: ResNet-50, a transformer of 100 million parameters, and small ones of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "models"))
import resnet50
import transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model that is trained.

    Attributes:
        title: What it is called on the page.
        model: Its functions `init`, `batch` and `loss`.
        batch_size: Number of examples.
        torch: Makes the like of it in PyTorch: a module, and its loss as a function of the module and a batch.
    """

    title: str
    model: Any
    batch_size: int
    torch: Callable[[], tuple[Any, Callable[[Any, Any], Any]]]


def subjects(*, quick: bool) -> tuple[Subject, ...]:
    """Returns the models to measure; `quick`: small ones, whose figures say little."""
    if quick:
        return (_resnet(resnet50.ResNet(18, 10, 32), 4), _transformer(transformer.Transformer(), 8))
    # 2,048 tokens, of which a training run has more: the fewer a step has, the more of it watching parameters takes.
    large = transformer.Transformer(layers=12, width=768, heads=12, vocabulary=10_000, length=128)
    return (_resnet(resnet50.ResNet(), 8), _transformer(large, 16))


def _resnet(model: Any, batch_size: int) -> Subject:
    def in_torch() -> tuple[Any, Callable[[Any, Any], Any]]:
        import torch
        import transformers

        shallow = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
        sizes = {} if model.depth == 50 else shallow
        network = transformers.ResNetForImageClassification(
            transformers.ResNetConfig(num_labels=model.classes, **sizes)
        )
        return network, lambda net, batch: torch.nn.functional.cross_entropy(
            net(batch["image"].permute(0, 3, 1, 2)).logits, batch["label"].long()
        )

    title = f"ResNet-{model.depth}, images of {model.image_size} pixels, batch {batch_size}"
    return Subject(title=title, model=model, batch_size=batch_size, torch=in_torch)


def _transformer(model: Any, batch_size: int) -> Subject:
    def in_torch() -> tuple[Any, Callable[[Any, Any], Any]]:
        import torch
        import transformers

        config = transformers.GPT2Config(
            vocab_size=model.vocabulary, n_positions=model.length, n_embd=model.width, n_layer=model.layers,
            n_head=model.heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False, tie_word_embeddings=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config), lambda net, batch: torch.nn.functional.cross_entropy(
            net(batch["tokens"]).logits.flatten(0, 1), batch["targets"].flatten().long()
        )

    title = (
        f"A transformer of {model.layers} blocks of width {model.width}, {batch_size} texts of {model.length} tokens"
    )
    return Subject(title=title, model=model, batch_size=batch_size, torch=in_torch)
