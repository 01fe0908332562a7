"""`Port`: two programs that compute the same, and where each fault of the second first shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

import gradscope as gs
from gradscope.api.reading import Dump
from gradscope.comparison import Comparison

#: A loss, its variables and its batch.
Program = tuple[Callable[..., Any], Any, Any]

#: The mistakes that are made in ports, one at a time.
FAULTS = (
    *("epsilon", "padding", "flattening", "not flipped", "no bias", "momentum"),
    *("pooling", "activation", "another weight", "dropout"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Port:
    """Two programs that compute the same.

    Attributes:
        name: What is ported.
        reference: The program that is ported.
        candidate: Makes the port with a fault; "" for none.
        shows_at: The names, one of which the fault first shows at, by fault; of the candidate where only that has the
            step which is at fault.
    """

    name: str
    reference: Program
    candidate: Callable[[str], Program]
    shows_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def compared(self, fault: str = "") -> Comparison:
        """The comparison of the reference with the port."""
        return gs.compare(captured(self.reference), captured(self.candidate(fault)))


def captured(program: Program) -> Dump:
    """The dump of a program."""
    loss, variables, batch = program
    with jax.numpy_rank_promotion("allow"):  # a bias is added to every position, as users write it
        return gs.capture(loss, variables, batch, origins=False)  # what is zero need not be explained


def named_first(found: Comparison) -> set[str]:
    """The name at which the sentence of a comparison says that it first differs, and that of where the error begins."""
    first, origin = found.first_divergence.forward or found.first_divergence.backward, found.blame.origin
    if found.blame.suspects:
        return {found.blame.suspects[0].name}
    return {each.name for each in (first, origin) if each is not None}
