"""A value leads to a product with weights where one is computed of it, through whatever is in between."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from gradscope.primitive_groups import MATRIX_PRODUCTS
from gradscope.tracing.dataflow.backward import Marks, follow, follow_inside
from gradscope.tracing.jaxpr.frames import Frame, FrameKey
from gradscope.tracing.jaxpr.jaxcompat import Atom


def leading_to_products(root: Frame, is_weight: Callable[[Frame, Atom], bool]) -> Mapping[FrameKey, Collection[Atom]]:
    """Returns the variables of each frame of which something is made that a product of matrices multiplies by weights.

    Args:
        root: The root frame.
        is_weight: Whether an atom of a frame is made of parameters alone.
    """
    analysis = _Analysis(is_weight)
    follow(root, [0] * len(root.jaxpr.outvars), analysis)
    return analysis.leading


class _Analysis:
    """An `_Analysis` follows the values that are multiplied by weights: levels are 0 and 1."""

    def __init__(self, is_weight: Callable[[Frame, Atom], bool]) -> None:
        self.marks = Marks()
        self.leading: dict[FrameKey, set[Atom]] = {}
        self._is_weight = is_weight

    def through(self, frame: Frame, number: int, outputs: Sequence[int]) -> Sequence[int]:
        equation = frame.jaxpr.eqns[number]
        if equation.primitive.name in MATRIX_PRODUCTS:
            weights = [self._is_weight(frame, atom) for atom in equation.invars]
            if any(weights):
                return [int(not is_weight) for is_weight in weights]
        inside = frame.children.get(number, ())
        if inside and not inside[0].opaque and inside[0].transfer.gradients != "around":
            return follow_inside(frame, number, outputs, self)
        return [max(outputs, default=0)] * len(equation.invars)

    def leave(self, frame: Frame, _outputs: Sequence[int], levels: dict[Atom, int]) -> None:
        self.leading.setdefault(frame.key, set()).update(levels)
