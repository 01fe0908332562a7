"""Finds the layers with a kernel, in execution order, whose weights mix the features of a signal; and what is behind.

A *kernel* is a parameter of at least two axes, without the axis of a loop's iterations, that is not multiplied element
by element: the dump says so, or the shape, where it is that of an example of the output. Layers without one
(normalisations, activation functions, losses, attention weights) are no steps of depth.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming.numbering import NUMBER
from gradscope.primitive_groups import ADDITIONS, COPIES, MATRIX_PRODUCTS
from gradscope.stats.findings.rule_evidence import DEEPEST, RuleEvidence, column, key

#: The primitives whose result is linear in the layer's input where they end a layer with one kernel.
_LINEAR: Final = MATRIX_PRODUCTS | ADDITIONS | COPIES
_INDEX: Final = re.compile(rf"\[({NUMBER})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLayer:
    """A `KernelLayer` is a layer with a kernel.

    Attributes:
        layer: The layer.
        output: Its first output.
        kernels: Its kernels.
        gradient: The gradient with respect to the output; None where there is none.
        gain: The factor by which the weights change the root mean square, without the bias; None where it is not
            theirs alone, as in a layer that ends in an activation function or has several kernels.
        expected_gain: The factor by which its kernel changes the l2 norm of a gradient on its way back, as far as the
            weights are random: r sqrt(n), where an output is made with n of them, of a root mean square r. It is 1 for
            n weights of deviation 1 / sqrt(n). None where the layer has several kernels.
        whole: The names of the kernels that it applies as they are, and not by a part for each iteration of a loop.
    """

    layer: Layer
    output: Entry
    kernels: tuple[Entry, ...]
    gradient: Entry | None
    gain: float | None
    expected_gain: float | None
    whole: frozenset[str]


def kernel_layers(evidence: RuleEvidence) -> tuple[KernelLayer, ...]:
    """Returns the layers with a kernel that have no parts with parameters, in execution order.

    Operations do not count where layers use their parameters: a broadcast of a gain has a kernel's shapes, and mixes
    nothing.
    """
    layers = [layer for layer in evidence.manifest.layers if layer.params and layer.outputs]
    in_layers = {name for layer in layers if not layer.operation for name in layer.params}
    layers = [layer for layer in layers if not (layer.operation and in_layers.intersection(layer.params))]
    around = {layer.parent for layer in layers}
    lengths = _iterations(evidence.manifest.layers)
    found = (_kernel_layer(evidence, layer, lengths) for layer in sorted(layers, key=lambda layer: layer.index)
             if layer.path not in around)  # fmt: skip
    return tuple(each for each in found if each is not None)


def behind_kernels(evidence: RuleEvidence, layers: Iterable[KernelLayer]) -> AbstractSet[str]:
    """Returns the names of the values that are computed from the kernels of layers, as far as it is known of what.

    Each layer is looked at once, however much it reads and returns.
    """
    readers: dict[str, list[Layer]] = {}
    made_at = {name: layer.index for layer in reversed(evidence.manifest.layers) for name in layer.outputs}
    for layer in evidence.manifest.layers:
        for read in layer.sources or _read(layer, made_at):
            readers.setdefault(read, []).append(layer)
    found: set[str] = set()
    seen: set[int] = set()
    pending = [key(kernel) for layer in layers for kernel in layer.kernels]
    while pending:
        for layer in readers.pop(pending.pop(), ()):
            if id(layer) not in seen:
                seen.add(id(layer))
                found.update(layer.outputs)
                pending += [naming.key_of(naming.ACTIVATION, name) for name in layer.outputs]
    return found


def _read(layer: Layer, made_at: Mapping[str, int]) -> Iterator[str]:
    """Yields the keys of the parameters and values that a layer reads."""
    yield from (naming.key_of(naming.PARAM, name) for name in layer.params)
    for name in layer.inputs:
        # An input of the model can have the name of a layer that runs later.
        if made_at.get(name, math.inf) <= layer.index:
            yield naming.key_of(naming.ACTIVATION, name)


def _iterations(layers: Sequence[Layer]) -> Mapping[str, int]:
    """Returns the number of iterations of each path with an index, by the path in front of it."""
    lengths: dict[str, int] = {}
    for path in (layer.path for layer in layers):
        for prefix, number in _indices(path):
            lengths[prefix] = max(lengths.get(prefix, 0), number + 1)
    return lengths


def _indices(path: str) -> Iterator[tuple[str, int]]:
    """Yields the outermost indices of a path, each with the path in front of it without numbers."""
    for found in itertools.islice(_INDEX.finditer(path), DEEPEST):
        yield _INDEX.sub("[]", path[: found.start()]), int(found[1])


def _kernel_layer(evidence: RuleEvidence, layer: Layer, lengths: Mapping[str, int]) -> KernelLayer | None:
    output = evidence.entry(naming.ACTIVATION, layer.outputs[0])
    if output is None or output.absent is not None:
        return None
    params = [entry for name in layer.params if (entry := evidence.entry(naming.PARAM, name)) is not None]
    around = [lengths[prefix] for prefix, _ in _indices(layer.path)]
    shapes = {entry.name: _own_shape(entry.shape, around) for entry in params}
    mixing = (entry for entry in params if entry.name not in layer.elementwise)
    kernels = tuple(entry for entry in mixing if _is_kernel(shapes[entry.name], output.shape))
    if not kernels:
        return None
    gradient = evidence.entry(naming.ACTIVATION_GRAD, layer.outputs[0])
    return KernelLayer(
        layer=layer,
        output=output,
        kernels=kernels,
        gradient=None if gradient is None or gradient.absent else gradient,
        gain=_gain(layer, output, [each for each in params if each != kernels[0]]) if len(kernels) == 1 else None,
        expected_gain=_expected_gain(kernels[0], shapes[kernels[0].name], output) if len(kernels) == 1 else None,
        whole=frozenset(each.name for each in kernels if shapes[each.name] == each.shape),
    )


def _own_shape(shape: tuple[int, ...], around: Sequence[int]) -> tuple[int, ...]:
    """Returns a parameter's shape without the axes of the loops around the layer that uses it, by their lengths."""
    for length in around:
        if shape[:1] == (length,):
            shape = shape[1:]
    return shape


def _is_kernel(shape: tuple[int, ...], output: tuple[int, ...]) -> bool:
    mixing = len(shape) > 1 and math.prod(shape) > shape[-1]  # One without elements mixes nothing.
    return mixing and shape != output[1:][-len(shape) :]


def _expected_gain(kernel: Entry, shape: tuple[int, ...], output: Entry) -> float | None:
    """Returns the factor that a kernel of random elements has, of an own shape; None where its axes are not known."""
    # The axes of the outputs are the last, as in JAX, or the first, as in PyTorch and Equinox. How many they are is not
    # known where an image has as many places as channels.
    outputs = {math.prod(shape[-axes:]) for axes in range(1, len(shape)) if shape[-axes:] == output.shape[-axes:]} or {
        shape[0]
    }.intersection(output.shape[1:])
    return None if len(outputs) != 1 else column(kernel, "rms") * math.sqrt(math.prod(shape) / outputs.pop())


def _gain(layer: Layer, output: Entry, biases: Sequence[Entry]) -> float | None:
    """Returns the ratio of root mean squares of output and input, without what the biases add."""
    before, after = layer.rms.get("in"), layer.rms.get("out")
    rectified = output.stats.get("min") == 0
    if before is None or after is None or not (output.site.primitive in _LINEAR or rectified):
        return None
    if not (before > 0 and 0 <= after < math.inf):
        return None
    added = 0.0 if rectified else max((0.0, *(column(bias, "rms") for bias in biases)))
    # Not the difference of the squares, which float64 does not hold where a signal explodes.
    return after / before * math.sqrt(1 - (added / after) ** 2) if added < after else 0.0
