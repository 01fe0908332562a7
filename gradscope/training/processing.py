"""Processing turns the gradients of a loss into those that the optimizer gets: multiplied, clipped, and only some."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from gradscope.errors import ArgumentTypeError, UsageError
from gradscope.naming.selecting.patterns import Pattern, Selection
from gradscope.training.state import named_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """A `Processing` is the way from the gradients of a loss to those that the optimizer gets.

    Attributes:
        trained: Which parameters are trained, by name.
        multipliers: Factors of gradients by pattern; where several match, their product.
        clips: Gradient transformations in the order in which they are applied, after the multipliers.
    """

    trained: Selection
    multipliers: tuple[tuple[Pattern, float], ...] = ()
    clips: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, only: str | Sequence[str], freeze: str | Sequence[str], multiply: Mapping[str, float], clips: Sequence[Any]
    ) -> Processing:
        """Returns the processing that patterns, factors and clips state.

        Raises:
            UsageError: A pattern is none, or a factor is not finite.
        """
        wrong = next((each for each in multiply.items() if not math.isfinite(each[1])), None)
        if wrong is not None:
            raise UsageError(
                f"the gradients of {wrong[0]!r} cannot be multiplied by {float(wrong[1])}", hint="give a finite factor"
            )
        factors = tuple((Pattern.parse(pattern), float(factor)) for pattern, factor in multiply.items())
        return cls(trained=Selection.parse(only, freeze), multipliers=factors, clips=tuple(clips))

    @property
    def changes_gradients(self) -> bool:
        """Whether the optimizer may get other gradients than the loss has."""
        return bool(self.multipliers or self.clips)

    def require_matches(self, params: Any) -> None:
        """Refuses patterns that match no parameter.

        Raises:
            UsageError: There is one, or no parameter is trained, or one is no array.
        """
        for name, leaf in named_leaves(params).items():
            if not hasattr(leaf, "dtype"):
                raise ArgumentTypeError(f"the parameter {name} is of type {type(leaf).__name__}, expected an array")
        names = list(named_leaves(params))
        self.trained.require_matches(names)
        for patterns in (self.trained.exclude, tuple(pattern for pattern, _ in self.multipliers)):
            Selection(select=patterns).require_matches(names)
        if not named_leaves(self.trained_of(params)):
            selects = self.trained != Selection()
            hint = "the patterns leave none that has a gradient" if selects else "none is of floating-point numbers"
            raise UsageError("no parameter is trained", hint=hint)

    def trained_of(self, params: Any) -> Any:
        """Returns the trained parameters: the pytree with None in place of all others."""
        return _where(params, lambda name, leaf: jnp.issubdtype(leaf.dtype, jnp.inexact) and self.trained.selects(name))

    def processed(self, gradients: Any, params: Any) -> Any:
        """Returns gradients as the optimizer gets them.

        Args:
            gradients: The gradients of the trained parameters.
            params: The trained parameters.
        """
        gradients = jax.tree_util.tree_map_with_path(self._multiplied, gradients)
        for clip in self.clips:
            gradients, _ = clip.update(gradients, clip.init(params), params)
        return gradients

    def _multiplied(self, path: Any, gradient: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "value"
        factors = [factor for pattern, factor in self.multipliers if pattern.matches(name)]
        for factor in factors:
            gradient = gradient * factor
        return gradient


def merged(trained: Any, params: Any) -> Any:
    """Returns parameters in which the trained ones are replaced."""
    return jax.tree_util.tree_map(
        lambda new, old: old if new is None else new, trained, params, is_leaf=lambda leaf: leaf is None
    )


def _where(tree: Any, chosen: Callable[[str, Any], Any]) -> Any:
    def kept(path: Any, leaf: Any) -> Any:
        return leaf if chosen(jax.tree_util.keystr(path, simple=True, separator="/") or "value", leaf) else None

    return jax.tree_util.tree_map_with_path(kept, tree)
