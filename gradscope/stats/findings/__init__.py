"""Findings: rules look for tensors of a dump that look wrong: NaNs, vanishing gradients, dead units and others.

- `find` holds the table of all rules, `RULES`, and applies it to a manifest.
- `rule_evidence` defines `Thresholds` with their defaults, `Finding`, and `RuleEvidence`: the manifest, indexed for
  rules.
- `tensor_rules` are the rules that read the statistics of single tensors.
- `structure_rules` are the rules that also read layers, parameters, the ledger and the self-check.

Vocabulary: a *rule* is a pure function from evidence and thresholds to findings. A *finding* names one tensor and
states why it looks wrong, with a number.
"""
