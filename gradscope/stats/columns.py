"""`COLUMNS` has all columns of statistics, and `number` returns what a manifest holds in one of them.

All code that handles columns reads the table: the JSON of `TensorStats`, the rows of reports and the format of their
values, the laws about sums of statistics, and the reference page. A derived column of a tensor is one line here and one
property of `TensorStats`; one of a layer is one line here and one field of `LayerGains`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gradscope import naming
from gradscope.arrays.histograms import UNDERFLOW_LIMITS
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.manifest import Tier
from gradscope.dump.record import Json

#: The kind of a column's values. A `count` is a number of elements, which reports also show as a share of the `size`.
ColumnKind: TypeAlias = Literal["number", "share", "count", "size", "shape", "text", "flag", "histogram"]

#: The subject of a column. A column of a layer or a parameter relates several tensors to each other, and one of a
#: calibration relates several runs.
Subject: TypeAlias = Literal["tensor", "layer", "parameter", "calibration"]

#: The relation of a column in a sum of statistics to that of the concatenated elements: equal, equal up to rounding, or
#: absent.
InSum: TypeAlias = Literal["exact", "rounded", "lost"]

#: No integer below it is too large for a float64.
_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """A `ColumnSpec` defines one column of statistics.

    Attributes:
        name: Name in JSON, in rows and in the headings of tables; `NAME@T` means one column for each type `T`.
        sentence: Definition, with the formula, in Markdown without a full stop.
        kind: Kind of the values.
        unit: Unit of the values; "" where they have none.
        tier: The first tier that has the column.
        in_sum: The column's relation to that of the concatenated elements where statistics are added.
        subject: Subject of the column.
        families: The families whose rows have the column; empty for all.
    """

    name: str
    sentence: str
    kind: ColumnKind = "number"
    unit: str = ""
    tier: Tier = "full"
    in_sum: InSum = "exact"
    subject: Subject = "tensor"
    families: tuple[str, ...] = ()

    @property
    def is_by_type(self) -> bool:
        """Whether it is one column for each type."""
        return "@" in self.name

    @property
    def base(self) -> str:
        """The name without `@T`."""
        return base_of(self.name)


#: The unit of columns that are in the unit of the elements.
_ELEMENTS_OWN: Final = "that of the elements"

#: Every column, in the order of JSON and rows. Moments, norms, extremes and quantiles are over the finite elements; of
#: a complex tensor all but the counts are about magnitudes.
COLUMNS: Final[tuple[ColumnSpec, ...]] = (
    ColumnSpec(
        name="size",
        sentence="number of elements, as the model computed the tensor, before any storage encoding",
        kind="size",
        unit="elements",
        tier="core",
    ),
    ColumnSpec(
        name="shape",
        sentence="length of each axis, as the model computed the tensor",
        kind="shape",
        tier="core",
        in_sum="lost",
    ),
    ColumnSpec(name="dtype", sentence="name of the logical dtype, as JAX spells it", kind="text", tier="core"),
    ColumnSpec(
        name="mean", sentence="arithmetic mean, `sum(x) / n`", unit=_ELEMENTS_OWN, tier="core", in_sum="rounded"
    ),
    ColumnSpec(
        name="std",
        sentence="population standard deviation, `sqrt(mean((x - mean)^2))` (ddof 0)",
        unit=_ELEMENTS_OWN,
        tier="core",
        in_sum="rounded",
    ),
    ColumnSpec(
        name="rms", sentence="root mean square, `sqrt(mean(x^2))`", unit=_ELEMENTS_OWN, tier="core", in_sum="rounded"
    ),
    ColumnSpec(
        name="l2", sentence="Euclidean norm, `sqrt(sum(x^2))`", unit=_ELEMENTS_OWN, tier="core", in_sum="rounded"
    ),
    ColumnSpec(name="l1", sentence="sum of the magnitudes, `sum(|x|)`", unit=_ELEMENTS_OWN, in_sum="rounded"),
    ColumnSpec(
        name="min",
        sentence="smallest element; an exact integer where the elements are integers",
        unit=_ELEMENTS_OWN,
        tier="core",
    ),
    ColumnSpec(
        name="max",
        sentence="largest element; an exact integer where the elements are integers",
        unit=_ELEMENTS_OWN,
        tier="core",
    ),
    ColumnSpec(name="amax", sentence="largest magnitude, `max(|x|)`", unit=_ELEMENTS_OWN, tier="core"),
    ColumnSpec(name="amin_nz", sentence="smallest magnitude that is not zero", unit=_ELEMENTS_OWN),
    ColumnSpec(name="zeros", sentence="number of zeros, of either sign", kind="count", unit="elements", tier="core"),
    ColumnSpec(name="nan", sentence="number of NaNs", kind="count", unit="elements", tier="core"),
    ColumnSpec(name="inf", sentence="number of infinities, of either sign", kind="count", unit="elements", tier="core"),
    ColumnSpec(name="posinf", sentence="number of positive infinities", kind="count", unit="elements"),
    ColumnSpec(name="neginf", sentence="number of negative infinities", kind="count", unit="elements"),
    ColumnSpec(
        name="subnormal",
        sentence="number of elements that are subnormal in the tensor's own dtype (in that of the components, where "
        "they are complex)",
        kind="count",
        unit="elements",
    ),
    ColumnSpec(
        name="dynrange",
        sentence="dynamic range, `log2(amax / amin_nz)`: from the smallest to the largest magnitude that is not zero",
        unit="bits",
    ),
    ColumnSpec(
        name="p1",
        sentence="the magnitude that 1 % of the elements do not exceed: from the histogram to within 1/32, exact with "
        "`--exact-quantiles`",
        unit=_ELEMENTS_OWN,
    ),
    ColumnSpec(name="p50", sentence="median magnitude, as precise as `p1`", unit=_ELEMENTS_OWN),
    ColumnSpec(
        name="p99",
        sentence="the magnitude that 99 % of the elements do not exceed, as precise as `p1`",
        unit=_ELEMENTS_OWN,
    ),
    ColumnSpec(
        name="dead",
        sentence="share of the units (indices of the last axis) whose maximum over all other axes is at most zero; a "
        "vector has no units",
        kind="share",
        unit="of the units",
        in_sum="lost",
        families=(naming.ACTIVATION,),
    ),
    ColumnSpec(
        name="saturated",
        sentence="share of the elements within 0.01 of a limit of the primitive that computed them (`tanh`, `erf`, "
        "`logistic`)",
        kind="share",
        unit="of the elements",
        in_sum="lost",
        families=(naming.ACTIVATION,),
    ),
    ColumnSpec(
        name="underflow@T",
        sentence="share of the finite elements that are not zero whose magnitude rounds to zero in the type T, one of "
        f"{', '.join(UNDERFLOW_LIMITS)}",
        kind="share",
        unit="of the finite elements that are not zero",
    ),
    ColumnSpec(
        name="hash",
        sentence="128-bit hash of the bytes in C order, in hexadecimal: equal if every bit is equal",
        kind="text",
        in_sum="lost",
    ),
    ColumnSpec(
        name="complex",
        sentence="true where the elements are complex, so that the numbers are about their magnitudes",
        kind="flag",
        tier="core",
    ),
    ColumnSpec(
        name="exact_quantiles",
        sentence="true where `p1`, `p50` and `p99` come from the sorted elements",
        kind="flag",
        in_sum="lost",
    ),
    ColumnSpec(
        name="histogram",
        sentence="numbers of finite magnitudes above zero by bin, 16 bins to the octave: the index of the first bin "
        "that has any, and the counts from there",
        kind="histogram",
        unit="elements",
    ),
    ColumnSpec(
        name="noise",
        sentence="noise floor in a calibrated dump: the largest `rel_l2` by which the tensor changed in runs under "
        "changes that should make no difference",
        in_sum="lost",
        subject="calibration",
    ),
    ColumnSpec(
        name="noise@T",
        sentence="the `rel_l2` by which the tensor changed in a run of the calibrated model in the type T, bfloat16 or "
        "(of a model in float64) float32",
        in_sum="lost",
        subject="calibration",
    ),
    ColumnSpec(
        name="g/w",
        sentence="`l2(gradient) / l2(parameter)`: how large a step of size one is next to the parameter; absent "
        "where the parameter is all zeros",
        tier="core",
        in_sum="rounded",
        subject="parameter",
        families=(naming.PARAM_GRAD,),
    ),
    ColumnSpec(
        name="fwd_gain",
        sentence="forward gain of the layer, `rms(out) / rms(in)`",
        tier="core",
        in_sum="rounded",
        subject="layer",
        families=(naming.ACTIVATION,),
    ),
    ColumnSpec(
        name="fwd_total",
        sentence="forward gain accumulated to the end of the network, `rms(out of the last layer) / rms(in)`",
        tier="core",
        in_sum="rounded",
        subject="layer",
        families=(naming.ACTIVATION,),
    ),
    ColumnSpec(
        name="bwd_gain",
        sentence="backward gain of the layer, `rms(gradient of in) / rms(gradient of out)`",
        tier="core",
        in_sum="rounded",
        subject="layer",
        families=(naming.ACTIVATION_GRAD,),
    ),
    ColumnSpec(
        name="bwd_total",
        sentence="backward gain accumulated from the end of the network, `rms(gradient of in) / rms(gradient of the "
        "out of the last layer)`: vanishing and exploding gradients appear as a slope of it over the layers",
        tier="core",
        in_sum="rounded",
        subject="layer",
        families=(naming.ACTIVATION_GRAD,),
    ),
)


class column(property):  # noqa: N801 - it is used as `property` is
    """A `column` is a property whose docstring is the sentence of the line of `COLUMNS` that has its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = next(spec.sentence for spec in COLUMNS if spec.base == name)


def columns_of(subject: Subject) -> tuple[ColumnSpec, ...]:
    """Returns the columns of one subject, in the order of the table."""
    return tuple(spec for spec in COLUMNS if spec.subject == subject)


def base_of(name: str) -> str:
    """Returns the part of a column's name before `@`, which is the full name of a column without types."""
    return name.partition("@")[0]


def column_kinds() -> dict[str, ColumnKind]:
    """Returns the kind of every column, by the name without `@T`."""
    return {spec.base: spec.kind for spec in COLUMNS}


def number(columns: Mapping[str, Json], name: str) -> float | None:
    """Returns the number in one column; None where the column does not apply.

    Raises:
        DumpError: The column holds something else.
    """
    value = columns.get(name)
    if type(value) is float or (type(value) is int and -_EXACT < value < _EXACT):
        return float(value)  # most are, and rules ask for some of every tensor
    return as_float(columns[name]) if name in columns else None


def is_all_zero(columns: Mapping[str, Json]) -> bool:
    """Returns whether a tensor has elements and all of them are zero."""
    size = number(columns, "size") or 0.0
    return number(columns, "zeros") == size > 0
