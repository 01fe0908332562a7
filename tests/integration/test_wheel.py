"""The wheel that users install: the zoo is inside, and works by name away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.command import GRADSCOPE, TIMEOUT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout."""
    if find_spec("hatchling") is None:
        pytest.skip("NOT TESTED: the wheel, because hatchling is not installed (pip install hatchling)")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("gradscope_jax-*.whl")
    return path


def test_the_wheel_holds_the_package_and_the_zoo_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    zoo = {path.name for path in (ROOT / "models").glob("*.py")}
    assert {f"gradscope/models/{name}" for name in zoo} <= names
    scripts = ROOT / "gradscope/presentation/page/script"
    assert {path.relative_to(ROOT).as_posix() for path in scripts.rglob("*") if path.is_file()} <= names
    assert {
        "gradscope/cli/main.py",
        "gradscope/py.typed",
        "gradscope/presentation/page/uplot/LICENSE",
    } <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"gradscope", "gradscope_jax"}
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_the_zoo_of_an_unpacked_wheel_works_by_name(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = subprocess.run(
        [*GRADSCOPE, "dump", "mlp", "-v"], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"loaded from {site / 'gradscope' / 'models' / 'mlp.py'}" in done.stderr
    assert "mlp.py:" in done.stdout
    assert (tmp_path / "mlp.npz").exists()
