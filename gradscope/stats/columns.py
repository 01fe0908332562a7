"""A tensor's statistics as they stand in a manifest: the number of a column, and the way back to a `Reduction`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gradscope.arrays.histograms import BINS, MagnitudeHistogram
from gradscope.arrays.magnitudes import Magnitudes
from gradscope.arrays.moments import Moments
from gradscope.arrays.reductions import Extremes, NonFinite, Reduction
from gradscope.dump.jsontext import as_float
from gradscope.dump.record import Json
from gradscope.errors import DumpError


def json_number(value: float | None) -> Json:
    """A number as JSON can say it; None for none."""
    if value is None or isinstance(value, int) or math.isfinite(value):
        return value
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")


def number(columns: Mapping[str, Json], name: str) -> float | None:
    """The number of one column; None where it does not apply.

    Raises:
        DumpError: The column holds something else.
    """
    with malformed_is_refused():
        return as_float(columns[name]) if name in columns else None


def shape_from_json(value: Json) -> tuple[int, ...]:
    """The shape that a list of sizes stands for."""
    return _counts(value)


def reduction_from_json(columns: Mapping[str, Json], size: int) -> Reduction:
    """What was reduced of a tensor of `size` elements, from its columns.

    Raises:
        KeyError, TypeError, ValueError: The columns contradict each other or are not numbers.
    """
    nonfinite = _nonfinite(columns)
    return Reduction(
        zeros=_count(columns["zeros"]) if "zeros" in columns else None,
        nonfinite=nonfinite,
        extremes=_extremes(columns, exact=nonfinite is None) if "min" in columns else None,
        moments=_moments(columns, size - nonfinite.nan - nonfinite.inf) if nonfinite and "mean" in columns else None,
        magnitudes=_magnitudes(columns) if "histogram" in columns else None,
    )


@contextmanager
def malformed_is_refused() -> Iterator[None]:
    """Turn what a stranger's columns can make the functions of this module raise into a `DumpError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise DumpError(
            f"the statistics of a tensor are malformed: {type(error).__name__}: {error}",
            hint="write the dump again, or open it with a gradscope of the version that wrote it",
        ) from error


def _nonfinite(columns: Mapping[str, Json]) -> NonFinite | None:
    if "nan" not in columns:
        return None
    return NonFinite(
        nan=_count(columns["nan"]),
        inf=_count(columns["inf"]),
        neginf=_count(columns["neginf"]) if "neginf" in columns else None,
    )


def _extremes(columns: Mapping[str, Json], *, exact: bool) -> Extremes:
    number = _integer if exact else as_float
    return Extremes(low=number(columns["min"]), high=number(columns["max"]))


def _moments(columns: Mapping[str, Json], count: int) -> Moments:
    if count < 1:
        raise ValueError(f"a mean over {count} elements")
    return Moments(
        count=count, mean=as_float(columns["mean"]), std=as_float(columns["std"]), rms=as_float(columns["rms"])
    )


def _magnitudes(columns: Mapping[str, Json]) -> Magnitudes:
    return Magnitudes(
        total=as_float(columns.get("l1", 0.0)),
        smallest=as_float(columns.get("amin_nz", math.inf)),
        subnormal=_count(columns["subnormal"]),
        histogram=_histogram(columns["histogram"]),
    )


def _histogram(value: Json) -> MagnitudeHistogram:
    if not isinstance(value, dict):
        raise TypeError(f"expected a histogram, found {value!r}")
    histogram = MagnitudeHistogram(_count(value["first"]), _counts(value["counts"]))
    if histogram.end > BINS:
        raise ValueError(f"a histogram of {BINS} bins has none of number {histogram.end - 1}")
    return histogram


def _counts(value: Json) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list of counts, found {value!r}")
    return tuple(_count(each) for each in value)


def _count(value: Json) -> int:
    if (count := _integer(value)) < 0:
        raise ValueError(f"a count of {count}")
    return count


def _integer(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected an integer, found {value!r}")
    return value
