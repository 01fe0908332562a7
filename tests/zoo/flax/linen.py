"""What Linen modules hold and return, told by Flax, under the names that dumps have for it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from tests.zoo import agreement


def variables_of(seen: agreement.Dump) -> dict[str, Any]:
    state = agreement.family(seen, "state")
    keys = {name: jax.random.wrap_key_data(seen[f"state/{name}"]) for name in state if name.startswith("rngs/")}
    return agreement.nested({name: value for name, value in state.items() if name not in keys}) | {
        "params": agreement.nested(agreement.family(seen, "param")),
        "rngs": {name.removeprefix("rngs/"): key for name, key in keys.items()},
    }


def captured(intermediates: Mapping[str, Any], root: str, path: str = "") -> dict[str, Any]:
    """What every call of every module returned, by the name that it has in a dump: the root's has its own."""
    found: dict[str, Any] = {}
    for name, inside in intermediates.items():
        if name == "__call__":
            own = path or root
            found |= {own if call == 1 else f"{own}#{call}": value for call, value in enumerate(inside, 1)}
        elif isinstance(inside, Mapping):
            found |= captured(inside, root, f"{path}/{name}" if path else name)
    return found


def unrolled(captured: Mapping[str, Any], module: str, iterations: int) -> dict[str, Any]:
    """What Flax stacks of a scanned module, iteration by iteration."""
    found: dict[str, Any] = {}
    for name, value in captured.items():
        if name == module or name.startswith(f"{module}/"):
            for iteration in range(iterations):
                name_there = name.replace(module, f"{module}[{iteration}]", 1)
                found[name_there] = jax.tree.map(operator.itemgetter(iteration), value)
        else:
            found[name] = value
    return found


def calls_of(run: Callable[[], Any], added: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """What a function returns, and what every call of a module in it did, named by the module's path.

    Args:
        run: The function.
        added: What to add to what a call returns first, by the same names.
    """
    returned: dict[str, Any] = {}
    calls: Counter[str] = Counter()

    def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        name = "/".join(context.module.path) or context.module.name or type(context.module).__name__
        calls[name] += 1
        name += "" if calls[name] == 1 else f"#{calls[name]}"
        value = call(*args, **kwargs)
        returned[name] = value + added[name] if added and name in added else value
        return returned[name]

    with nn.intercept_methods(keep):
        return run(), returned
