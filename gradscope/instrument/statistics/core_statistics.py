"""Core statistics inside a compiled step are one small vector in place of each tensor.

The platform decides where the numbers are computed. On accelerators they are one fused reduction. On the CPU every
reduction is a kernel to be compiled, and 350 of them triple the compile time of ResNet-50's step and add half to its
running time. A host callback that passes each tensor to NumPy in cache-sized blocks costs a fraction of that, and does
not change the compile time.

The vector is float32, since it is returned as the "gradient" of a sink. A count does not fit float32 exactly beyond
2^24, so each is stored as two digits to the base 2^16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.arrays.passes.single_pass import reduce_array
from gradscope.instrument.host_calls import made_on_host
from gradscope.instrument.taps import full_tensor
from gradscope.stats.core_tier import CoreNumbers
from gradscope.tracing.jaxpr.sharding import in_whole, varying, varying_axes

#: Numbers first, then two digits for each count.
_NUMBERS: Final = ("mean", "std", "rms", "minimum", "maximum")
_COUNTS: Final = ("finite", "zeros", "nan", "inf")
_DIGIT_BITS: Final = 16
_BASE: Final = 2**_DIGIT_BITS
WIDTH: Final = len(_NUMBERS) + 2 * len(_COUNTS)

_BITS_PER_BYTE: Final = 8


def core_statistics(value: Any) -> Any:
    """Returns core statistics as a float32 vector of `WIDTH` numbers that `core_numbers` reads; an observer.

    Args:
        value: An array of any shape; of a complex one the magnitudes are measured, of a typed PRNG key its data.
    """
    # A second differentiation of a step concerns its gradients, and statistics are no gradients; JAX cannot
    # differentiate a host callback at all.
    constant = jax.lax.stop_gradient(full_tensor(value))
    return in_whole(partial(jax.lax.platform_dependent, cpu=_on_host, default=_on_device))(as_bytes(constant))


def as_bytes(value: Any) -> Any:
    """Returns the value, or its magnitude, in a real floating-point type of whole bytes."""
    if jnp.iscomplexobj(value):
        return jnp.abs(value)
    dtype = jax.typeof(value).dtype
    narrow = not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < _BITS_PER_BYTE
    return value.astype(jnp.float32) if narrow else value


def core_numbers(vector: np.ndarray) -> CoreNumbers:
    """Returns the numbers that a vector of `core_statistics` represents; what follows them in it is left out."""
    numbers = dict(zip(_NUMBERS, vector[: len(_NUMBERS)].tolist(), strict=True))
    digits = vector[len(_NUMBERS) : WIDTH].reshape(-1, 2).astype(np.int64)
    counts = dict(zip(_COUNTS, (digits[:, 0] * _BASE + digits[:, 1]).tolist(), strict=True))
    return CoreNumbers(**numbers, **counts)


def merged_statistics(vectors: Sequence[Any]) -> Any:
    """Returns the core statistics of several tensors together, from those of each.

    References:
        T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
        Variances", 1979: the spread of all is that within each and that of their means.
    """
    parts = jnp.stack(vectors)
    counts = {name: _digits(parts, name) for name in _COUNTS}
    finite = counts["finite"][..., 0] * float(_BASE) + counts["finite"][..., 1]
    weights = finite / jnp.maximum(finite.sum(), 1)
    mean = (weights * _number(parts, "mean")).sum()
    distances = _root_of_squares(_number(parts, "std"), _number(parts, "mean") - mean)
    std, rms = (_root_of_mean_square(each, weights) for each in (distances, _number(parts, "rms")))
    # A tensor without a finite element has extremes that are none.
    low = jnp.where(finite > 0, _number(parts, "minimum"), jnp.inf).min()
    high = jnp.where(finite > 0, _number(parts, "maximum"), -jnp.inf).max()
    # Digits are added and carried: the sum of two counts that float32 has exactly need not be one.
    sums = [counts[name].sum(axis=0) for name in _COUNTS]
    digits = [digit for high_sum, low_sum in sums for digit in (high_sum + low_sum // _BASE, low_sum % _BASE)]
    return jnp.stack([mean, std, rms, low, high, *digits])


def _root_of_mean_square(numbers: Any, weights: Any) -> Any:
    most = numbers.max()
    return most * jnp.sqrt((weights * (numbers / jnp.where(most > 0, most, 1)) ** 2).sum())


def _digits(vector: Any, name: str) -> Any:
    first = len(_NUMBERS) + 2 * _COUNTS.index(name)
    return vector[..., first : first + 2]


def _number(vector: Any, name: str) -> Any:
    return vector[..., _NUMBERS.index(name)]


def _count(vector: Any, name: str) -> Any:
    first = len(_NUMBERS) + 2 * _COUNTS.index(name)
    return vector[..., first] * _BASE + vector[..., first + 1]


#: The statistics that a vector has on the device, by column name; counts are float32 there, exact up to 2^24.
CORE_NUMBERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "mean": lambda vector: _number(vector, "mean"),
    "std": lambda vector: _number(vector, "std"),
    "rms": lambda vector: _number(vector, "rms"),
    "l2": lambda vector: _number(vector, "rms") * jnp.sqrt(_count(vector, "finite")),
    "min": lambda vector: _number(vector, "minimum"),
    "max": lambda vector: _number(vector, "maximum"),
    "amax": lambda vector: jnp.maximum(jnp.abs(_number(vector, "minimum")), jnp.abs(_number(vector, "maximum"))),
    "finite": lambda vector: _count(vector, "finite"),
    "zeros": lambda vector: _count(vector, "zeros"),
    "nan": lambda vector: _count(vector, "nan"),
    "inf": lambda vector: _count(vector, "inf"),
}


def _on_host(value: Any) -> Any:
    # A value that the callback reads becomes a buffer, which the backward pass prefers to computing it again. A step of
    # ResNet-50 has a tenth more temporary memory for that, one of a transformer less. To read a copy of its bits takes
    # none, and a tenth more time.
    shape = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    return varying(made_on_host(_reduced, shape, value), varying_axes([value]))


def _reduced(operand: np.ndarray) -> np.ndarray:
    # NumPy only: any JAX operation in a callback may wait for the step that runs the callback.
    reduction = reduce_array(operand, magnitudes=False)
    moments, extremes = reduction.moments, reduction.extremes
    numbers = [0.0] * 5 if moments is None or extremes is None else [
        moments.mean, moments.std, moments.rms, float(extremes.low), float(extremes.high)
    ]  # fmt: skip
    counts = [
        0 if moments is None else moments.count,
        reduction.zeros or 0,
        0 if reduction.nonfinite is None else reduction.nonfinite.nan,
        0 if reduction.nonfinite is None else reduction.nonfinite.inf,
    ]
    digits = [digit for count in counts for digit in divmod(count, _BASE)]
    with np.errstate(over="ignore"):
        return np.array([*numbers, *digits], np.float32)


def _on_device(value: Any) -> Any:
    """Returns the vector of a tensor from one reduction of all its sums and extremes, which reads the tensor once.

    As reductions of their own, in a kernel each, they took twice the time on an H100. The axes are those of the tensor:
    flattened, one that the compiler keeps in another layout is copied.
    """
    values = value.astype(jnp.float32)
    finite, nothing = jnp.isfinite(values), _nothing(values)
    # In a kernel of its own: within that of the reduction it takes longer to compile than the reduction.
    centre = jax.lax.optimization_barrier(_centre(values))
    # Halved, because the distance between two numbers may overflow.
    spread = jnp.where(finite, values * 0.5 - centre * 0.5, nothing)
    operands = (
        spread * _SUMMABLE, *_squares(spread, nothing), jnp.where(finite, values, nothing + jnp.inf),
        jnp.where(finite, values, nothing - jnp.inf),
        *(each.astype(jnp.int32) for each in (finite, values == 0, jnp.isnan(values))),
    )  # fmt: skip
    reduced = jax.lax.reduce(operands, _INITIAL, _combined, tuple(range(values.ndim)))
    total, small, large, low, high, known, zeros, nan = reduced
    number = jnp.maximum(known, 1).astype(jnp.float32)
    offset = total / number * (2 / _SUMMABLE)
    distance = _root_of_squares(jnp.sqrt(small) * (2 / _SMALL), jnp.sqrt(large) * (2 / _LARGE)) / jnp.sqrt(number)
    aside = jnp.abs(offset)
    # The root of the difference of their squares, which may overflow.
    std = jnp.sqrt(jnp.maximum(distance - aside, 0)) * jnp.sqrt(distance + aside)
    mean = centre + offset
    numbers = jnp.stack([mean, std, _root_of_squares(std, mean)])
    extremes = jnp.where(known > 0, jnp.stack([low, high]), 0)
    counts = jnp.stack([known, zeros, nan, values.size - known - nan])
    # Shifts, since a division that rounds down is eight operations, to be compiled for every tensor.
    digits = jnp.stack([counts >> _DIGIT_BITS, counts & (_BASE - 1)], axis=1).reshape(-1)
    return jnp.concatenate([numbers, extremes, digits.astype(jnp.float32)])


#: What the sums and the extremes of nothing are.
_INITIAL: Final = (*(np.float32(each) for each in (0, 0, 0, np.inf, -np.inf)), *(np.int32(0),) * 3)

#: By what distances are multiplied so that thousands of the largest do not overflow in their sum.
_SUMMABLE: Final = 2.0**-12

#: By what distances below one are multiplied, and those from one on, so that the squares of 2^30 of them neither
#: overflow nor lose digits in float32: distances of 1e-30 to 1e33, and fewer of them up to 1e38.
_SMALL: Final = 2.0**48
_LARGE: Final = 2.0**-62


def _squares(distances: Any, nothing: Any) -> tuple[Any, Any]:
    """Returns the squares of small distances and of large ones, each of them scaled, and zeros for the others."""
    is_small = jnp.abs(distances) < 1
    small, large = (
        jnp.where(chosen, distances * scale, nothing) for chosen, scale in ((is_small, _SMALL), (~is_small, _LARGE))
    )
    return small * small, large * large


def _root_of_squares(one: Any, other: Any) -> Any:
    """Returns the root of the sum of two squares, which may overflow or vanish themselves."""
    one, other = jnp.abs(one), jnp.abs(other)
    most = jnp.maximum(one, other)
    share = jnp.minimum(one, other) / jnp.where(most > 0, most, 1)
    return most * jnp.sqrt(1 + share * share)


def _combined(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the sums and the extremes of two parts of a tensor together."""
    by = (jnp.add, jnp.add, jnp.add, jnp.minimum, jnp.maximum, jnp.add, jnp.add, jnp.add)
    return tuple(function(*each) for function, *each in zip(by, one, other, strict=True))


def _nothing(values: Any) -> Any:
    """Returns a zero of a tensor.

    JAX moves what depends on constants alone out of a `scan`, and each iteration would read as many bytes of zeros and
    infinities as of the tensor. The compiler knows the zero for one again.
    """
    if not values.size:
        return jnp.float32(0)
    bits = jax.lax.bitcast_convert_type(_element(values, [0] * values.ndim), jnp.int32)
    return jax.lax.bitcast_convert_type(bits & 0, jnp.float32)


def _centre(values: Any) -> Any:
    """Returns the median of the first, a middle and the last element, of those that are finite; 0 where none is.

    Values are squared as distances to it, so that a large mean does not drown a small spread.
    """
    if not values.size:
        return jnp.float32(0)
    ends = [[0] * values.ndim, [size // 2 for size in values.shape], [size - 1 for size in values.shape]]
    three = [_element(values, at) for at in ends]
    known = reduce(lambda one, other: jnp.where(jnp.isfinite(one), one, other), [*three, jnp.float32(0)])
    first, middle, last = (jnp.where(jnp.isfinite(each), each, known) for each in three)
    return jnp.maximum(jnp.minimum(first, middle), jnp.minimum(jnp.maximum(first, middle), last))


def _element(values: Any, at: Sequence[int]) -> Any:
    return jax.lax.slice(values, at, [each + 1 for each in at]).reshape(())
