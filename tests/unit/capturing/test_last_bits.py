"""A change in the last bit is one that the program's products see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.capturing.explain.self_check import nudged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "precision", "change"),
    [
        ("float32", "highest", 2**-23), ("float32", "tensorfloat32", 2**-10), ("float32", "bfloat16", 2**-7),
        ("complex64", "highest", 2**-23), ("bfloat16", "highest", 2**-7), ("bfloat16", "tensorfloat32", 2**-7),
    ],
)  # fmt: skip
def test_an_argument_is_changed_in_the_last_bit_of_the_factors_of_products(
    dtype: str, precision: str, change: float
) -> None:
    with jax.default_matmul_precision(precision):
        moved = np.asarray(nudged(jnp.ones(64, dtype), 0)).astype(np.complex128).real - 1
    assert {round(each / change, 2) for each in moved.tolist()} <= {1.0, -1.0, -0.5}  # below 1 the spacing is half


def test_integers_stay_as_they_are() -> None:
    assert nudged(jnp.arange(3), 0).tolist() == [0, 1, 2]
