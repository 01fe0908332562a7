"""Lifts are loops that a framework runs on behalf of one module, so that their iterations are that module's.

A user's own `lax.scan` is under a scope that the user chose, and its iterations are that scope's: `blocks[3]/attn`.
The scan of Flax's `nn.scan(Block)(name="layers")` is in the module that owns `layers`, but its body is one call of
`layers`. Its iterations are `layers[3]/attn`, as those of the same blocks unrolled, and not those of `Net`.

Sharp edge: the body of a lift may do more than call one module, as that of `nnx.scan` of a user's function may. The
iterations of such a lift are those of the scope around it, like those of any other loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradscope.tracing.jaxpr.jaxcompat import Equation, Jaxpr, scopes, sub_jaxprs
from gradscope.tracing.jaxpr.source_lines import is_lifted


def repeats_a_module(equation: Equation, body: Jaxpr) -> bool:
    """Returns whether a loop is a lift whose complete body is in one entry into one scope.

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
    """Yields for each equation its outermost scope, which may be inside what it runs; None where there is none."""
    for equation in jaxpr.eqns:
        inside = [sub.jaxpr for sub in sub_jaxprs(equation) if sub.kind != "opaque"]
        if inside and not scopes(equation):
            for each in inside:
                yield from _entries(each)
        else:
            yield next(iter(scopes(equation)), None)
