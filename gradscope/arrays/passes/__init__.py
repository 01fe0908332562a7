"""A pass over an array computes all its reductions, with NumPy or compiled.

- `single_pass` has `reduce_array`, and the pass with NumPy, which reads any dtype.
- `compiled_pass` computes the same of floats of at most 32 bits, several times as fast, once that is worth loading.
- `code_tally` computes it of the counts of bit patterns, for large arrays of floats of at most 16 bits.
- `native_kernel` has the compiled loops as functions, which are kept for the next process.
- `earlier_reductions` counts over processes what was reduced without them, until they are worth compiling.
- `kernel_functions` are what numba compiles, of the loops over float32 in `block_kernel` and over floats of 16 bits in
  `code_kernel`; numba comes with the extra `fast`.
- `accumulators` is what they add to.
"""
