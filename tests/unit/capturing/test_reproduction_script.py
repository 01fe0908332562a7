"""The script of a reproduction, whatever its names have in them."""

from __future__ import annotations

import ast
import errno
import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.capturing.isolate.reproduction import Reproduction
from gradscope.capturing.isolate.reproduction_script import script, write_reproduction
from gradscope.errors import MachineError


def test_no_name_ends_the_docstring_or_escapes_in_it() -> None:
    name = 'say """; raise SystemExit\n"""\\N{odd}'
    found = Reproduction(
        name=name, source=None, code=(), inputs={"x": np.ones(2)}, origins={"x": "C:\\users"}, cotangents={},
        constants={}, outputs=(), gradients=(),
    )  # fmt: skip
    tree = ast.parse(script(found, file="isolated", dump='odd".npz'))
    docstring = ast.get_docstring(tree)
    assert docstring is not None
    assert "C:\\users" in docstring
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(tree))


@pytest.mark.parametrize("call", ["fsync", "pwrite", "link", "ftruncate"])
def test_a_failure_of_any_call_leaves_both_files_as_they_were(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Reproduction(
        name="layer", source=None, code=(), inputs={"x": np.ones(2)}, origins={"x": "given"}, cotangents={},
        constants={}, outputs=(), gradients=(),
    )  # fmt: skip
    real = getattr(os, call)
    for failing in count():
        numbers = count()

        def fail(*arguments: Any, numbers: Any = numbers, failing: int = failing, **named: Any) -> Any:
            if next(numbers) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **named)

        monkeypatch.setattr(os, call, fail)
        folder = tmp_path / str(failing)
        try:
            write_reproduction(folder, found, file="isolated", dump=tmp_path / "a.npz", force=False)
        except MachineError:
            assert list(folder.iterdir()) == []
        else:
            break
    assert failing >= 2
    assert sorted(path.name for path in folder.iterdir()) == ["isolated.npz", "isolated.py"]
