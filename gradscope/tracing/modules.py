"""A framework's module as a model, where a target names one."""

from __future__ import annotations

from typing import Any

from gradscope.frameworks.detect import adapter_of
from gradscope.frameworks.modulemodel import ModuleModel
from gradscope.frameworks.request import Request
from gradscope.tracing.model import Model
from gradscope.tracing.userframes import user_code


def module_model(name: str, holder: Any, request: Request) -> Model | None:
    """The model that a framework's module makes; None for an object that is no module.

    Args:
        name: What messages call the model.
        holder: The object.
        request: What the user says about it.

    Raises:
        UsageError: The inputs do not fit the module.
    """
    train = request.train is not False
    with user_code(f"looking at {name}"):
        adapter = adapter_of(holder, train=train)
        if adapter is None:
            return None
        made = ModuleModel.of(adapter, request, train=train)
    return Model(name=name, init=made.init, batch=made.batch, loss=made.loss, held=adapter.held, choices=made.choices)
