"""Shared programs are compiled once for all functions that compute the same by the same operations.

The segments of a network of equal blocks, and the parts of a loop, have equal programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class SharedProgram:
    """A `SharedProgram` is a compiled program, with the pytree that one of its functions returns.

    Attributes:
        stage: The compiled program, of flat arguments and outputs.
        outputs: The structure of what the function returns.
    """

    stage: Any
    outputs: Any

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function returns for arguments of the shapes that it was compiled for."""
        return jax.tree_util.tree_unflatten(self.outputs, self.stage(*jax.tree_util.tree_leaves(arguments)))

    @property
    def own_bytes(self) -> int:
        """The program's memory in addition to its arguments; 0 where the backend does not report it."""
        found = self.stage.memory_analysis()
        return 0 if found is None else found.temp_size_in_bytes + found.output_size_in_bytes

    @property
    def output_bytes(self) -> int:
        """The memory of what it returns; 0 where the backend does not report it."""
        found = self.stage.memory_analysis()
        return 0 if found is None else found.output_size_in_bytes


class SharedPrograms:
    """`SharedPrograms` compile functions, and those of one lowered program once."""

    def __init__(self) -> None:
        self._stages: dict[str, Any] = {}

    def compiled(self, function: Callable[..., Any], *shapes: Any) -> SharedProgram:
        """Compiles a function of pytrees of arrays, for their shapes."""
        leaves, inputs = jax.tree_util.tree_flatten(shapes)
        structures: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            # Names of leaves would be part of the program, and arguments that are dropped would not be.
            made, outputs = jax.tree_util.tree_flatten(function(*jax.tree_util.tree_unflatten(inputs, leaves)))
            structures.append(outputs)
            return made

        lowered = jax.jit(flat, keep_unused=True).lower(*leaves)
        program = lowered.as_text()
        if program not in self._stages:
            self._stages[program] = lowered.compile()
        return SharedProgram(self._stages[program], structures[0])
