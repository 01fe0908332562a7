"""The script of a reproduction, whatever its names have in them."""

from __future__ import annotations

import ast

import numpy as np

from gradscope.capturing.isolate.reproduction import Reproduction
from gradscope.capturing.isolate.reproduction_script import script


def test_no_name_ends_the_docstring_or_escapes_in_it() -> None:
    name = 'say """; raise SystemExit\n"""\\N{odd}'
    found = Reproduction(
        name=name, source=None, code=(), inputs={"x": np.ones(2)}, origins={"x": "C:\\users"}, cotangents={},
        constants={}, outputs=(), gradients=(),
    )  # fmt: skip
    tree = ast.parse(script(found, file="isolated", dump='odd".npz'))
    told = ast.get_docstring(tree)
    assert told is not None
    assert "C:\\users" in told
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(tree))
