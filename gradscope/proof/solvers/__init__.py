"""Solvers are run longer than a model runs them, to tell the errors that they leave from those of a derivative rule.

- `evaluation` evaluates what calls, loops and branches run; `unrolled_steps` finds steps that Python has repeated.
- `solver_tolerance` runs iterative solvers longer; `hidden_solvers` finds those that nothing makes run longer.
"""
