"""The evidence of a pair is the same, whether its tensors are read at once or in chunks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison.layout.operands import StoredOperand
from gradscope.comparison.metrics import evidence as module
from gradscope.comparison.metrics.evidence import evidence_of
from tests.support.dumps import dump_of

ONE = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
PAIRS: dict[str, tuple[Any, Any]] = {
    "equal": (ONE, ONE.copy()),
    "different": (ONE, ONE * np.float32(1.5)),
    "not finite": (np.array([1, np.nan, np.inf]), np.array([1, np.nan, 2])),
    "zeros of two signs": (np.zeros(3), -np.zeros(3)),
    "empty": (np.zeros((0, 3)), np.zeros((0, 3))),
    "empty of two dtypes": (np.zeros((0, 3)), np.zeros((0, 3), np.float32)),
    "scalar": (np.float32(2).reshape(()), np.float32(2).reshape(())),
    "of two dtypes": (ONE, ONE.astype(np.float64)),
    "narrow": (ONE.astype(ml_dtypes.bfloat16), (ONE * 2).astype(ml_dtypes.bfloat16)),
    "integers": (np.arange(6), np.arange(6) + 1),
    "columns first": (np.asfortranarray(ONE), ONE + np.float32(1)),
}


#: Gradients of examples have an axis of these.
CASES = [("param_grad", kind) for kind in PAIRS] + [("example_grad", kind) for kind in PAIRS if PAIRS[kind][0].ndim > 1]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_reading_at_once_and_in_chunks_show_the_same(family: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"{family}/w"
    ref, cand = (StoredOperand(source=dump_of({key: array}), key=key) for array in PAIRS[kind])
    found = []
    for few in (1 << 13, -1):
        monkeypatch.setattr(module, "_FEW_ELEMENTS", few)
        found.append(evidence_of(ref, cand, (1e-5, 1e-8)))
    assert repr(found[0]) == repr(found[1])  # in which NaN equals NaN
