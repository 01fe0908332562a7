"""Graphs show a model's operations as nodes inside their layers, for Graphviz and for Google's Model Explorer.

Model Explorer opens two files of one model: the graph, and an *overlay*, a number for each node by which it is
coloured. Here the number is the l2 norm of the gradient of the loss with respect to the node's output, from a dump; the
colours are logarithmic.

References:
    https://github.com/google-ai-edge/model-explorer, JSON graphs and custom node data, as version 0.1.34 reads them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope import naming
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.record import Json
from gradscope.presentation.tables.dump_rows import Row

#: The iterations of a loop in names; a graph has one node for all of them.
_ITERATION: Final = re.compile(r"\[\d+\]")

#: The colours from the smallest gradient to the largest, as red, green and blue.
_COLOURS: Final = ((247, 251, 255), (107, 174, 214), (8, 48, 107))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A `Node` is an operation, or an argument of the loss.

    Attributes:
        name: Its name; an argument's is its key.
        namespace: The path of the layer that contains it; empty outside layers.
        label: The text on it.
        facts: Facts about it as texts, by name.
        inputs: The names of the nodes whose values it reads.
        layers: The layers whose output it computes.
    """

    name: str
    namespace: str
    label: str
    facts: Mapping[str, str]
    inputs: tuple[str, ...]
    layers: tuple[str, ...]

    def lines_below_label(self) -> Iterator[str]:
        """Yields the lines that are written below its label."""
        yield self.facts.get("dtype", "") + self.facts.get("shape", "")
        if "source" in self.facts:
            yield self.facts["source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A `Graph` is a model's operations with their inputs.

    Attributes:
        name: The model's name.
        nodes: Arguments first, then operations in program order.
    """

    name: str
    nodes: tuple[Node, ...]

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[Row]) -> Graph:
        """Returns the graph of the rows of an inspection with operations."""
        operations = [node for row in rows if (node := _operation(row)) is not None]
        read = {name for node in operations for name in node.inputs}
        arguments = [_argument(row) for row in rows if row.key in read]
        return cls(name=name, nodes=(*arguments, *operations))

    def dot(self) -> str:
        """Returns the graph in Graphviz' language, with layers as clusters."""
        numbers = {node.name: number for number, node in enumerate(self.nodes)}
        lines = ["digraph model {", f"  label={_quoted(self.name)};", "  node [shape=box, fontname=monospace];"]
        lines += self._boxes((), list(self.nodes), numbers)
        for node in self.nodes:
            lines += [f"  n{numbers[each]} -> n{numbers[node.name]};" for each in node.inputs if each in numbers]
        return "\n".join((*lines, "}"))

    def model_explorer(self) -> str:
        """Returns the graph as Model Explorer's JSON."""
        known = {node.name for node in self.nodes}
        nodes: list[Json] = [
            {
                "id": node.name,
                "label": node.label,
                "namespace": node.namespace,
                "attrs": [{"key": key, "value": value} for key, value in node.facts.items()],
                "incomingEdges": [
                    {"sourceNodeId": name, "sourceNodeOutputId": "0", "targetNodeInputId": str(at)}
                    for at, name in enumerate(node.inputs)
                    if name in known
                ],
                "outputsMetadata": [{"id": "0", "attrs": [{"key": "shape", "value": node.facts.get("shape", "")}]}],
            }
            for node in self.nodes
        ]
        return json.dumps({"label": self.name, "graphs": [{"id": self.name, "nodes": nodes}]}, indent=2)

    def overlay(self, dump: Manifest) -> str:
        """Returns a dump's gradient norms as Model Explorer's node data for this graph, in JSON.

        Args:
            dump: The dump; for a node in a loop, the norm is over all iterations.
        """
        norms = gradient_norms(dump)
        found = {node.name: norm for node in self.nodes if (norm := _norm(node, norms)) is not None}
        # The viewer's own colours are linear, so that one large gradient would make all others white.
        logarithms = [math.log(norm) for norm in found.values() if norm > 0]
        low = min(logarithms, default=0.0)
        span = max(logarithms, default=0.0) - low or 1.0
        results = {
            name: {"value": norm, "bgColor": _colour((math.log(norm) - low) / span if norm > 0 else 0.0)}
            for name, norm in found.items()
        }
        return json.dumps({self.name: {"name": "gradient l2", "results": results}}, indent=2, allow_nan=False)

    def _boxes(self, path: tuple[str, ...], nodes: Sequence[Node], numbers: Mapping[str, int]) -> Iterator[str]:
        """Yields the lines of the nodes below a layer, with each inner layer as a cluster."""
        indent = "  " * (len(path) + 1)
        inside: dict[str, list[Node]] = {}
        for node in nodes:
            components = tuple(node.namespace.split("/")) if node.namespace else ()
            if components == path:
                yield f"{indent}n{numbers[node.name]} [label={_quoted(node.label, *node.lines_below_label())}];"
            else:
                inside.setdefault(components[len(path)], []).append(node)
        for component, own in inside.items():
            below = (*path, component)
            yield f"{indent}subgraph {_quoted('cluster_' + '/'.join(below))} {{"
            yield f"{indent}  label={_quoted(component)};"
            yield from self._boxes(below, own, numbers)
            yield f"{indent}}}"


def gradient_norms(dump: Manifest) -> dict[str, float]:
    """Returns the l2 norm of each gradient of a dump over all iterations of the loops around it, by the value's key."""
    norms: dict[str, float] = {}
    for entry in dump.entries:
        family, norm = naming.value_family(entry.family), entry.stats.get("l2")
        if family is not None and isinstance(norm, int | float) and math.isfinite(norm):
            key = naming.key_of(family, _ITERATION.sub("[*]", entry.name))
            norms[key] = math.hypot(norms.get(key, 0.0), norm)
    # That of several may be more than float64 holds where each is not.
    return {key: norm for key, norm in norms.items() if math.isfinite(norm)}


def _colour(place: float) -> str:
    """Returns the colour at a place between the smallest gradient, 0, and the largest, 1."""
    at = place * (len(_COLOURS) - 1)
    first = min(int(at), len(_COLOURS) - 2)
    ends = zip(_COLOURS[first], _COLOURS[first + 1], strict=True)
    mixed = (round(one + (at - first) * (other - one)) for one, other in ends)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _norm(node: Node, norms: Mapping[str, float]) -> float | None:
    keys = [node.name, *(naming.key_of(naming.ACTIVATION, name) for name in (node.name, *node.layers))]
    return next((norms[key] for key in keys if key in norms), None)


def _operation(row: Row) -> Node | None:
    inputs, layers = row.value("inputs"), row.value("layers")
    if not isinstance(inputs, list) or not isinstance(layers, list):
        return None
    namespace, _, label = row.name.rpartition("/")
    return Node(
        name=row.name,
        namespace=namespace,
        label=label,
        facts=_facts(row, "shape", "dtype", "flops", "source"),
        inputs=tuple(map(str, inputs)),
        layers=tuple(map(str, layers)),
    )


def _argument(row: Row) -> Node:
    return Node(name=row.key, namespace="", label=row.key, facts=_facts(row, "shape", "dtype"), inputs=(), layers=())


def _facts(row: Row, *names: str) -> dict[str, str]:
    return {name: str(value) for name in names if (value := row.value(name)) is not None}


def _quoted(*lines: str) -> str:
    """Returns some lines as one string of Graphviz' language."""
    escaped = (naming.printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
