"""JAX's primitives are grouped by what they do with values, by the names that jaxprs and dumps have for them.

Analyses make their own sets of these, with what is special to their question.
"""

from __future__ import annotations

from typing import Final

#: Return the elements of their operand, all of them, in another shape or several times.
MOVES: Final = frozenset(
    {"broadcast_in_dim", "copy", "expand_dims", "pcast", "pvary", "reshape", "sharding_constraint", "squeeze",
     "transpose"}
)  # fmt: skip

#: Return the elements of their operand, all of them, perhaps rounded to another type.
COPIES: Final = MOVES | {"convert_element_type", "reduce_precision"}

#: Return some elements of their operand, at places in a row.
SLICES: Final = frozenset({"slice", "dynamic_slice"})

#: Add their two operands, or subtract them, element by element.
ADDITIONS: Final = frozenset({"add", "add_any", "sub"})

#: Multiply their two operands, or divide them, element by element.
MULTIPLICATIONS: Final = frozenset({"mul", "div"})

#: Multiply two matrices, or more axes, convolutions among them: each element of the result is a sum of products.
MATRIX_PRODUCTS: Final = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})

#: Linear in each operand (a quotient, in its dividend), with the others as factors.
PRODUCTS: Final = MULTIPLICATIONS | MATRIX_PRODUCTS

#: Draw random numbers by a key.
RANDOM: Final = frozenset({"random_bits", "threefry2x32", "rng_bit_generator", "random_gamma"})

#: Move values between the devices of a mesh, which they wait for.
COLLECTIVES: Final = frozenset(
    {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "all_to_all",
     "ragged_all_to_all", "ppermute", "reduce_scatter", "unreduced_pmax", "unreduced_pmin"}
)  # fmt: skip

#: Take a logarithm; to base 2 it is a primitive since JAX 0.12.
LOGARITHMS: Final = frozenset({"log", "log2"})

#: Apply a function to each element that changes sizes where it is another one: neither a sign nor a phase.
FUNCTIONS_OF_AN_ELEMENT: Final = frozenset(
    {"cbrt", "cos", "erf", "exp", "exp2", "expm1", "integer_pow", "log", "log1p", "log2", "logistic", "rsqrt", "sin",
     "sqrt", "square", "tan", "tanh"}
)  # fmt: skip
