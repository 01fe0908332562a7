"""Ports of networks: a correct one is the same without a map, and a faulty one is different at the layer at fault."""

from __future__ import annotations

from functools import cache

import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison
from tests.support.ports.everything import FAULTY, PORTS
from tests.support.ports.port import FAULTS, Port, captured

REFERENCES = {port.name: port for port in PORTS}


@cache
def reference(name: str) -> Dump:
    return captured(REFERENCES[name].reference)


def compared(port: Port, fault: str = "") -> Comparison:
    return gs.compare(reference(port.name), captured(port.candidate(fault)))


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_a_correct_port_is_the_same_without_a_map(port: Port) -> None:
    found = compared(port)
    assert found.verdict == "same", [(row.family, row.name, row.why) for row in found.rows if row.status != "same"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("port", FAULTY, ids=lambda port: port.name)
def test_a_fault_is_blamed_on_its_layer(port: Port, fault: str) -> None:
    found = compared(port, fault)
    assert found.verdict == "different"
    first, origin = found.first_divergence.forward, found.blame.origin
    names = {each.name for each in (first, origin) if each is not None}
    assert names & {*port.shows_at[fault]}, found.sentence


def test_what_lies_unpaired_before_a_difference_is_said() -> None:
    (convnet,) = (port for port in FAULTY if port.name == "a convolutional network")
    sentence = compared(convnet, "dropout").sentence
    assert "before it `dropout` is only in the candidate" in sentence
    assert "Forward first" not in sentence
