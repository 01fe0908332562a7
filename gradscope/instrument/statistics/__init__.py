"""Statistics of a value inside a compiled program are vectors, which observers compute in place of the value.

1. `core_statistics` computes those of the core tier.
2. `histogram_counts` computes them and a histogram of values, for the history of a run.
3. `full_statistics` computes those of the full tier but for the hash.
4. `core_columns` has the columns of a vector on the device.
"""
