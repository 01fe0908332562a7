"""A pass over an array computes all its reductions, with NumPy or compiled.

- `single_pass` has `reduce_array`, and the pass with NumPy, which reads any dtype.
- `compiled_pass` computes the same of floats of at most 32 bits, several times as fast, once that is worth loading.
- `native_kernel` has the compiled loops as a function, which is kept for the next process.
- `block_kernel` has the loops that numba compiles; numba comes with the extra `fast`.
- `accumulators` is what they add to.
"""
