"""`gradscope isolate`: a layer as a script that runs without gradscope, and tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration import models
from tests.integration.command import gradscope
from tests.support.reproduction import run

#: The last layer doubles what it gives, by a function whose rule may be wrong.
RIGHT = models.FORWARD.replace('return x @ variables["last"]["w"]', 'return 2 * x @ variables["last"]["w"]')
WRONG = models.FORWARD.replace('return x @ variables["last"]["w"]', 'return doubled(x) @ variables["last"]["w"]')


def reproduced(folder: Path, layer: str, dump: str, target: str) -> Path:
    """The script of a layer."""
    output = f"repro of {target} {layer}".replace("/", "-")
    done = gradscope("isolate", layer, dump, target, "-o", output, folder=folder)
    assert (done.status, done.errors) == (0, "")
    assert done.output.startswith(f"{output}/isolated.py  {layer}: ")
    return folder / output / "isolated.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`right.py` with its dump, and `wrong.py`, whose rule is wrong."""
    folder = tmp_path_factory.mktemp("repro")
    for name, forward in (("right.py", RIGHT), ("wrong.py", WRONG)):
        models.write(folder, models.source(more=models.WRONG_RULE).replace(models.FORWARD, forward), name)
    assert gradscope("dump", "right.py", "-o", "right.npz", folder=folder).status == 0
    return folder


def test_a_right_layer_exits_0_on_what_the_dump_has(folder: Path) -> None:
    script = reproduced(folder, "last", "right.npz", "right.py")
    ran = run(script)
    assert ran.status == 0
    assert ran.errors.keys() == {("forward", "last"), ("vjp", "relu"), ("vjp", "w")}
    assert max(ran.errors.values()) < 1e-6
    assert ran.output.count("expected: the dump's") == 3
    with np.load(script.with_suffix(".npz")) as arrays, np.load(folder / "right.npz") as dump:
        for name, key in {
            "input/relu": "activation/relu", "input/w": "param/last/w", "cotangent/d_last": "activation_grad/last",
            "forward/last": "activation/last", "vjp/relu": "activation_grad/relu", "vjp/w": "param_grad/last/w",
        }.items():  # fmt: skip
            np.testing.assert_array_equal(arrays[name], dump[f"{key}.npy"])


def test_a_wrong_rule_exits_1_and_is_wrong_backward_only(folder: Path) -> None:
    ran = run(reproduced(folder, "last", "right.npz", "wrong.py"))
    assert ran.status == 1
    assert ran.errors["forward", "last"] < 1e-6
    assert ran.errors["vjp", "relu"] == pytest.approx(0.5)  # three times the gradient instead of twice
    assert ran.errors["vjp", "w"] < 1e-6


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lasst right.npz right.py", "no layer is called lasst"),
        ("last absent.npz right.py", "absent.npz"),
        ("last right.npz mlp", "the dump is not one of mlp"),
        ("last right.npz right.py -o right.py", "right.py is not a folder"),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_a_line(folder: Path, line: str, says: str) -> None:
    done = gradscope("isolate", *line.split(), folder=folder)
    assert done.status in (2, 3)
    assert says in done.lines[0]


def test_the_dump_is_kept_even_by_force(folder: Path) -> None:
    (folder / "own").mkdir()
    kept = (folder / "right.npz").read_bytes()
    (folder / "own/isolated.npz").write_bytes(kept)
    done = gradscope("isolate", "relu", "own/isolated.npz", "right.py", "-o", "own", "--force", folder=folder)
    assert done.status == 2
    assert "one of the files that are read" in done.lines[0]
    assert [path.read_bytes() for path in (folder / "own").iterdir()] == [kept]


def test_a_reproduction_is_replaced_only_by_force(folder: Path) -> None:
    line = ("isolate", "relu", "right.npz", "right.py", "-o", "again")
    assert [gradscope(*line, *more, folder=folder).status for more in ((), (), ("--force",))] == [0, 2, 0]
