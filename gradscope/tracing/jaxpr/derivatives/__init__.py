"""Derivatives of single equations: whose rule makes them, where JAX refuses them, and a rule applied by itself.

1. `refused_derivatives` knows what JAX's own primitives refuse.
2. `custom_rules` finds the functions that a program gives rules of its own.
3. `vjp` applies the backward rule of a single equation.
"""
