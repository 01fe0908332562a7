"""Defines a collective operation of a program, by which the devices of a mesh exchange values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A `Collective` is an operation of the forward pass that takes values of all devices along some axes of a mesh.

    Attributes:
        function: The function of JAX that the user called, `pmean`; the primitive where that is not known.
        axes: The axes of the mesh.
        index: The execution index of what follows it, as layers have one.
        layer: The layer that it is in, without iterations; None outside all layers.
        source: `file:line` in the user's code; None where unknown.
    """

    function: str
    axes: tuple[str, ...]
    index: int
    layer: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"`{self.function}` over {' and '.join(f'`{axis}`' for axis in self.axes)}" + (
            f" at {self.source}" if self.source else ""
        )
