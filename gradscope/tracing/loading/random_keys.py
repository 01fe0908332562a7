"""Random keys of a module are kept only where its outputs depend on them.

An adapter provides keys that a module may never use. They would be state in its dump, and two networks that compute the
same would differ in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from gradscope.frameworks.modules.adapter import RNGS, Variables
from gradscope.frameworks.modules.module_model import ModuleModel
from gradscope.tracing.jaxpr.jaxcompat import is_literal, trace


class NeededKeys:
    """`NeededKeys` wraps `init` and `loss` of a module's model so that variables contain only the keys that it needs.

    Args:
        model: The module's model.
    """

    def __init__(self, model: ModuleModel) -> None:
        self._model = model
        self._unneeded: frozenset[str] = frozenset()

    def init(self, key: Any) -> Variables:
        """Returns the module's variables without the keys that it does not need."""
        variables = self._model.init(key)
        keys = variables.get(RNGS, {})
        if not keys or not all(_is_plain_key(each) for each in keys.values()):
            return variables
        self._unneeded = frozenset(keys) - self._needed(variables, keys)
        needed = {name: each for name, each in keys.items() if name not in self._unneeded}
        return {name: needed if name == RNGS else each for name, each in variables.items() if needed or name != RNGS}

    def loss(self, variables: Variables, batch: Any) -> Any:
        """Returns the loss."""
        # No output depends on the keys that were removed, so any key can replace them.
        any_key = dict.fromkeys(self._unneeded, jax.random.key(0)) if self._unneeded else {}
        rngs = {**variables.get(RNGS, {}), **any_key}
        return self._model.loss({**variables, RNGS: rngs} if rngs else variables, batch)

    def _needed(self, variables: Variables, keys: Mapping[str, Any]) -> frozenset[str]:
        batch = jax.eval_shape(self._model.inputs_like)
        names = sorted(keys)  # the order in which JAX flattens a mapping

        def outputs(keys: Mapping[str, Any], batch: Any) -> Any:
            return self._model.outputs({**variables, RNGS: keys}, batch)

        jaxpr, _, _ = trace(outputs, dict(keys), batch)
        live = {atom for atom in jaxpr.outvars if not is_literal(atom)}
        for equation in reversed(jaxpr.eqns):
            if not live.isdisjoint(equation.outvars):
                live.update(atom for atom in equation.invars if not is_literal(atom))
        return frozenset(name for name, variable in zip(names, jaxpr.invars, strict=False) if variable in live)


def _is_plain_key(value: Any) -> bool:
    plain = jax.eval_shape(lambda: jax.random.key(0))
    return value.shape == plain.shape and value.dtype == plain.dtype
