"""A framework's module becomes a model, where a target names one or a file's `init` returns one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from gradscope.frameworks.detect import adapter_of, may_carry_variables, may_return_pairs
from gradscope.frameworks.functions_of_modules import FunctionsOfModules
from gradscope.frameworks.modules.module_model import ModuleModel
from gradscope.frameworks.modules.request import Request
from gradscope.tracing.loading.model import Model, Restored
from gradscope.tracing.loading.own_formats import restored
from gradscope.tracing.loading.random_keys import NeededKeys
from gradscope.tracing.user_frames import user_code


def module_model(name: str, holder: Any, request: Request) -> Model | None:
    """Returns the model of a framework's module; None for an object that is not a module.

    Args:
        name: The model's name in messages.
        holder: The object.
        request: The user's options for it.

    Returns:
        The model.

    Raises:
        UsageError: The inputs do not fit the module.
        DumpError: A checkpoint in the framework's own format does not.
    """
    train = request.train is not False
    with user_code(f"looking at {name}"):
        adapter = adapter_of(holder, train=train)
        if adapter is None:
            return None
        module = ModuleModel.of(adapter, request, train=train)
        own = None if request.checkpoint is None else restored(holder, request.checkpoint, partial(_build, module))
        filled = None if own is None else adapter_of(own.value, train=train)
        module = module if filled is None else replace(module, adapter=filled)
    needed_keys = NeededKeys(module)
    return Model(
        name=name,
        init=needed_keys.init,
        batch=module.batch,
        loss=needed_keys.loss,
        initialised=adapter.initialised,
        restored=None if own is None else own.notes,
        choices=module.choices,
        counted=lambda: next(iter(module.counted), None),
    )


def _build(model: ModuleModel) -> None:
    """Makes a module create its variables, by a call on some inputs."""
    model.init(jax.random.key(0))


def with_array_variables(model: Model) -> Model:
    """Returns a model whose variables are arrays, where `init` returns modules of NNX or Equinox, or Haiku's pair."""
    if not (may_carry_variables() or may_return_pairs()):
        return model
    own = FunctionsOfModules(model.init, model.loss)

    def restore(checkpoint: Path) -> Restored | None:
        found = None if own.module is None else restored(own.module, checkpoint, lambda: None)
        return None if found is None else Restored(value=own.arrays_of(found.value), notes=found.notes)

    return replace(model, init=own.init, loss=own.loss, restore=restore)
