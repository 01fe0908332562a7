"""Terms of gradients on the command line: `--terms`, and `--ops` with its value, without, and before the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.command import gradscope, in_terminal

MODEL = """
import jax
import jax.numpy as jnp


def init(key):
    return {"w": jnp.linspace(-1.0, 1.0, 9).reshape(3, 3)}


def batch(key, size):
    return {"x": jnp.linspace(0.5, 2.0, 3 * size).reshape(size, 3)}


def loss(variables, batch):
    def block(x, _):
        with jax.named_scope("branch"):
            branch = jnp.tanh(x @ variables["w"])
        with jax.named_scope("add"):
            return x + branch, None  # the skip

    with jax.named_scope("embed"):
        x = 2.0 * batch["x"]
    with jax.named_scope("block"):
        x, _ = jax.lax.scan(jax.checkpoint(block), x, length=3)
    return (x**2).mean()
"""

CHAIN = """
import jax
import jax.numpy as jnp


def init(key):
    return {"w": jnp.ones(3)}


def batch(key, size):
    return {"x": jnp.ones((size, 3))}


def loss(variables, batch):
    with jax.named_scope("only"):
        return jnp.sin(batch["x"] @ variables["w"]).sum()
"""


def dumped(folder: Path, *options: str) -> list[dict[str, Any]]:
    """The rows that a dump of the model prints."""
    done = gradscope("dump", "model.py", "--json", "-q", "--force", *options, folder=folder)
    assert done.status == 0, done.errors
    return done.json["rows"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terms")
    (folder / "model.py").write_text(MODEL)
    (folder / "chain.py").write_text(CHAIN)
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    return dumped(folder, "--terms", "-o", "terms.npz")


@pytest.mark.slow
def test_a_row_for_each_use_names_its_gradient_and_the_line_of_the_use(rows: list[dict[str, Any]]) -> None:
    terms = {row["name"]: row for row in rows if row["family"] == "term"}
    users = ("branch/dot_general.0", "add/add.0")
    assert list(terms) == [f"block[{iteration}]/{user}" for iteration in range(3) for user in users]
    skip = terms["block[1]/add/add.0"]
    assert (skip["of"], skip["primitive"], skip["layer"]) == ("activation/block[0]/add", "add", "block[1]/add")
    assert skip["iteration"] == [1]
    assert (
        skip["source"] == f"model.py:{MODEL.splitlines().index('            return x + branch, None  # the skip') + 1}"
    )
    assert terms["block[0]/branch/dot_general.0"]["of"] == "activation/embed"


def test_the_terms_in_the_file_sum_to_the_gradient(folder: Path, rows: list[dict[str, Any]]) -> None:
    parts = [row for row in rows if row["family"] == "term"]
    with np.load(folder / "terms.npz") as arrays:
        for of in {row["of"] for row in parts}:
            total = sum(arrays[f"term/{row['name']}"] for row in parts if row["of"] == of)
            gradient = arrays[of.replace("activation/", "activation_grad/")]
            np.testing.assert_allclose(total, gradient, rtol=1e-6, atol=1e-6 * np.abs(gradient).max())


def test_a_saved_dump_shows_compares_and_verifies_with_its_terms(folder: Path, rows: list[dict[str, Any]]) -> None:
    terms = [row for row in rows if row["family"] == "term"]
    shown = gradscope("show", "terms.npz", "--families", "term", "--json", folder=folder)
    assert shown.json["rows"] == terms
    table = gradscope("show", "terms.npz", folder=folder).output
    assert f"Terms of gradients, by use ({len(terms)})" in table
    compared = gradscope("compare", "terms.npz", "terms.npz", "--json", folder=folder)
    assert compared.status == 0
    assert {row["name"] for row in compared.json["rows"] if row["family"] == "term"} == {row["name"] for row in terms}
    assert gradscope("verify", "terms.npz", folder=folder).status == 0


def test_the_iterations_of_a_loop_fold_to_a_line_that_names_what_they_are_terms_of(
    folder: Path, rows: list[dict[str, Any]]
) -> None:
    assert rows
    shown = in_terminal("show", "terms.npz", "--families", "term", folder=folder, columns=160).plain
    (line,) = (line for line in shown.splitlines() if "add/add.0" in line)
    assert "activation/embed, activation/block[0..1]/add" in line


@pytest.mark.slow
def test_operations_have_their_inputs_gradients_on_request(folder: Path) -> None:
    plain, inputs = (dumped(folder, "--stats-only", *ops) for ops in (("--ops",), ("--ops", "inputs")))
    outputs = [row for row in inputs if row["family"] != "term"]
    assert [(row["family"], row["name"]) for row in outputs] == [(row["family"], row["name"]) for row in plain]
    terms = {row["name"]: row for row in inputs if row["family"] == "term"}
    assert terms.keys() >= {f"block[2]/branch/dot_general.{operand}" for operand in (0, 1)}
    assert terms["block[2]/branch/dot_general.1"]["shape"] == [3, 3]
    assert terms["block/scan.0"]["of"] == "param/w"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "families"),
    [
        (["--ops"], ["activation", "activation_grad"]),
        (["--ops", "inputs"], ["activation", "activation_grad", "term"]),
    ],
    ids=" ".join,
)
def test_operations_may_be_requested_before_the_target(folder: Path, options: list[str], families: list[str]) -> None:
    done = gradscope("dump", *options, "chain.py", "--json", "-q", "--stats-only", "--force", folder=folder)
    assert done.status == 0, done.errors
    assert {row["family"] for row in done.json["rows"] if row["name"].startswith("only/dot_general")} == set(families)


@pytest.mark.slow
def test_where_every_value_is_used_once_that_is_said(folder: Path) -> None:
    done = gradscope("dump", "chain.py", "--terms", "--force", folder=folder)
    assert done.status == 0
    assert "no value that is shown is used more than once" in done.errors
    assert "Terms" not in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--ops=inward"], "invalid value for '--ops': 'inward' is not one of 'outputs', 'inputs'"),
        (["--terms", "--fetch", "only"], "a fetch names all that is shown"),
        (["--terms", "--select", "term/nothing"], "pattern 'term/nothing' selects nothing"),
    ],
    ids=" ".join,
)
def test_options_that_terms_exclude_are_refused(folder: Path, options: list[str], says: str) -> None:
    done = gradscope("dump", "chain.py", "--force", *options, folder=folder)
    assert done.status == 2
    assert done.lines[0].startswith(f"gradscope: error: {says}")
