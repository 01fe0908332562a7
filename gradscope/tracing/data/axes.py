"""The order in which another library stores the axes of a kernel is inferred from shapes.

PyTorch stores a dense kernel as (outputs, inputs) and a convolution's as (outputs, inputs, height, width), Flax as
(inputs, outputs) and (height, width, inputs, outputs). A tensor of a file is put into the model's order where shapes
prove it. Tensors of one rank that have the same last name in the file, and one in the model (`weight` and `kernel`),
are stored in one order: a square kernel, whose shape shows nothing, follows the others. Where those show nothing
either, a kernel of the same last name is taken as it is, and one of another is refused.

The kernel of a transposed convolution is told by what the model's program does with it, or by its inputs that come
first. PyTorch's is (inputs, outputs, height, width), and that of the convolution whose gradient the layer is: it is put
into the model's order and reversed in space, unless the program does that. One of yet another order is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from gradscope.tracing.data.variable_names import last_name
from gradscope.tracing.layers.convolution_kernels import ConvolutionKernel

#: What is said of a transposed convolution's kernel that is reversed, and of one that is not and may be PyTorch's.
_REVERSED: Final = "reversed in space, as kernels of transposed convolutions"
_AS_IT_IS: Final = "taken as they are, where PyTorch's kernels of transposed convolutions would have to be reversed"

#: An order of axes, as `numpy.transpose` takes it.
Axes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A `Stored` variable is one that a file has, perhaps in another order of axes.

    Attributes:
        variable: Its path in the model.
        name: Its name in the file.
        shape: Its shape in the file.
        needed: Its shape in the model.
        kernel: What its axes are, where the model convolves with it, and that is known.
    """

    variable: str
    name: str
    shape: tuple[int, ...]
    needed: tuple[int, ...]
    kernel: ConvolutionKernel | None = None

    @property
    def role(self) -> tuple[str, str, int, bool]:
        """What it has in common with the variables that are stored in the same order."""
        return last_name(self.name), last_name(self.variable), len(self.shape), self.is_transposed

    @property
    def renamed(self) -> bool:
        """Whether its last name in the file is not that in the model."""
        return self.role[0] != self.role[1]

    def fitting(self) -> frozenset[Axes]:
        """Returns the orders of axes in which it has the model's shape."""
        orders = _orders(len(self.shape)) | ({self._as_transposed()} if self.kernel is not None else set())
        fitting = frozenset(axes for axes in orders if self.in_order(axes) == self.needed)
        if self.kernel is None:
            return fitting
        # No library exchanges the height and the width of a kernel.
        spatial = {axes: [axes[axis] for axis in self.kernel.spatial] for axes in fitting}
        return frozenset(axes for axes in fitting if spatial[axes] == sorted(spatial[axes]))

    @property
    def as_it_is(self) -> Axes:
        """The order of axes that it has in the file."""
        return tuple(range(len(self.shape)))

    def in_order(self, axes: Axes) -> tuple[int, ...]:
        """Returns its shape in an order of axes."""
        return tuple(self.shape[axis] for axis in axes)

    @property
    def is_transposed(self) -> bool:
        """Whether it is the kernel of a transposed convolution."""
        fitting = self.fitting()
        return self.kernel is not None and (
            self.kernel.dilated or (_as_usual(self.kernel) not in fitting and self._as_transposed() in fitting)
        )

    def flips(self, axes: Axes) -> tuple[int, ...]:
        """Returns the axes of the model's kernel that are reversed, where an order of axes is that of PyTorch's."""
        kernel, order = self.kernel, self._as_transposed()
        if kernel is None or kernel.flipped or axes != order or axes == self.as_it_is:
            return ()
        # Of groups of one channel, an ordinary kernel has the same order.
        may_be = kernel.padded and order != _as_usual(kernel)
        return kernel.spatial if self.is_transposed or may_be else ()

    def is_doubtful(self, axes: Axes) -> bool:
        """Returns whether it is taken as it is, under a name as PyTorch's are, which would have it otherwise."""
        kernel = self.kernel
        otherwise = kernel is not None and (self._as_transposed() != axes or not kernel.flipped)
        return otherwise and self.is_transposed and axes == self.as_it_is and "." in self.name

    def possible(self, alike: frozenset[Axes]) -> tuple[frozenset[Axes], bool]:
        """Returns the orders of axes that it may have, and whether one of them is known to be the file's.

        Args:
            alike: Those in which all variables of its role have the model's shapes; empty where there are none.
        """
        orders = alike or self.fitting()
        if orders == frozenset({self.as_it_is}) or (self.as_it_is in alike and not self.renamed):
            return frozenset({self.as_it_is}), True
        if self.is_transposed:
            stored = orders & {self._as_transposed()} if self.as_it_is not in orders else frozenset[Axes]()
            return stored or orders, bool(stored)
        if self.kernel is not None and _as_usual(self.kernel) in orders:
            # An ordinary kernel has its outputs first; with a padding that either may have, it may be a transposed one.
            other = self.fitting() & {self._as_transposed()} - {_as_usual(self.kernel)}
            orders = orders | other if self.kernel.padded else orders - other
        return orders, len(orders) == 1

    def _as_transposed(self) -> Axes:
        """Returns PyTorch's order of the axes of a transposed convolution's kernel; of groups, only of one channel."""
        kernel = self.kernel
        if kernel is None or (kernel.groups > 1 and self.needed[kernel.inputs] > 1):
            return ()
        return _as_usual(kernel if kernel.groups > 1 else replace(kernel, inputs=kernel.outputs, outputs=kernel.inputs))


def infer_axes(stored: Iterable[Stored]) -> tuple[dict[str, Axes], dict[str, frozenset[Axes]]]:
    """Returns the order of axes of each variable, and the possible orders of those for which nothing decides.

    Args:
        stored: The variables.

    Returns:
        The orders by path of the variable, without those that fit in no order; and the possible orders, by path, of
        those that fit in several.
    """
    by_role: defaultdict[tuple[str, str, int, bool], list[Stored]] = defaultdict(list)
    for each in stored:
        if each.fitting():
            by_role[each.role].append(each)
    decided: dict[str, Axes] = {}
    open_: dict[str, frozenset[Axes]] = {}
    for alike in by_role.values():
        common = frozenset.intersection(*(each.fitting() for each in alike))
        for each in alike:
            orders, is_known = each.possible(common)
            if is_known:
                decided[each.variable] = next(iter(orders))
            else:
                open_[each.variable] = orders
    return decided, open_


def rearranged(axes: Mapping[str, Axes]) -> dict[Axes, list[str]]:
    """Returns the variables whose axes are in another order, by that order."""
    found: defaultdict[Axes, list[str]] = defaultdict(list)
    for variable, order in axes.items():
        if order != tuple(range(len(order))):
            found[order].append(variable)
    return dict(found)


def said_of_transposed(stored: Iterable[tuple[Stored, Axes]]) -> dict[str, list[str]]:
    """Returns the names of kernels of transposed convolutions, by what is said of them.

    Args:
        stored: The variables and their orders of axes.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each, axes in stored:
        if each.flips(axes):
            found[_REVERSED].append(each.name)
        elif each.is_doubtful(axes):
            found[_AS_IT_IS].append(each.name)
    return dict(found)


def _as_usual(kernel: ConvolutionKernel) -> Axes:
    """Returns the order of axes that makes a kernel of one that has its outputs first and then its inputs."""
    places = {kernel.outputs: 0, kernel.inputs: 1, **{axis: at for at, axis in enumerate(kernel.spatial, start=2)}}
    return tuple(places[axis] for axis in range(len(places)))


def _orders(rank: int) -> set[Axes]:
    """Returns the orders of axes that libraries use for tensors of a rank."""
    identity = tuple(range(rank))
    if rank < 2:
        return {identity}
    *outer, last, end = identity
    first, second, *spatial = identity
    return {
        identity,
        (*outer, end, last),  # the two axes of a dense kernel, perhaps stacked
        (*spatial, second, first),  # (outputs, inputs, height, width) to (height, width, inputs, outputs)
        (*spatial, first, second),  # the same of a transposed convolution, whose inputs come first
        (end, last, *outer),  # (height, width, inputs, outputs) to (outputs, inputs, height, width)
        (last, end, *outer),
    }
