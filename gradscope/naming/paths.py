"""Layer paths: where in the model a value is made.

A path is the scopes from the outermost inwards, joined by `/`: `encoder/block[3]/attn`. Three marks may follow:

- an *iteration* `[3]` on a component: the fourth turn of the loop that runs there (nested loops add up: `[3][0]`);
- an *occurrence* `#2` at the end: the second time the same path is entered, counted in execution order;
- an *output* `.1` at the end: the second of several values that the layer hands on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

#: Which iteration of the loops around something: one index for each loop, outermost first; empty outside loops.
IterationIndex: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPath:
    """A layer's path.

    Attributes:
        components: The scope names, outermost first, iterations already appended to theirs.
        occurrence: 1 for the first call under these scopes, 2 for the second, ...
        output: Which of several outputs; None where the layer has one.
    """

    components: tuple[str, ...]
    occurrence: int = 1
    output: int | None = None

    def __str__(self) -> str:
        occurrence = f"#{self.occurrence}" if self.occurrence > 1 else ""
        output = f".{self.output}" if self.output is not None else ""
        return "/".join(self.components) + occurrence + output

    def with_output(self, output: int | None) -> LayerPath:
        """The same layer, naming one of its outputs."""
        return replace(self, output=output)
