"""Computes the `Reduction` of an array of floats of at most 32 bits with compiled loops, faster than NumPy.

The loops are compiled by numba, of the extra `fast`, once per machine, and kept in the user's cache. Loading them takes
0.04 s, in which NumPy reduces 64 MiB. So a process loads them when it has reduced about as much, or is about to in one
call: a small dump never waits for them, and no process takes twice the time of the better choice. A process that says
in advance how much it will reduce has them loaded meanwhile. Where they have yet to be compiled, which takes five
seconds, that has to be worth more: the first dump of a machine is not to wait for them. A later one compiles them, once
the earlier ones have waited for NumPy half as long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial, reduce
from operator import add
from threading import Lock
from typing import Any, Final, TypeVar

import numpy as np

from gradscope.arrays.blocks import Array, blocks
from gradscope.arrays.dtypes import dtype_name, is_floating, smallest_normal
from gradscope.arrays.magnitudes import FLOAT32, FLOAT64, Magnitudes
from gradscope.arrays.moments import Moments
from gradscope.arrays.passes.accumulators import TALLIES, WORDS, WORDS_APART, Accumulators, float_at
from gradscope.arrays.passes.earlier_reductions import count_reduced, reduced_earlier
from gradscope.arrays.passes.native_kernel import PASSED_AS, NativeKernel, is_compiled
from gradscope.arrays.reductions import Extremes, NonFinite, Reduction
from gradscope.arrays.scratch import ScratchSlot, scratch
from gradscope.arrays.widening import codes_of, real_values
from gradscope.work_for_threads import ThreadPool, mapped, submitted

#: Bytes that NumPy reduces with magnitudes in the time that loading the kernel takes (2026-11).
_WORTH_LOADING: Final = 64 << 20

#: The same where the kernel has yet to be compiled, together with what earlier processes reduced: half of the time that
#: this takes, since later processes have it.
_WORTH_COMPILING: Final = 2 << 30

#: What a byte counts for that is reduced without magnitudes, at which NumPy is so many times as fast.
_PLAIN_SHARE: Final = 1 / 5

#: Bytes of a stretch, which one thread reduces. It does not depend on the number of threads, and so no result does.
_STRETCH: Final = 16 << 20

#: Bytes of a stretch whose codes one thread counts: more, since their counts take a megabyte.
_COUNTED_STRETCH: Final = 64 << 20

#: Bytes that the compiled loop of counts takes at once.
_FOUR_WORDS: Final = 8

_Result = TypeVar("_Result")


class _Loading:
    """A `_Loading` decides when the kernel is loaded, and holds it from then on; a process has one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reduced = 0.0
        self._earlier: int | None = None
        self._may_compile = True
        self._begun: Future[NativeKernel | None] | None = None
        self._tried = False
        self._kernel: NativeKernel | None = None

    def expect(self, worth: float, *, may_compile: bool) -> None:
        """Begins to load the kernel in the background, where that is worth it.

        Args:
            worth: The bytes that will be reduced.
            may_compile: Whether a kernel that is not compiled yet may be, from now on.
        """
        with self._lock:
            self._may_compile = may_compile
            self._begin_if_worth(worth)
            if self._begun is None and worth >= _WORTH_LOADING:
                count_reduced(int(worth), _WORTH_COMPILING)

    def kernel(self, worth: float) -> NativeKernel | None:
        """Returns the kernel; None where it is not loaded yet, or cannot be.

        Args:
            worth: The bytes that are to be reduced now, as far as NumPy would need long for them.
        """
        if not self._tried:
            with self._lock:
                self._reduced += worth
                self._begin_if_worth(self._reduced)
                if self._begun is not None:
                    self._tried = True
                    self._kernel = self._begun.result()
        return self._kernel

    def _begin_if_worth(self, worth: float) -> None:
        if self._begun is not None or worth < _WORTH_LOADING:
            return
        if self._earlier is None:  # this process has not counted its own yet
            self._earlier = reduced_earlier()
        if is_compiled() or (self._may_compile and worth + self._earlier >= _WORTH_COMPILING):
            # In a thread of its own: a compiler needs more stack than the thread of a callback may have.
            pool = ThreadPool(1, thread_name_prefix="kernel")
            self._begun = submitted(pool, NativeKernel.loaded)
            pool.shutdown(wait=False)


_loading = _Loading()


def expect_reductions(size_bytes: int, *, may_compile: bool = True) -> None:
    """Loads the compiled loops in the background, if a process that will reduce so many bytes is faster with them.

    Args:
        size_bytes: The bytes of the arrays that will be reduced with magnitudes, of any dtype.
        may_compile: Whether this process may compile the loops where none has yet: it takes 200 MB of memory.
    """
    _loading.expect(size_bytes, may_compile=may_compile)


def compiled_reduction(array: Array, *, magnitudes: bool) -> Reduction | None:
    """Returns the reductions of an array; None where the compiled loops do not apply, or are not loaded.

    Args:
        array: Any shape, strides and dtype.
        magnitudes: As for `reduce_array`.
    """
    narrow = is_floating(dtype_name(array.dtype)) and array.dtype.itemsize <= np.dtype(np.float32).itemsize
    if not narrow or not array.size:
        return None
    kernel = _loading.kernel(array.nbytes * (1.0 if magnitudes else _PLAIN_SHARE))
    if kernel is None:
        return None
    reduced = partial(_reduced, kernel, _limit(array.dtype), magnitudes=magnitudes)
    return reduce(add, _of_stretches(reduced, array, _STRETCH))


def compiled_counts(array: Array) -> Array | None:
    """Returns the number of elements of each code; None where the compiled loop is not loaded.

    Args:
        array: Any shape and strides; floats of at most 16 bits, not empty.

    Returns:
        As many counts as there are codes, in their order.
    """
    kernel = _loading.kernel(array.nbytes)
    return None if kernel is None else reduce(add, _of_stretches(partial(_counts, kernel), array, _COUNTED_STRETCH))


def _of_stretches(result: Callable[[Array], _Result], array: Array, size_bytes: int) -> Iterable[_Result]:
    """Returns the results of the stretches of an array, in their order, computed on all processors."""
    stretches = blocks(array, size_bytes // array.itemsize)
    if array.nbytes <= size_bytes or not array.flags.c_contiguous or not array.dtype.isnative:
        return map(result, stretches)  # where a stretch is a copy, one is in memory at a time
    with ThreadPool(min(_processors(), -(-array.nbytes // size_bytes))) as pool:
        return mapped(pool, result, stretches)


def _counts(kernel: NativeKernel, stretch: Array) -> Array:
    codes = codes_of(stretch)
    end = codes.size - codes.size % (_FOUR_WORDS // codes.itemsize)
    tallies = scratch(ScratchSlot.TALLIES, TALLIES * WORDS_APART, np.int32).reshape(TALLIES, WORDS_APART)
    tallies.fill(0)
    kernel.count_words(codes[:end].view(np.uint64), tallies)
    words = tallies[0, :WORDS]
    for other in tallies[1:, :WORDS]:
        words += other
    if codes.itemsize == 1:  # each word is a pair of codes
        pairs = words.reshape(256, 256)
        words = pairs.sum(0) + pairs.sum(1)
    counts = words.astype(np.int64)
    np.add.at(counts, codes[end:], 1)
    return counts


def _reduced(kernel: NativeKernel, limit: int, stretch: Array, *, magnitudes: bool) -> Reduction:
    """Returns the reductions of a contiguous stretch.

    Args:
        kernel: The compiled loops.
        limit: The ordinal of the smallest normal number of the array's dtype, as float32.
        stretch: One-dimensional, contiguous, a float of at most 32 bits.
        magnitudes: As for `reduce_array`.
    """
    reduced = Accumulators.fresh(magnitudes=magnitudes)
    if stretch.dtype in PASSED_AS:
        kernel.reduce_floats(stretch, limit, reduced)
    else:
        # What is widened first is so in blocks, which stay in the cache.
        for block in blocks(stretch):
            kernel.reduce_floats(real_values(block), limit, reduced)
    zeros, nan, inf, neginf, *places, subnormal, smallest = reduced.counts.tolist()
    count, mean, deviations, squares, total = reduced.sums.tolist()
    counted = None
    if magnitudes:
        histogram = FLOAT32.histogram(reduced.narrow.sum(0, dtype=np.int64)) + FLOAT64.histogram(reduced.wide)
        nearest = FLOAT32.magnitude_of(np.uint32(smallest))
        counted = Magnitudes(total=total, smallest=nearest, subnormal=subnormal, histogram=histogram)
    outline = Reduction(zeros=zeros, nonfinite=NonFinite(nan=nan, inf=inf, neginf=neginf), magnitudes=counted)
    if not count:
        return outline
    low, high = map(float_at, places)
    if low == high:  # a mean of equal elements is exact
        moments = Moments(count=int(count), mean=low + 0.0, std=0.0, rms=abs(low))
    else:
        std, rms = math.sqrt(deviations / count), math.sqrt(squares / count)
        moments = Moments(count=int(count), mean=mean, std=std, rms=rms)
    # Adding zero turns negative zeros into zeros: which of the two is an extreme depends on the order of elements.
    return replace(outline, extremes=Extremes(low=low + 0.0, high=high + 0.0), moments=moments)


def _limit(dtype: np.dtype[Any]) -> int:
    return int(FLOAT32.ordinal_of(smallest_normal(dtype)))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
