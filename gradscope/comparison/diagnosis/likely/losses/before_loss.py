"""`alone_before_loss` returns the values of one program alone from which only the loss is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.comparison.diagnosis.unpaired_sources import Program
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.layer_graph import NearestKeys, inverted, sources_of
from gradscope.naming import ACTIVATION, is_gradient, key_of, split_key


def alone_before_loss(rows: Sequence[ComparisonRow], ref: Program, cand: Program) -> Iterator[ComparisonRow]:
    """Yields the rows without a counterpart behind which no other value is compared.

    Args:
        rows: All rows.
        ref: The program of the reference.
        cand: The program of the candidate.
    """
    for status, program in (("missing", ref), ("extra", cand)):
        forward = {key: each for key, each in sources_of(program.layers).items() if not is_gradient(split_key(key)[0])}
        compared = {program.owner(row) for row in rows if row.compared and row.family == ACTIVATION}
        behind = NearestKeys(inverted(forward), compared)
        for row in rows:
            key = key_of(row.family, row.name)
            own = row.status == status and row.counts and row.family == ACTIVATION
            if own and not behind.behind(key):
                yield row
