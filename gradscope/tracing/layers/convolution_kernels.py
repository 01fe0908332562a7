"""Convolution kernels are the parameters that a trace convolves with, of which it tells what each of their axes is.

Libraries store the kernel of a transposed convolution in several ways: with its inputs or its outputs first, and as it
is convolved with or reversed in space, since the gradient of a convolution with a kernel convolves with it reversed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradscope.primitive_groups import COPIES
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, unchanged_operand
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionKernel:
    """A `ConvolutionKernel` says what the axes of a parameter are that a convolution multiplies by.

    Attributes:
        inputs: The axis of the channels that the convolution reads, of one group.
        outputs: The axis of the channels that it makes.
        spatial: The others, in the order of the image's.
        flipped: Whether the program reverses the spatial axes before it convolves.
        groups: The number of groups of channels.
        dilated: Whether it puts zeros between the elements that it reads, as a transposed convolution does.
        padded: Whether each element of its input meets every element of the kernel, as in a transposed convolution
            without padding.
    """

    inputs: int
    outputs: int
    spatial: tuple[int, ...]
    flipped: bool
    groups: int
    dilated: bool
    padded: bool


def convolution_kernels(root: Frame) -> Mapping[int, ConvolutionKernel]:
    """Returns the kernels by position among the inputs of a program; without those that it convolves with in two ways.

    Args:
        root: The root frame.
    """
    found: dict[int, set[ConvolutionKernel]] = {}
    for frame in root.walk():
        for equation in frame.jaxpr.eqns:
            if (
                equation.primitive.name == "conv_general_dilated"
                and (view := _view(frame, equation.invars[1])) is not None
            ):
                found.setdefault(view.position, set()).add(_kernel(equation, view))
    return {position: next(iter(kernels)) for position, kernels in found.items() if len(kernels) == 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A `_View` is an input of the program with its axes in another order, some of them reversed.

    Attributes:
        position: That of the input.
        axes: The input's axis of each of the view's.
        reversed: The input's axes that are reversed.
    """

    position: int
    axes: tuple[int, ...]
    reversed: frozenset[int] = frozenset()

    def of(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Returns the input's axes that are axes of the view."""
        return tuple(self.axes[axis] for axis in axes)


def _kernel(equation: Equation, view: _View) -> ConvolutionKernel:
    params: Mapping[str, Any] = equation.params
    outputs, inputs, *spatial = view.of(params["dimension_numbers"].rhs_spec)
    sizes = [equation.invars[1].aval.shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:]]
    reach = [(size - 1) * dilation for size, dilation in zip(sizes, params["rhs_dilation"], strict=True)]
    return ConvolutionKernel(
        inputs=inputs,
        outputs=outputs,
        spatial=tuple(spatial),
        flipped=view.reversed >= {axis for axis, size in zip(spatial, sizes, strict=True) if size > 1},
        groups=params["feature_group_count"],
        dilated=any(dilation > 1 for dilation in params["lhs_dilation"]),
        padded=any(reach) and all(min(pad) >= far for pad, far in zip(params["padding"], reach, strict=True)),
    )


def _view(frame: Frame, atom: Atom) -> _View | None:
    """Returns the input that an atom of a frame is a view of; None for any other value."""
    if is_literal(atom) or atom not in frame.definitions:
        return None
    number, position = frame.definitions[atom]
    if number != OPERAND:
        return _made(frame, number, position)
    if frame.parent is None:
        return _View(position=position, axes=tuple(range(len(atom.aval.shape))))
    outer = unchanged_operand(frame, position)
    return None if outer is None else _view(frame.parent, outer)


def _made(frame: Frame, number: int, position: int) -> _View | None:
    equation = frame.jaxpr.eqns[number]
    for child in frame.children.get(number, ()):
        if child.transfer.in_place:
            return _view(child, child.jaxpr.outvars[position])
    name = equation.primitive.name
    if name not in COPIES | {"rev"}:
        return None
    view = _view(frame, equation.invars[0])
    if view is None:
        return None
    if name == "transpose":
        return replace(view, axes=view.of(equation.params["permutation"]))
    if name == "rev":
        return replace(view, reversed=view.reversed ^ {*view.of(equation.params["dimensions"])})
    return view if equation.outvars[position].aval.shape == equation.invars[0].aval.shape else None
