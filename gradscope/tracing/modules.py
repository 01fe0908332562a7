"""A framework's module as a model, where a target names one or a file's `init` returns one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradscope.frameworks.detect import adapter_of, may_be_lifted
from gradscope.frameworks.lifting import LiftedFunctions
from gradscope.frameworks.modulemodel import ModuleModel
from gradscope.frameworks.request import Request
from gradscope.frameworks.restoring import restored
from gradscope.tracing.model import Model
from gradscope.tracing.randomkeys import NeededKeys
from gradscope.tracing.userframes import user_code


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
        own = None if request.checkpoint is None else restored(holder, request.checkpoint)
        adapter = adapter_of(holder if own is None else own, train=train)
        if adapter is None:
            return None
        made = ModuleModel.of(adapter, request, train=train)
    needed = NeededKeys(made)
    return Model(
        name=name, init=needed.init, batch=made.batch, loss=needed.loss, held=adapter.held, restored=own is not None,
        choices=made.choices,
    )  # fmt: skip


def lifted_model(model: Model) -> Model:
    """The model with arrays in place of the NNX or Equinox module that its `init` may return and its `loss` take."""
    if not may_be_lifted():
        return model
    own = LiftedFunctions(model.init, model.loss)
    return replace(model, init=own.init, loss=own.loss)
