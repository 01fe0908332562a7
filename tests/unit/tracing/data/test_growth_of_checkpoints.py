"""Reading a checkpoint is work in proportion to its variables, whether all of them are read, some, or it is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gradscope.errors import DumpError
from gradscope.naming.selecting.patterns import Pattern
from gradscope.tracing.data.checkpoints import variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from tests.support.sampled import sampled
from tests.support.work import steps

SMALL, LARGE = 40, 400
KERNEL = np.ones((1, 2), np.float32)


def work(path: Path, count: int, *, keep: tuple[str, ...], lacking: int) -> int:
    variables: dict[str, Any] = {f"layer{at}": {"kernel": KERNEL} for at in range(count)}
    np.savez(path / f"{count}.npz", **{f"layer{at}/kernel": KERNEL for at in range(lacking, count)})
    request = CheckpointRequest(path=path / f"{count}.npz", keep_init=tuple(map(Pattern.parse, keep)))
    expected = jax.eval_shape(lambda: variables)

    def read() -> None:
        with suppress(DumpError):
            variables_from_file(request, expected, lambda: variables)

    read()  # what is imported or filled on first use is no work of the second
    return steps(read)


@sampled(("keep", "lacking"), [((), 0), (("layer0/*",), 1), ((), 1)], ids=["all", "kept", "refused"])
def test_ten_times_the_variables_are_ten_times_the_work(keep: tuple[str, ...], lacking: int, tmp_path: Path) -> None:
    small, large = (work(tmp_path, count, keep=keep, lacking=lacking) for count in (SMALL, LARGE))
    assert large < 1.5 * LARGE / SMALL * small
