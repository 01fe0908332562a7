"""Layer paths: the position in the model at which a value is computed.

A path joins the scopes by `/`, the outermost first: `encoder/block[3]/attn`. It can have three marks:

- an *iteration* `[3]` on a component: the fourth iteration of the loop that runs there (for nested loops `[3][0]`);
- an *occurrence* `#2` at the end: the second call under the same path, in execution order;
- an *output* `.1` at the end: the second of several outputs of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

#: The iteration of all loops around a value: one index for each loop, the outermost first; empty outside of loops.
IterationIndex: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPath:
    """LayerPath stores the path of a layer, or of one of its outputs.

    Attributes:
        components: The scope names with their iterations, the outermost first.
        occurrence: 1 for the first call under these scopes, 2 for the second, ...
        output: The index of the output; None where the layer has one output.
    """

    components: tuple[str, ...]
    occurrence: int = 1
    output: int | None = None

    def __str__(self) -> str:
        occurrence = f"#{self.occurrence}" if self.occurrence > 1 else ""
        output = f".{self.output}" if self.output is not None else ""
        return "/".join(self.components) + occurrence + output

    def with_output(self, output: int | None) -> LayerPath:
        """Returns the path of one of the layer's outputs."""
        return replace(self, output=output)
