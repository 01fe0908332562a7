"""Reports have one module for each kind of result that a command shows.

`dump_report` reports a dump (`dump`, `show`), on a terminal as `dump_overview` has it, `tensor` one tensor of it, and
`ledger` what is missing; `origins` says where a NaN began. `comparing` reports `compare`, `inspection` `inspect`, and
`proof` `check`; `explaining` reports `explain`. `runs` has the reports of a training run.
"""
