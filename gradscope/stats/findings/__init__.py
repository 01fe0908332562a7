"""Findings state what is wrong with a run, one for each cause, worst first.

- `find` holds the table of all rules, `RULES`, and applies it to a manifest.
- `rule_evidence` defines `Thresholds` with their defaults, `Finding`, `Suspect`, and `RuleEvidence`: the manifest,
  indexed for rules.
- `rules` are the functions of the table, by what they are about.
- `causes` folds consequences into their causes, and orders these.

Vocabulary: a *rule* is a pure function from evidence and thresholds to *suspects*: what it alone would find, with the
tensors that it concerns. A *finding* is a suspect that is not the consequence of another one. What merely is so (a NaN
that reaches neither the loss nor the gradient of a parameter, a value that only auxiliary outputs use, a branch that
starts at zero) is no suspect; it is in the ledger and in the statistics.

Why (2026-11): thresholds on single tensors (gradient above its parameter, mean magnitude below 1e-7, deviations of
neighbours that differ by 10, half of the units dead) found something in 26 of 32 healthy models, 220 times, and had the
fault first in 23 of 58 faulty ones. SageMaker Debugger, AUTOTRAINER and DeepDiagnosis use such thresholds over many
steps of training; a dump has one step. So the rules compare layers of one run with each other: trends over depth, gains
of weights where they do harm, shares beyond chance. `docs/reference/findings-bench.md` has what they find.
"""
