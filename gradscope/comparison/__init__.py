"""Comparison determines whether two dumps are the same, and where they first diverge.

`a` is the *reference*, `b` the *candidate*. `compare` (`compare_dumps.py`) runs these steps in order and returns a
`Comparison` (`result.py`); each sub-package explains its words:

1. `layout`: how a tensor is read from a dump, and recipes that transpose, reshape, split or stack tensors.
2. `metrics`: how two tensors differ. `rel_l2`, the primary metric, is computed in `metrics/rel_l2_and_cosine.py`.
3. `pairing`: which tensor of the candidate is the counterpart of which of the reference, by map file, name, path,
   order, values, iterations and shards. `pairing/loops/scanned_with_unrolled.py` pairs a scanned loop with an unrolled
   one.
4. `judging`: tolerances and noise floors turn metrics into one *row* for each name. The tolerances used by default are
   in `default_tolerances.py`, based on what a dtype can resolve (`precision.py`); those of the user are in
   `judging/tolerance_rules.py`. The loss, which either program may have in a layer, is told by `loss_values.py`.
5. `diagnosis`: the first divergence, the layers that made it, and the verdict as a sentence.

What builds on a comparison is in `follow_ups`: which layers are wrong when each runs on the reference's inputs, where
in one tensor the difference is, and by what kind of fault a mesh of devices differs from one device.

Sharp edges: nothing is broadcast and kinds of dtype are not mixed; both count as differences. Where a dump has
statistics only, a row can prove a difference but not sameness, and states by what it was judged.

Why 0/0 is 0 but the `norm_ratio` of two zero tensors is 1 (2026-11): equal tensors have the same metrics whatever their
values are, so that comparing their bytes is enough.

Names are imported on first use, because importing everything takes longer than many uses of a single name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.comparison.compare_dumps import compare
    from gradscope.comparison.diagnosis.divergence import Divergence
    from gradscope.comparison.diagnosis.growth import FLAGGED
    from gradscope.comparison.judging.compare_options import CompareOptions
    from gradscope.comparison.judging.rows import ComparisonRow, Status, Verdict
    from gradscope.comparison.judging.tolerance_rules import ToleranceRule, read_rules
    from gradscope.comparison.pairing.by_rules import MapRule
    from gradscope.comparison.pairing.matching import Match, Pairing, pair
    from gradscope.comparison.result import Comparison

_HOMES = {
    "FLAGGED": "diagnosis.growth",
    "CompareOptions": "judging.compare_options",
    "Comparison": "result",
    "Divergence": "diagnosis.divergence",
    "MapRule": "pairing.by_rules",
    "Match": "pairing.matching",
    "Pairing": "pairing.matching",
    "ComparisonRow": "judging.rows",
    "ToleranceRule": "judging.tolerance_rules",
    "Status": "judging.rows",
    "Verdict": "judging.rows",
    "compare": "compare_dumps",
    "pair": "pairing.matching",
    "read_rules": "judging.tolerance_rules",
}

__all__ = [
    "FLAGGED",
    "CompareOptions",
    "Comparison",
    "ComparisonRow",
    "Divergence",
    "MapRule",
    "Match",
    "Pairing",
    "Status",
    "ToleranceRule",
    "Verdict",
    "compare",
    "pair",
    "read_rules",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
