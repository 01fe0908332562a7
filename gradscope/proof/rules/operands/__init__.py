"""Operands are where a rule is checked: at those that its calls have in the model, and near them.

- `rule_conditions` finds the conditions in a rule, and which sides of them operands take.
- `rule_operands` returns the operands of calls at which a rule is checked.
- `operands_nearby` returns those that it has where the parameters are others, if these hide what a rule does.
- `kept_data` finds those that a rule keeps constant, as they are data.
"""
