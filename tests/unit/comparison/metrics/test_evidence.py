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
    "masked": (np.where(ONE < 0, -1e9, ONE), np.where(ONE < 0, -np.inf, ONE * 2)),
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


SINES = np.sin(np.arange(4000, dtype=np.float32))
FILLED = np.where(np.arange(4000) % 3 == 0, np.float32(-1e9), SINES).reshape(40, 100)


def evidence(ref: Any, cand: Any) -> Any:
    operands = (StoredOperand(source=dump_of({"activation/a": each}), key="activation/a") for each in (ref, cand))
    return evidence_of(*operands, (1e-3, 1e-5))


@pytest.mark.parametrize("fill", [-1e9, -1e6, -np.inf, np.finfo(np.float32).min])
def test_what_a_mask_writes_is_no_difference(fill: float) -> None:
    kept = FILLED > -1e9
    found = evidence(FILLED, np.where(kept, FILLED * np.float32(1.5), np.float32(fill)))
    assert found.metrics["masked"] == np.count_nonzero(~kept)
    assert found.metrics["nonfinite_mismatch"] == 0
    assert found.needed == found.metrics["rel_l2"] == pytest.approx(0.5)
    assert bool(found.why) == (fill != -1e9)
    same = evidence(FILLED, np.where(kept, FILLED, np.float32(fill)))
    assert same.needed == 0.0


def test_an_element_that_a_mask_fills_on_one_side_only_is_a_conflict() -> None:
    other = FILLED.copy()
    other[0, 0], other[0, 1] = 0.5, -1e9
    found = evidence(FILLED, other)
    assert (found.metrics["nonfinite_mismatch"], found.needed) == (2, np.inf)
    assert found.why == "2 positions masked on one side only"


@pytest.mark.parametrize(
    "ref",
    [
        np.where(np.arange(4000) % 3 == 0, np.float32(-100), SINES),  # too small
        np.where(np.arange(4000) % 3 == 0, -1e9 - np.arange(4000.0), np.sin(np.arange(4000.0))),  # of several values
        np.where(np.arange(4000) % 3 == 0, np.float32(0), SINES),
        np.where(np.arange(4000) % 3 == 0, np.float32(1), SINES / 1e5),  # shares of a softmax
        np.where(np.arange(4000) % 3 == 0, np.float32(1e9), 0),
        np.where(np.arange(4000) == 7, np.float32(-1e9), SINES),
    ],
)
def test_other_numbers_are_no_fill(ref: Any) -> None:
    found = evidence(ref, ref * ref.dtype.type(1.5))
    assert "masked" not in found.metrics
    assert found.needed == pytest.approx(0.5)


def test_two_large_numbers_that_no_mask_writes_are_a_difference() -> None:
    lengths = np.where(FILLED < -1, np.float32(5000), FILLED)
    found = evidence(lengths, np.where(FILLED < -1, np.float32(7000), FILLED))
    assert found.needed == pytest.approx(0.4)
    assert evidence(lengths, np.where(FILLED < -1, lengths, FILLED * np.float32(1.1))).needed == pytest.approx(0.1)
