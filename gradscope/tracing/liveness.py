"""Which equations the loss depends on.

A traced loss may compute more than the loss: updated batch statistics, metrics, values nobody reads. An equation is
*live* when the loss depends on one of its outputs. The rule is that of dead code elimination: needed outputs make
an equation live, and a live equation makes its operands needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.tracing.flow import follow, follow_inside
from gradscope.tracing.frames import Frame
from gradscope.tracing.jaxcompat import Atom, is_literal


def mark_live(root: Frame, outputs: int = 1) -> list[bool]:
    """Mark the equations that the root's first outputs depend on, in the root and in all frames inside it.

    Args:
        root: The root frame.
        outputs: How many outputs count: the first one is the loss.

    Returns:
        For each variable that the root receives, whether they depend on it.
    """
    levels = follow(root, [1] * outputs + [0] * (len(root.jaxpr.outvars) - outputs), _Liveness())
    return [level > 0 for level in levels]


class _Liveness:
    """Follows what is needed: level 1."""

    def through(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        operands = len(frame.jaxpr.eqns[number].invars)
        if not any(outputs):
            return [0] * operands
        frame.live.add(number)
        inside = frame.children.get(number, ())
        if inside and inside[0].kind not in ("while", "opaque"):
            return follow_inside(frame, number, outputs, self)
        for child in inside:  # taken as a whole
            follow(child, [1] * len(child.jaxpr.outvars), self)
        return [1] * operands

    def leave(self, frame: Frame, outputs: Sequence[int], _levels: dict[Atom, int]) -> None:
        atoms = zip(frame.jaxpr.outvars, outputs, strict=True)
        frame.needed_outputs |= {atom for atom, needed in atoms if needed and not is_literal(atom)}
