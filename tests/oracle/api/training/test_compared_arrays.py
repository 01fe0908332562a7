"""What is recorded of two arrays, against NumPy in float64: by the CPU's callback and as other devices compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.sampled import sampled

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

LARGE = (1 << 17) + 5  # more than a block


@pytest.fixture(params=["host", "device"])
def cosine(request: pytest.FixtureRequest) -> Callable[[Any, Any], Any]:
    from gradscope.training.recording import compared_arrays

    return jax.jit(compared_arrays.cosine if request.param == "host" else compared_arrays.cosine_on_device)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize(("shape", "dtype"), [((), "float32"), ((3, 5), "bfloat16"), ((7,), "complex64")])
def test_the_cosine_is_that_of_the_elements(
    cosine: Callable[[Any, Any], Any], shape: tuple[int, ...], dtype: str, scale: float
) -> None:
    draw = np.random.default_rng(0).standard_normal
    imaginary = 1j if dtype == "complex64" else 0
    one, other = (jnp.asarray(scale * (draw(shape) + imaginary * draw(shape)), dtype) for _ in range(2))
    a, b = (np.asarray(each).astype(np.complex128).ravel() for each in (one, other))
    expected = np.vdot(a, b).real / np.linalg.norm(a) / np.linalg.norm(b)
    assert float(cosine(one, other)) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert float(cosine(one, -one)) == pytest.approx(-1, rel=1e-6)


def test_the_cosine_of_a_large_gradient_is_that_of_all_its_blocks(cosine: Callable[[Any, Any], Any]) -> None:
    draw = np.random.default_rng(1).standard_normal
    one, other = (draw(LARGE).astype(np.float32) for _ in range(2))
    wide = [each.astype(np.float64) for each in (one, one + other)]
    expected = np.dot(*wide) / np.linalg.norm(wide[0]) / np.linalg.norm(wide[1])
    assert float(cosine(one, one + other)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("one", [[0.0, 0.0], [1.0, np.nan], [np.inf, 1.0]])
def test_a_gradient_that_is_zero_or_not_finite_has_no_cosine(cosine: Callable[[Any, Any], Any], one: Any) -> None:
    from gradscope.training.recording.compared_arrays import NO_COSINE

    assert float(cosine(jnp.asarray(one, jnp.float32), jnp.ones(2))) == NO_COSINE


@pytest.mark.slow
@sampled("dtype", ["float32", "bfloat16", "int8"])
@sampled("shape", [(), (3, 5), (LARGE,), (0,)])
def test_two_arrays_are_the_same_where_no_element_differs(shape: tuple[int, ...], dtype: str) -> None:
    from gradscope.training.recording.compared_arrays import is_same

    compared = jax.jit(is_same)
    old = jnp.ones(shape, dtype)
    assert bool(compared(old + 0, old))
    for at in {0, old.size // 2, old.size - 1} if old.size else ():
        assert not bool(compared(old.ravel().at[at].add(1).reshape(shape), old))
    assert not bool(compared(jnp.full(2, jnp.nan), jnp.full(2, jnp.nan)))
