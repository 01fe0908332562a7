"""Counts the correct ports that are the same, and the faults of ports that are blamed on the layer where they are.

The ports are those of the tests, which take some of the faults; here all are run. Others are drawn at random.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import numpy as np

import gradscope as gs
from tests.support.ports.drawn.network import drawn_port
from tests.support.ports.everything import PORTS
from tests.support.ports.port import Port, captured, named_first

#: How many faults of a port that is drawn are tried.
DRAWN_FAULTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What `compare` said of a port.

    Attributes:
        port: Its name.
        fault: The fault that it has; "" for none.
        right: Whether it was the same, or different at the layer of its fault first.
        sentence: What was said.
    """

    port: str
    fault: str
    right: bool
    sentence: str


def judged(tell: Callable[[str], None], ports: Iterable[Port] = PORTS) -> Iterator[Judged]:
    """Yields what is said of each port, correct and with each of its faults.

    Args:
        tell: Receives a line about each that is judged wrongly.
        ports: The ports.
    """
    for port in ports:
        reference = captured(port.reference)
        for fault in ("", *port.shows_at):
            found = gs.compare(reference, captured(port.candidate(fault)))
            right = found.verdict == "same" if not fault else blames(found, port, fault)
            if not right:
                tell(f"{port.name}, {fault or 'correct'}: {found.sentence}")
            yield Judged(port=port.name, fault=fault, right=right, sentence=found.sentence)


def drawn_ports(seeds: Iterable[int]) -> Iterator[Port]:
    """Yields ports that are drawn at random, each in float32 and in bfloat16, with some of the faults it can have.

    Args:
        seeds: What they are drawn from, one of each.
    """
    for seed in seeds:
        port, faults = drawn_port(seed), np.random.default_rng(seed)
        chosen = faults.permutation(sorted(port.shows_at))[:DRAWN_FAULTS]
        yield replace(port, shows_at={str(fault): port.shows_at[fault] for fault in chosen})
        narrow = drawn_port(seed, precision="bfloat16")
        yield replace(narrow, name=f"{narrow.name} in bfloat16", shows_at={})


def blames(found: gs.Comparison, port: Port, fault: str) -> bool:
    """Returns whether a comparison says "different", and names a layer first at which the fault shows."""
    return found.verdict == "different" and bool(named_first(found) & {*port.shows_at[fault]})


def write_page(path: Path, found: list[Judged]) -> None:
    """Writes the page of the documentation."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("gradscope-jax", "jax", "numpy"))
    faults = [each for each in found if each.fault]
    correct = [each for each in found if not each.fault]
    rows = [
        f"| {name} | {'same' if next(each.right for each in correct if each.port == name) else 'DIFFERENT'} | "
        f"{sum(each.right for each in faults if each.port == name)} of {sum(each.port == name for each in faults)} | "
        f"{', '.join(each.fault for each in faults if each.port == name and not each.right)} |"
        for name in dict.fromkeys(each.port for each in found)
    ]
    counts = (
        f"{sum(each.right for each in correct)} of {len(correct)} correct ports are the same without a map; "
        f"{sum(each.right for each in faults)} of {len(faults)} faults are blamed on their layer first. "
        f"Judged with {versions}, Python {platform.python_version()}."
    )
    head = ("| port | correct | faults blamed on their layer | not blamed |", "| --- " * 4 + "|")
    lines = [counts, "", *head, *rows]
    path.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


_HEAD = """# The bench of ports

`scripts/bench ports` ports networks, as people do between frameworks: other names, other layouts of images and
kernels, packed projections, layers of a loop written out. It compares each correct port with its reference, then the
same port with one fault at a time, and writes this page. A fault is blamed rightly where `compare` says "different" and
names a layer at which the fault first shows.

"""
