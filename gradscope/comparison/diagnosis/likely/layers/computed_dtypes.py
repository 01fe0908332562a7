"""`ComputedDtypes` tells that a layer computes in fewer digits than that of the reference, as in bfloat16 inside.

Such a layer of many may read and return float32, so that nothing but its rounding shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from gradscope.comparison.judging.rounding.innermost_layers import layers_by_name
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.comparison.pairing.matching import Dumps, Match, is_of_jax
from gradscope.comparison.precision import coarser, dtype_class, machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.naming import ACTIVATION, split_key

#: How many machine epsilons the rounding of what a layer reads, of its weights and of its result make at most: more has
#: another cause, too.
MOST_ROUNDED: Final = 4.0


class ComputedDtypes:
    """ComputedDtypes has the dtypes of the fewest digits in which the layers of two dumps compute.

    Args:
        dumps: The dumps.
    """

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps

    def words(self, match: Match, row: ComparisonRow) -> str:
        """Returns a clause about the candidate's value, where only its layer computes in fewer digits; "" elsewhere.

        Args:
            match: The pair.
            row: Its row.
        """
        narrow = self._narrowest(self._dumps.cand, match.cand)
        if narrow is None or not row.made_here:
            return ""
        ref = self._narrowest(self._dumps.ref, match.ref)
        is_rounding = as_float(row.metrics.get("rel_l2", 0.0)) <= MOST_ROUNDED * machine_epsilon(narrow)
        if narrow == ref or not is_rounding:
            return ""
        own = ref or self._dumps.ref.entry(match.ref).dtype
        return f"is computed in {narrow} inside its layer, and the reference's in {own}"

    def first_of_others(self, matches: Iterable[Match], rows: Mapping[str, ComparisonRow]) -> dict[str, str]:
        """Returns a clause about the first activation of a coarser dtype in one program, if only inside its layer.

        Args:
            matches: The pairs.
            rows: Their rows, by the reference's keys.
        """
        activations = (each for each in matches if split_key(each.ref)[0] == ACTIVATION)
        for match in sorted(activations, key=lambda each: rows[each.ref].index):
            if words := self._of_other_digits(match):
                return {match.ref: words} if rows[match.ref].status == "same" else {}
        return {}

    def _of_other_digits(self, match: Match) -> str:
        """Returns a clause about a value that is of a coarser dtype in one program, or made in one; "" elsewhere."""
        ref, cand = (source.entry(key).dtype for source, key in self._sides(match))
        if not dtype_class(ref) == dtype_class(cand) == "float":
            return ""
        if machine_epsilon(ref) != machine_epsilon(cand):
            return f"has the digits of {cand}, as has what is computed from it, and the reference's those of {ref}"
        if not (is_of_jax(self._dumps.ref) and is_of_jax(self._dumps.cand)):
            return ""  # a capture from PyTorch does not state in which type a layer computes
        narrow = self._narrowest(self._dumps.ref, match.ref), self._narrowest(self._dumps.cand, match.cand)
        inside = [
            dtype if found is None else coarser(dtype, found) for found, dtype in zip(narrow, (ref, cand), strict=True)
        ]
        if machine_epsilon(inside[0]) == machine_epsilon(inside[1]):
            return ""
        if machine_epsilon(inside[0]) < machine_epsilon(inside[1]):
            return f"is computed in {inside[1]} inside its layer, and the reference's in {inside[0]}"
        return f"is computed in {inside[1]}, and the reference's in {inside[0]} inside its layer"

    def _narrowest(self, source: DumpSource, key: str) -> str | None:
        known = self._of_ref if source is self._dumps.ref else self._of_cand
        return known.get(split_key(source.resolve(key))[1])

    def _sides(self, match: Match) -> tuple[tuple[DumpSource, str], tuple[DumpSource, str]]:
        return (self._dumps.ref, match.ref), (self._dumps.cand, match.cand)

    @cached_property
    def _of_ref(self) -> Mapping[str, str]:
        return _by_output(self._dumps.ref)

    @cached_property
    def _of_cand(self) -> Mapping[str, str]:
        return _by_output(self._dumps.cand)


def _by_output(source: DumpSource) -> Mapping[str, str]:
    """Returns the dtypes of the fewest digits in which innermost layers compute, by the names of what they make."""
    layers = source.manifest.layers
    if all(layer.narrowest is None for layer in layers):  # most programs
        return {}
    found = layers_by_name(layers, {layer.parent for layer in layers}, lambda layer: layer.outputs)
    return {name: each.narrowest for name, makers in found.items() for each in makers if each.narrowest is not None}
