"""Five small models that learn from data without end, each with two optimizers; a file that `gradscope train` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = dict[str, Any]

#: The length of what the wrong step adds to a gradient; those of the models are about one, and shrink.
JUMP = 30.0
WORDS, TEXT, WIDTH = 16, 8, 16

CASES = (
    ("regression", "sgd(0.05)"),
    ("regression", "adam(0.01)"),
    ("perceptron", "momentum(0.05, 0.9)"),
    ("perceptron", "lion(1e-3)"),
    ("convolution", "adamw(warmup_cosine_decay_schedule(0.0, 3e-3, 200, 2000))"),
    ("convolution", "sgd(exponential_decay(0.1, 500, 0.5, staircase=True), momentum=0.9)"),
    ("recurrence", "adam(3e-3)"),
    ("recurrence", "rmsprop(1e-3)"),
    ("attention", "adamw(warmup_cosine_decay_schedule(0.0, 1e-2, 100, 2000))"),
    ("attention", "tf1_rmsprop(1e-3, momentum=0.5)"),
)


@dataclass(frozen=True)
class Case:
    """One of `CASES`, where a batch says whether the gradient of one parameter is to jump.

    Attributes:
        number: Its place there.
        target: The name of that parameter.
    """

    number: int
    target: str

    @property
    def name(self) -> str:
        """The model's name."""
        return CASES[self.number][0]

    def init(self, key: Any) -> Tree:
        """Returns initial parameters by name."""
        shapes = SHAPES[self.name]
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.normal(each, shape) / np.sqrt(max(int(np.prod(shape[:-1])), 1))
            for each, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def batch(self, _key: Any, size: int = 32) -> Tree:
        """Returns the first batch, whose shapes those of `Batches` have."""
        return Batches(self.number, -1)(0, size)

    def loss(self, params: Tree, batch: Tree) -> Any:
        """Returns the loss of a batch."""
        chosen = params[self.target]
        # Zero, with a gradient of the length JUMP in the batch that says so.
        jump = batch["jump"][0] * JUMP / np.sqrt(chosen.size) * (chosen - jax.lax.stop_gradient(chosen)).sum()
        return FORWARD[self.name](params, batch["x"], batch["y"]) + jump


@dataclass(frozen=True)
class Batches:
    """The batches of a case by their number.

    Attributes:
        number: The case.
        jump: The number of the batch at which the gradient jumps; -1 for none.
    """

    number: int
    jump: int

    def __call__(self, number: int, size: int = 32) -> Tree:
        """Returns a batch."""
        random = np.random.default_rng([self.number, number])
        x, y = DATA[CASES[self.number][0]](random, size)
        return {"x": x, "y": y, "jump": np.full(size, number == self.jump, np.float32)}


def _vectors(random: np.random.Generator, size: int) -> tuple[Any, Any]:
    x = random.normal(size=(size, 8)).astype(np.float32)
    return x, (np.sin(x).sum(axis=1) + 0.1 * random.normal(size=size)).astype(np.float32)


def _images(random: np.random.Generator, size: int) -> tuple[Any, Any]:
    label = random.integers(0, 4, size)
    return (label[:, None, None, None] / 2 + random.normal(size=(size, 8, 8, 1))).astype(np.float32), label.astype("i4")


def _texts(random: np.random.Generator, size: int) -> tuple[Any, Any]:
    text = (random.integers(0, WORDS, (size, 1)) + random.integers(1, 4, (size, 1)) * np.arange(TEXT + 1)) % WORDS
    return text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)


def _regression(params: Tree, x: Any, y: Any) -> Any:
    with jax.named_scope("line"):
        return jnp.mean((x @ params["weight"] + params["bias"] - y) ** 2)


def _perceptron(params: Tree, x: Any, y: Any) -> Any:
    with jax.named_scope("hidden"):
        x = jnp.tanh(x @ params["hidden"] + params["bias"])
    with jax.named_scope("head"):
        return jnp.mean((x @ params["head"] - y) ** 2)


def _convolution(params: Tree, x: Any, y: Any) -> Any:
    for name in ("conv1", "conv2"):
        with jax.named_scope(name):
            x = jax.lax.conv_general_dilated(
                x, params[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu((x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5))
    with jax.named_scope("head"):
        return _cross_entropy(x.mean((1, 2)) @ params["head"], y)


def _recurrence(params: Tree, x: Any, y: Any) -> Any:
    def cell(state: Any, inputs: Any) -> tuple[Any, Any]:
        state = jnp.tanh(inputs + state @ params["recurrent"])
        return state, state

    with jax.named_scope("cell"):
        embedded = params["embed"][x].swapaxes(0, 1)
        _, states = jax.lax.scan(cell, jnp.zeros(embedded.shape[1:]), embedded)
    with jax.named_scope("head"):
        return _cross_entropy(states.swapaxes(0, 1) @ params["head"], y)


def _attention(params: Tree, x: Any, y: Any) -> Any:
    with jax.named_scope("embed"):
        x = params["embed"][x] + params["position"]
    with jax.named_scope("mix"):
        query, key, value = jnp.split(_normal(x) @ params["qkv"], 3, axis=-1)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(WIDTH)
        x = x + jax.nn.softmax(jnp.where(np.tri(TEXT, dtype=bool), scores, -1e9)) @ value
    with jax.named_scope("mlp"):
        x = x + jax.nn.gelu(_normal(x) @ params["up"]) @ params["down"]
    with jax.named_scope("head"):
        return _cross_entropy(_normal(x) @ params["head"], y)


def _normal(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "regression": {"weight": (8,), "bias": ()},
    "perceptron": {"hidden": (8, 32), "bias": (32,), "head": (32,)},
    "convolution": {"conv1": (3, 3, 1, 8), "conv2": (3, 3, 8, 8), "head": (8, 4)},
    "recurrence": {"embed": (WORDS, WIDTH), "recurrent": (WIDTH, WIDTH), "head": (WIDTH, WORDS)},
    "attention": {
        "embed": (WORDS, WIDTH), "position": (TEXT, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH), "head": (WIDTH, WORDS),
    },
}  # fmt: skip
FORWARD: dict[str, Callable[..., Any]] = {
    "regression": _regression, "perceptron": _perceptron, "convolution": _convolution, "recurrence": _recurrence,
    "attention": _attention,
}  # fmt: skip
DATA: dict[str, Callable[..., tuple[Any, Any]]] = {
    "regression": _vectors, "perceptron": _vectors, "convolution": _images, "recurrence": _texts, "attention": _texts,
}  # fmt: skip
