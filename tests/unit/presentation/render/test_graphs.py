"""Graphs of models: what Graphviz and Model Explorer are given, and a dump's gradients as an overlay."""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.api.capture_function import capture
from gradscope.dump.manifest.manifest import Manifest
from gradscope.inspection.inspect_loss import inspect_loss
from gradscope.presentation.render.graphs import Graph
from gradscope.presentation.tables.dump_rows import Row
from tests.support.data import evenly, filled
from tests.support.report_samples import entry

W = {"a": evenly(-1.0, 1.0, 3, 3), "idle": filled(1.0, 2)}
X = evenly(0.0, 1.0, 2, 3)


def loss(w: Any, x: Any) -> Any:
    def iteration(carry: Any, _: Any) -> Any:
        with jax.named_scope("cell"):
            return jnp.tanh(carry @ w["a"]), None

    with jax.named_scope("loop"):
        x, _ = jax.lax.scan(iteration, x, None, length=2)
    with jax.named_scope('say "hi"'):
        return jnp.sum(x * x)


@pytest.fixture(scope="module")
def graph() -> Graph:
    facts = inspect_loss(loss, *jax.eval_shape(lambda: (W, X)), operations=True).facts
    return Graph.of_rows("net", [Row(family=fact.family, name=fact.name, facts=fact.values) for fact in facts])


def test_edges_are_the_flow_of_values_through_loops_and_unused_arguments_are_no_nodes(graph: Graph) -> None:
    inputs = {node.name: set(node.inputs) for node in graph.nodes}
    assert inputs == {
        "input/value": set(),
        "param/a": set(),
        "loop[*]/cell/dot_general": {"input/value", "param/a"},
        "loop[*]/cell/tanh": {"loop[*]/cell/dot_general"},
        'say "hi"/mul': {"loop[*]/cell/tanh"},
        'say "hi"/reduce_sum': {'say "hi"/mul'},
    }


def test_model_explorer_gets_a_node_for_each_with_the_layers_as_namespaces(graph: Graph) -> None:
    collection = json.loads(graph.model_explorer())
    assert collection["label"] == "net"  # without it the viewer refuses the file
    (own,) = collection["graphs"]
    nodes = {node["id"]: node for node in own["nodes"]}
    assert (own["id"], nodes.keys()) == ("net", {node.name for node in graph.nodes})
    assert nodes["loop[*]/cell/tanh"]["namespace"] == "loop[*]/cell"
    (edge,) = nodes["loop[*]/cell/tanh"]["incomingEdges"]
    assert edge["sourceNodeId"] == "loop[*]/cell/dot_general"
    assert {"key": "shape", "value": "[2, 3]"} in nodes["loop[*]/cell/tanh"]["attrs"]


@pytest.mark.slow
def test_the_overlay_is_the_norm_of_the_gradients_of_all_iterations(graph: Graph) -> None:
    dump = capture(loss, W, X, ops=True)
    found = json.loads(graph.overlay(dump.manifest))["net"]["results"]
    iterations = [np.linalg.norm(dump[f"activation_grad/loop[{iteration}]/cell/tanh"]) for iteration in range(2)]
    assert found["loop[*]/cell/tanh"]["value"] == pytest.approx(np.hypot(*iterations), rel=1e-6)
    assert found["param/a"]["value"] == pytest.approx(np.linalg.norm(dump["param_grad/a"]), rel=1e-6)
    by_value = sorted(found.values(), key=lambda each: each["value"])
    assert (by_value[0]["bgColor"], by_value[-1]["bgColor"]) == ("#f7fbff", "#08306b")


@pytest.mark.slow
def test_a_dump_of_layers_colours_the_operations_that_make_their_outputs(graph: Graph) -> None:
    found = json.loads(graph.overlay(capture(loss, W, X).manifest))["net"]["results"]
    assert {"loop[*]/cell/tanh", "param/a"} <= found.keys()
    assert "loop[*]/cell/dot_general" not in found


def test_graphviz_gets_layers_as_nested_clusters_and_quoted_names(graph: Graph) -> None:
    text = graph.dot()
    assert text.count("{") == text.count("}") == 4
    assert re.search(
        r'subgraph "cluster_loop\[\*\]" \{\s+label="loop\[\*\]";\s+subgraph "cluster_loop\[\*\]/cell"', text
    )
    assert 'subgraph "cluster_say \\"hi\\"" {' in text
    assert text.count(" -> ") == sum(len(node.inputs) for node in graph.nodes)


def test_a_norm_over_iterations_that_float64_does_not_hold_has_no_colour(graph: Graph) -> None:
    name = "loop[{}]/cell/tanh".format
    entries = [entry("activation_grad", name(at), stats={"l2": 1.7e308}) for at in range(2)]
    entries.append(entry("activation_grad", 'say "hi"/mul', stats={"l2": 1e300}))
    found = json.loads(graph.overlay(Manifest(entries=tuple(entries))))["net"]["results"]
    assert found.keys() == {'say "hi"/mul'}
