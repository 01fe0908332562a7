"""Tables of what is measured and judged: statistics, findings, metrics, tolerances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from gradscope.arrays.histograms import UNDERFLOW_LIMITS
from gradscope.comparison import default_tolerances, precision
from gradscope.comparison.follow_ups.mesh_fault import FAULTS
from gradscope.comparison.metrics.metrics import METRICS
from gradscope.comparison.pairing.matching import PASSES
from gradscope.dump.manifest.zero_reasons import ZERO_REASONS
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD
from gradscope.naming.families import MEANINGS, SLOT_MEANING
from gradscope.stats import RULES, Thresholds
from gradscope.stats.columns import Subject, columns_of
from gradscope.stats.units import LIMITS, MARGIN
from scripts.docs_blocks.markdown import as_sentence, attributes, code, table


def columns_table(subject: Subject) -> str:
    """The columns of statistics that belong to a tensor, a layer and so on."""
    specs = columns_of(subject)
    rows = (
        (code(each.name), code(*each.families) or "all", each.kind, each.unit, each.tier, as_sentence(each.sentence))
        for each in specs
    )
    return table(["column", "family", "kind", "unit", "tier", "definition"], rows)


def metrics_table() -> str:
    rows = (
        (code(each.name), ", ".join(each.dtypes) or "all", each.kind, each.unit, as_sentence(each.sentence))
        for each in METRICS
    )
    return table(["metric", "dtypes", "kind", "unit", "definition"], rows)


def underflow_table() -> str:
    rows = ((code(f"underflow@{name}"), f"2^{int(np.log2(limit))}") for name, limit in UNDERFLOW_LIMITS.items())
    return table(["column", "largest magnitude that rounds to zero"], rows)


def saturation_table() -> str:
    rows = ((code(name), f"{low + MARGIN:g}", f"{high - MARGIN:g}") for name, (low, high) in LIMITS.items())
    return table(["primitive", "saturated below", "saturated above"], rows)


def findings_table() -> str:
    defaults, meanings = Thresholds(), attributes(Thresholds)
    rows = []
    for rule in RULES:
        limits = (f"{code(name)} = {getattr(defaults, name):g}: {meanings[name]}" for name in rule.thresholds)
        name = f'<a id="{rule.name}"></a>{code(rule.name)}'
        rows.append((name, rule.sentence, rule.formula, "<br>".join(limits) or "none", rule.remedy))
    return table(["rule", "what it finds", "formula", "thresholds", "what to do"], rows)


def zero_reasons_table() -> str:
    """The reasons why a gradient is zero or cut off."""
    rows = ((each.name, each.sentence, each.remedy) for each in ZERO_REASONS)
    return table(["reason", "what it says", "what to do"], list(rows))


def tolerances_table() -> str:
    names = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")
    rows = []
    for name in names:
        value, gradient = (
            default_tolerances.default_tolerance(family, name, name) for family in (ACTIVATION, ACTIVATION_GRAD)
        )
        small, allowance = precision.small_magnitude(name), precision.ulp_allowance(name)
        rows.append((code(name), f"{value:g}", f"{gradient:g}", f"2^{int(np.log2(small))}", str(allowance)))
    heading = ("coarser dtype", "tolerance on `rel_l2`", "of gradients", "`small`", "`ulp_share` counts above")
    return table(heading, rows)


def families_table() -> str:
    rows = [(code(name), meaning) for name, meaning in MEANINGS.items()]
    slots = (code("slot/<name>"), SLOT_MEANING)
    return table(["family", "tensor"], [*rows[:-1], slots, rows[-1]])


def passes_table() -> str:
    return table(["`matched_by`", "pass"], [(code(name), meaning) for name, meaning in PASSES.items()])


def faults_table() -> str:
    return table(["`kind`", "fault"], [(code(name), meaning) for name, meaning in FAULTS.items()])


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "statistics": partial(columns_table, "tensor"),
    "layer-columns": partial(columns_table, "layer"),
    "parameter-columns": partial(columns_table, "parameter"),
    "noise-columns": partial(columns_table, "calibration"),
    "metrics": metrics_table,
    "underflow": underflow_table,
    "saturation": saturation_table,
    "families": families_table,
    "zero-reasons": zero_reasons_table,
    "findings": findings_table,
    "passes": passes_table,
    "mesh-faults": faults_table,
    "tolerances": tolerances_table,
}
