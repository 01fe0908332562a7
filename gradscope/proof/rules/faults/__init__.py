"""Faults says how a custom rule is wrong.

- `wrong_arguments` names the arguments for which it is, and the factor where it is one; `wrong_factors` finds that.
- `returned_values` tells that it returns another value than its function.
"""
