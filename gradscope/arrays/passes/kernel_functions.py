"""`kernel_functions` are the functions that numba compiles, of the loops of `block_kernel` and `code_kernel`.

Importing this module compiles nothing. Only the process that compiles them imports it.
"""

from __future__ import annotations

from typing import Any

import numba as nb

from gradscope.arrays.blocks import Array
from gradscope.arrays.passes.accumulators import BLOCK, Accumulators
from gradscope.arrays.passes.block_kernel import OPTIONS, reduce_block
from gradscope.arrays.passes.code_kernel import count_words, reduce_bfloat16, reduce_float16


def reduce_float32(values: Array, limit: Any, reduced: Accumulators, rooms: Array) -> None:
    """Adds the reductions of elements; arguments as for `code_kernel.reduce_bfloat16`."""
    for start in range(0, values.size, BLOCK):
        reduce_block(values[start : start + BLOCK], rooms[0], limit, reduced)


def compiled_functions() -> dict[str, str]:
    """Compiles the functions for this machine's processor.

    Returns:
        For the name of each, a module in LLVM's language, optimised. Its one function that is visible from outside
        takes the arguments of that one as numba passes them.
    """
    types: Any = nb.types
    values, codes, fours = (types.Array(each, 1, "C", readonly=True) for each in (nb.float32, nb.int16, nb.uint64))
    totals = types.NamedTuple((nb.float64[::1], nb.int64[::1], nb.int32[:, ::1], nb.int64[::1]), Accumulators)
    rest = (nb.int32, totals, nb.float32[:, ::1])
    signatures: dict[Any, Any] = {
        reduce_float32: nb.void(values, *rest),
        reduce_bfloat16: nb.void(codes, *rest),
        reduce_float16: nb.void(codes, *rest),
        count_words: nb.void(fours, nb.int32[:, ::1]),
    }
    options: Any = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = {loop: nb.njit(signature, **options)(loop).inspect_llvm() for loop, signature in signatures.items()}
    return {loop.__name__: next(iter(texts.values())) for loop, texts in compiled.items()}
