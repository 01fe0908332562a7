"""ResNet-50 v1.5, an image classifier, and its variants with 18, 34, 101 and 152 layers.

The network consists of a *stem* (one large convolution and a max pool), four *stages* of residual *blocks*, a global
average *pool* and a linear *head*:

    image   [N, 224, 224,    3]
    stem    [N,  56,  56,   64]    7x7 convolution, stride 2, then max pool, stride 2
    stage1  [N,  56,  56,  256]    3 blocks of width  64
    stage2  [N,  28,  28,  512]    4 blocks of width 128
    stage3  [N,  14,  14, 1024]    6 blocks of width 256
    stage4  [N,   7,   7, 2048]    3 blocks of width 512
    pool    [N,            2048]
    head    [N,            1000]   one logit per class

A block adds the output of its *branch* of convolutions to its input. So the branch only has to learn the difference
("residual"), and the gradient can bypass it. In the deeper networks the branch is a *bottleneck*: 1x1 down to the
block's width, 3x3 at that width, 1x1 up to four times the width. In the two shallow ones it is two 3x3 convolutions.
Where the shape changes, a 1x1 convolution *projects* the shortcut.

Version 1.5 is the one usually called ResNet-50: a stage's first block halves the image in its 3x3 convolution, and not
in the 1x1 before it, which would ignore three of four pixels.

Variables have two collections, as in Flax: `params`, learned by gradient, and `batch_stats`, each batch norm's running
mean and variance, which `loss` returns updated. Both are nested by the names of the `jax.named_scope`s in which they
are used: `params["stage1_block1"]["conv1"]["kernel"]` is used by the layer `stage1_block1/conv1`.

Sharp edges: arrays are NHWC and kernels HWIO. In training, the logits of an image depend on all images of the batch,
through batch norm. In a batch of one image, the variance is zero where the image has shrunk to one pixel.

References:
    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015. https://arxiv.org/abs/1512.03385
    Ioffe, Szegedy: Batch Normalization, 2015. https://arxiv.org/abs/1502.03167
    Goyal et al.: Accurate, Large Minibatch SGD, 2017 (v1.5, the head's scale). https://arxiv.org/abs/1706.02677
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

BLOCKS_PER_STAGE = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
STAGE_WIDTHS = (64, 128, 256, 512)
SHALLOWEST_BOTTLENECK, BOTTLENECK_EXPANSION = 50, 4

NORM_EPSILON = 1e-5  # added to the variance, so that a constant channel is not divided by zero
NORM_MOMENTUM = 0.9  # weight of the old running statistics in one step's update
HEAD_DEVIATION = 0.01  # small, so that an untrained network predicts about equal probabilities for all classes


@dataclass(frozen=True)
class Convolution:
    """A square convolution without a bias, and the batch norm behind it, which has one."""

    name: str
    window: int
    channels_in: int
    channels_out: int
    stride: int = 1

    @property
    def norm(self) -> str:
        """Name of the batch norm: `bn2` for `conv2`, `proj_bn` for `proj_conv`."""
        return self.name.replace("conv", "bn")

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """Shape of the kernel: height, width, channels in, channels out."""
        return (self.window, self.window, self.channels_in, self.channels_out)


@dataclass(frozen=True)
class Block:
    """A residual block: a branch of convolutions, and a projection of the shortcut where the shape changes."""

    name: str
    branch: tuple[Convolution, ...]
    projection: Convolution | None

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """All convolutions in execution order."""
        return self.branch if self.projection is None else (*self.branch, self.projection)


STEM = Convolution("conv", window=7, channels_in=3, channels_out=64, stride=2)


@dataclass(frozen=True)
class ResNet:
    """A residual network for square images.

    Attributes:
        depth: Number of layers with kernels along the branches: 18, 34, 50, 101 or 152.
        classes: Number of labels.
        image_size: Height and width of the images of `batch`; the network accepts other sizes, too.
    """

    depth: int = 50
    classes: int = 1000
    image_size: int = 224

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS_PER_STAGE:
            raise ValueError(f"no ResNet has {self.depth} layers: expected one of {sorted(BLOCKS_PER_STAGE)}")

    def init(self, key: Array) -> Tree:
        """Returns initial variables: `{"params": ..., "batch_stats": ...}`.

        Every batch norm starts with scale 1. Setting the last one of a block to 0, as is often done for training,
        would start each block as the identity, but its branch would have no gradient to inspect in the first step.
        """
        scopes = {"stem": (STEM,)} | {block.name: block.convolutions for block in self.blocks()}
        shapes = {(scope, layer.name): layer.kernel_shape for scope in scopes for layer in scopes[scope]}
        features = self.blocks()[-1].branch[-1].channels_out
        normal = normals(key, shapes | {("head", "kernel"): (features, self.classes)})
        params: Tree = {scope: {} for scope in scopes}
        batch_stats: Tree = {scope: {} for scope in scopes}
        for scope, convolutions in scopes.items():
            for layer in convolutions:
                params[scope][layer.name] = {"kernel": he_scaled(normal[scope, layer.name])}
                channels = layer.channels_out
                params[scope][layer.norm] = {"scale": jnp.ones(channels), "bias": jnp.zeros(channels)}
                batch_stats[scope][layer.norm] = {"mean": jnp.zeros(channels), "var": jnp.ones(channels)}
        params["head"] = {"kernel": HEAD_DEVIATION * normal["head", "kernel"], "bias": jnp.zeros(self.classes)}
        return {"params": params, "batch_stats": batch_stats}

    def batch(self, key: Array, size: int = 2) -> Tree:
        """Returns `size` images of white noise, with the scale of normalised photographs, and random labels."""
        image_key, label_key = jax.random.split(key)
        shape = (size, self.image_size, self.image_size, 3)
        return {
            "image": jax.random.normal(image_key, (math.prod(shape),)).reshape(shape),  # a flat draw compiles faster
            "label": jax.random.randint(label_key, (size,), 0, self.classes, jnp.int32),
        }

    def loss(self, variables: Tree, batch: Tree, *, train: bool = True) -> tuple[Array, Tree]:
        """Returns the mean cross-entropy of the labels, and `{"batch_stats": ...}`."""
        logits, batch_stats = self.forward(variables, batch, train=train)
        with jax.named_scope("loss"):
            log_likelihoods = jax.nn.log_softmax(logits)  # [N, classes]
            loss = -jnp.take_along_axis(log_likelihoods, batch["label"][:, None], axis=1).mean()
        return loss, {"batch_stats": batch_stats}

    def forward(self, variables: Tree, batch: Tree, *, train: bool = True) -> tuple[Array, Tree]:
        """Returns logits [N, classes], and the running statistics after this batch.

        With `train`, batch norm normalises by mean and variance of the batch, and updates the running ones. Without, it
        normalises by the running ones, as in inference.
        """
        params, batch_stats = variables["params"], variables["batch_stats"]
        updated: Tree = {}
        with jax.named_scope("stem"):
            x, updated["stem"] = stem(params["stem"], batch_stats["stem"], batch["image"], train)
        for block in self.blocks():
            with jax.named_scope(block.name):
                x, updated[block.name] = residual(block, params[block.name], batch_stats[block.name], x, train)
        with jax.named_scope("pool"):
            x = x.mean(axis=(1, 2))  # [N, channels]
        with jax.named_scope("head"):
            logits = x @ params["head"]["kernel"] + params["head"]["bias"][None, :]
        return logits, updated

    def blocks(self) -> list[Block]:
        """Returns the residual blocks in order. A stage's first block widens; it halves the image except in stage 1."""
        make = bottleneck if self.depth >= SHALLOWEST_BOTTLENECK else basic
        blocks: list[Block] = []
        channels = STEM.channels_out
        for stage, (count, width) in enumerate(zip(BLOCKS_PER_STAGE[self.depth], STAGE_WIDTHS, strict=True), 1):
            for number in range(1, count + 1):
                stride = 2 if stage > 1 and number == 1 else 1
                blocks.append(make(f"stage{stage}_block{number}", channels, width, stride))
                channels = blocks[-1].branch[-1].channels_out
        return blocks


def bottleneck(name: str, channels: int, width: int, stride: int) -> Block:
    """Returns a block whose branch is 1x1 down, 3x3, 1x1 up."""
    out = BOTTLENECK_EXPANSION * width
    branch = (
        Convolution("conv1", 1, channels, width),
        Convolution("conv2", 3, width, width, stride),
        Convolution("conv3", 1, width, out),
    )
    return Block(name, branch, projection(channels, out, stride))


def basic(name: str, channels: int, width: int, stride: int) -> Block:
    """Returns a block whose branch is two 3x3 convolutions."""
    branch = (Convolution("conv1", 3, channels, width, stride), Convolution("conv2", 3, width, width))
    return Block(name, branch, projection(channels, width, stride))


def projection(channels: int, out: int, stride: int) -> Convolution | None:
    """Returns the convolution that maps a shortcut to the branch's shape; None where the shapes are equal."""
    return None if (channels, stride) == (out, 1) else Convolution("proj_conv", 1, channels, out, stride)


def stem(params: Tree, stats: Tree, image: Array, train: bool) -> tuple[Array, Tree]:
    """Maps images [N, H, W, 3] to [N, H/4, W/4, 64]."""
    x, norm = convolve_and_normalise(STEM, params, stats, image, train)
    with jax.named_scope("relu"):
        x = jax.nn.relu(x)
    with jax.named_scope("pool"):
        return max_pool(x), {STEM.norm: norm}


def residual(block: Block, params: Tree, stats: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """Maps [N, H, W, channels] to [N, H/stride, W/stride, channels out]: the shortcut plus the branch."""
    shortcut = x
    updated: Tree = {}
    for number, layer in enumerate(block.branch, 1):
        x, updated[layer.norm] = convolve_and_normalise(layer, params, stats, x, train)
        if number < len(block.branch):
            with jax.named_scope(f"relu{number}"):
                x = jax.nn.relu(x)
    if block.projection is not None:
        shortcut, norm = convolve_and_normalise(block.projection, params, stats, shortcut, train)
        updated[block.projection.norm] = norm
    with jax.named_scope("add"):
        x = shortcut + x
    with jax.named_scope(f"relu{len(block.branch)}"):
        return jax.nn.relu(x), updated


def convolve_and_normalise(layer: Convolution, params: Tree, stats: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """Applies a convolution and its batch norm; returns the norm's running statistics, too."""
    with jax.named_scope(layer.name):
        x = convolve(params[layer.name]["kernel"], x, layer.stride)
    with jax.named_scope(layer.norm):
        return batch_norm(params[layer.norm], stats[layer.norm], x, train)


def convolve(kernel: Array, x: Array, stride: int) -> Array:
    """Maps [N, H, W, channels in] to [N, H/stride, W/stride, channels out], in the kernel's dtype."""
    # Equal padding on both sides. "SAME" would pad an even image unevenly at stride 2, unlike the published weights.
    pad, layout = kernel.shape[0] // 2, ("NHWC", "HWIO", "NHWC")
    x = x.astype(kernel.dtype)
    return lax.conv_general_dilated(x, kernel, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=layout)


def batch_norm(params: Tree, stats: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """Shifts and scales each channel to mean `bias` and deviation `scale`; returns the running statistics, too."""
    mean, variance = moments(x) if train else (stats["mean"], stats["var"])
    factor = params["scale"] * lax.rsqrt(variance + NORM_EPSILON)
    y = (x - per_channel(mean)) * per_channel(factor) + per_channel(params["bias"])
    if not train:
        return y, stats
    return y, {"mean": running(stats["mean"], mean), "var": running(stats["var"], variance)}


def moments(x: Array) -> tuple[Array, Array]:
    """Returns mean and variance of each channel over images and pixels; both are [channels]."""
    mean = x.mean(axis=(0, 1, 2))
    # Not E[x^2] - E[x]^2, which is cheaper, but cancels where the mean is large compared to the deviation.
    return mean, jnp.square(x - per_channel(mean)).mean(axis=(0, 1, 2))


def running(average: Array, new: Array) -> Array:
    """Returns the running average after one more batch."""
    return NORM_MOMENTUM * average + (1 - NORM_MOMENTUM) * new


def per_channel(vector: Array) -> Array:
    """Reshapes [channels] to [1, 1, 1, channels], which broadcasts over an image."""
    return vector[None, None, None, :]


def max_pool(x: Array) -> Array:
    """Returns the maximum of each 3x3 window, at every second pixel."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))


def he_scaled(normal: Array) -> Array:
    """Scales standard normal numbers so that the kernel, followed by a ReLU, preserves the scale of its input."""
    return math.sqrt(2 / math.prod(normal.shape[:-1])) * normal


def normals(key: Array, shapes: Mapping[Any, tuple[int, ...]], step: int = 1 << 16) -> dict[Any, Array]:
    """Returns independent standard normal arrays of these shapes, under the same keys.

    All arrays are slices of one long draw, because fifty draws would compile fifty copies of the random generator. The
    draw is a loop, because the compiler would otherwise fuse parts of the generator into each slice.
    """
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
    drawn = lax.map(lambda i: jax.random.normal(jax.random.fold_in(key, i), (step,)), jnp.arange(-(-ends[-1] // step)))
    slices = jnp.split(drawn.reshape(-1)[: ends[-1]], ends[:-1])
    return {name: array.reshape(shapes[name]) for name, array in zip(shapes, slices, strict=True)}


resnet18, resnet34, resnet50, resnet101, resnet152 = map(ResNet, BLOCKS_PER_STAGE)
init, batch, loss, forward = resnet50.init, resnet50.batch, resnet50.loss, resnet50.forward
