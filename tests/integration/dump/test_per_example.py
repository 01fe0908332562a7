"""`--per-example` on the command line: is a run in low precision noisy, or biased?"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gradscope.dump.reader import open_dump
from tests.integration.command import gradscope
from tests.integration.models import source, write

LOSS = """
def loss(variables, batch):
    return (forward(variables, batch) ** 2).mean()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and what it gives in two precisions."""
    folder = tmp_path_factory.mktemp("examples")
    write(folder, source(loss=LOSS))
    options = ("model.py", "--per-example", "--batch-size", 6)
    wide = gradscope("dump", *options, "-o", "wide.npz", folder=folder)
    assert wide.status == 0, wide.errors
    assert "\nGradients of each example (2)\n" in wide.output
    assert re.search(r"\nexamples  the mean of the gradients of 6 examples is the batch's gradient \(", wide.output)
    narrow = gradscope("dump", *options, "--dtype", "bfloat16", "-o", "narrow.npz", "--json", folder=folder)
    assert narrow.status == 0, narrow.errors
    assert narrow.json["examples"].keys() == {"count", "combined_by", "rel_l2", "coupled", "sentence"}
    assert (narrow.json["examples"]["count"], narrow.json["examples"]["coupled"]) == (6, False)
    return folder


def test_low_precision_is_a_share_of_the_spread(folder: Path) -> None:
    done = gradscope("compare", "wide.npz", "narrow.npz", folder=folder)
    assert done.status == 0
    found = re.search(
        r"^examples  Per example the error is ([0-9.]+) % of the batch's own spread: ([0-9.]+) % random, ",
        done.output,
        re.MULTILINE,
    )
    assert found is not None, done.output
    keys = ("example_grad/first/w", "example_grad/last/w")
    with open_dump(folder / "wide.npz") as one, open_dump(folder / "narrow.npz") as other:
        g, d = (
            np.concatenate([side.array(key).astype(np.float64).reshape(6, -1) for key in keys], axis=1)
            for side in (one, other)
        )
    d = d - g
    sigma = np.sqrt(np.square(g - g.mean(axis=0)).sum() / 5)
    expected = np.sqrt(np.square(d).sum() / 6) / sigma, np.sqrt(np.square(d - d.mean(axis=0)).sum() / 5) / sigma
    assert [float(share) / 100 for share in found.groups()] == pytest.approx(expected, rel=0.06)


def test_tolerances_and_programs_read_it(folder: Path) -> None:
    done = gradscope(
        "compare", "wide.npz", "narrow.npz", "--tol", "example_grad/.*=spread < 1e-9", "--json", folder=folder
    )
    assert done.status == 1
    rows = [row for row in done.json["rows"] if row["family"] == "example_grad"]
    assert [row["status"] for row in rows] == ["different"] * 2
    assert all(row["spread"] >= max(row["random"] * (5 / 6) ** 0.5, row["bias"]) for row in rows)
    assert done.json["examples"]["sentence"].startswith("Per example the error is ")
