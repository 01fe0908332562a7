"""A use has a zero derivative where its equation turns a gradient that is not zero into zero.

The equation's vector-Jacobian product is taken again, of the same gradient scaled up and of magnitudes in place of
values. If the scaled gradient comes back, it had underflowed. If the magnitudes come back, terms had cancelled.
Otherwise the reason follows from the primitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.capturing.explain.zeros.operand_names import CONSTANT
from gradscope.capturing.explain.zeros.softmax_rows import single_entries
from gradscope.dump.manifest.zero_reasons import PRODUCT_OF, RECEIVES_ZEROS
from gradscope.primitive_groups import ADDITIONS, COPIES, PRODUCTS
from gradscope.tracing.dataflow.gradient_barriers import location_of
from gradscope.tracing.dataflow.reachability import is_inexact
from gradscope.tracing.jaxpr.derivatives.vjp import pulled_back
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import bind

#: Linear in the gradient, and nothing else.
_SUMS: Final = COPIES | ADDITIONS | {"neg", "reduce_sum", "rev", "concatenate", "cumsum"}
#: Selects some elements and drops others.
_SELECTIONS: Final = frozenset(
    {"gather", "slice", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "scatter-mul",
     "scatter_mul", "scatter-min", "scatter_min", "scatter-max", "scatter_max", "pad", "sort", "split", "reduce_max",
     "reduce_min", "concatenate", "top_k", "stack"}
)  # fmt: skip
#: Have no zero derivative in exact arithmetic.
_NEVER_FLAT: Final = frozenset(
    {
        "exp",
        "exp2",
        "expm1",
        "tanh",
        "logistic",
        "erf",
        "erfc",
        "log",
        "log1p",
        "log2",
        "sqrt",
        "rsqrt",
        "atan",
        "asinh",
        "cbrt",
    }
)
#: Return the one or the other of two operands.
_CHOICES: Final = {"max": "larger", "min": "smaller"}
_FUNCTIONS: Final = frozenset({"custom_jvp_call", "custom_vjp_call"})
#: Functions that apply both choices in turn.
_CLIPS: Final = frozenset({"clip", "_clip"})
#: Flat on one side of a threshold, or beyond two.
RECTIFIERS: Final = frozenset({"max", "min", "clamp", "custom_jvp_call", "custom_vjp_call"})
#: Drop elements of a value one by one, each for a reason of its own.
_PER_ELEMENT: Final = PRODUCTS | RECTIFIERS | {"select_n"}

#: The change of a value, relative to itself or to 1, that shows whether an output depends on it.
_NUDGE: Final = 1e-3

#: The reason by primitive, where it is neither underflow, nor cancellation, nor a dead unit.
_KINDS: Final = (
    (PRODUCTS, "masked: multiplied by exact zeros in {where}"),
    ({"select_n"}, "masked: where never takes it, {where}"),
    (_SELECTIONS, "masked: not taken by {where}"),
    (_NEVER_FLAT, "underflow: the derivative of {where} rounds to zero for every element"),
)
_OTHERWISE: Final = "the derivative of {where} is exactly zero for every element"


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationUse:
    """An `EquationUse` is one equation's use of one value, with numbers.

    Attributes:
        frame: The equation's frame.
        number: The equation.
        positions: The value's positions among the operands.
        operands: Values of all operands.
        cotangents: The gradient with respect to each of its outputs; zeros where none arrives.
        layer: The layer it belongs to; None where there is none.
        names: For each operand what it is, a parameter, `axis_index` or a constant; "" where it has no such name.
        part: The elements of the value that are examined, as booleans; None for all.
    """

    frame: Frame
    number: int
    positions: tuple[int, ...]
    operands: Sequence[Any]
    cotangents: Sequence[Any]
    layer: str | None
    names: Sequence[str]
    part: np.ndarray | None = None

    def gradient(self) -> np.ndarray:
        """Returns the gradient that comes back through the equation to the value."""
        return self._pulled_back(self.operands, self.cotangents)

    @property
    def outputs(self) -> list[Any]:
        """The equation's output variables of inexact dtype."""
        return list(filter(is_inexact, self.frame.jaxpr.eqns[self.number].outvars))

    def goes_on(self) -> list[np.ndarray]:
        """Returns the elements of each output that depend on the value, where no gradient arrives at any of them.

        A concatenation hands its operands on, whatever becomes of them: what counts is the operation that drops them.
        """
        name = self.frame.jaxpr.eqns[self.number].primitive.name
        if self.part is None and name in _PER_ELEMENT:
            return []
        changed = [up | down for up, down in zip(self._changed(_NUDGE), self._changed(-_NUDGE), strict=True)]
        arrives = any(np.any(np.asarray(each)[at]) for each, at in zip(self.cotangents, changed, strict=True))
        return [] if arrives or not any(at.any() for at in changed) else changed

    def reason(self) -> str:
        """Returns why nothing comes back, with the equation's name and line."""
        equation, where = self.frame.jaxpr.eqns[self.number], location_of(self.frame, self.number)
        if self._pulled_back(self.operands, [_scaled(each) for each in self.cotangents]).any():
            largest = max(_largest(each) for each in self.cotangents)
            dtype = equation.invars[self.positions[0]].aval.dtype.name
            return f"underflow in {dtype}: a gradient of at most {largest:.3g} comes back from {where} as zero"
        if found := self._by_construction(where):
            return found
        if self._cancels():
            return f"cancellation: the gradient's terms sum to exactly zero in {where}"
        if found := self._flatness(where):
            return found
        if equation.primitive.name == "exp" and (found := single_entries(self.operands[0], where)):
            return found
        kind = next((reason for names, reason in _KINDS if equation.primitive.name in names), _OTHERWISE)
        return kind.format(where=where) + self._zeros(equation.primitive.name)

    def floor(self) -> float | None:
        """Returns what a rectifier returns alone, wherever the loss depends on it; None for any other use.

        It is zero, or the constant that a maximum is taken with.
        """
        name = self.frame.jaxpr.eqns[self.number].primitive.name
        if name not in RECTIFIERS or self._clips():
            return None
        others = [n for n in range(len(self.operands)) if n not in self.positions and self.names[n] == CONSTANT]
        constant = np.asarray(self.operands[others[0]]) if name == "max" and len(others) == 1 else np.zeros(())
        floor = float(constant.item()) if constant.size == 1 else 0.0
        pairs = zip(self._outputs(self.operands), self.cotangents, strict=True)
        reached = all((np.asarray(made)[np.asarray(at) != 0] == floor).all() for made, at in pairs)
        return floor if reached and self._is_flat() else None

    def _by_construction(self, where: str) -> str:
        """Returns why the gradient is zero whatever the parameters are; "" where it is not."""
        if self._is_real_part():
            return f"zero by construction: the loss takes the imaginary part of a real number, converted by {where}"
        if self._is_constant():
            return f"zero by construction: the output of {where} is the same whatever it receives"
        return ""

    def _flatness(self, where: str) -> str:
        """Returns why the output of a choice or a rectifier stays the same; "" where it does not."""
        name = self.frame.jaxpr.eqns[self.number].primitive.name
        if name not in RECTIFIERS or not self._is_flat():
            return ""
        if self._clips():
            return f"outside the clip range: the output of {where} is constant wherever the loss depends on it"
        if name in _CHOICES and self._loses():
            return f"masked: the other operand of {where} is {_CHOICES[name]} wherever the loss depends on it"
        layer = "" if self.layer is None else f" in {self.layer}"
        own = self.names[self.positions[0]]
        masked = f": {own} is 0" if naming.split_key(own.removeprefix(PRODUCT_OF))[0] == naming.INPUT else ""
        if not masked and not np.any(np.asarray(self.operands[self.positions[0]])):
            masked = RECEIVES_ZEROS  # as of a normalisation over one element
        return f"dead units: the output of {where}{layer} is constant wherever the loss depends on it{masked}"

    def _zeros(self, primitive: str) -> str:
        """Returns which factor is zero throughout, ": param/b is 0"; "" where it has no name."""
        if primitive not in PRODUCTS:
            return ""
        others = (n for n in range(len(self.operands)) if n not in self.positions)
        named = [self.names[n] for n in others if self.names[n] and not np.any(np.asarray(self.operands[n]))]
        return f": {' and '.join(named)} is 0" if named else ""

    def _loses(self) -> bool:
        """Returns whether a choice that never takes the value is one between two, of which the other is no bound."""
        own, *others = self.positions
        return not others and (self.names[1 - own] != CONSTANT or np.size(self.operands[own]) == 1)

    def _clips(self) -> bool:
        """Returns whether the equation limits the value from both sides, alone or as a part of a function that does."""
        around = self.frame.equation
        inside = around is not None and around.params.get("name") in _CLIPS
        name = self.frame.jaxpr.eqns[self.number].primitive.name
        return name == "clamp" or (inside and name in _CHOICES)

    def _is_real_part(self) -> bool:
        """Returns whether a real value is made complex, and only the imaginary part has a gradient."""
        equation = self.frame.jaxpr.eqns[self.number]
        made = all(np.iscomplexobj(each) for each in self.cotangents)
        converted = equation.primitive.name == "convert_element_type" and made
        return converted and _is_floating(self.operands[0]) and not any(np.real(each).any() for each in self.cotangents)

    def _is_constant(self) -> bool:
        """Returns whether the outputs stay the same however much the value changes."""
        value = np.asarray(self.operands[self.positions[0]])
        if not _is_floating(value) or self.frame.jaxpr.eqns[self.number].primitive.name not in _FUNCTIONS:
            return False
        draw = np.random.default_rng(0).standard_normal
        before = self._outputs(self.operands)
        others = [
            self._outputs(self._with(jax.device_put(draw(value.shape).astype(value.dtype)), self.operands))
            for _ in range(2)
        ]
        return all(np.array_equal(one, each) for other in others for one, each in zip(before, other, strict=True))

    def _cancels(self) -> bool:
        """Returns whether the result would not be zero if no two terms of it could cancel."""
        name = self.frame.jaxpr.eqns[self.number].primitive.name
        single = (replace(self, positions=(position,)) for position in self.positions)
        several = len(self.positions) > 1 and any(each.gradient().any() for each in single)
        return several or (name in PRODUCTS | _SUMS and bool(self._of_magnitudes().any()))

    def _of_magnitudes(self) -> np.ndarray:
        operands = [jnp.abs(each) if _is_floating(each) else each for each in self.operands]
        return self._pulled_back(operands, [jnp.abs(each).astype(each.dtype) for each in self.cotangents])

    def _is_flat(self) -> bool:
        """Returns whether the outputs that reach the loss stay the same when the value changes a little, up or down."""
        for change in (_NUDGE, -_NUDGE):
            pairs = zip(self._changed(change), self.cotangents, strict=True)
            if not any(np.any(changed & (np.asarray(arrived) != 0)) for changed, arrived in pairs):
                return True
        return False

    def _changed(self, change: float) -> list[np.ndarray]:
        """Returns the elements of the outputs that a small change of the value changes."""
        value = jax.device_put(self.operands[self.positions[0]])
        step = float(np.copysign(max(abs(change), 4 * float(jnp.finfo(value.dtype).eps)), change))
        nudged = value + (step * jnp.maximum(jnp.abs(value), 1)).astype(value.dtype)
        pairs = zip(self._outputs(self.operands), self._outputs(self._with(nudged, self.operands)), strict=True)
        return [np.asarray(before != after) for before, after in pairs]

    def _with(self, value: Any, operands: Sequence[Any]) -> list[Any]:
        changed = value if self.part is None else jnp.where(self.part, value, self.operands[self.positions[0]])
        return [changed if n in self.positions else each for n, each in enumerate(operands)]

    def _pulled_back(self, operands: Sequence[Any], cotangents: Sequence[Any]) -> np.ndarray:
        equation = self.frame.jaxpr.eqns[self.number]
        inexact = [position for position, variable in enumerate(equation.outvars) if is_inexact(variable)]
        arrived = dict(zip(inexact, cotangents, strict=True))
        # Here and below not by `jnp.asarray`, which compiles the identity for each shape of NumPy's arrays.
        terms = pulled_back(equation, [jax.device_put(each) for each in operands], self.positions, arrived)
        gradient = np.asarray(sum(terms[1:], start=terms[0]))
        return gradient if self.part is None else np.where(self.part, gradient, 0)

    def _outputs(self, operands: Sequence[Any]) -> list[Any]:
        """Returns the equation's outputs of inexact dtype."""
        equation = self.frame.jaxpr.eqns[self.number]
        made = bind(equation, [jax.device_put(each) for each in operands])
        return [value for value, variable in zip(made, equation.outvars, strict=True) if is_inexact(variable)]


def _scaled(cotangent: Any) -> Any:
    """Returns a gradient times the power of two that brings its largest element near 1, which is exact."""
    largest, dtype = _largest(cotangent), np.asarray(cotangent).dtype
    exponent = 0 if largest == 0 or not np.isfinite(largest) else -int(np.floor(np.log2(largest)))
    if np.iscomplexobj(cotangent):
        wide = np.asarray(cotangent).astype(np.complex128)
        return jax.device_put((np.ldexp(wide.real, exponent) + 1j * np.ldexp(wide.imag, exponent)).astype(dtype))
    return jax.device_put(np.ldexp(np.asarray(cotangent).astype(np.float64), exponent).astype(dtype))


def _largest(array: Any) -> float:
    """Returns the largest magnitude of an array's elements."""
    wide = np.asarray(array).astype(np.complex128 if np.iscomplexobj(array) else np.float64)
    return float(np.abs(wide).max(initial=0.0))


def _is_floating(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))
