"""Arrays: logical dtypes and how they are stored, and reductions in one pass that a NaN does not spoil.

NumPy and ml_dtypes only. A *logical dtype* is what JAX computes with (`bfloat16`, `int4`, `key<fry>`); a *block* is a
contiguous stretch of an array that fits a cache.
"""
