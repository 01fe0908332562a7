"""The gradients that a kernel can have include those that JAX computes, whatever the geometry of a layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.comparison.diagnosis.refuting.apart.correlations import KernelForm, forms, gradient_error

_LAST = ("NHWC", "HWIO", "NHWC")
_FIRST = ("NCHW", "OIHW", "NCHW")


def _errors(read: Any, kernel: Any, layer: Any) -> list[float]:
    """The relative error of JAX's gradient of a kernel in each form that the shapes allow."""
    output, pullback = jax.vjp(lambda each: layer(read, each), kernel)
    arriving = np.random.default_rng(1).normal(size=output.shape).astype(np.float32)
    (gradient,) = pullback(arriving)
    found: list[float] = []
    for form in forms(kernel.shape, read.shape, output.shape):
        taps = form.taps(np.asarray(gradient, np.float64))
        possible = form.possible(read.astype(np.float64), arriving.astype(np.float64), taps.shape[1])
        nearest = [np.square(possible - tap).sum((1, 2)).min() for tap in taps]
        found.append(float(np.sqrt(sum(nearest)) / np.linalg.norm(gradient)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", [_LAST, _FIRST], ids=["channels last", "channels first"])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        (1, "SAME", 1, 1),
        (1, "VALID", 1, 2),
        (2, [(1, 1), (1, 0)], 1, 1),
        (1, [(4, 0), (2, 2)], 2, 6),
        (2, "SAME", 1, 3),
    ],
)
def test_a_convolution(layout: Any, stride: int, padding: Any, dilation: int, groups: int) -> None:
    draw = np.random.default_rng(stride + groups).normal
    read, kernel = draw(size=(2, 7, 8, 6)), draw(size=(3, 3, 6 // groups, 12))
    if layout is _FIRST:
        read, kernel = read.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)

    def layer(read: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            read, kernel, (stride,) * 2, padding, rhs_dilation=(dilation,) * 2, dimension_numbers=layout,
            feature_group_count=groups,
        )  # fmt: skip

    assert min(_errors(read.astype(np.float32), kernel.astype(np.float32), layer)) < 1e-5


def test_a_transposed_convolution() -> None:
    draw = np.random.default_rng(5).normal
    read, kernel = draw(size=(2, 4, 5, 3)).astype(np.float32), draw(size=(4, 4, 3, 6)).astype(np.float32)
    errors = _errors(read, kernel, lambda x, k: jax.lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=_LAST))
    assert min(errors) < 1e-5


@pytest.mark.parametrize("turned", [False, True])
def test_a_dense_layer_may_read_an_image(turned: bool) -> None:
    draw = np.random.default_rng(6).normal
    read, kernel = draw(size=(5, 2, 3, 4)).astype(np.float32), draw(size=(24, 7)).astype(np.float32)
    kernel = np.ascontiguousarray(kernel.T) if turned else kernel
    errors = _errors(read, kernel, lambda x, k: x.reshape(5, -1) @ (k.T if turned else k))
    assert min(errors) < 1e-5


def test_other_values_have_none_of_these_gradients() -> None:
    draw = np.random.default_rng(8).normal
    read, kernel = draw(size=(2, 6, 6, 4)).astype(np.float32), draw(size=(3, 3, 4, 4)).astype(np.float32)

    def layer(read: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(np.maximum(read, 0), kernel, (1, 1), "SAME", dimension_numbers=_LAST)

    assert min(_errors(read, kernel, layer)) > 0.1


def test_what_takes_long_is_left_out() -> None:
    assert not list(forms((3, 3, 512, 512), (64, 56, 56, 512), (64, 56, 56, 512)))
    assert not list(forms((1 << 14, 1 << 14), (64, 1 << 14), (64, 1 << 14)))
    # Of larger images, only distances within the size of a kernel are looked at.
    assert {form.reach for form in forms((3, 3, 8, 8), (2, 9, 9, 8), (2, 9, 9, 8))} == {8}
    assert {form.reach for form in forms((3, 3, 16, 16), (8, 56, 56, 16), (8, 56, 56, 16))} == {3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "kernel", "products"),
    [
        ((2, 4, 5), (5, 2, 3), "btw,whd->bthd"),
        ((2, 4, 2, 3), (2, 3, 5), "bthd,hdw->btw"),
        ((2, 4, 2, 3), (5, 2, 3), "bthd,whd->btw"),
        ((3, 6), (2, 6), "bw,ow->bo"),
    ],
)
def test_a_dense_layer_of_several_features(read: Any, kernel: Any, products: str) -> None:
    draw = np.random.default_rng(7).normal
    tensors = draw(size=read).astype(np.float32), draw(size=kernel).astype(np.float32)
    errors = _errors(*tensors, lambda x, k: jnp.einsum(products, x, k))
    assert min(errors) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_few_features_show_that_a_value_makes_no_gradient(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(9).normal
    read: Any = draw(size=(2, 6, 6, 16)).astype(np.float32)
    kernel: Any = draw(size=(3, 3, 16 // groups, 32)).astype(np.float32)
    tried: list[int] = []
    whole = KernelForm.possible

    def counted(form: KernelForm, read: Any, arriving: Any, inputs: int) -> Any:
        tried.append(read.size * arriving.size)
        return whole(form, read, arriving, inputs)

    monkeypatch.setattr(KernelForm, "possible", counted)

    def layer(kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            read, kernel, (1, 1), "SAME", dimension_numbers=_LAST, feature_group_count=groups
        )

    output, pullback = jax.vjp(layer, kernel)
    arriving = draw(size=output.shape).astype(np.float32)
    gradient = np.asarray(pullback(arriving)[0])
    form = min(
        forms(kernel.shape, read.shape, output.shape), key=lambda form: gradient_error(form, read, arriving, gradient)
    )
    tried.clear()
    assert gradient_error(form, np.maximum(read, 0), arriving, gradient, most=1e-4) == np.inf
    assert sum(tried) <= read.size * arriving.size / 4
    assert gradient_error(form, read, arriving, gradient, most=1e-4) < 1e-5


def test_a_value_of_another_number_of_channels_makes_no_gradient_of_a_kernel() -> None:
    (form, *_) = forms((12, 6, 3), (3, 12, 8), (3, 6, 16))
    values, gradient = np.ones((3, 6, 16)), np.ones((12, 6, 3))
    assert gradient_error(form, values, values, gradient, most=1e-3) == np.inf


@pytest.mark.parametrize(
    ("kernel", "read", "output"),
    [
        ((3, 3, 4, 6), (2, 0, 8, 4), (2, 0, 8, 6)),
        ((3, 3, 4, 6), (2, 1, 8, 4), (2, 0, 8, 6)),
        ((4, 0), (2, 4), (2, 0)),
        ((1, 1), (), ()),
        ((4,), (3,), (3,)),
    ],
)
def test_a_layer_without_elements_or_axes_has_no_form(kernel: Any, read: Any, output: Any) -> None:
    assert not [*forms(kernel, read, output)]
