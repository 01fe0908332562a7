"""A displacement shows, by a sample of a value's elements, whether an operation takes a change of them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradscope.primitive_groups import ADDITIONS
from gradscope.tracing.jaxpr.jaxcompat import Equation, sub_jaxprs

#: The most elements of a value that are looked at.
_MOST_ELEMENTS: Final = 256

#: Primitives whose result's elements each depend on several elements of an operand, by the start of their names.
_MIXING: Final = (
    "reduce_",
    "dot_general",
    "conv_general",
    "cum",
    "argm",
    "sort",
    "fft",
    "ragged_dot",
    "psum",
    "triangular",
)

#: How much smaller than its operands' difference a result's is where a displacement is taken out.
_TAKEN_OUT: Final = 1e-3
#: Units of rounding by which results differ although the displacement is taken out.
_ROUNDING: Final = 8.0
#: Bits of the coarsest type that is looked at: a float8 is a way to store values.
_FEWEST_BITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A `Precision` is that of the coarsest type that a model computes in.

    Attributes:
        eps: The relative spacing of its numbers.
    """

    eps: float

    @property
    def displacement(self) -> float:
        """The relative size of a displacement: small where that is still far above rounding."""
        return min(1.0, max(0.05, 500 * self.eps))

    @property
    def far_displacement(self) -> float:
        """The relative size of one that leaves a neighbourhood, while what takes it out is still above rounding."""
        return min(50.0, max(self.displacement, 0.01 / self.eps))

    @property
    def small(self) -> float:
        """The ratio of two gradients below which the smaller may be rounding."""
        return min(0.1, 1000 * self.eps)

    @property
    def taken_out(self) -> float:
        """The ratio of two differences below which the smaller may be rounding."""
        return max(_TAKEN_OUT, _ROUNDING * self.eps / self.displacement)

    @property
    def visible(self) -> float:
        """The relative difference that is so far above rounding that it can be seen to be taken out."""
        return self.eps / self.taken_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A `Change` is what a displacement did to a value.

    Attributes:
        share: The share of its elements that changed at all.
        differences: The sorted magnitudes of the changes, of all elements.
        magnitudes: The sorted magnitudes of its elements.
        scale: The root mean square of its elements.
    """

    share: float
    differences: np.ndarray
    magnitudes: np.ndarray
    scale: float

    def typical(self, quantile: float) -> float:
        """Returns the change that a share of the elements does not exceed."""
        return _quantile(self.differences, quantile)

    def magnitude(self, quantile: float) -> float:
        """Returns the magnitude that a share of the elements does not exceed."""
        return _quantile(self.magnitudes, quantile)


def precision(dtypes: Iterable[Any]) -> Precision:
    """Returns the precision of the coarsest floating-point type among some dtypes."""
    real = {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
    wide = [jnp.finfo(dtype) for dtype in real if jnp.finfo(dtype).bits >= _FEWEST_BITS]
    return Precision(eps=max((float(each.eps) for each in wide), default=float(jnp.finfo(jnp.float32).eps)))


def sample(value: Any) -> Any:
    """Returns some elements of a value, spread over all of it, as a vector; an observer."""
    if jnp.issubdtype(jax.typeof(value).dtype, jax.dtypes.extended):
        return jnp.zeros(1, jnp.float32)
    # By primitives: every value of a program is sampled, and `ravel` and indexing are traced ten times as long.
    size = jnp.size(value)
    stride = max(1, size // _MOST_ELEMENTS) | 1  # odd, so that it does not divide the usual numbers of features
    return lax.slice(lax.reshape(value, (size,)), (0,), (size,), (stride,))


def change_of(before: np.ndarray, after: np.ndarray) -> Change:
    """Returns what changed from one sample of a value to another; elements that are not finite are left out."""
    one, other = (_wide(each) for each in (before, after))
    with np.errstate(invalid="ignore"):
        differences = np.abs(other - one)
    known = np.isfinite(differences)
    differences, one = differences[known], np.abs(one[known])
    scale = float(np.sqrt(np.mean(one**2))) if one.size else 0.0
    return Change(
        share=float(np.mean(differences > 0)) if one.size else 0.0, differences=np.sort(differences),
        magnitudes=np.sort(one), scale=scale,
    )  # fmt: skip


def is_taken_out(equation: Equation, operands: Sequence[Change], result: Change, precision: Precision) -> bool:
    """Returns whether an equation takes a displacement out.

    Args:
        equation: The equation.
        operands: What the displacement did to those of its operands that it changed.
        result: What it did to the result.
        precision: The precision of the model.
    """
    # Of differences and sums, what is taken out is measured in absolute terms.
    absolute = equation.primitive.name in ADDITIONS
    # Of an operand most of whose elements stay the same, as of a table, the changed elements are the typical ones; of
    # the result, as many as that may be.
    share = max(operand.share for operand in operands)
    arriving = max(_size(operand, 1 - operand.share / 2, absolute=absolute) for operand in operands)
    leaving = _size(result, 1 - share / 2, absolute=absolute)
    known = max(_size(operand, 1 - operand.share / 2, absolute=False) for operand in operands)
    # Beside a term so large that its rounding hides the displacement, nothing shows that it is taken out. Of scores of
    # which some are masked by a large number, those that change are the others.
    beside = result.magnitude(share / 2)
    known = min(known, arriving / beside) if absolute and beside else known
    return known >= precision.visible and leaving <= precision.taken_out * arriving


def mixes(equation: Equation) -> bool:
    """Returns whether an element of an equation's result may depend on several elements of one operand."""
    if equation.primitive.name.startswith(_MIXING):
        return True
    return any(mixes(inner) for sub in sub_jaxprs(equation) for inner in sub.jaxpr.eqns)


def _size(change: Change, quantile: float, *, absolute: bool) -> float:
    size = change.typical(quantile)
    return size if absolute or change.scale == 0 else size / change.scale


def _quantile(ordered: np.ndarray, quantile: float) -> float:
    last = ordered.size - 1
    return float(ordered[min(last, int(quantile * last + 0.5))]) if last >= 0 else 0.0


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
