"""Reports have one module for each kind of result that a command shows.

`dump_report` reports a dump (`dump`, `show`), on a terminal as `dump_overview` has it, `tensor` one tensor of it, and
`ledger` what is missing. `comparing` reports `compare`; `inspection` reports `inspect`, `proof` reports `check`, and
`explaining` reports `explain`. `runs` has the reports of a training run.
"""
