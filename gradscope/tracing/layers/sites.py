"""Sites are the values of a trace that can be observed, with their names.

A *site* is one value in one frame; inside loops it is one value per iteration. A value that several layers return
is one site with several names, the innermost layer's first and an operation's last; the others are aliases. A value
that no layer returns but some layer reads has no name. It is observed only as the input of that layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradscope.naming import LayerPath
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.dataflow.reachability import Reach, Reachability
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, Loop, ValueKey, source_in, variable_of
from gradscope.tracing.jaxpr.scopes import ScopePath
from gradscope.tracing.jaxpr.sharding import sharding_of
from gradscope.tracing.layers.layers import LayerCall


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteName:
    """A `SiteName` is one name of a site: a layer's path and, if the layer returns several values, the output's index.

    Attributes:
        path: The layer's path, or the operation's.
        output: The index among its outputs; None where it returns only one.
        layer: The layer's path; for an operation, that of the layer it is in, None outside all layers.
    """

    path: ScopePath
    output: int | None = None
    layer: ScopePath | None

    @property
    def operation(self) -> bool:
        """Whether this names an operation's output."""
        return self.layer is not self.path

    @property
    def template(self) -> str:
        """The name with `[*]` for every iteration."""
        return self.path.template if self.output is None else f"{self.path.template}.{self.output}"

    def at(self, iteration: Sequence[int]) -> LayerPath:
        """Returns the name at one iteration per enclosing loop."""
        return self.path.at(iteration).with_output(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A `Site` is a value that can be observed.

    Attributes:
        value: Where it is made.
        shape: Its shape, of one iteration where it is in loops.
        dtype: Its JAX dtype.
        sharding: The sharding that is part of its type; None where none is.
        names: Its names, innermost layer first, an operation last; empty for a value that is only some layer's input.
        loops: The loops around it, outermost first.
        order: Program order of the equation that makes it.
        primitive: The primitive that makes it; None for a value a frame receives.
        source: `file:line` in the user's code.
        reach: Whether and how a cotangent arrives at it in the backward pass.
        opaque: Whether it is inside an equation that is not entered, where it cannot be observed.
        beside: Whether it is inside a function with a derivative rule, which is observed beside the rule.
        bypassed: Whether gradients go around it, by a derivative rule of an equation that it is inside.
        eliminated: Whether nothing that the function returns depends on it, so that it is not computed.
    """

    value: ValueKey
    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    names: tuple[SiteName, ...]
    loops: tuple[Loop, ...]
    order: int
    primitive: str | None
    source: str | None
    reach: Reach
    opaque: bool
    beside: bool
    bypassed: bool
    eliminated: bool

    @property
    def differentiable(self) -> bool:
        """Whether the dtype has gradients at all."""
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))

    @property
    def forward_only(self) -> bool:
        """Whether reverse mode cannot get from the loss to it."""
        return self.reach is Reach.BARRED


def find_sites(root: Frame, layers: Sequence[LayerCall], liveness: Liveness, reachability: Reachability) -> list[Site]:
    """Returns every value that some layer returns or reads, in program order.

    Args:
        root: The root frame.
        layers: Its layers.
        liveness: What any output depends on.
        reachability: What arrives where in the backward pass.
    """
    frames = {frame.key: frame for frame in root.walk()}
    names = _names(layers)
    read = dict.fromkeys(value for layer in layers for value in layer.inputs)
    values = [value for value in {**names, **read} if not _is_root_input(value)]
    facts = _Facts(frames, liveness, reachability)
    sites = [_site(facts, value, names.get(value, [])) for value in values if _is_array(frames, value)]
    return sorted(sites, key=lambda site: (site.order, site.value.position))


def site_at(root: Frame, value: ValueKey, liveness: Liveness, reachability: Reachability) -> Site:
    """Returns the site of one value, whether or not a layer returns it; the site has no names.

    Args:
        root: The root frame.
        value: Where it is made.
        liveness: What any output depends on.
        reachability: What arrives where in the backward pass.
    """
    return _site(_Facts({frame.key: frame for frame in root.walk()}, liveness, reachability), value, ())


class _Facts(NamedTuple):
    """`_Facts` are the frames of a trace and the results of the analyses, from which sites are made."""

    frames: Mapping[FrameKey, Frame]
    liveness: Liveness
    reachability: Reachability


def _names(layers: Sequence[LayerCall]) -> dict[ValueKey, list[SiteName]]:
    # Composites come before their parts in `layers`, and the innermost name is to be the first; an operation's last, so
    # that a value that a layer returns is known by the same name whether or not operations are looked at.
    named: dict[ValueKey, list[SiteName]] = {}
    for layer in layers:
        several = len(layer.outputs) > 1
        around = layer.innermost_layer
        for position, value in enumerate(layer.outputs):
            name = SiteName(path=layer.path, output=position if several else None, layer=around and around.path)
            named.setdefault(value, []).append(name)
    return {value: _layers_first(found[::-1]) for value, found in named.items()}


def _layers_first(names: Sequence[SiteName]) -> list[SiteName]:
    return [*(name for name in names if not name.operation), *(name for name in names if name.operation)]


def _is_root_input(value: ValueKey) -> bool:
    return not value.frame and value.equation == OPERAND


def _is_array(frames: Mapping[FrameKey, Frame], value: ValueKey) -> bool:
    aval = _aval(frames[value.frame], value)
    return hasattr(aval, "shape") and hasattr(aval, "dtype")


def _aval(frame: Frame, value: ValueKey) -> Any:
    return variable_of(frame, value).aval


def _site(facts: _Facts, value: ValueKey, names: Sequence[SiteName]) -> Site:
    frame = facts.frames[value.frame]
    aval = _aval(frame, value)
    received = value.equation == OPERAND
    equation = frame.equation if received else frame.jaxpr.eqns[value.equation]
    return Site(
        value=value,
        shape=tuple(aval.shape),
        dtype=aval.dtype,
        sharding=sharding_of(aval),
        names=tuple(names),
        loops=frame.loops,
        order=frame.start if received else frame.orders[value.equation],
        primitive=None if received or equation is None else equation.primitive.name,
        source=None if equation is None else source_in(frame if not received else frame.parent or frame, equation),
        reach=facts.reachability.of(frame, variable_of(frame, value)),
        opaque=frame.opaque,
        beside=frame.beside,
        bypassed=frame.bypassed,
        eliminated=not _runs(facts.liveness, frame, None if received else value.equation),
    )


def _runs(liveness: Liveness, frame: Frame, number: int | None) -> bool:
    """Returns whether anything needed depends on an equation of a frame; for None, on the one that runs the frame."""
    if number is not None:
        return number in liveness.used(frame)
    return frame.parent is None or _runs(liveness, frame.parent, frame.key[-1][0])
