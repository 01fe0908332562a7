"""Arrays have dtypes, in JAX and in files, and reductions that skip NaNs and infinities.

This package needs NumPy and ml_dtypes only. It knows nothing of files or layers.

Reductions, in the order in which they are computed:

- `blocks` cuts an array into *blocks*: contiguous one-dimensional arrays that fit in the processor's cache.
- `widening` converts a block of any floating-point or complex dtype to float32 or float64, exactly.
- `scratch` provides buffers for intermediate results that are reused for every block.
- `passes` has the one pass over an array, with NumPy or compiled: `passes.single_pass.reduce_array` computes all
  reductions.
- `moments` computes mean, standard deviation, root mean square and l1 norm of a block.
- `magnitudes` counts the elements of a block by their magnitude; `histograms` defines the bins.
- `reductions` defines the results. The reduction of two concatenated arrays is the sum of theirs.
- `quantiles` computes exact quantiles, from a copy of the array. It is the only reduction with a pass of its own.

Dtypes and bytes:

- `dtypes` maps a *logical dtype*, the one that JAX computes with (`bfloat16`, `int4`, `key<fry>`), to the NumPy dtype
  in which files store it, and converts arrays between the two.
- `digest` hashes the bytes of an array.
"""
