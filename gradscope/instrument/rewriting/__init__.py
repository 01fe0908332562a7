"""Rewriting runs a traced loss again by an interpreter, with the taps of a plan.

1. `interpreter` runs the jaxpr equation by equation, and observes the planned sites.
2. `observed_values` has what such a run receives and returns.
3. `frame_rules` has one rule for each kind of equation that runs frames; those with derivative rules of their own are
   in `own_rules`.
4. `extrema` differentiates maxima where all that read an operand find the same value; `cached_equations` lets one
   derivative serve all equations that are alike.
5. `core_statistics` computes statistics of a value inside the compiled program.
6. `histogram_counts` computes them and a histogram, as one vector; `core_columns` has columns on the device.
7. `host_calls` runs a NumPy function on a value inside a compiled program on the CPU.
8. `program_parts` makes functions of their own of the stretches of a very long program, which compile sooner.
"""
