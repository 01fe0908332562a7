"""Objects show themselves in a notebook: a real kernel runs the cells, and what it would display is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.page_samples import run_folder

CELLS = {
    "dump": ("gs.load('one.npz')", "verdict"),
    "comparison": ("gs.compare(gs.load('one.npz'), gs.load('other.npz'))", "different"),
    "run": ("gs.load('run')", "nonfinite: at step 7"),
    "seen": ("gs.value_and_grad(lambda w: (w**2).sum())(jnp.ones(3))[1]", "statistics: "),
}
MOST_BYTES = 60_000


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        import ipykernel  # noqa: F401
        from jupyter_client.manager import start_new_kernel
    except ImportError:
        pytest.skip("NOT TESTED: objects in a notebook, because ipykernel is not installed (pip install ipykernel)")
    folder: Path = tmp_path_factory.mktemp("notebook")
    np.savez(folder / "one.npz", kernel=np.eye(3), bias=np.zeros(3))
    np.savez(folder / "other.npz", kernel=np.eye(3) * 2, bias=np.zeros(3))
    run_folder(folder / "run")
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder))
    client.execute_interactive("import gradscope as gs, jax.numpy as jnp", timeout=60, output_hook=lambda message: None)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def displayed(kernel: Any, code: str) -> str:
    """The HTML of the result of a cell."""
    found: list[dict[str, Any]] = []
    reply = kernel.execute_interactive(code, timeout=60, output_hook=lambda message: found.append(message["content"]))
    assert reply["content"]["status"] == "ok", reply["content"]
    return next(each["data"]["text/html"] for each in found if "data" in each)


@pytest.mark.parametrize("kind", CELLS)
def test_an_object_shows_itself_in_less_than_60_kb(kernel: Any, kind: str) -> None:
    code, shown = CELLS[kind]
    html = displayed(kernel, code)
    assert shown in html
    assert len(html.encode()) < MOST_BYTES
    assert "<script" not in html


def test_a_run_has_a_chart_and_the_head_of_a_table(kernel: Any) -> None:
    html = displayed(kernel, "gs.load('run')")
    assert html.count("<polyline") == 3
    assert "Trends (7 of 7, " in html


def test_a_report_is_a_frame_that_nothing_in_it_leaves(kernel: Any) -> None:
    html = displayed(kernel, "gs.report(gs.load('run'))")
    assert html.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert 'sandbox="allow-scripts allow-downloads"' in html
