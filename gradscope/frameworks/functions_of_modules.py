"""Lifting: a file's own functions whose `init` returns an NNX or Equinox module, and whose `loss` takes it back.

What passes between them for everybody else is the module's arrays; the module is put together again, its parts named,
for the length of a call of `loss`. What `loss` changes in an NNX module is reported beside its own auxiliary outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradscope.frameworks.detect import Parts, lifted
from gradscope.frameworks.modules.outputs import updated_leaves


class LiftedFunctions:
    """`init` and `loss` of a model between which a pytree of arrays passes, whatever they pass themselves.

    Args:
        init: `init(key)`, the user's own.
        loss: `loss(variables, batch)`, the user's own.
    """

    def __init__(self, init: Callable[[Any], Any], loss: Callable[[Any, Any], Any]) -> None:
        self._init = init
        self._loss = loss
        self._parts: Parts | None = None

    def init(self, key: Any) -> Any:
        """What `init` returns, or the arrays of the module that it returns."""
        made = self._init(key)
        taken = lifted(made)
        if taken is None:
            return made
        self._parts, variables = taken
        return variables

    def loss(self, variables: Any, batch: Any) -> Any:
        """What `loss` returns, with the collections that it updated."""
        if self._parts is None:
            return self._loss(variables, batch)
        returned, collections = self._parts.calling(variables, lambda module: self._loss(module, batch))
        updated = updated_leaves(collections, variables)
        return returned if not updated else _with_updates(returned, updated)


def _with_updates(returned: Any, updated: Mapping[str, Any]) -> Any:
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return returned, updated
    value, aux = returned
    return value, {**updated, **(aux if isinstance(aux, Mapping) else {"aux": aux})}
