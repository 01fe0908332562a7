"""A layer without inputs or outputs has a kernel without elements, which has no order of features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.comparison import compare
from gradscope.dump.manifest.manifest import Layer
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of


def _dump(shape: tuple[int, ...], scale: float) -> MemoryDump:
    tensors = {
        "input/x": np.ones((2, 3), np.float32),
        "param/none": np.zeros(shape, np.float32),
        "param/some": np.full((3, 4), scale, np.float32),
        "activation/out": np.full((2, 4), 3 * scale, np.float32),
    }
    layer = Layer(path="out", index=0, params=("none", "some"), inputs=("x",), outputs=("out",))
    return MemoryDump(replace(dump_of(tensors).manifest, layers=(layer,)), tensors)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 4)])
def test_dumps_with_a_kernel_without_elements_are_compared(shape: tuple[int, ...]) -> None:
    assert compare(_dump(shape, 1.0), _dump(shape, 1.0)).verdict == "same"
    assert compare(_dump(shape, 1.0), _dump(shape, 1.5)).verdict == "different"
