"""ResNet-50 v1.5, the image classifier, and its siblings of 18, 34, 101 and 152 layers.

An image passes through a *stem* (one large convolution and a max pool), four *stages* of residual *blocks*, a global
average *pool* and a linear *head*:

    image   [N, 224, 224,    3]
    stem    [N,  56,  56,   64]    7x7 convolution, stride 2, then max pool, stride 2
    stage1  [N,  56,  56,  256]    3 blocks of width  64
    stage2  [N,  28,  28,  512]    4 blocks of width 128
    stage3  [N,  14,  14, 1024]    6 blocks of width 256
    stage4  [N,   7,   7, 2048]    3 blocks of width 512
    pool    [N,            2048]
    head    [N,            1000]   one logit per class

A block adds what its *branch* of convolutions makes of its input to that input, so the branch only has to learn the
difference ("residual") and the gradient has a way around it. In the deeper networks the branch is a *bottleneck*: 1x1
down to the block's width, 3x3 there, 1x1 up to four times the width. In the two shallow ones it is two 3x3
convolutions. Where the shape changes, the shortcut is *projected* by a 1x1 convolution.

Version 1.5 is what is meant by ResNet-50 today: a stage's first block halves the image in its 3x3 convolution, not in
the 1x1 before it, which would throw away three pixels of four unseen.

Variables have two collections, as in Flax: `params`, learned by gradient, and `batch_stats`, each batch norm's running
mean and variance, which `loss` returns updated. Both are nested by the names that `jax.named_scope` gives the
computation: `params["stage1_block1"]["conv1"]["kernel"]` is used by the layer `stage1_block1/conv1`.

Sharp edges: arrays are NHWC and kernels HWIO. In training every image's logits depend on the whole batch, through batch
norm; in a batch of one image nothing varies where the image has shrunk to one pixel.

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
NORM_MOMENTUM = 0.9  # how much of the running statistics one step keeps
HEAD_DEVIATION = 0.01  # small, so that an untrained network finds all classes about equally likely


@dataclass(frozen=True)
class Convolution:
    """A square convolution and the batch norm behind it, whose bias makes one of its own superfluous."""

    name: str
    window: int
    channels_in: int
    channels_out: int
    stride: int = 1

    @property
    def norm(self) -> str:
        """The name of its batch norm: `conv2` has `bn2`, `proj_conv` has `proj_bn`."""
        return self.name.replace("conv", "bn")

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """Height, width, channels in, channels out."""
        return (self.window, self.window, self.channels_in, self.channels_out)


@dataclass(frozen=True)
class Block:
    """A residual block: a branch of convolutions, and a projection of the shortcut where the shape changes."""

    name: str
    branch: tuple[Convolution, ...]
    projection: Convolution | None

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """All of them, in the order they run."""
        return self.branch if self.projection is None else (*self.branch, self.projection)


STEM = Convolution("conv", window=7, channels_in=3, channels_out=64, stride=2)


@dataclass(frozen=True)
class ResNet:
    """A residual network for square images.

    Attributes:
        depth: Number of layers with kernels along the branches: 18, 34, 50, 101 or 152.
        classes: Number of labels.
        image_size: Height and width of the images of `batch`; the network takes others, too.
    """

    depth: int = 50
    classes: int = 1000
    image_size: int = 224

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS_PER_STAGE:
            raise ValueError(f"no ResNet has {self.depth} layers: expected one of {sorted(BLOCKS_PER_STAGE)}")

    def init(self, key: Array) -> Tree:
        """Fresh variables: `{"params": ..., "batch_stats": ...}`.

        Every batch norm starts with scale 1. Setting the last one of a block to 0, as is often done for training,
        would start each block as the identity, but leave its branch without any gradient to look at in the first step.
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
        """`size` images of white noise, scaled as normalised photographs are, with labels drawn at random."""
        image_key, label_key = jax.random.split(key)
        shape = (size, self.image_size, self.image_size, 3)
        return {
            "image": jax.random.normal(image_key, (math.prod(shape),)).reshape(shape),  # flat, it compiles faster
            "label": jax.random.randint(label_key, (size,), 0, self.classes, jnp.int32),
        }

    def loss(self, variables: Tree, batch: Tree, *, train: bool = True) -> tuple[Array, Tree]:
        """Mean cross-entropy of the labels, and `{"batch_stats": ...}`."""
        logits, batch_stats = self.forward(variables, batch, train=train)
        with jax.named_scope("loss"):
            log_likelihoods = jax.nn.log_softmax(logits)  # [N, classes]
            loss = -jnp.take_along_axis(log_likelihoods, batch["label"][:, None], axis=1).mean()
        return loss, {"batch_stats": batch_stats}

    def forward(self, variables: Tree, batch: Tree, *, train: bool = True) -> tuple[Array, Tree]:
        """Logits [N, classes], and the running statistics after this batch.

        With `train`, batch norm takes mean and variance from the batch and updates the running ones; without, it takes
        the running ones, as in use.
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
        """The residual blocks, `stage1_block1` first. A stage's first block widens, and halves all but stage 1."""
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
    """1x1 down, 3x3, 1x1 up."""
    out = BOTTLENECK_EXPANSION * width
    branch = (
        Convolution("conv1", 1, channels, width),
        Convolution("conv2", 3, width, width, stride),
        Convolution("conv3", 1, width, out),
    )
    return Block(name, branch, projection(channels, out, stride))


def basic(name: str, channels: int, width: int, stride: int) -> Block:
    """Two 3x3."""
    branch = (Convolution("conv1", 3, channels, width, stride), Convolution("conv2", 3, width, width))
    return Block(name, branch, projection(channels, width, stride))


def projection(channels: int, out: int, stride: int) -> Convolution | None:
    """What brings a shortcut to the branch's shape; None where it has that shape already."""
    return None if (channels, stride) == (out, 1) else Convolution("proj_conv", 1, channels, out, stride)


def stem(params: Tree, stats: Tree, image: Array, train: bool) -> tuple[Array, Tree]:
    """Image [N, H, W, 3] to [N, H/4, W/4, 64]."""
    x, norm = convolve_and_normalise(STEM, params, stats, image, train)
    with jax.named_scope("relu"):
        x = jax.nn.relu(x)
    with jax.named_scope("pool"):
        return max_pool(x), {STEM.norm: norm}


def residual(block: Block, params: Tree, stats: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """[N, H, W, channels] to [N, H/stride, W/stride, channels out]: the shortcut plus the branch."""
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
    """A convolution, then its batch norm; returns the norm's running statistics, too."""
    with jax.named_scope(layer.name):
        x = convolve(params[layer.name]["kernel"], x, layer.stride)
    with jax.named_scope(layer.norm):
        return batch_norm(params[layer.norm], stats[layer.norm], x, train)


def convolve(kernel: Array, x: Array, stride: int) -> Array:
    """[N, H, W, channels in] to [N, H/stride, W/stride, channels out], in the kernel's dtype."""
    # As much on either side. "SAME" would pad an even image unevenly under stride 2, unlike the published weights.
    pad, layout = kernel.shape[0] // 2, ("NHWC", "HWIO", "NHWC")
    x = x.astype(kernel.dtype)
    return lax.conv_general_dilated(x, kernel, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=layout)


def batch_norm(params: Tree, stats: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """Each channel shifted and scaled to mean `bias` and deviation `scale`; and the running statistics."""
    mean, variance = moments(x) if train else (stats["mean"], stats["var"])
    factor = params["scale"] * lax.rsqrt(variance + NORM_EPSILON)
    y = (x - per_channel(mean)) * per_channel(factor) + per_channel(params["bias"])
    if not train:
        return y, stats
    return y, {"mean": running(stats["mean"], mean), "var": running(stats["var"], variance)}


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance of each channel, [channels] both, over images and pixels."""
    mean = x.mean(axis=(0, 1, 2))
    # Not E[x^2] - E[x]^2: that is cheaper, but cancels where the mean is large beside the deviation.
    return mean, jnp.square(x - per_channel(mean)).mean(axis=(0, 1, 2))


def running(average: Array, new: Array) -> Array:
    """The running average, one batch later."""
    return NORM_MOMENTUM * average + (1 - NORM_MOMENTUM) * new


def per_channel(vector: Array) -> Array:
    """[channels] as [1, 1, 1, channels], ready to meet an image."""
    return vector[None, None, None, :]


def max_pool(x: Array) -> Array:
    """The largest of each 3x3 window, at every second pixel."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))


def he_scaled(normal: Array) -> Array:
    """Standard normal numbers, scaled so that a ReLU behind the kernel keeps the size of what comes in."""
    return math.sqrt(2 / math.prod(normal.shape[:-1])) * normal


def normals(key: Array, shapes: Mapping[Any, tuple[int, ...]], turn: int = 1 << 16) -> dict[Any, Array]:
    """Independent standard normal arrays of these shapes, under the same keys.

    One long draw, cut up: fifty draws would be fifty copies of the random generator to compile. In a loop, because the
    compiler would put what it can of the generator into each of the cuts.
    """
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes.values()))
    drawn = lax.map(lambda i: jax.random.normal(jax.random.fold_in(key, i), (turn,)), jnp.arange(-(-ends[-1] // turn)))
    pieces = jnp.split(drawn.reshape(-1)[: ends[-1]], ends[:-1])
    return {name: piece.reshape(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}


resnet18, resnet34, resnet50, resnet101, resnet152 = map(ResNet, BLOCKS_PER_STAGE)
init, batch, loss, forward = resnet50.init, resnet50.batch, resnet50.loss, resnet50.forward
