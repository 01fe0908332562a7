"""Names that differ by numbers alone are one item of a list, which says which numbers there are."""

from __future__ import annotations

import pytest

from gradscope.tracing.data.mismatches import in_ranges, listed


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (["h.2.fc", "h.0.fc", "h.1.fc"], "h.{0..2}.fc (3 tensors)"),
        ([f"h.{each}.fc" for each in range(12)], "h.{0..11}.fc (12 tensors)"),
        ([f"h.{each}.fc1" for each in (0, 1, 3)], "h.*.fc1 (3 tensors)"),
        ([f"h.{a}.fc{b}" for a in (0, 1) for b in (1, 2)], "h.{0..1}.fc{1..2} (4 tensors)"),
        (["h.0.fc1", "h.1.fc2", "h.2.fc1"], "h.*.fc* (3 tensors)"),
        (["h.0.fc", "h.1.fc"], "h.0.fc, h.1.fc"),
        (["h.0.fc", "g.1.fc", "h.1.fc", "h.2.fc"], "h.{0..2}.fc (3 tensors), g.1.fc"),
        (["h.00", "h.01", "h.02"], "h.* (3 tensors)"),
        ([f"h.{'9' * 5000}{each}" for each in range(3)], "h.* (3 tensors)"),
    ],
)
def test_names_that_differ_by_numbers_are_one(names: list[str], called: str) -> None:
    assert listed(names) == called
    assert sorted(name for members in in_ranges(names).values() for name in members) == sorted(names)
