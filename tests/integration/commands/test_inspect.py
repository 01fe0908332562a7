"""`gradscope inspect`: a model told from its trace."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tests.integration import models
from tests.integration.command import gradscope, in_terminal

#: Thirty blocks of a bias of two numbers and a kernel of four.
DEEP = """
import jax
import jax.numpy as jnp

def init(key):
    block = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
    return {f"block{at}": block for at in range(10, 40)}

def loss(params, x):
    for name, block in params.items():
        with jax.named_scope(name):
            with jax.named_scope("inner"):
                x = x @ block["kernel"]
            x = x + block["bias"][None]
    with jax.named_scope("loss"):
        return (x**2).mean()

def batch(key, size):
    return jax.random.normal(key, (size, 2))
"""  # the numbers all have two digits, as parameters come in the order of their names


def test_a_model_in_a_terminal(tmp_path: Path) -> None:
    shown = in_terminal("inspect", "mlp", "--full", folder=tmp_path, columns=80).plain
    assert (
        shown
        == """\
Inputs (2)
name    shape   dtype    bytes
point   [64,2]  float32    512
spiral  [64]    int32      256

Layers (6)
name    shape     flops  flops_share  parameters  activation_bytes
dense1  [64,32]  10.2 k         6.5%          96            8.19 k
relu1   [64,32]  2.05 k         1.3%           0            8.19 k
dense2  [64,32]   133 k        85.1%      1.06 k            8.19 k
relu2   [64,32]  2.05 k         1.3%           0            8.19 k
dense3  [64,2]   8.32 k         5.3%          66               512
loss    []          705         0.5%           0                 4
hidden at this width: dtype, parameter_share, backward_flops, operations, source
(--format json has all numbers)

Parameters (6)
name           shape    dtype    parameters  parameter_share  bytes  used_by
dense1/kernel  [2,32]   float32          64             5.3%    256  dense1
dense1/bias    [32]     float32          32             2.6%    128  dense1
dense2/kernel  [32,32]  float32       1,024            84.1%  4,096  dense2
dense2/bias    [32]     float32          32             2.6%    128  dense2
dense3/kernel  [32,2]   float32          64             5.3%    256  dense3
dense3/bias    [2]      float32           2             0.2%      8  dense3

model        mlp, batch size 64
parameters   1,218 (4.8 KiB)
FLOPs        156 k forward, 291 k backward
activations  32.5 KiB of layer outputs, 37.0 KiB kept for the backward pass
"""
    )


def test_a_terminal_shows_one_screen_whose_lines_add_up(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    for columns, height in ((80, 24), (160, 50)):
        shown = in_terminal("inspect", "deep.py", folder=tmp_path, columns=columns, LINES=str(height)).plain
        assert len(shown.splitlines()) < min(height, 41)
        table = shown.partition("Block by block (61 layers)\n")[2].partition("\nname[a..b]")[0].splitlines()
        assert table[0].split()[:5] == ["name", "shape", "flops", "flops_share", "parameters"]
        lines = [re.split(" {2,}", line) for line in table[1:] if not line.startswith(" ")]
        counts = {cells[0]: int(cells[4]) for cells in lines}
        assert counts == {"block[10..39]": 30 * (2 + 2 * 2), "loss": 0}
        assert re.search(r"^parameters +180 ", shown, re.MULTILINE)
        assert "gradscope inspect deep.py --full" in " ".join(shown.split())
        operations = in_terminal("inspect", "deep.py", "--ops", folder=tmp_path, columns=columns, LINES=str(height))
        assert "Block by block" in operations.plain
        assert len(operations.plain.splitlines()) < min(height, 41)
    for options in ("--full", "--select block*"):
        complete = in_terminal("inspect", "deep.py", *options.split(), folder=tmp_path, columns=160).plain
        assert complete.count("inner") + complete.count("block") >= 60
        assert "Block by block" not in complete


def test_json_has_totals_and_rows(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    found = gradscope("inspect", "model.py", "--json", folder=tmp_path).json
    assert (found["schema"], found["command"], found["batch_size"]) == (2, "inspect", 4)
    assert found["totals"]["parameters"] == 3 * 2 + 2
    layers = [row for row in found["rows"] if row["family"] == "activation"]
    assert [row["name"] for row in layers] == ["first", "relu", "last", "(outside layers)"]
    assert sum(row["flops"] for row in layers) == found["totals"]["flops"]
    assert layers[0]["source"].startswith("model.py:")


def test_what_is_outside_of_layers_is_none(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    shown = gradscope("inspect", "model.py", folder=tmp_path).output
    assert "\nLayers (3)\n" in shown
    assert "\n(outside layers)" in shown


@pytest.mark.slow
def test_csv_and_markdown_have_the_same_rows(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    table = csv.DictReader(gradscope("inspect", "model.py", "--format", "csv", folder=tmp_path).output.splitlines())
    names = [row["name"] for row in table]
    markdown = gradscope("inspect", "model.py", "--format", "markdown", folder=tmp_path).output
    assert names == ["x", "first", "relu", "last", "(outside layers)", "first/w", "last/w"]
    assert all(f"`{name}` |" in markdown for name in names)


@pytest.mark.slow
def test_rows_can_be_chosen_and_sorted(tmp_path: Path) -> None:
    options = ("--families", "activation", "--depth", 1, "--sort", "-flops", "--json")
    rows = gradscope("inspect", "transformer", *options, folder=tmp_path).json["rows"]
    assert [row["name"] for row in rows][:2] == ["block", "block[*]"]
    assert not any("/" in row["name"] for row in rows)
    refused = gradscope("inspect", "mlp", "--select", "nothing", folder=tmp_path)
    assert refused.status == 2
    assert "selects nothing" in refused.errors


@pytest.mark.slow
def test_operations_are_rows_next_to_the_layers(tmp_path: Path) -> None:
    rows = gradscope("inspect", "mlp", "--ops", "--select", "dense1*", "--json", folder=tmp_path).json["rows"]
    names = [row["name"] for row in rows if row["family"] == "activation"]
    assert names == ["dense1", "dense1/dot_general", "dense1/broadcast_in_dim", "dense1/add"]


def test_a_fetch_is_explained_without_a_run(tmp_path: Path) -> None:
    found = gradscope("inspect", "mlp", "--fetch", "relu1", "--json", folder=tmp_path).json
    assert found["fetch"] == {"needed": 4, "total": 30, "inputs": ["point"]}
    output = gradscope("inspect", "mlp", "--fetch", "relu1", folder=tmp_path).output
    assert output.endswith("fetch        4 of 30 operations needed; inputs needed: point\n")
    refused = gradscope("inspect", "mlp", "--fetch", "relu9", folder=tmp_path)
    assert (refused.status, refused.output) == (2, "")
    assert "no value is called relu9" in refused.errors


def test_a_graph_and_the_gradients_of_a_dump_as_its_overlay(tmp_path: Path) -> None:
    graph = ("inspect", "mlp", "--format", "model-explorer")
    nodes = {node["id"] for node in gradscope(*graph, folder=tmp_path).json["graphs"][0]["nodes"]}
    assert gradscope("dump", "mlp", "--stats-only", "-q", folder=tmp_path).status == 0
    overlay = gradscope(*graph, "--gradients", "mlp.npz", folder=tmp_path).json["mlp"]["results"]
    assert {"param/dense1/kernel", "dense1/add", "relu2/relu"} <= overlay.keys() <= nodes
    dot = gradscope("inspect", "mlp", "--format", "dot", folder=tmp_path).output
    assert dot.startswith("digraph model {")
    assert dot.endswith("}\n")
    refused = gradscope("inspect", "mlp", "--gradients", "mlp.npz", folder=tmp_path)
    assert refused.status == 2
    assert "add --format model-explorer" in refused.errors


def test_nothing_of_the_model_is_run(tmp_path: Path) -> None:
    more = "def on_host(x):\n    raise RuntimeError('the model was run')"
    loss = models.LOSS.replace("return", "jax.debug.callback(on_host, 1.0)\n    return")
    models.write(tmp_path, models.source(loss=loss, more=more))
    assert gradscope("inspect", "model.py", folder=tmp_path).status == 0


@pytest.mark.slow
def test_a_larger_batch_costs_more_and_has_the_same_parameters(tmp_path: Path) -> None:
    one, two = (
        gradscope("inspect", "mlp", "--batch-size", size, "--json", folder=tmp_path).json["totals"] for size in (8, 16)
    )
    assert one["parameters"] == two["parameters"]
    assert two["flops"] > 1.9 * one["flops"]


def test_a_broken_model_is_reported_with_its_line(tmp_path: Path) -> None:
    models.write(tmp_path, models.BROKEN["fails in loss"].text)
    done = gradscope("inspect", "model.py", folder=tmp_path)
    assert done.status == 4
    assert "dot_general requires contracting dimensions" in done.errors


@pytest.mark.slow
def test_a_graph_has_what_is_selected_and_no_more(tmp_path: Path) -> None:
    options = ("inspect", "mlp", "--format", "model-explorer", "--select", "dense1/*", "--select", "param/dense1/*")
    nodes = {node["id"] for node in gradscope(*options, folder=tmp_path).json["graphs"][0]["nodes"]}
    operations = {"dense1/dot_general", "dense1/broadcast_in_dim", "dense1/add"}
    assert nodes == {*operations, "param/dense1/kernel", "param/dense1/bias"}
