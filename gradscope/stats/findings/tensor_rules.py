"""The rules that only read the statistics of single tensors."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope import naming
from gradscope.dump.manifest.manifest import Entry
from gradscope.stats.columns import number
from gradscope.stats.findings.rule_evidence import Finding, RuleEvidence, Thresholds, column, finding
from gradscope.stats.gains import gradient_ratios


def nonfinite(evidence: RuleEvidence, _: Thresholds) -> Iterator[Finding]:
    """Finds tensors with a NaN or an infinity, and marks the one that was computed first."""
    broken = [entry for entry in evidence.entries if _nonfinite_count(entry)]
    origin = None if evidence.manifest.origins else _origin(broken)  # a guess, unless the capture has searched for it
    for entry in broken:
        counts = (
            f"{column(entry, 'nan'):.0f} NaN and {column(entry, 'inf'):.0f} Inf of {column(entry, 'size'):.0f} elements"
        )
        note = "; the origin may be here, nothing computed before it is non-finite" if entry is origin else ""
        yield finding("nonfinite", entry, f"has {counts}{note}")


def _nonfinite_count(entry: Entry) -> float:
    return column(entry, "nan") + column(entry, "inf")


def _origin(broken: list[Entry]) -> Entry | None:
    """Returns the non-finite tensor that was computed first; None where only per-example gradients are non-finite."""
    broken = [entry for entry in broken if entry.family != naming.EXAMPLE_GRAD]
    forward = [entry for entry in broken if not naming.is_gradient(entry.family)]
    # The backward pass runs in reverse execution order, so the first computed gradient is the last in `broken`.
    backward = [entry for entry in broken if entry.family == naming.ACTIVATION_GRAD] or broken
    return next(iter(forward or reversed(backward)), None)


def vanishing(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Finds gradients that are not exactly zero, but whose mean magnitude is below the threshold."""
    for entry in evidence.gradients:
        mean, name = _mean_magnitude(entry)
        if 0 < mean < thresholds.vanishing:
            yield finding("vanishing", entry, _beyond(f"a {name}", mean, thresholds.vanishing))


def _mean_magnitude(entry: Entry) -> tuple[float, str]:
    """Returns the mean magnitude of a tensor, or its root mean square in the core tier, and the number's name."""
    # The core tier has no mean magnitude; the root mean square is an upper bound of it.
    if "l1" not in entry.stats:
        return column(entry, "rms"), "rms g"
    return column(entry, "l1") / (column(entry, "size") - _nonfinite_count(entry)), "mean |g|"


def exploding(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Finds gradients that are larger than their parameter, or that have an element above a threshold."""
    ratios = gradient_ratios(evidence.manifest)
    for entry in evidence.gradients:
        ratio = ratios.get(entry.name, 0.0) if entry.family == naming.PARAM_GRAD else 0.0
        largest = column(entry, "amax")
        if ratio > thresholds.exploding_ratio:
            yield finding("exploding", entry, _beyond("g/w", ratio, thresholds.exploding_ratio))
        elif largest > thresholds.exploding_magnitude:
            yield finding("exploding", entry, _beyond("a |g|", largest, thresholds.exploding_magnitude))


def _beyond(what: str, value: float, limit: float) -> str:
    """Returns a phrase with a number and its limit, with as many digits as distinguish them, at least three."""
    digits = next((each for each in range(3, 17) if float(f"{value:.{each}g}") != limit), 17)
    return f"has {what} of {value:.{digits}g}, {'above' if value > limit else 'below'} {limit:.3g}"


def dead(evidence: RuleEvidence, thresholds: Thresholds) -> Iterator[Finding]:
    """Finds layers most of whose units are dead."""
    for entry in evidence.entries:
        share = column(entry, "dead")
        # Operations inside a layer are skipped: many return values that are never positive by design.
        if share > thresholds.dead and not entry.site.operation and not _negative_by_nature(entry):
            yield finding("dead", entry, f"has {share:.1%} dead units, above {thresholds.dead:.0%}")


def _negative_by_nature(entry: Entry) -> bool:
    # Log-probabilities, for example, are below zero in every unit. They are not the output of a ReLU, whose dead units
    # are exactly zero.
    largest = number(entry.stats, "max")
    return largest is not None and largest < 0
