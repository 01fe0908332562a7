"""Keys, counts and masks that only a port keeps as state do not count where the losses agree; statistics do."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

_draw = np.random.default_rng(3).normal
KERNEL, X = _draw(size=(4, 3)).astype(np.float32), _draw(size=(5, 4)).astype(np.float32)


def _dump(name: str, state: Any, factor: float = 1.0) -> Dump:
    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope(name):
            y = batch @ variables["params"][name]["kernel"]
        return factor * (y**2).mean()

    return gs.capture(loss, {"params": {name: {"kernel": KERNEL}}, "extra": state}, X, origins=False)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array(0, np.uint32), "integers that only one of the programs keeps, and the losses agree"),
        (np.ones((1, 4), bool), "a mask that only one of the programs keeps, and the losses agree"),
        (jax.random.key(3), "a random key that only one of the programs keeps, and the losses agree"),
    ],
)
def test_keys_counts_and_masks_of_a_port_do_not_count(value: Any, reason: str) -> None:
    one, other = _dump("fc", {}), _dump("dense", {"dropout": value})
    for found in (gs.compare(one, other), gs.compare(other, one)):
        assert found.verdict == "same", found.sentence
        assert [row.why for row in found.rows if row.family == "state"] == [reason]


def test_statistics_count_and_so_does_all_state_under_equal_names_or_where_the_losses_differ() -> None:
    one, count = _dump("fc", {}), {"count": np.array(2, np.int32)}
    assert gs.compare(one, _dump("dense", {"mean": np.ones(3, np.float32)})).verdict == "different"
    assert gs.compare(one, _dump("fc", count)).verdict == "different"
    rows = gs.compare(one, _dump("dense", count, factor=2.0)).rows
    assert [row.counts for row in rows if row.family == "state"] == [True]
