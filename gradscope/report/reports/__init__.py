"""Reports: one module for each kind of result that a command shows.

`dump_report` reports a dump (`dump`, `show`), `tensor` one tensor of it, and `ledger` what is missing. `comparison`,
`series`, `difference` and `isolation` report `compare`; `inspection` reports `inspect`, and `proof` reports `check`.
"""
