"""A transformer that predicts the next token: a decoder, its layers run by `lax.scan`.

    tokens   [N, T]           T integers below the vocabulary's size
    embed    [N, T, D]        a vector for each token, plus one for its position
    block    [N, T, D]        layers times: attention across the positions, then an MLP at each
    norm     [N, T, D]
    head     [N, T, V]        logits of the token that comes next

Each *block* adds to its input twice: x + attention(norm1(x)), then x + mlp(norm2(x)). Norms stand before what they
feed ("pre-norm"), so that the sum runs from the embedding to the last norm undisturbed, and its gradient back.

*Attention* lets a position gather from others: it holds its query against their keys, and takes their values by how
well those match. Being *causal*, it looks at itself and what came before, never ahead: else the next token could be
copied instead of predicted.

All blocks have the same shape, so their parameters are stacked along a leading axis and `lax.scan` runs one block over
them: traced and compiled once, however deep the network. `jax.checkpoint` keeps only each block's input for the
backward pass and computes the rest again there: memory for time. Neither changes a result, and `unroll` and
`checkpoint` switch them off on the same variables. Unrolled, block 2 runs under the scope `block[2]`, which is
gradscope's name for the scan's third turn under the scope `block`.

The head has a kernel of its own. Sharing the embedding's would save parameters, but a shared parameter's gradient is
a sum of two, and cannot be told apart.

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
        length: Most positions that can be embedded, and what `batch` gives.
        unroll: Run the blocks one after another in the trace instead of under `lax.scan`.
        checkpoint: Compute a block again in the backward pass instead of keeping what it made.
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
        """Fresh variables: `{"params": ...}`; those of the blocks have a leading axis of `layers`.

        A sum of n products starts with weights of deviation 1/sqrt(n), which keeps the size of what comes in. What
        leaves a branch starts smaller by sqrt(2 layers) again, so that all branches together have the size of one.
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
        """The shapes of all parameters but the norms'."""
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
        """`size` texts that count up in steps, modulo the vocabulary: 7 9 11 13 ..., and the same one step on."""
        start_key, step_key = jax.random.split(key)
        start = jax.random.randint(start_key, (size, 1), 0, self.vocabulary, jnp.int32)
        step = jax.random.randint(step_key, (size, 1), 1, LARGEST_STEP + 1, jnp.int32)
        text = (start + step * jnp.arange(self.length + 1, dtype=jnp.int32)[None, :]) % self.vocabulary
        return {"tokens": text[:, :-1], "targets": text[:, 1:]}

    def loss(self, variables: Tree, batch: Tree) -> Array:
        """Mean cross-entropy of the tokens that come next."""
        logits = self.forward(variables, batch)
        with jax.named_scope("loss"):
            log_likelihoods = jax.nn.log_softmax(logits)  # [N, T, V]
            return -jnp.take_along_axis(log_likelihoods, batch["targets"][:, :, None], axis=2).mean()

    def forward(self, variables: Tree, batch: Tree) -> Array:
        """Logits [N, T, V]."""
        params = variables["params"]
        with jax.named_scope("embed"):
            x = embed(params["embed"], batch["tokens"])
        x = self.run_blocks(params["block"], x)
        with jax.named_scope("norm"):
            x = layer_norm(params["norm"], x)
        with jax.named_scope("head"):
            return jnp.einsum("ntd,dv->ntv", x, params["head"]["kernel"])

    def run_blocks(self, stacked: Tree, x: Array) -> Array:
        """[N, T, D] to [N, T, D], through all blocks."""
        # Unrolled, the compiler would merge a block with its recomputation, unless kept from it; in a loop it cannot.
        run = jax.checkpoint(block, prevent_cse=self.unroll) if self.checkpoint else block
        if not self.unroll:
            with jax.named_scope("block"):
                return lax.scan(lambda x, params: (run(params, x), None), x, stacked)[0]
        for number in range(self.layers):
            with jax.named_scope(f"block[{number}]"):
                x = run(unstack(stacked, number), x)
        return x


def embed(params: Tree, tokens: Array) -> Array:
    """[N, T] to [N, T, D]: what the token is, plus where it stands."""
    with jax.named_scope("token"):
        token = params["token"]["embedding"][tokens]  # [N, T, D]
    with jax.named_scope("position"):
        position = params["position"]["embedding"][None, : tokens.shape[1], :]  # [1, T, D]
    with jax.named_scope("add"):
        return token + position


def block(params: Tree, x: Array) -> Array:
    """[N, T, D] to [N, T, D]: attention, then the MLP, both added to what comes in."""
    with jax.named_scope("norm1"):
        normal = layer_norm(params["norm1"], x)
    with jax.named_scope("attn"):
        gathered = attention(params["attn"], normal)
    with jax.named_scope("add1"):
        x = x + gathered
    with jax.named_scope("norm2"):
        normal = layer_norm(params["norm2"], x)
    with jax.named_scope("mlp"):
        thought = mlp(params["mlp"], normal)
    with jax.named_scope("add2"):
        return x + thought


def attention(params: Tree, x: Array) -> Array:
    """[N, T, D] to [N, T, D]; here t is the position that asks and s the one that answers."""
    with jax.named_scope("query"):
        query = jnp.einsum("ntd,dhk->nthk", x, params["query"]["kernel"])
    with jax.named_scope("key"):
        key = jnp.einsum("nsd,dhk->nshk", x, params["key"]["kernel"])
    with jax.named_scope("value"):
        value = jnp.einsum("nsd,dhk->nshk", x, params["value"]["kernel"])
    with jax.named_scope("scores"):
        # A sum of K products has the deviation sqrt(K); divided by it, the softmax starts far from saturation.
        scores = jnp.einsum("nthk,nshk->nhts", query, key) / math.sqrt(query.shape[-1])
    with jax.named_scope("softmax"):
        weights = causal_softmax(scores)  # [N, H, T, T]; each row sums to 1
    with jax.named_scope("mix"):
        mixed = jnp.einsum("nhts,nshk->nthk", weights, value)
    with jax.named_scope("out"):
        return jnp.einsum("nthk,hkd->ntd", mixed, params["out"]["kernel"])


def causal_softmax(scores: Array) -> Array:
    """Softmax over the last of [N, H, T, T], with nothing for positions ahead."""
    length = scores.shape[-1]
    visible = jnp.tri(length, dtype=bool)[None, None, :, :]
    # The lowest finite number, not -inf: its exponential is as exactly 0, and no infinity appears for somebody to find.
    return jax.nn.softmax(jnp.where(visible, scores, jnp.finfo(scores.dtype).min), axis=-1)


def mlp(params: Tree, x: Array) -> Array:
    """[N, T, D] to [N, T, D], each position by itself."""
    with jax.named_scope("up"):
        x = jnp.einsum("ntd,df->ntf", x, params["up"]["kernel"])
    with jax.named_scope("gelu"):
        x = jax.nn.gelu(x)
    with jax.named_scope("down"):
        return jnp.einsum("ntf,fd->ntd", x, params["down"]["kernel"])


def layer_norm(params: Tree, x: Array) -> Array:
    """Each vector of [N, T, D] shifted and scaled to mean 0 and deviation 1, then by the learned bias and scale."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(variance + NORM_EPSILON)
    return normal * params["scale"][None, None, :] + params["bias"][None, None, :]


def unstack(stacked: Tree, number: int) -> Tree:
    """The parameters of one block."""
    return jax.tree.map(lambda parameter: parameter[number], stacked)


def init_norm(shape: tuple[int, ...]) -> Tree:
    """A norm that changes nothing yet."""
    return {"scale": jnp.ones(shape), "bias": jnp.zeros(shape)}


def normals(key: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Independent standard normal arrays of these shapes, under the same names.

    One long draw, cut up: every draw of its own would be another copy of the random generator to compile.
    """
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
    pieces = jnp.split(jax.random.normal(key, (ends[-1],)), ends[:-1])
    return {name: piece.reshape(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}


transformer = Transformer()
init, batch, loss, forward = transformer.init, transformer.batch, transformer.loss, transformer.forward
