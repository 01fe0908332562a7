"""A transformer that predicts the next token: a decoder whose layers are run by `lax.scan`.

    tokens   [N, T]           T integers below the vocabulary's size
    embed    [N, T, D]        a vector for each token, plus one for its position
    block    [N, T, D]        repeated `layers` times: attention across positions, then an MLP at each position
    norm     [N, T, D]
    head     [N, T, V]        logits of the next token

Each *block* adds to its input twice: x + attention(norm1(x)), then x + mlp(norm2(x)). Norms precede attention and MLP
("pre-norm"), so that the sum passes unchanged from the embedding to the last norm, and its gradient passes back.

*Attention* computes, at each position, a mean of the other positions' values, weighted by the match of its query with
their keys. It is *causal*: a position only attends to itself and earlier ones. Otherwise the model could copy the next
token instead of predicting it.

All blocks have the same shape, so their parameters are stacked along a leading axis and `lax.scan` runs one block over
them, which is traced and compiled once for any depth. `jax.checkpoint` stores only each block's input for the backward
pass and recomputes the rest there, which trades time for memory. Neither changes a result; `unroll` and `checkpoint`
switch between the variants on the same variables. Unrolled, block 2 runs under the scope `block[2]`, which is
gradscope's name for the scan's third iteration under the scope `block`.

The head has a kernel of its own. Sharing the embedding's would save parameters, but a shared parameter's gradient is
a sum of two, which cannot be inspected separately.

Letters for axes: N examples, T positions, D width, H heads, K width of a head, F width inside the MLP, V vocabulary.

References:
    Vaswani et al.: Attention Is All You Need, 2017. https://arxiv.org/abs/1706.03762
    Radford et al.: Language Models are Unsupervised Multitask Learners, 2019 (pre-norm, the initial scales).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Tree = dict[str, Any]

MLP_EXPANSION = 4  # F / D
NORM_EPSILON = 1e-5  # added to the variance, so that a constant vector is not divided by zero
EMBEDDING_DEVIATION = 0.02
LARGEST_STEP = 8


@dataclass(frozen=True)
class Transformer:
    """A decoder.

    Attributes:
        layers: Number of blocks.
        width: Features of each position; a multiple of `heads`.
        heads: Attention heads.
        vocabulary: Number of different tokens.
        length: Number of positions of `batch`, and the largest number that can be embedded.
        unroll: Run the blocks one after another in the trace instead of under `lax.scan`.
        checkpoint: Recompute a block in the backward pass instead of storing its intermediate values.
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    vocabulary: int = 256
    length: int = 64
    unroll: bool = False
    checkpoint: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide among {self.heads} heads")

    def init(self, key: Array) -> Tree:
        """Returns initial variables, `{"params": ...}`; those of the blocks have a leading axis of `layers`.

        The weights of a sum of n products start with deviation 1/sqrt(n), which preserves the scale of the input. The
        last kernel of a branch is divided by sqrt(2 layers), so that all branches together have the scale of one.
        """
        normal = normals(key, self.kernel_shapes())
        per_feature, per_inner = 1 / math.sqrt(self.width), 1 / math.sqrt(MLP_EXPANSION * self.width)
        branch = 1 / math.sqrt(2 * self.layers)
        blocks: Tree = {
            "norm1": init_norm((self.layers, self.width)),
            "attn": {
                "query": {"kernel": per_feature * normal["query"]},
                "key": {"kernel": per_feature * normal["key"]},
                "value": {"kernel": per_feature * normal["value"]},
                "out": {"kernel": branch * per_feature * normal["out"]},
            },
            "norm2": init_norm((self.layers, self.width)),
            "mlp": {
                "up": {"kernel": per_feature * normal["up"]},
                "down": {"kernel": branch * per_inner * normal["down"]},
            },
        }
        embeddings: Tree = {
            "token": {"embedding": EMBEDDING_DEVIATION * normal["token"]},
            "position": {"embedding": EMBEDDING_DEVIATION * normal["position"]},
        }
        norm, head = init_norm((self.width,)), {"kernel": per_feature * normal["head"]}
        return {"params": {"embed": embeddings, "block": blocks, "norm": norm, "head": head}}

    def kernel_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all parameters but the norms'."""
        to_heads = (self.layers, self.width, self.heads, self.width // self.heads)
        return {
            "token": (self.vocabulary, self.width),
            "position": (self.length, self.width),
            "query": to_heads,
            "key": to_heads,
            "value": to_heads,
            "out": (self.layers, self.heads, self.width // self.heads, self.width),
            "up": (self.layers, self.width, MLP_EXPANSION * self.width),
            "down": (self.layers, MLP_EXPANSION * self.width, self.width),
            "head": (self.width, self.vocabulary),
        }

    def batch(self, key: Array, size: int = 8) -> Tree:
        """Returns `size` texts that count up in steps, modulo the vocabulary (7 9 11 ...), and their next tokens."""
        start_key, step_key = jax.random.split(key)
        start = jax.random.randint(start_key, (size, 1), 0, self.vocabulary, jnp.int32)
        step = jax.random.randint(step_key, (size, 1), 1, LARGEST_STEP + 1, jnp.int32)
        text = (start + step * jnp.arange(self.length + 1, dtype=jnp.int32)[None, :]) % self.vocabulary
        return {"tokens": text[:, :-1], "targets": text[:, 1:]}

    def loss(self, variables: Tree, batch: Tree) -> Array:
        """Returns the mean cross-entropy of the next tokens."""
        logits = self.forward(variables, batch)
        with jax.named_scope("loss"):
            log_likelihoods = jax.nn.log_softmax(logits)  # [N, T, V]
            return -jnp.take_along_axis(log_likelihoods, batch["targets"][:, :, None], axis=2).mean()

    def forward(self, variables: Tree, batch: Tree) -> Array:
        """Returns logits [N, T, V]."""
        params = variables["params"]
        with jax.named_scope("embed"):
            x = embed(params["embed"], batch["tokens"])
        x = self.run_blocks(params["block"], x)
        with jax.named_scope("norm"):
            x = layer_norm(params["norm"], x)
        with jax.named_scope("head"):
            return jnp.einsum("ntd,dv->ntv", x, params["head"]["kernel"])

    def run_blocks(self, stacked: Tree, x: Array) -> Array:
        """Maps [N, T, D] to [N, T, D], through all blocks."""
        # Unrolled, the compiler would merge a block with its recomputation unless `prevent_cse` forbids it. In a loop
        # it cannot.
        run = jax.checkpoint(block, prevent_cse=self.unroll) if self.checkpoint else block
        if not self.unroll:
            with jax.named_scope("block"):
                return lax.scan(lambda x, params: (run(params, x), None), x, stacked)[0]
        for number in range(self.layers):
            with jax.named_scope(f"block[{number}]"):
                x = run(unstack(stacked, number), x)
        return x


def embed(params: Tree, tokens: Array) -> Array:
    """Maps [N, T] to [N, T, D]: the embedding of the token plus that of its position."""
    with jax.named_scope("token"):
        token = params["token"]["embedding"][tokens]  # [N, T, D]
    with jax.named_scope("position"):
        position = params["position"]["embedding"][None, : tokens.shape[1], :]  # [1, T, D]
    with jax.named_scope("add"):
        return token + position


def block(params: Tree, x: Array) -> Array:
    """Maps [N, T, D] to [N, T, D]: adds attention to the input, then the MLP to that sum."""
    with jax.named_scope("norm1"):
        normal = layer_norm(params["norm1"], x)
    with jax.named_scope("attn"):
        attended = attention(params["attn"], normal)
    with jax.named_scope("add1"):
        x = x + attended
    with jax.named_scope("norm2"):
        normal = layer_norm(params["norm2"], x)
    with jax.named_scope("mlp"):
        transformed = mlp(params["mlp"], normal)
    with jax.named_scope("add2"):
        return x + transformed


def attention(params: Tree, x: Array) -> Array:
    """Maps [N, T, D] to [N, T, D]; in the einsums, t indexes the positions of queries, s those of keys and values."""
    with jax.named_scope("query"):
        query = jnp.einsum("ntd,dhk->nthk", x, params["query"]["kernel"])
    with jax.named_scope("key"):
        key = jnp.einsum("nsd,dhk->nshk", x, params["key"]["kernel"])
    with jax.named_scope("value"):
        value = jnp.einsum("nsd,dhk->nshk", x, params["value"]["kernel"])
    with jax.named_scope("scores"):
        # A sum of K products has deviation sqrt(K). Dividing by it keeps the softmax far from saturation at the start.
        scores = jnp.einsum("nthk,nshk->nhts", query, key) / math.sqrt(query.shape[-1])
    with jax.named_scope("softmax"):
        weights = causal_softmax(scores)  # [N, H, T, T]; each row sums to 1
    with jax.named_scope("mix"):
        mixed = jnp.einsum("nhts,nshk->nthk", weights, value)
    with jax.named_scope("out"):
        return jnp.einsum("nthk,hkd->ntd", mixed, params["out"]["kernel"])


def causal_softmax(scores: Array) -> Array:
    """Returns the softmax over the last axis of [N, H, T, T], with zero weight for later positions."""
    length = scores.shape[-1]
    visible = jnp.tri(length, dtype=bool)[None, None, :, :]
    # The lowest finite number, not -inf: its exponential is exactly 0, too, and a search for infinities finds none.
    return jax.nn.softmax(jnp.where(visible, scores, jnp.finfo(scores.dtype).min), axis=-1)


def mlp(params: Tree, x: Array) -> Array:
    """Maps [N, T, D] to [N, T, D], separately at each position."""
    with jax.named_scope("up"):
        x = jnp.einsum("ntd,df->ntf", x, params["up"]["kernel"])
    with jax.named_scope("gelu"):
        x = jax.nn.gelu(x)
    with jax.named_scope("down"):
        return jnp.einsum("ntf,fd->ntd", x, params["down"]["kernel"])


def layer_norm(params: Tree, x: Array) -> Array:
    """Normalises each vector of [N, T, D] to mean 0 and deviation 1, then applies the learned scale and bias."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(variance + NORM_EPSILON)
    return normal * params["scale"][None, None, :] + params["bias"][None, None, :]


def unstack(stacked: Tree, number: int) -> Tree:
    """Returns the parameters of one block."""
    return jax.tree.map(lambda parameter: parameter[number], stacked)


def init_norm(shape: tuple[int, ...]) -> Tree:
    """Returns the parameters of a norm with scale 1 and bias 0."""
    return {"scale": jnp.ones(shape), "bias": jnp.zeros(shape)}


def normals(key: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Returns independent standard normal arrays of these shapes, under the same names.

    All arrays are slices of one long draw, because each draw would be another copy of the random generator to compile.
    """
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
    slices = jnp.split(jax.random.normal(key, (ends[-1],)), ends[:-1])
    return {name: array.reshape(shapes[name]) for name, array in zip(shapes, slices, strict=True)}


transformer = Transformer()
init, batch, loss, forward = transformer.init, transformer.batch, transformer.loss, transformer.forward
