"""The examples run as their texts say, each in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradscope as gs
from tests.integration.command import python

pytestmark = pytest.mark.usefixtures("lenient")

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example as a user does: without the strictness that tests put on JAX, the commands on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_NUMPY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_training_loop_writes_a_dump_for_every_observed_step(tmp_path: Path) -> None:
    done = python(EXAMPLES / "training_loop.py", folder=tmp_path)
    assert done.status == 0, done.errors
    steps = [line.split()[1] for line in done.output.splitlines() if line.startswith("step ")]
    assert steps == ["0", "10", "20", "30", "40"]
    assert [path.name for path in sorted((tmp_path / "runs").iterdir())] == [f"step_{int(n):03}.npz" for n in steps]
    assert "param_grad/last/kernel: l2 " in done.output


def test_a_mistake_in_a_port_is_named_and_its_repair_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is absent: the example of a port was NOT run")
    done = python(EXAMPLES / "port_from_pytorch.py", folder=tmp_path)
    assert done.status == 0, done.output + done.errors
    wrong, right = done.output.splitlines()
    assert wrong.startswith("gelu(approximate=True): Forward first differs at `gelu`")
    assert right.startswith("gelu(approximate=False): Same within tolerance")


def test_without_pytorch_the_port_says_that_it_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    program = f"import runpy, sys; sys.path.insert(0, '.'); runpy.run_path({str(EXAMPLES / 'port_from_pytorch.py')!r}, "
    done = run(sys.executable, "-c", program + "run_name='__main__')", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SKIPPED, nothing was compared: No module named torch; pip install ")


def test_a_golden_dump_is_made_then_compared(tmp_path: Path) -> None:
    model = """
import jax.numpy as jnp
def init(key): return {"w": jnp.full(3, 2.0)}
def batch(key, size): return jnp.ones((size, 3))
def loss(variables, batch): return (batch @ variables["w"]).sum()
"""
    (tmp_path / "model.py").write_text(model)

    def job(*options: str) -> subprocess.CompletedProcess[str]:
        return run(EXAMPLES / "golden_dump.sh", "model.py", "golden.npz", *options, folder=tmp_path)

    assert job().stdout == "made golden.npz; commit it\n"
    same = job()
    assert (same.returncode, same.stdout.splitlines()[0][:12]) == (0, "- **same** S"), same.stderr
    # Options of the comparison, then those of the dump.
    other = job("--all", "--", "--batch-size", "3")
    assert (other.returncode, other.stdout[:13]) == (1, "- **different"), other.stderr
    (tmp_path / "model.py").write_text(model.replace("2.0", "2.1"))
    different = job()
    assert (different.returncode, different.stdout[:13]) == (1, "- **different"), different.stderr
    (tmp_path / "model.py").write_text(model.replace("2.0", "jnp.nan"))
    (tmp_path / "golden.npz").unlink()
    broken = job()
    assert (broken.returncode, "nonfinite" in broken.stdout) == (1, True), broken.stderr
    assert not (tmp_path / "golden.npz").exists()


def test_the_hunt_finds_the_line_and_the_repair_holds(tmp_path: Path) -> None:
    done = python(EXAMPLES / "nan_hunt.py", folder=tmp_path)
    assert done.status == 0, done.errors
    number = 1 + next(
        at for at, line in enumerate((EXAMPLES / "nan_hunt.py").read_text().splitlines()) if "jnp.sqrt(squared)" in line
    )
    assert "12 of 12 elements of the gradient are NaN" in done.output
    assert f"origin: distance/sqrt (nan_hunt.py:{number}) " in done.output
    assert "repair: use where twice" in done.output
    assert done.output.endswith("repaired: findings none\n")


@pytest.mark.parametrize(
    ("loop", "needs", "tensor"),
    [
        ("plain_optax", "optax", "slot/nu/hidden"),
        ("flax_train_state", "flax", "update/hidden/kernel"),
        ("nnx_module", "flax", "slot/mu/head/bias"),
        ("equinox_module", "equinox", "update/layers/0/weight"),
        ("scan_over_steps", "optax", "activation_grad/hidden"),
    ],
)
def test_a_loop_with_three_changed_lines_is_recorded(loop: str, needs: str, tensor: str, tmp_path: Path) -> None:
    for each in ("optax", needs):
        pytest.importorskip(each, reason=f"{each} is absent: the example {loop} was NOT run")
    file = EXAMPLES / "loops" / f"{loop}.py"
    done = python(file, folder=tmp_path)
    assert done.status == 0, done.errors
    every = 1 if loop == "scan_over_steps" else 5
    with gs.load(tmp_path / "run") as run:
        assert run.steps["step"].tolist() == list(range(0, 20, every))
        assert run.steps["loss"][-1] < run.steps["loss"][0]
        assert (run.series(tensor, "l2") > 0).all()
    marked = [line for line in file.read_text().splitlines() if "  # 1" in line or "  # 2" in line or "  # 3" in line]
    assert len(marked) == 3
