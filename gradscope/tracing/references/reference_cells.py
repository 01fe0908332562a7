"""A `Cell` stands for a reference, and `Threaded` hands cells to a construct by their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradscope.errors import ModelError
from gradscope.tracing.jaxpr.jaxcompat import Equation

#: Runs the body of a construct: its values, with cells for references; returns its outputs.
Body: TypeAlias = Callable[[Sequence[Any]], list[Any]]


@dataclass(slots=True)
class Cell:
    """A `Cell` has the value of a reference."""

    value: Any


def unknown_use(equation: Equation) -> ModelError:
    """Returns the error for an equation through which the values of references cannot be followed."""
    return ModelError(
        f"a reference (jax.new_ref) is used in {equation.primitive.name}, where its values cannot be followed",
        hint="pass its value there, and return the new one",
    )


class Threaded:
    """`Threaded` are operands whose cells are handed to a construct by their values, and taken back so.

    Args:
        values: The operands, some of which are cells, one of them perhaps twice.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self.cells = list({id(each): each for each in values if isinstance(each, Cell)}.values())

    @property
    def held(self) -> list[Any]:
        """The values of the cells."""
        return [cell.value for cell in self.cells]

    def take(self, held: Sequence[Any]) -> None:
        """Takes the values of the cells back."""
        for cell, value in zip(self.cells, held, strict=True):
            cell.value = value

    def run(self, body: Body, held: Sequence[Any], values: Sequence[Any] | None = None) -> tuple[list[Any], list[Any]]:
        """Returns the outputs of a body, and the values that its cells have then.

        Args:
            body: The body.
            held: The values of the cells before.
            values: Its operands, those of the outside in the place of which there are no others.
        """
        fresh = [Cell(value) for value in held]
        inside = dict(zip(map(id, self.cells), fresh, strict=True))
        outputs = body([inside.get(id(each), each) for each in (self._values if values is None else values)])
        return outputs, [cell.value for cell in fresh]
