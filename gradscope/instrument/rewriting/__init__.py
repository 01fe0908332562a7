"""Rewriting: the interpreter that runs a traced loss again with the taps of a plan.

1. `interpreter` runs the jaxpr equation by equation, and observes the planned sites.
2. `frame_rules` has one rule for each kind of equation that runs frames.
3. `core_statistics` computes statistics of a value inside the compiled program.
4. `histogram_counts` computes them and a histogram, as one vector; `core_columns` has columns on the device.
5. `host_calls` runs a NumPy function on a value inside a compiled program on the CPU.
"""
