"""`RunTolerances` are the tolerances of the tensors of two runs, by the types in which either computes them.

A history has no graph of layers. What a run computes has the digits of the narrowest type in which it computes
anything, and so have its parameters after the first step.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from gradscope import naming
from gradscope.comparison.default_tolerances import coarsest_matmul_dtype, default_tolerance
from gradscope.comparison.diagnosis.runs.run_stages import STEP, follows_the_loss
from gradscope.comparison.diagnosis.runs.run_tensors import RunTensor
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.tolerance_rules import Tolerance
from gradscope.comparison.precision import coarser, comparable
from gradscope.errors import UsageError
from gradscope.history.database.schema import NARROWEST
from gradscope.history.history_reader import History

#: The families that a run is given, and that no step changes.
_GIVEN: Final = naming.INPUT

#: Those that it is given before the first step.
_UPDATED: Final = (naming.PARAM, naming.STATE)

#: The number of a step that is computed, and not a setting.
_LOSS: Final = "loss"


class RunTolerances:
    """RunTolerances are those of two runs.

    Args:
        ref: The reference.
        cand: The candidate.
        options: The tolerances that are stated.

    Attributes:
        products: The dtype whose digits the products of float32 matrices have in both runs.
    """

    def __init__(self, ref: History, cand: History, options: CompareOptions) -> None:
        self._ref, self._cand, self._options = ref, cand, options
        self.products = coarsest_matmul_dtype(ref.facts, cand.facts)
        self._computed = reduce(coarser, map(_narrowest, (ref, cand)), "float64")

    def of(self, tensor: RunTensor, *, first: bool) -> Tolerance | None:
        """Returns the tolerance of a tensor; None where only equal numbers count as the same.

        Args:
            tensor: The tensor.
            first: Whether it is that of the first step that is compared.
        """
        row = tensor.tensor
        dtype = (None if tensor.ref is None else self._ref.tensors[tensor.ref].dtype) or row.dtype or "float32"
        other = (None if tensor.cand is None else self._cand.tensors[tensor.cand].dtype) or dtype
        is_computed = row.family != _GIVEN and not (first and row.family in _UPDATED)
        if is_computed and comparable(dtype, self._computed):
            dtype = coarser(dtype, self._computed)
        return self._options.tolerance(row.name, row.key, self._default(row.family, dtype, other))

    def of_number(self, name: str) -> Tolerance | None:
        """Returns the tolerance of a number of a step.

        Args:
            name: Its name.
        """
        dtype = coarser("float32", self._computed) if name == _LOSS else "float32"
        return self._options.tolerance(name, f"{STEP}/{name}", self._default(naming.TENSOR, dtype, dtype))

    def _default(self, family: str, dtype: str, other: str) -> float:
        # What is computed from gradients has their error.
        judged_as = naming.PARAM_GRAD if follows_the_loss(family) else family
        return default_tolerance(judged_as, dtype, other, products=self.products)


def admits(tolerance: Tolerance, least: float) -> bool:
    """Returns whether a tolerance admits so large a `rel_l2`.

    Raises:
        UsageError: It is about something else, of which a history knows nothing.
    """
    is_met = tolerance.expression.holds({"rel_l2": least})
    if is_met is None:
        raise UsageError(
            f"a history has statistics only, which cannot decide {tolerance.spelling!r}",
            hint="give a limit on rel_l2, as in --tol 1e-3, or --bitwise",
        )
    return is_met


def _narrowest(run: History) -> str:
    """Returns the dtype of the fewest digits in which a run computes activations; float64 where it has none."""
    dtypes = (each.dtype for each in run.tensors.values() if each.family == naming.ACTIVATION and each.dtype)
    floats = [each for each in (*dtypes, run.facts.get(NARROWEST)) if each and comparable(each, "float64")]
    return reduce(coarser, floats, "float64")
