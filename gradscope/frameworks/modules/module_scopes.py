"""Module scopes name modules of frameworks that open no scopes, by the attribute path from the outermost module.

A module's scope is relative to the module that calls it. One that is not called from inside its owner, as tied weights
are, is named by its path from the outermost module: `Net/decoder/encoder/embed`. A module that calls itself, or the
`__call__` of its base class, opens no second scope.

The module being called is stored per thread: modules may be built in one while a loss is traced in another.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import jax

#: The path of the module whose call is being traced.
_CALLED: Final[ContextVar[tuple[str, ...]]] = ContextVar("called", default=())


@contextmanager
def module_scope(path: str) -> Generator[None]:
    """Opens the scope of a module for the duration of its call.

    Args:
        path: Attribute names joined by `/`, the class of the outermost module first: `Net/blocks/0/conv`.
    """
    components = tuple(path.split("/"))
    around = _CALLED.get()
    if components == around:
        yield
        return
    inside = components[len(around) :] if components[: len(around)] == around else components[1:]
    token = _CALLED.set(components)
    try:
        with jax.named_scope("/".join(inside or components)):
            yield
    finally:
        _CALLED.reset(token)
