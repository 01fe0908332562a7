"""`observe_changed` sees the gradients of views that an operation changes in place, as a ReLU does a norm's output.

A view is no longer a part of the graph then: the operation takes the place of its autograd node, and hooks of that are
not called. What it is a view of has its node still, as the batch norm has that an instance norm is made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from torch import Tensor
from torch.utils.hooks import RemovableHandle

#: The type of the autograd node that a value has of which a view was changed in place.
_CHANGED: Final = "CopySlices"

#: The shape of a tensor, its strides, and where in its storage it begins.
_Place: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


class View(NamedTuple):
    """A `View` is a tensor that is a view of another, its base, as both are before anything changes them.

    Attributes:
        node: Its autograd node.
        base: That of its base, and the number of the output.
        place: Where it is in memory.
        base_place: Where its base is.
        arrived: Receives its gradient.
    """

    node: Any
    base: tuple[Any, int]
    place: _Place
    base_place: _Place
    arrived: Callable[[Tensor | None], None]

    def observe_base(self) -> RemovableHandle:
        """Has its part of the gradient received that arrives at its base."""
        node, number = self.base
        return node.register_prehook(lambda gradients: self.arrived(self._part_of(gradients[number])))

    def _part_of(self, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        (shape, strides, start), (whole, steps, first) = self.place, self.base_place
        return gradient.new_empty_strided(whole, steps).copy_(gradient).as_strided(shape, strides, start - first)


def view_of(tensor: Tensor, arrived: Callable[[Tensor | None], None]) -> View | None:
    """Returns what is known of a tensor that is a view of a computed one; None of another.

    Args:
        tensor: The tensor.
        arrived: Receives its gradient where that arrives at its base.
    """
    base = tensor._base  # noqa: SLF001 - PyTorch has no public name for it
    if base is None or base.grad_fn is None or tensor.dtype != base.dtype or tensor.is_conj() or tensor.is_neg():
        return None
    return View(tensor.grad_fn, (base.grad_fn, base.output_nr), _place(tensor), _place(base), arrived)


def observe_changed(views: Sequence[View], nodes: Sequence[Any]) -> list[RemovableHandle]:
    """Observes the views that were changed in place, and returns the hooks.

    Where nothing but the change reads the base, the gradient that arrives there is that of the view.

    Args:
        views: The views.
        nodes: The nodes of the graph.
    """
    users: defaultdict[tuple[Any, int], list[str]] = defaultdict(list)
    for node in nodes if views else ():
        for each in node.next_functions:
            users[each].append(type(node).__name__)
    known = frozenset(nodes)
    return [view.observe_base() for view in views if view.node not in known and users[view.base] == [_CHANGED]]


def _place(tensor: Tensor) -> _Place:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
