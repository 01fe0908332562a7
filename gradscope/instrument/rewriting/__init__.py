"""Rewriting runs a traced loss again by an interpreter, with the taps of a plan.

1. `interpreter` runs the jaxpr equation by equation, and observes the planned sites.
2. `observed_values` has what such a run receives and returns.
3. `frame_rules` has one rule for each kind of equation that runs frames; those with derivative rules of their own are
   in `own_rules`.
4. `extrema` differentiates maxima where all that read an operand find the same value; `cached_equations` lets one
   derivative serve all equations that are alike.
5. `program_parts` makes functions of their own of the stretches of a very long program, which compile sooner.
"""
