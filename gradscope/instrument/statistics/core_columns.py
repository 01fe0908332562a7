"""Statistics become columns, read from the vector that a step computed: 0-d arrays on the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jax.core import Tracer

from gradscope.errors import UsageError
from gradscope.instrument.statistics.core_statistics import CORE_NUMBERS, core_numbers
from gradscope.instrument.statistics.full_statistics import FULL_NUMBERS, has_full_tier
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.naming.summary import Cell, Summary

_COLUMNS: Final = {**CORE_NUMBERS, **FULL_NUMBERS}
#: The columns of `statistics_of`.
_HISTORY_COLUMNS: Final = ("l2", "rms", "mean", "std", "amax", "zeros", "nan", "inf")

#: The columns of a summary; the others follow from them.
_SHOWN: Final = ("mean", "std", "rms", "amax", "zeros", "nan", "inf")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, repr=False)
class CoreStatistics:
    """`CoreStatistics` are the statistics of one tensor, on the device: 0-d arrays, each computed when it is read.

    Moments and extremes are over the finite elements, and `finite`, `zeros`, `nan` and `inf` are counts. After `vmap`
    and in a scan over steps, every array has the axes that these added. With `tier="full"` there are the columns of the
    full tier, too, but for the hash; they are None in the core tier.

    Attributes:
        vector: The vector that the step computed, see `instrument.statistics`.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> _, seen = gs.value_and_grad(lambda w: (w**2).sum())(jnp.array([3.0, 0.0, -4.0]))
        >>> seen["param/value"]
        <gradscope.CoreStatistics mean -0.333, std 2.87, rms 2.89, amax 4, zeros 1, nan 0, inf 0>
        >>> float(seen["param_grad/value"].l2)
        10.0
    """

    vector: Any

    @property
    def mean(self) -> jax.Array:
        """The mean."""
        return CORE_NUMBERS["mean"](self.vector)

    @property
    def std(self) -> jax.Array:
        """The standard deviation."""
        return CORE_NUMBERS["std"](self.vector)

    @property
    def rms(self) -> jax.Array:
        """The root of the mean square."""
        return CORE_NUMBERS["rms"](self.vector)

    @property
    def l2(self) -> jax.Array:
        """The Euclidean norm."""
        return CORE_NUMBERS["l2"](self.vector)

    @property
    def min(self) -> jax.Array:
        """The smallest element."""
        return CORE_NUMBERS["min"](self.vector)

    @property
    def max(self) -> jax.Array:
        """The largest element."""
        return CORE_NUMBERS["max"](self.vector)

    @property
    def amax(self) -> jax.Array:
        """The largest magnitude."""
        return CORE_NUMBERS["amax"](self.vector)

    @property
    def finite(self) -> jax.Array:
        """The number of finite elements."""
        return CORE_NUMBERS["finite"](self.vector)

    @property
    def zeros(self) -> jax.Array:
        """The number of elements that are exactly zero."""
        return CORE_NUMBERS["zeros"](self.vector)

    @property
    def nan(self) -> jax.Array:
        """The number of NaNs."""
        return CORE_NUMBERS["nan"](self.vector)

    @property
    def inf(self) -> jax.Array:
        """The number of infinities."""
        return CORE_NUMBERS["inf"](self.vector)

    @property
    def l1(self) -> jax.Array | None:
        """The sum of the magnitudes; None in the core tier."""
        return self._of_full_tier("l1")

    @property
    def amin_nz(self) -> jax.Array | None:
        """The smallest magnitude that is not zero; None in the core tier."""
        return self._of_full_tier("amin_nz")

    @property
    def posinf(self) -> jax.Array | None:
        """The number of positive infinities; None in the core tier."""
        return self._of_full_tier("posinf")

    @property
    def neginf(self) -> jax.Array | None:
        """The number of negative infinities; None in the core tier."""
        return self._of_full_tier("neginf")

    @property
    def subnormal(self) -> jax.Array | None:
        """The number of subnormal elements; None in the core tier."""
        return self._of_full_tier("subnormal")

    @property
    def dynrange(self) -> jax.Array | None:
        """The powers of two between the smallest and the largest magnitude; None in the core tier."""
        return self._of_full_tier("dynrange")

    @property
    def p1(self) -> jax.Array | None:
        """The first percentile of the magnitudes, within 1/32; None in the core tier."""
        return self._of_full_tier("p1")

    @property
    def p50(self) -> jax.Array | None:
        """The median of the magnitudes, within 1/32; None in the core tier."""
        return self._of_full_tier("p50")

    @property
    def p99(self) -> jax.Array | None:
        """The 99th percentile of the magnitudes, within 1/32; None in the core tier."""
        return self._of_full_tier("p99")

    @property
    def underflow(self) -> Mapping[str, jax.Array]:
        """The shares of non-zero elements that round to zero in narrower types, by type; empty in the core tier."""
        columns = [name for name in FULL_NUMBERS if name.startswith("underflow@")]
        shares = {name.partition("@")[2]: self._of_full_tier(name) for name in columns}
        return {name: share for name, share in shares.items() if share is not None}

    def _of_full_tier(self, column: str) -> jax.Array | None:
        return FULL_NUMBERS[column](self.vector) if has_full_tier(self.vector) else None

    def summary(self) -> Summary:
        """Returns the columns; numbers only where the step has run, which this then waits for."""
        columns = (*CORE_NUMBERS, *(FULL_NUMBERS if has_full_tier(self.vector) else ()))
        numbers = _numbers(self, columns)
        line = f"of one tensor, {jax.typeof(self.vector).str_short()}" if numbers is None else _line(self)
        rows = () if numbers is None else tuple(zip(columns, numbers, strict=True))
        return Summary(line=line, headings=("column", "value") if rows else (), rows=rows)

    def __repr__(self) -> str:
        return self.summary().one_line("CoreStatistics")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return self.summary().html()


def statistics_of(vector: np.ndarray) -> dict[str, float | int]:
    """Returns the columns of a history from a vector on the host; those over no finite element are missing."""
    numbers = core_numbers(vector)
    counts: dict[str, float | int] = {"zeros": numbers.zeros, "nan": numbers.nan, "inf": numbers.inf}
    if not numbers.finite:
        return counts
    return {
        "l2": numbers.rms * math.sqrt(numbers.finite),
        "rms": numbers.rms,
        "mean": numbers.mean,
        "std": numbers.std,
        "amax": max(abs(numbers.minimum), abs(numbers.maximum)),
        **counts,
    }


def scalars_of(found: Mapping[str, CoreStatistics], columns: Sequence[str]) -> dict[str, float]:
    """Returns statistics as a flat dictionary, `param_grad/head/kernel/l2`; waits for the device once.

    Args:
        found: Statistics by key.
        columns: Which of them; one that a tensor without a finite element lacks is left out.

    Raises:
        UsageError: There is no such column.
    """
    for column in columns:
        if column not in _HISTORY_COLUMNS:
            raise UsageError(f"there is no statistic {column!r}", hint=nearest_hint(column, _HISTORY_COLUMNS))
    vectors = jax.device_get({key: each.vector for key, each in found.items()})
    return {
        f"{key}/{column}": float(numbers[column])
        for key, vector in vectors.items()
        for numbers in (statistics_of(vector),)
        for column in columns
        if column in numbers
    }


def rows_of(found: Iterable[tuple[str, CoreStatistics]]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Returns headings and rows of a table of statistics by key; only the keys where there are no numbers yet."""
    numbers = {key: _numbers(each, _SHOWN) for key, each in found}
    if None in numbers.values():
        return ("tensor",), tuple((key,) for key in numbers)
    return ("tensor", *_SHOWN), tuple((key, *(each or ())) for key, each in numbers.items())


def _line(statistics: CoreStatistics) -> str:
    numbers = zip(_SHOWN, _numbers(statistics, _SHOWN) or (), strict=True)
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers)


def _numbers(statistics: CoreStatistics, names: tuple[str, ...]) -> tuple[float, ...] | None:
    """Returns columns as numbers; None while a step is traced, and of several steps or examples."""
    vector = statistics.vector
    if isinstance(vector, Tracer) or np.ndim(vector) != 1:
        return None
    host = np.asarray(vector)
    return tuple(float(_COLUMNS[name](host)) for name in names)
