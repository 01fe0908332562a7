"""Defines the cases of the bench: healthy runs and planted faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import gradscope as gs
from gradscope.dump.manifest.manifest import Manifest
from gradscope.stats import Finding, find

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A `Run` is what is captured: a loss, its variables and a batch; the loss may return auxiliary values, too."""

    loss: Loss
    variables: Any
    batch: Any
    has_aux: bool = False

    def manifest(self) -> Manifest:
        """Captures the run and returns its manifest."""
        dump = gs.capture(self.loss, self.variables, self.batch, has_aux=self.has_aux)
        return dump.manifest


@dataclass(frozen=True, slots=True)
class Healthy:
    """A `Healthy` case is a run in which nothing is wrong."""

    name: str
    run: Callable[[], Run]


@dataclass(frozen=True, slots=True)
class Fault:
    """A `Fault` is a run with a planted fault.

    Attributes:
        name: Name of the case.
        planted: What was planted, in words.
        rules: The rules that name its cause.
        layers: A regular expression of the layers and tensors in which the cause is.
        run: Makes the run.
    """

    name: str
    planted: str
    rules: tuple[str, ...]
    layers: str
    run: Callable[[], Run]

    def is_found(self, findings: Sequence[Finding]) -> bool:
        """Returns whether the first finding is the planted fault."""
        return self.rank(findings) == 0

    def rank(self, findings: Sequence[Finding]) -> int | None:
        """Returns the position of the first finding of the planted fault; None where there is none."""
        right = (
            number
            for number, found in enumerate(findings)
            if found.rule in self.rules and re.fullmatch(rf"(?:{self.layers})(?:[/.].*)?", found.name)
        )
        return next(right, None)


Case = Healthy | Fault


def findings_of(manifest: Manifest) -> tuple[Finding, ...]:
    """Returns the findings of a manifest."""
    return find(manifest)


def trained(
    loss: Loss, variables: Any, batches: Sequence[Any], optimizer: optax.GradientTransformation, steps: int = 50
) -> Any:
    """Returns the variables after some steps of training; of Flax's variables, only `variables["params"]` moves."""
    inside = isinstance(variables, dict) and "params" in variables

    def scalar(params: Any, rest: Any, batch: Any) -> Any:
        value = loss({**rest, "params": params} if inside else params, batch)
        return (value[0] if isinstance(value, tuple) else value).astype(jnp.float32)

    params, rest = (variables["params"], variables) if inside else (variables, None)
    moving, still = _floats(params)

    @jax.jit
    def step(moving: Any, state: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda moving: scalar(_joined(moving, still), rest, batch))(moving)
        updates, state = optimizer.update(gradient, state, moving)
        return optax.apply_updates(moving, updates), state

    state = optimizer.init(moving)
    for number in range(steps):
        moving, state = step(moving, state, batches[number % len(batches)])
    params = _joined(moving, still)
    return {**variables, "params": params} if inside else params


def _floats(tree: Any) -> tuple[Any, Any]:
    """Returns a tree's floating-point leaves, and the others, each with None in place of the rest."""

    def is_float(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)

    return (
        jax.tree.map(lambda leaf: leaf if is_float(leaf) else None, tree),
        jax.tree.map(lambda leaf: None if is_float(leaf) else leaf, tree),
    )


def _joined(one: Any, other: Any) -> Any:
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=lambda leaf: leaf is None)
