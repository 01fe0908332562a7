"""The rules that read nothing but the numbers of single tensors; each a pure function from evidence to findings."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.stats.columns import number
from gradscope.stats.findings.rule_evidence import Evidence, Finding, Thresholds, column, finding
from gradscope.stats.gains import gradient_ratios


def nonfinite(evidence: Evidence, _: Thresholds) -> Iterator[Finding]:
    """Tensors with a NaN or an infinity; which of them the trouble may have started in is said."""
    broken = [entry for entry in evidence.entries if _nonfinite_count(entry)]
    origin = None if evidence.manifest.origins else _origin(broken)  # where it was searched for, it is known
    for entry in broken:
        counts = (
            f"{column(entry, 'nan'):.0f} NaN and {column(entry, 'inf'):.0f} Inf of {column(entry, 'size'):.0f} elements"
        )
        remark = "; the origin may be here, nothing computed before it is non-finite" if entry is origin else ""
        yield finding("nonfinite", entry, f"has {counts}{remark}")


def _nonfinite_count(entry: Entry) -> float:
    return column(entry, "nan") + column(entry, "inf")


def _origin(broken: list[Entry]) -> Entry | None:
    """The first non-finite value; where all are gradients, the last: the backward pass runs against execution order.

    None where the run of the whole batch is finite, and only examples alone are not.
    """
    broken = [entry for entry in broken if entry.family != naming.EXAMPLE_GRAD]
    forward = [entry for entry in broken if not naming.is_gradient(entry.family)]
    backward = [entry for entry in broken if entry.family == naming.ACTIVATION_GRAD] or broken
    return next(iter(forward or reversed(backward)), None)


def vanishing(evidence: Evidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Gradients that are not exactly zero, but whose mean magnitude is next to nothing."""
    for entry in evidence.gradients:
        mean, name = _mean_magnitude(entry)
        if 0 < mean < thresholds.vanishing:
            yield finding("vanishing", entry, _beyond(f"a {name}", mean, thresholds.vanishing))


def _mean_magnitude(entry: Entry) -> tuple[float, str]:
    """The mean magnitude and its name; of the core tier, which has none, the root mean square that it cannot exceed."""
    if "l1" not in entry.stats:
        return column(entry, "rms"), "rms g"
    return column(entry, "l1") / (column(entry, "size") - _nonfinite_count(entry)), "mean |g|"


def exploding(evidence: Evidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Gradients larger than their parameter, or with an element that is huge."""
    ratios = gradient_ratios(evidence.manifest)
    for entry in evidence.gradients:
        ratio = ratios.get(entry.name, 0.0) if entry.family == naming.PARAM_GRAD else 0.0
        largest = column(entry, "amax")
        if ratio > thresholds.exploding_ratio:
            yield finding("exploding", entry, _beyond("g/w", ratio, thresholds.exploding_ratio))
        elif largest > thresholds.exploding_magnitude:
            yield finding("exploding", entry, _beyond("a |g|", largest, thresholds.exploding_magnitude))


def _beyond(what: str, value: float, limit: float) -> str:
    """A number and its limit, in three digits or in as many as tell them apart."""
    digits = next((each for each in range(3, 17) if float(f"{value:.{each}g}") != limit), 17)
    return f"has {what} of {value:.{digits}g}, {'above' if value > limit else 'below'} {limit:.3g}"


def dead(evidence: Evidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Layers most of whose units pass nothing on; inside a layer, an operation may well give what is never positive."""
    for entry in evidence.entries:
        share = column(entry, "dead")
        if share > thresholds.dead and not entry.site.operation and not _negative_by_nature(entry):
            yield finding("dead", entry, f"has {share:.1%} dead units, above {thresholds.dead:.0%}")


def _negative_by_nature(entry: Entry) -> bool:
    # Log-probabilities and the like are below zero in every unit, and no rectifier made them: that leaves exact zeros.
    largest = number(entry.stats, "max")
    return largest is not None and largest < 0
