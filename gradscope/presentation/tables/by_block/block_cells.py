"""The cells of a block have the numbers that one line of the overview has of all the blocks that it stands for.

A number that differs among them is a range. The rms is that of a block's outputs, so that the lines from top to bottom
show how signal and gradient grow or shrink along the way. Norms are over all parameters of a block. Shares and counts
are of everything in a closed block, so that what is inside cannot hide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from gradscope.dump.manifest.json_text import as_float
from gradscope.presentation.tables.by_block.contents import Contents
from gradscope.presentation.tables.dump_rows import Row
from gradscope.presentation.tables.numbers import Range
from gradscope.presentation.tables.shown_statistics import are_units_dead
from gradscope.presentation.tables.table import Cell, Column, column

_ACTIVATION: Final = "activation"
_GRADIENT: Final = "gradient"
_PARAMETERS: Final = "parameters"
_STATE: Final = "state and aux"


@dataclass(frozen=True, slots=True, eq=False)
class BlockFacts:
    """`BlockFacts` are the contents of the blocks of one line.

    Attributes:
        own: The contents of each block itself.
        instances: For each block, the contents that the line stands for: its own, and those of its parts where it is
            closed.
    """

    own: Sequence[Contents]
    instances: Sequence[Sequence[Contents]]

    def outputs(self, kind: _Kind) -> list[Row]:
        """Returns the rows of the blocks' outputs, or of their parts' where they have none of their own."""
        own = [row for each in self.own for row in kind(each) if row.is_measured]
        return own or self.all(kind)

    def all(self, kind: _Kind) -> list[Row]:
        """Returns all rows of a kind, each tensor once."""
        rows = (row for instance in self.instances for each in instance for row in kind(each))
        return list({row.own_key: row for row in rows}.values())

    def words(self) -> tuple[str, ...]:
        """Returns the name of a rule that found something, with its number of findings, and whether others did."""
        found = {key: words for instance in self.instances for each in instance for key, words in each.words.items()}
        counts = Counter(word for words in found.values() for word in words)
        return (*(_counted(*each) for each in counts.most_common(1)), *(("...",) if len(counts) > 1 else ()))


def _counted(word: str, times: int) -> str:
    return word if times == 1 else f"{word} {times}"


#: The function that returns the rows of one kind of some contents.
_Kind: TypeAlias = Callable[[Contents], Sequence[Row]]


def _values(contents: Contents) -> Sequence[Row]:
    return contents.values


def _gradients(contents: Contents) -> Sequence[Row]:
    return contents.gradients


def _parameters(contents: Contents) -> Sequence[Row]:
    return contents.parameters


def _parameter_gradients(contents: Contents) -> Sequence[Row]:
    return contents.parameter_gradients


def _state(contents: Contents) -> Sequence[Row]:
    return contents.state


def _rms(kind: _Kind) -> Callable[[BlockFacts], Cell]:
    """Returns the cell of an rms, which is NaN where none of the elements is finite."""
    return lambda facts: _range(
        math.nan if (rms := row.value("rms")) is None else as_float(rms)
        for row in facts.outputs(kind)
        if row.is_measured
    )


def _share(kind: _Kind, name: str) -> Callable[[BlockFacts], Cell]:
    shown = column(name, 0, "share")
    return lambda facts: _range(
        cell for row in facts.all(kind) if isinstance(cell := shown.cell_of(row.value), int | float)
    )


def _dead(facts: BlockFacts) -> Cell:
    """Returns the share of dead units, of values of which it says something."""
    dead, lost = column("dead", 0, "share"), column("zeros", 0, "share")
    gradients = {row.name: row for row in facts.all(_gradients)}
    found: list[float] = []
    for row in facts.all(_values):
        share, gradient = dead.cell_of(row.value), gradients.get(row.name)
        zeros = None if gradient is None else lost.cell_of(gradient.value)
        if isinstance(share, int | float) and are_units_dead(share, row.value("min"), zeros, row.value("primitive")):
            found.append(share)
    return _range(found)


def _count(kind: _Kind, name: str) -> Callable[[BlockFacts], Cell]:
    def counted(facts: BlockFacts) -> Cell:
        found = [value for row in facts.all(kind) if isinstance(value := row.value(name), int)]
        return sum(found) if found else None

    return counted


def _tensors(kind: _Kind) -> Callable[[BlockFacts], Cell]:
    return lambda facts: len(facts.all(kind)) or None


def _l2(kind: _Kind) -> Callable[[BlockFacts], Cell]:
    return lambda facts: _range(norm for instance in facts.instances if (norm := _norm(instance, kind)) is not None)


def _ratio(facts: BlockFacts) -> Cell:
    """Returns the ratio of the norm of a block's gradients to that of its parameters."""
    norms = ((_norm(each, _parameter_gradients), _norm(each, _parameters)) for each in facts.instances)
    return _range(gradient / parameter for gradient, parameter in norms if gradient is not None and parameter)


def _norm(instance: Iterable[Contents], kind: _Kind) -> float | None:
    """Returns the l2 norm of all tensors of a kind together, each counted once; None where there is none."""
    rows = {row.own_key: row for each in instance for row in kind(each)}
    found = _numbers(rows.values(), "l2")
    return math.hypot(*found) if found else None


def _numbers(rows: Iterable[Row], name: str) -> list[float]:
    return [as_float(value) for row in rows if (value := row.value(name)) is not None]


def _range(numbers: Iterable[float]) -> Cell:
    """Returns the extremes of some numbers; NaN where one of them is NaN, which has no order and must not be lost."""
    found = list(numbers)
    if not found:
        return None
    if any(map(math.isnan, found)):
        return math.nan
    low, high = min(found), max(found)
    return low if low == high else Range(low, high)


def _nonfinite(kind: _Kind, group: str) -> dict[Column, Callable[[BlockFacts], Cell]]:
    return {
        column(name, 1, "count", group=group, only_nonzero=True): _count(kind, name) for name in ("nan", "inf")
    }  # fmt: skip


#: What a line shows, by column.
CELLS: Final[Mapping[Column, Callable[[BlockFacts], Cell]]] = MappingProxyType(
    {
        column("rms", 1, group=_ACTIVATION): _rms(_values),
        column("dead", 4, "share", group=_ACTIVATION, only_nonzero=True): _dead,
        column("saturated", 5, "share", group=_ACTIVATION, only_nonzero=True): _share(_values, "saturated"),
        **_nonfinite(_values, _ACTIVATION),
        column("rms", 1, group=_GRADIENT): _rms(_gradients),
        column("zeros", 6, "share", group=_GRADIENT, only_nonzero=True): _share(_gradients, "zeros"),
        **_nonfinite(_gradients, _GRADIENT),
        column("tensors", 8, "count", group=_PARAMETERS): _tensors(_parameters),
        column("l2", 5, group=_PARAMETERS): _l2(_parameters),
        **_nonfinite(_parameters, _PARAMETERS),
        column("gradient l2", 3, group=_PARAMETERS): _l2(_parameter_gradients),
        column("g/w", 2, group=_PARAMETERS): _ratio,
        column("gradient nan", 1, "count", group=_PARAMETERS, only_nonzero=True): _count(_parameter_gradients, "nan"),
        column("gradient inf", 1, "count", group=_PARAMETERS, only_nonzero=True): _count(_parameter_gradients, "inf"),
        column("tensors", 8, "count", group=_STATE): _tensors(_state),
        column("rms", 7, group=_STATE): _rms(_state),
        **_nonfinite(_state, _STATE),
    }
)
