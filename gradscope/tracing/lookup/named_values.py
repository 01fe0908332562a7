"""Named values: every value of a trace that a user can select, by any of its names.

A value is named by the path of an argument (`w1`, `params/head/kernel`), by the key or index of an output, by the
layer or operation that returns it, one iteration of a loop at a time (`block[3]/attn`), or by the name that
`jax.ad_checkpoint.checkpoint_name` gave it. Where one name fits several values, the kind mentioned first here wins. A
dump's key (`activation/block[3]/attn`, `param/head/kernel`) names the same value as in a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.naming.patterns import nearest_hint
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, iterations, resolve
from gradscope.tracing.jaxpr.jaxcompat import checkpoint_name_of
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace


class NamedValue(NamedTuple):
    """A `NamedValue` is one value in one iteration of the loops around it.

    Attributes:
        value: Where it is made; None for an output that is a constant.
        iteration: One number per loop around it, outermost first.
    """

    value: ValueKey | None
    iteration: tuple[int, ...] = ()


class NamedValues:
    """`NamedValues` maps the names in a trace to values.

    Args:
        trace: The trace.
        layers: Its layers; operations can be found only if they are among them.
        paths: The path of each argument; by default its name in a dump.
    """

    def __init__(self, trace: Trace, layers: Sequence[LayerCall], paths: Sequence[str] = ()) -> None:
        self._found: dict[str, NamedValue] = {}
        for name, value in _all(trace, layers, paths):
            self._found.setdefault(name, value)

    def find(self, name: str) -> NamedValue:
        """Returns the value of this name.

        Raises:
            UsageError: There is none; the hint names the nearest names.
        """
        found = self._found.get(name) or self._found.get(name.removeprefix(f"{naming.ACTIVATION}/"))
        if found is None:
            raise UsageError(f"no value is called {naming.printable(name)}", hint=nearest_hint(name, self._found))
        return found


def _all(trace: Trace, layers: Sequence[LayerCall], paths: Sequence[str]) -> Iterator[tuple[str, NamedValue]]:
    """Yields every name with its value, those that win first."""
    arguments = [(leaf, NamedValue(ValueKey((), OPERAND, at))) for at, leaf in enumerate(trace.arguments)]
    yield from zip(paths, (value for _, value in arguments), strict=False)
    for name, atom in zip(trace.outputs, trace.root.jaxpr.outvars, strict=True):
        yield name, NamedValue(resolve(trace.root, atom))
    for layer in layers:
        yield from _layer_outputs(layer)
    for frame in trace.root.walk():
        yield from _checkpointed(frame)
    for leaf, value in arguments:
        yield naming.key_of(leaf.family, leaf.name), value
        yield leaf.name, value


def _layer_outputs(layer: LayerCall) -> Iterator[tuple[str, NamedValue]]:
    several = len(layer.outputs) > 1
    for iteration in iterations(layer.frame.loops):
        path = layer.path.at(iteration)
        for position, value in enumerate(layer.outputs):
            yield str(path.with_output(position if several else None)), NamedValue(value, iteration)


def _checkpointed(frame: Frame) -> Iterator[tuple[str, NamedValue]]:
    """Yields the values that `checkpoint_name` named in one frame; in loops, with the iteration behind the name."""
    for number, equation in enumerate(frame.jaxpr.eqns):
        name = checkpoint_name_of(equation)
        if name is not None:
            for iteration in iterations(frame.loops):
                mark = "".join(f"[{index}]" for index in iteration)
                yield f"{name}{mark}", NamedValue(ValueKey(frame.key, number, 0), iteration)


def throughout(root: Frame, values: Iterable[NamedValue]) -> frozenset[ValueKey]:
    """Returns those of some values that are named in every iteration of the loops around them."""
    named_iterations: dict[ValueKey, set[tuple[int, ...]]] = {}
    for named in values:
        if named.value is not None:
            named_iterations.setdefault(named.value, set()).add(named.iteration)
    loops = {frame.key: frame.loops for frame in root.walk()}
    return frozenset(
        value for value, found in named_iterations.items() if found.issuperset(iterations(loops[value.frame]))
    )
