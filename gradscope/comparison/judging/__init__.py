"""Judging applies tolerances and noise floors to the evidence of pairs, and makes one row for each name.

- `rows`: a *row* stores the status of one name: `same`, `different`, `missing` or `extra`.
- `judge` makes the row of a pair; `inverse_rows` those of inverse matches;
  `loss_comparison` compares losses as numbers, and a loss that one program has no value for.
- `unpaired` lists the tensors without a counterpart, and why some of them do not count.
- `compare_options`: `CompareOptions.tolerance` selects what a tensor is judged by: a rule of the user
  (`tolerance_rules`), else one limit for all tensors, else the default (`comparison/default_tolerances.py`).
- `expressions` and `expression_parser`: a *tolerance* is an expression over metrics, by default a limit on `rel_l2`.
- `limits`: how far the tensors of pairs may be apart by default, also by the noise of a calibrated reference.
- `rounding`: how far rounding can move a tensor beyond its tolerance, by cancellation or by depth.
"""
