"""Metrics measure how two tensors differ, from their elements or, as lower bounds, from their statistics.

The primary metric is `rel_l2 = l2(b - a) / l2(a)`, with the reference `a` and the candidate `b`.

- `measure_pair` computes all metrics in one pass over `block_pairs`: `rel_l2_and_cosine` (`rel_l2`, `1-cos`,
  `norm_ratio`, `sqnr_db`), `elementwise` (`max_abs`, `max_rel`, `mismatch`, `sign_flip`) and `ulps`. `metrics` has them
  by the names of their columns.
- `bounds` gives a lower bound of `rel_l2` from statistics, where a dump has no elements.
- `fills` finds what a mask writes in the place of values, which the metrics leave out.
- `examples` is about per-example gradients: how much of their error is *random*, and how much is *bias*.
- `evidence` combines these: `PairEvidence` stores the metrics of a pair, or why it cannot be compared. Its *needed* is
  the smallest tolerance on `rel_l2` that would pass.
- `threads` compares several pairs at a time.

Metrics are over positions where both tensors are finite. Positions that are not, and disagree, are counted in
`nonfinite_mismatch`. Nothing is broadcast, and kinds of dtype are not mixed.
"""
