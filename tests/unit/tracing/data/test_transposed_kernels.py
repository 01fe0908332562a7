"""Kernels of transposed convolutions are read from PyTorch's order and direction, against the definition in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradscope.errors import DumpError
from gradscope.tracing.data.checkpoints import Checkpoint, variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.data.renaming.key_map import read_key_map
from gradscope.tracing.layers.convolution_kernels import convolution_kernels
from gradscope.tracing.tracer import trace_loss

RANDOM = np.random.default_rng(0)


def transposed(images: np.ndarray, kernel: np.ndarray, stride: int, groups: int = 1) -> np.ndarray:
    """Returns a transposed convolution without padding, by its definition: each element adds the kernel times itself.

    Args:
        images: (n, channels, rows, columns).
        kernel: (channels, outputs of a group, height, width), as PyTorch stores it.
        stride: The distance of what two neighbours add.
        groups: The number of groups of channels.
    """
    count, channels, rows, columns = images.shape
    _, outputs, height, width = kernel.shape
    size = ((rows - 1) * stride + height, (columns - 1) * stride + width)
    result = np.zeros((count, outputs * groups, *size))
    for channel in range(channels):
        first = channel // (channels // groups) * outputs
        for row in range(rows):
            for column in range(columns):
                window = np.s_[:, first : first + outputs, row * stride :, column * stride :]
                added = images[:, channel, row, column, None, None, None] * kernel[channel]
                result[window][:, :, :height, :width] += added
    return result


def upsampled(images: jax.Array, kernel: jax.Array, stride: int, groups: int = 1, *, swapped: bool = False) -> Any:
    """Returns a transposed convolution as Flax's layer has it, or where the kernel is `swapped`, Keras's."""
    if groups == 1:
        return lax.conv_transpose(images, kernel, (stride, stride), "VALID", transpose_kernel=swapped)
    pads = [(size - 1, size - 1) for size in kernel.shape[:2]]
    return lax.conv_general_dilated(images, kernel, (1, 1), pads, lhs_dilation=(stride, stride),
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups)  # fmt: skip


def read(
    path: Path, kernel: np.ndarray, needed: tuple[int, ...], layer: Any, channels: int = 6, **others: Any
) -> Checkpoint:
    """Returns the variables of a model of six channels whose parameter `up/kernel` is in the file as `up.weight`."""
    np.savez(path, **{"up.weight": kernel, **{f"{name}.weight": each[0] for name, each in others.items()}})
    rules = path.with_suffix(".map")
    rules.write_text(r"^(.*)\.weight$ -> params/\1/kernel")
    shapes = {"up": needed, **{name: each[1] for name, each in others.items()}}
    expected = {"params": {name: {"kernel": jax.ShapeDtypeStruct(shape, np.float32)} for name, shape in shapes.items()}}
    images = jax.ShapeDtypeStruct((2, 3, 4, 6), np.float32)

    def kernels() -> Any:
        trace = trace_loss(lambda v, x: layer(x, v["params"]["up"]["kernel"]).sum(), expected, images)
        return convolution_kernels(trace.root)

    request = CheckpointRequest(path=path, key_map=read_key_map(rules))
    return variables_from_file(request, expected, dict, kernels)


def assert_the_same_layer(found: Checkpoint, kernel: np.ndarray, layer: Any, stride: int, groups: int = 1) -> None:
    images = RANDOM.standard_normal((2, kernel.shape[0], 3, 4)).astype(np.float32)
    got = layer(jnp.asarray(images.transpose(0, 2, 3, 1)), jnp.asarray(found.variables["params"]["up"]["kernel"]))
    np.testing.assert_allclose(
        np.asarray(got).transpose(0, 3, 1, 2), transposed(images, kernel, stride, groups), atol=1e-5
    )


@pytest.mark.parametrize(("inputs", "outputs"), [(6, 6), (6, 5)])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_transposed_convolution_is_that_of_pytorch(inputs: int, outputs: int, swapped: bool, tmp_path: Path) -> None:
    kernel = RANDOM.standard_normal((inputs, outputs, 3, 2)).astype(np.float32)
    needed = (3, 2, outputs, inputs) if swapped else (3, 2, inputs, outputs)

    def layer(images: Any, weight: Any) -> Any:
        # What compiles and differentiates a layer does not hide what it does with its kernel.
        return jax.checkpoint(jax.jit(lambda x, w: upsampled(x, w, 2, swapped=swapped)))(images, weight)

    found = read(tmp_path / "saved.npz", kernel, needed, layer)
    assert_the_same_layer(found, kernel, layer, 2)
    notes = [f"axes put into the order {[2, 3, 1, 0] if swapped else [2, 3, 0, 1]}: up.weight"]
    flipped = [] if swapped else ["reversed in space, as kernels of transposed convolutions: up.weight"]
    assert found.notes == (*notes, *flipped)


def test_an_ordinary_convolution_beside_it_is_read_as_ever(tmp_path: Path) -> None:
    kernel = RANDOM.standard_normal((6, 6, 3, 3)).astype(np.float32)
    other = RANDOM.standard_normal((6, 4, 3, 3)).astype(np.float32)
    square = RANDOM.standard_normal((6, 6, 3, 3)).astype(np.float32)
    others = {"down": (other, (3, 3, 4, 6)), "mid": (square, (3, 3, 6, 6))}
    found = read(tmp_path / "saved.npz", kernel, (3, 3, 6, 6), lambda x, w: upsampled(x, w, 2), **others)
    assert_the_same_layer(found, kernel, lambda x, w: upsampled(x, w, 2), 2)
    for name, (saved, _) in others.items():
        np.testing.assert_array_equal(found.variables["params"][name]["kernel"], saved.transpose(2, 3, 1, 0))


def test_the_program_tells_the_axes_of_a_square_kernel_of_an_ordinary_convolution(tmp_path: Path) -> None:
    def layer(images: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    kernel = RANDOM.standard_normal((6, 6, 3, 3)).astype(np.float32)
    found = read(tmp_path / "saved.npz", kernel, (3, 3, 6, 6), layer)
    np.testing.assert_array_equal(found.variables["params"]["up"]["kernel"], kernel.transpose(2, 3, 1, 0))
    assert found.notes == ("axes put into the order [2, 3, 1, 0]: up.weight",)


def test_a_stride_of_one_is_told_by_inputs_that_come_first(tmp_path: Path) -> None:
    kernel = RANDOM.standard_normal((6, 5, 3, 3)).astype(np.float32)
    found = read(tmp_path / "saved.npz", kernel, (3, 3, 6, 5), lambda x, w: upsampled(x, w, 1))
    assert_the_same_layer(found, kernel, lambda x, w: upsampled(x, w, 1), 1)


def test_groups_of_one_channel_each_are_reversed(tmp_path: Path) -> None:
    kernel = RANDOM.standard_normal((6, 1, 3, 3)).astype(np.float32)
    found = read(tmp_path / "saved.npz", kernel, (3, 3, 1, 6), lambda x, w: upsampled(x, w, 2, 6))
    assert_the_same_layer(found, kernel, lambda x, w: upsampled(x, w, 2, 6), 2, 6)


def of_equinox(images: Any, kernel: Any) -> Any:
    """Returns a transposed convolution as Equinox's layer has it: (outputs, inputs, height, width), not reversed."""
    pads = [(size - 1, size - 1) for size in kernel.shape[2:]]
    return lax.conv_general_dilated(
        images, kernel, (1, 1), pads, lhs_dilation=(2, 2), dimension_numbers=("NHWC", "OIHW", "NHWC")
    )


def test_a_kernel_with_its_outputs_first_is_told_by_its_shape(tmp_path: Path) -> None:
    kernel = RANDOM.standard_normal((6, 5, 3, 3)).astype(np.float32)
    found = read(tmp_path / "saved.npz", kernel, (5, 6, 3, 3), of_equinox)
    assert_the_same_layer(found, kernel, of_equinox, 2)


@pytest.mark.parametrize(("separator", "is_said"), [(".", True), ("/", False)])
def test_a_square_kernel_of_the_same_name_is_taken_as_it_is_and_that_is_said(
    separator: str, is_said: bool, tmp_path: Path
) -> None:
    kernel, images = (
        RANDOM.standard_normal((6, 6, 3, 3)).astype(np.float32),
        jax.ShapeDtypeStruct((1, 3, 4, 6), np.float32),
    )
    np.savez(tmp_path / "saved.npz", **{f"up{separator}weight": kernel})
    expected = {"params": {"up": {"weight": jax.ShapeDtypeStruct(kernel.shape, np.float32)}}}
    trace = trace_loss(lambda v, x: of_equinox(x, v["params"]["up"]["weight"]).sum(), expected, images)
    request = CheckpointRequest(path=tmp_path / "saved.npz")
    found = variables_from_file(request, expected, dict, lambda: convolution_kernels(trace.root))
    np.testing.assert_array_equal(found.variables["params"]["up"]["weight"], kernel)
    assert [each for each in found.notes if each.startswith("taken as they are, where PyTorch's")] == [
        "taken as they are, where PyTorch's kernels of transposed convolutions would have to be reversed: up.weight"
    ] * is_said


def test_where_the_program_tells_too_little_the_user_is_asked(tmp_path: Path) -> None:
    """A square kernel of an ordinary convolution may be that of a transposed one, where the padding is as wide."""
    kernel, other = np.ones((6, 6, 3, 3), np.float32), np.ones((6, 4, 3, 3), np.float32)
    with pytest.raises(DumpError, match=r"the axes of up\.weight \[6, 6, 3, 3\] fit in more than one order") as refused:
        read(tmp_path / "saved.npz", kernel, (3, 3, 6, 6), lambda x, w: upsampled(x, w, 1), down=(other, (3, 3, 4, 6)))
    steps = "[{ transpose = [2, 3, 0, 1] }, { flip = [0, 1] }]  # or [{ transpose = [2, 3, 1, 0] }]"
    assert f"  steps = {steps}" in str(refused.value.hint).splitlines()


def test_the_kernel_of_a_library_of_another_order_is_asked_for(tmp_path: Path) -> None:
    kernel = np.ones((3, 3, 5, 6), np.float32)
    with pytest.raises(DumpError, match=r"up\.weight \[3, 3, 5, 6\] are those of a transposed convolution") as refused:
        read(tmp_path / "saved.npz", kernel, (3, 3, 6, 5), lambda x, w: upsampled(x, w, 2))
    *_, steps, reversal = str(refused.value.hint).splitlines()
    assert steps == "  steps = [{ transpose = [0, 1, 3, 2] }]"
    assert reversal.startswith("{ flip = [0, 1] } as the last step reverses it")
