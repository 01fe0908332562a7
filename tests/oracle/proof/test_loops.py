"""The fourth proof: a model under `lax.scan` and the same model unrolled agree, iteration by iteration.

Other tests prove that the first equals the model written out; here `gradscope compare` compares two dumps on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from tests.oracle.proof.commands import Dumped, gradscope
from tests.support.sampled import sampled

LAYERS_OF_A_BLOCK = {
    *("norm1", "attn/query", "attn/key", "attn/value", "attn/scores", "attn/softmax", "attn/mix", "attn/out", "attn"),
    *("add1", "norm2", "mlp/up", "mlp/gelu", "mlp/down", "mlp", "add2"),
}


@pytest.fixture
def scanned(dumped: Callable[..., Dumped]) -> Path:
    return dumped("transformer, scanned and checkpointed", "--x64", "--self-check").path


@pytest.fixture
def unrolled(dumped: Callable[..., Dumped]) -> Path:
    return dumped("transformer, unrolled", "--x64", "--self-check").path


def names(report: Any, family: str, status: str) -> set[str]:
    return {row["name"] for row in report["rows"] if (row["family"], row["status"]) == (family, status)}


@sampled("family", ["activation", "activation_grad"])
def test_every_iteration_of_the_scan_is_a_block_of_the_unrolled_model(
    family: str, scanned: Path, unrolled: Path
) -> None:
    command = gradscope("compare", scanned, unrolled, "--json")
    assert command.status == 0, command.output
    outside = {"embed/token", "embed/position", "embed/add", "embed", "norm", "head", "loss"}
    iterations = {f"block[{iteration}]" for iteration in (0, 1)}
    inside = {f"{iteration}/{layer}" for iteration in iterations for layer in LAYERS_OF_A_BLOCK}
    assert names(command.report, family, "same") == outside | iterations | inside | {"block"}
    assert names(command.report, family, "missing") | names(command.report, family, "extra") == set()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["param", "param_grad"])
def test_parameters_and_their_gradients_agree(family: str, scanned: Path, unrolled: Path) -> None:
    report = gradscope("compare", unrolled, scanned, "--json").report
    assert report["verdict"] == "same"
    assert len(names(report, family, "same")) == 15
    assert names(report, family, "missing") | names(report, family, "extra") == set()


def test_the_layers_of_every_iteration_read_what_the_unrolled_ones_read(scanned: Path, unrolled: Path) -> None:
    """Also where it comes from the iteration before, or is a parameter that another layer returns."""
    read = [{layer.path: layer.inputs for layer in gs.load(path).layers} for path in (scanned, unrolled)]
    assert {path: inputs for path, inputs in read[0].items() if path in read[1]} == {
        path: tuple(name.replace("block[1]/add2", "block") if path == "norm" else name for name in inputs)
        for path, inputs in read[1].items()
    }
    assert read[1]["block[1]/add1"] == ("block[0]/add2", "block[1]/attn/out")
    assert read[1]["embed/add"] == ("embed/token", "embed/position")


def test_the_output_of_the_loop_is_that_of_its_last_iteration(scanned: Path, unrolled: Path) -> None:
    for pair in ((scanned, unrolled), (unrolled, scanned)):
        rows = gradscope("compare", *pair, "--select", "activation*/block", "--json").report["rows"]
        assert [(row["name"], row["matched_by"], row["counterpart"]) for row in rows] == [
            ("block", "iterations", "block[1]/add2")
        ] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "divergence"),
    [
        ("activation/block[1]/attn/scores", {"forward": "block[1]/attn/scores"}),
        ("activation_grad/block[0]/mlp/gelu", {"backward": "block[0]/mlp/gelu"}),
    ],
)
def test_a_difference_in_one_iteration_is_named_by_that_iteration(
    key: str, divergence: dict[str, str], scanned: Path, unrolled: Path, tmp_path: Path
) -> None:
    with np.load(unrolled) as members:
        tensors = {name: members[name] for name in members if name.split("/")[0] in {"activation", "activation_grad"}}
    np.savez(tmp_path / "changed.npz", **tensors | {key: tensors[key] * (1 + 1e-8)})
    iterations = ("--select", "re:block.*", "--allow-missing", r"block\[.\]|.*/(attn|mlp)")
    command = gradscope("compare", scanned, tmp_path / "changed.npz", *iterations, "--exclude", "param*", "--json")
    assert command.status == 1, command.messages
    assert command.report["first_divergence"] == divergence
