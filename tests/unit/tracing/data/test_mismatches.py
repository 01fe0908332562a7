"""Tensors that are missing are named by what the other side has not, and those that differ by numbers are one item."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from gradscope.tracing.data.mismatches import in_ranges, listed, mismatches


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


def _of_shape(*names: str) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((2, 2), np.float32) for name in names}


def test_nothing_is_said_to_be_missing_below_a_path_that_both_sides_have() -> None:
    model = _of_shape(*(f"params/fc{each}/{leaf}" for each in (1, 2) for leaf in ("kernel", "bias")), "params/out/w")
    adapter = _of_shape(*(f"params/fc{each}/lora_{leaf}" for each in (1, 2) for leaf in "AB"))
    lacking, extra = mismatches(model, adapter)
    assert lacking == "it lacks " + ", ".join(
        f"params/{name} float32[2, 2]" for name in ("fc1/kernel", "fc2/kernel", "fc1/bias", "fc2/bias", "out/w")
    )
    assert extra == "the model has no " + ", ".join(
        f"params/{name} float32[2, 2]" for name in ("fc1/lora_A", "fc2/lora_A", "fc1/lora_B", "fc2/lora_B")
    )


def test_what_one_side_has_nothing_of_is_one_item() -> None:
    model, other = _of_shape("params/a/w", "params/b/w", "params/c/w"), _of_shape("net.a.x", "net.b.y", "net.c.z")
    assert [*mismatches(model, other)] == ["it lacks params (3 tensors)", "the model has no net (3 tensors)"]
