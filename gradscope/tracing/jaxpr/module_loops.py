"""Lifts: loops that a framework runs on behalf of one module, and whose iterations are therefore that module's.

A user's own `lax.scan` is under a scope that the user chose, and its iterations are that scope's: `blocks[3]/attn`.
The scan of Flax's `nn.scan(Block)(name="layers")` is in the module that owns `layers`, yet what it repeats is one call
of `layers`: its iterations are `Net/layers[3]/attn`, as those of the same blocks unrolled, not `Net[3]/layers/attn`.

Sharp edge: a lift whose body does more than call one module, as `nnx.scan` of a user's function may, has iterations of
the scope around it like any other loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradscope.tracing.jaxpr.jaxcompat import Equation, Jaxpr, is_lifted, scopes, sub_jaxprs


def repeats_a_module(equation: Equation, body: Jaxpr) -> bool:
    """Whether a loop is a lift whose whole body is in one entry into one scope.

    Args:
        equation: The loop.
        body: What it repeats.
    """
    if not is_lifted(equation):
        return False
    entries = _entries(body)
    first = next(entries, None)
    return first is not None and all(entry is first for entry in entries)


def _entries(jaxpr: Jaxpr) -> Iterator[Any]:
    """For each equation the outermost scope that it is entered by, which may be inside what it runs; None without."""
    for equation in jaxpr.eqns:
        inside = [sub.jaxpr for sub in sub_jaxprs(equation) if sub.kind != "opaque"]
        if inside and not scopes(equation):
            for each in inside:
                yield from _entries(each)
        else:
            yield next(iter(scopes(equation)), None)
