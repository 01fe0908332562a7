"""Functions are what a layer without parameters may make of one value, or of two.

- `possible_functions`: what some kind of functions makes of the values of both programs.
- `gated_values`: functions of one value, or of two whose product is meant, as of both halves of a value.
- `modulated_values`: a value times a factor, plus a shift, which are parts of another, as in FiLM.
- `resized_values`: images that are enlarged.
- `rotated_values`: values that are rotated by their positions.
- `divided_rows`: rows that are divided by whole numbers, as means are of sums.
- `function_differences`: which functions two layers are that read the same.
- `read_forms`: dense layers that read two forms of one function, within the tolerance.
"""
