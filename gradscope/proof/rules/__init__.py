"""Rules checks the functions with a differentiation rule of their own, each at the operands that it has in the model.

- `rule_calls` finds their calls, and which of their operands are distinct.
- `on_devices` runs a call inside a `shard_map` by itself.
- `stopped_operands` are those that a function keeps constant inside.
- `distinct_rules` tells which calls are of one rule, by `same_programs`.
- `operands` are those of these calls at which a rule is checked, and others near them.
- `arriving_gradients` observes which outputs of a call the loss sends a gradient to.
- `compared_rule` compares a rule with finite differences of its function, `rule_claims` each rule of a model.
- `faults` says how a wrong rule is wrong, and `nested_rules` takes apart a function that calls others with rules.
"""
