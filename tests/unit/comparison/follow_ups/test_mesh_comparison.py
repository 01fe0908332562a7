"""What a mesh arranges otherwise is the same where the loss and all gradients of parameters agree, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradscope.comparison import CompareOptions
from gradscope.comparison.follow_ups.mesh_comparison import MeshMember, mesh_member
from gradscope.dump.sources.memory_dump import MemoryDump
from tests.support.dumps import dump_of

VALUE = np.sin(np.arange(24, dtype=np.float32)).reshape(4, 6)


def dump(*, value: np.ndarray = VALUE, gradient: np.ndarray = VALUE, loss: float = 1.5, devices: int = 1) -> MemoryDump:
    tensors = {"param/fc/w": VALUE, "activation/ring": value, "activation/fc": VALUE, "param_grad/fc/w": gradient}
    made = dump_of(tensors)
    mesh = {} if devices == 1 else {"data": devices}
    return MemoryDump(replace(made.manifest, mesh=mesh, loss=loss), tensors)


def member(cand: MemoryDump) -> MeshMember:
    return mesh_member(2, dump(), cand, CompareOptions())


def test_a_value_that_differs_is_arranged_otherwise() -> None:
    found = member(dump(value=VALUE[::-1], devices=2))
    assert (found.verdict, found.arranged, found.fault) == ("same", 1, None)
    assert found.sentence.endswith("1 value is arranged otherwise on 2 devices.")
    assert {row.name for row in found.judged} == {"fc/w", "fc"}


@pytest.mark.parametrize("other", [dump(value=VALUE[::-1], gradient=2 * VALUE, devices=2),
                                   dump(value=VALUE[::-1], loss=1.6, devices=2)])  # fmt: skip
def test_it_is_not_where_a_gradient_or_the_loss_differs(other: MemoryDump) -> None:
    found = member(other)
    assert (found.verdict, found.arranged) == ("different", 0)
    assert found.fault is not None
    assert len(found.judged) == len(found.comparison.rows)
