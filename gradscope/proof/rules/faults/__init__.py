"""Faults says how a custom rule is wrong.

- `wrong_arguments` names the arguments for which it is, and how: `wrong_factors` finds the factor where it is one,
  `arrangements` the order where the derivative is in another, `wrong_elements` the elements where it is for few alone.
- `returned_values` tells that it returns another value than its function.
"""
