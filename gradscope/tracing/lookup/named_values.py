"""Named values are all values of a trace that a user can select, by any of their names.

A value is named by the path of an argument (`w1`, `params/head/kernel`), by the key or index of an output, by the
layer or operation that returns it, one iteration of a loop at a time (`block[3]/attn`), or by the name that
`jax.ad_checkpoint.checkpoint_name` gave it. A name that several values have is refused.

Every value also has a *key*, which it has alone: a dump's (`activation/block[3]/attn`, `param/head/kernel`), or for an
argument and an output of a function `argument/w1` and `output/y`. A key goes before a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.naming import printable
from gradscope.naming.paths import plain_name
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, FrameKey, ValueKey, iterations, resolve
from gradscope.tracing.layers.fallback_scopes import checkpoint_name_of
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace

#: What the keys of a function's arguments, by their paths, and of its outputs begin with.
_ARGUMENT: Final = "argument"
_OUTPUT: Final = "output"

_ITERATION: Final = re.compile(r"\[(\d+)\]")


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
        self._by_key: dict[str, NamedValue] = {}
        self._by_name: dict[str, dict[NamedValue, str]] = {}
        for key, name, value in _all(trace, layers, paths):
            self._by_key.setdefault(key, value)
            self._by_name.setdefault(name, {}).setdefault(value, key)
        keys = {value: key for key, value in reversed(self._by_key.items())}
        self._loops = {frame.key: frame.loops for frame in trace.root.walk()}
        for name, value in _checkpointed(trace.root):
            self._by_name.setdefault(name, {}).setdefault(value, keys.get(value, name))

    def find(self, name: str, *, prefix: str = "") -> NamedValue:
        """Returns the value of this name or key; inside a `while`, whatever the number of its iteration there.

        Args:
            name: The name or key.
            prefix: What the user wrote before it.

        Raises:
            UsageError: There is none, and the hint names the nearest names; or there are several, and it names their
                keys.
        """
        if name in self._by_key:
            return self._by_key[name]
        found = self._by_name.get(name) or self._in_any_iteration(name)
        if not found:
            raise UsageError(f"no value is called {printable(name)}", hint=nearest_hint(name, self._by_name))
        if len(found) > 1:
            raise ambiguous(name, (prefix + key for key in found.values()))
        return next(iter(found))

    def _in_any_iteration(self, name: str) -> dict[NamedValue, str]:
        """Returns the values of a name but for the numbers of iterations that are only known once they have run."""
        alone, numbers = _without_numbers(name)
        known = ((each, value, key) for each, values in self._by_name.items() for value, key in values.items())
        keyed = ((key, value, key) for key, value in self._by_key.items())
        return {
            value: key
            for each, value, key in (*known, *keyed)
            if value.value is not None
            and _without_numbers(each)[0] == alone
            and self._may_be(value.value.frame, value.iteration, numbers)
        }

    def _may_be(self, frame: FrameKey, iteration: tuple[int, ...], numbers: Sequence[int]) -> bool:
        loops = self._loops[frame]
        return len(numbers) == len(loops) and all(
            loop.length is None or own == asked for loop, own, asked in zip(loops, iteration, numbers, strict=True)
        )


def _without_numbers(name: str) -> tuple[str, list[int]]:
    """Returns a name without the numbers of iterations, and those."""
    return _ITERATION.sub("[*]", name), [int(number) for number in _ITERATION.findall(name)]


def ambiguous(name: str, keys: Iterable[str]) -> UsageError:
    """Returns the error that a name is that of several values, with the keys to tell them apart."""
    return UsageError(
        f"{printable(name)} is ambiguous: several values have this name",
        hint=f"write {' or '.join(map(printable, keys))}",
    )


def _all(trace: Trace, layers: Sequence[LayerCall], paths: Sequence[str]) -> Iterator[tuple[str, str, NamedValue]]:
    """Yields the keys and names of values, those that win first where two values would have one key."""
    arguments = [NamedValue(ValueKey((), OPERAND, at)) for at in range(len(trace.arguments))]
    own = [naming.key_of(leaf.family, leaf.name) for leaf in trace.arguments]
    if paths:
        named = [(naming.key_of(_ARGUMENT, path), path) for path in paths]
    else:
        named = [(key, leaf.name) for key, leaf in zip(own, trace.arguments, strict=True)]
    for key, (short, name), value in zip(own, named, arguments, strict=True):
        yield key, key, value
        for spelling in dict.fromkeys((name, plain_name(name))):
            yield short, spelling, value
    for layer in layers:
        for path, value in _layer_outputs(layer):
            yield naming.key_of(naming.ACTIVATION, path), path, value
    outputs = [NamedValue(resolve(trace.root, atom)) for atom in trace.root.jaxpr.outvars]
    for name, value in zip(trace.outputs, outputs, strict=True):
        yield naming.key_of(_OUTPUT, name), name, value
    for leaf, value in zip(trace.auxiliary, outputs[1:], strict=False):
        yield naming.key_of(leaf.family, leaf.name), leaf.name, value


def _layer_outputs(layer: LayerCall) -> Iterator[tuple[str, NamedValue]]:
    several = len(layer.outputs) > 1
    for iteration in iterations(layer.frame.loops):
        path = layer.path.at(iteration)
        for position, value in enumerate(layer.outputs):
            yield str(path.with_output(position if several else None)), NamedValue(value, iteration)


def _checkpointed(root: Frame) -> Iterator[tuple[str, NamedValue]]:
    """Yields the values that `checkpoint_name` named; in loops, with the iteration behind the name."""
    for frame in root.walk():
        for number, equation in enumerate(frame.jaxpr.eqns):
            name = checkpoint_name_of(equation)
            for iteration in () if name is None else iterations(frame.loops):
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
