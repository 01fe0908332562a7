"""`GradientTraces` finds what gradients show of a value that leaves no trace among the values behind it.

A branch that ends with a factor of zero, as many do before they are trained, hides whatever differs inside of it: what
the branch is added to agrees. The gradient of that factor is made of the values of the branch all the same. Where it
differs, and nothing else that it is made of does, those are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.comparison.diagnosis.refuting.errors_behind import relative_error
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.layer_graph import inverted, nearest, sources_of
from gradscope.naming import is_gradient


class GradientTraces:
    """GradientTraces finds the errors of the gradients that are computed next from a value of one program.

    Args:
        source: The dump.
        rows: The rows of what is compared, by key.
    """

    def __init__(self, source: DumpSource, rows: Mapping[str, ComparisonRow]) -> None:
        self._sources = sources_of(source.manifest.layers)
        self._readers = inverted(self._sources)
        self._rows = rows
        gradients = {key for key, row in rows.items() if is_gradient(row.family)}
        zero = {key for key in gradients if source.entry(key).stats.get("rms") == 0 and rows[key].status == "same"}
        self._telling = gradients - zero

    def largest(self, key: str) -> float | None:
        """Returns the largest error that begins in a gradient next behind a value; None where no gradient shows any.

        A program without gradients has none that does, and those next behind may all be zero, whatever the value is.
        """
        behind = [each for each in nearest(self._readers, key, self._rows) if is_gradient(self._rows[each].family)]
        telling = self._telling.intersection(behind)
        if not telling and (behind or not self._telling):
            return None
        return max((relative_error(self._rows[each]) for each in telling if self._begins_in(each)), default=0.0)

    def _begins_in(self, key: str) -> bool:
        """Returns whether a gradient differs, and nothing that is compared of what it is computed from does."""
        before = nearest(self._sources, key, self._rows)
        return self._rows[key].status == "different" and all(self._rows[each].status == "same" for each in before)
