"""A framework's module as a model, where a target names one or a file's `init` returns one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax

from gradscope.frameworks.detect import adapter_of, may_be_lifted
from gradscope.frameworks.functions_of_modules import LiftedFunctions
from gradscope.frameworks.modules.module_model import ModuleModel
from gradscope.frameworks.modules.request import Request
from gradscope.tracing.loading.model import Model
from gradscope.tracing.loading.own_formats import restored
from gradscope.tracing.loading.random_keys import NeededKeys
from gradscope.tracing.user_frames import user_code


def module_model(name: str, holder: Any, request: Request) -> Model | None:
    """The model that a framework's module makes; None for an object that is no module.

    Args:
        name: What messages call the model.
        holder: The object.
        request: What the user says about it.

    Raises:
        UsageError: The inputs do not fit the module.
        DumpError: A checkpoint in the framework's own format does not.
    """
    train = request.train is not False
    with user_code(f"looking at {name}"):
        adapter = adapter_of(holder, train=train)
        if adapter is None:
            return None
        made = ModuleModel.of(adapter, request, train=train)
        own = None if request.checkpoint is None else restored(holder, request.checkpoint, partial(_build, made))
        filled = None if own is None else adapter_of(own, train=train)
        made = made if filled is None else replace(made, adapter=filled)
    needed = NeededKeys(made)
    return Model(
        name=name, init=needed.init, batch=made.batch, loss=needed.loss, held=adapter.held, restored=own is not None,
        choices=made.choices,
    )  # fmt: skip


def _build(model: ModuleModel) -> None:
    """Have a module make its variables, by a call on some inputs."""
    model.init(jax.random.key(0))


def lifted_model(model: Model) -> Model:
    """The model with arrays in place of the NNX or Equinox module that its `init` may return and its `loss` take."""
    if not may_be_lifted():
        return model
    own = LiftedFunctions(model.init, model.loss)
    return replace(model, init=own.init, loss=own.loss)
