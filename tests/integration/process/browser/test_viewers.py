"""Graphs in the programs that they are for: Graphviz draws one, Google's Model Explorer opens one with its overlay."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import gradscope
from tests.integration.process.browser.conftest import SCREENSHOTS

STARTED_WITHIN_SECONDS = 60


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graph of a small model in both formats, a dump of it, and the overlay."""
    folder = tmp_path_factory.mktemp("graphs")
    assert gradscope("dump", "mlp", "-q", folder=folder).status == 0
    for name, options in (
        ("graph.dot", "--format dot"),
        ("graph.json", "--format model-explorer"),
        ("overlay.json", "--format model-explorer --gradients mlp.npz"),
    ):
        (folder / name).write_text(gradscope("inspect", "mlp", *options.split(), folder=folder).output)
    return folder


def test_graphviz_draws_every_operation_in_the_box_of_its_layer(graphs: Path) -> None:
    if shutil.which("dot") is None:
        pytest.skip("NOT TESTED: graphs in Graphviz, because there is no dot (apt-get install graphviz)")
    done = subprocess.run(["dot", "-Tsvg", "graph.dot"], cwd=graphs, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    nodes = json.loads((graphs / "graph.json").read_text())["graphs"][0]["nodes"]
    assert done.stdout.count('class="node"') == len(nodes)
    assert done.stdout.count('class="edge"') == sum(len(node["incomingEdges"]) for node in nodes)
    assert done.stdout.count('class="cluster"') == len({node["namespace"] for node in nodes} - {""})


@pytest.fixture(scope="module")
def viewer() -> Iterator[str]:
    """The address of a running Model Explorer."""
    if importlib.util.find_spec("model_explorer") is None:
        pytest.skip("NOT TESTED: graphs in Model Explorer, which is not installed (pip install ai-edge-model-explorer)")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    program = "import sys; from model_explorer.cmdline import main; sys.exit(main())"
    options = ["--no_open_in_browser", "--skip_health_check", "--port", str(port)]
    server = subprocess.Popen([sys.executable, "-c", program, *options], stdout=subprocess.DEVNULL)
    address = f"http://localhost:{port}/"
    try:
        _wait_for(address, server)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTED_WITHIN_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, "Model Explorer ended"
        with suppress(OSError):
            urllib.request.urlopen(f"{address}check_health", timeout=5).close()
            return
        time.sleep(0.1)
    raise AssertionError("Model Explorer does not answer")


def test_model_explorer_opens_a_graph_with_the_gradients_as_an_overlay(
    viewer: str, browser: Any, graphs: Path
) -> None:  # fmt: skip
    files = {"models": [{"url": str(graphs / "graph.json")}], "nodeData": [str(graphs / "overlay.json")]}
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(viewer) else route.abort())
    page.goto(f"{viewer}?data={urllib.parse.quote(json.dumps({**files, 'nodeDataTargets': ['']}))}")
    page.get_by_text("Aggregated stats").wait_for(timeout=60_000)
    shown = page.inner_text("body")
    if SCREENSHOTS is not None:
        page.wait_for_timeout(1_000)  # until the graph has come to rest
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(SCREENSHOTS) / "model-explorer.png"))
    page.close()
    nodes = json.loads((graphs / "graph.json").read_text())["graphs"][0]["nodes"]
    norms = json.loads((graphs / "overlay.json").read_text())["mlp"]["results"]
    assert f"{len(nodes)} nodes" in shown
    assert "gradient l2" in shown
    assert repr(norms["param/dense1/kernel"]["value"])[:12] in shown
