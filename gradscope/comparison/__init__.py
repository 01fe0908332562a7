"""Comparing two dumps: the same or not, and where they first part.

Vocabulary:

- `a` is the *reference*, `b` the *candidate*, `d = b - a`. The primary metric is `rel_l2 = l2(d) / l2(a)`.
- A *pairing* says which tensor is whose *counterpart*, found in passes; a *recipe* says how a counterpart is made of
  tensors that lie otherwise. A *row* is the judgement on one tensor, and there is one for every name of the reference
  and every one that only the candidate has.
- A loop *hands out* what its turns made. Where the other program writes the turns out one by one, that is compared as
  what it was made of; such a pair may be *inverse*, of a tensor of the candidate with what makes it in the reference.
- *Evidence* is what a pair shows (metrics of its elements, or what its statistics prove where the elements are not in
  the dump), a *tolerance* is what it is judged by: an *expression* over metrics, by default a limit on `rel_l2`.
  *Needed* is the smallest limit on `rel_l2` that would have passed.
- The *first divergence* is the first row over tolerance in execution order, and in the backward pass in reverse.
- *Growth* tells error made in a layer from error inherited by it, over the graph of layers; *blame* is what follows
  from the first divergence, and who made it. A *diagnosis* is a simple way in which a tensor that differs belongs
  nevertheless: swapped, transposed, permuted, a multiple.
- A *noise floor* is how far a reference's own tensor moves under changes that make no difference; a calibrated
  reference has one with each computed tensor, and is judged by it.
- The gradients of each *example* alone tell error that is *random*, another in every example, from *bias*, the same in
  all; both are shares of the batch's own *spread* (`examples`).
- A *local* error is what one layer makes of the reference's own inputs and cotangents (`isolation`); for that the
  reference's tensors are *placed* where the candidate has them, a pairing read backwards.
- A *series* is several comparisons together: of the steps of two runs, or of several candidates with one reference.

Sharp edges: nothing is broadcast and no kinds of dtype are mixed, both are differences. Metrics are over positions
where both sides are finite; positions that are not, and disagree, are counted and never within tolerance. Where a dump
holds statistics only, a row can prove a difference but not sameness, and says by what it was judged.

Why 0/0 is 0 but the `norm_ratio` of two zero tensors 1 (2026-11): equal tensors have the same metrics whatever is in
them, so that they can be settled by their bytes.

Names are imported on first use: whoever wants a tolerance alone need not wait for all the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.comparison.compare_dumps import compare
    from gradscope.comparison.diagnosis.divergence import Divergence
    from gradscope.comparison.diagnosis.growth import FLAGGED
    from gradscope.comparison.judging.compare_options import CompareOptions
    from gradscope.comparison.judging.rows import ComparisonRow, Status
    from gradscope.comparison.judging.tolerance_rules import ToleranceRule, read_rules
    from gradscope.comparison.pairing.by_rules import MapRule
    from gradscope.comparison.pairing.matching import Match, Pairing, pair
    from gradscope.comparison.result import Comparison, Verdict

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
    "Verdict": "result",
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
