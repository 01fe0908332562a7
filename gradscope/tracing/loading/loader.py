"""The loader makes a model of a target, checked as far as possible without running any of its functions."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from gradscope.errors import UsageError
from gradscope.frameworks.detect import builder_of
from gradscope.frameworks.modules.request import Request
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.naming.signature_text import signature_text
from gradscope.tracing.loading.importing.import_location import import_location
from gradscope.tracing.loading.model import Model
from gradscope.tracing.loading.module_models import module_model
from gradscope.tracing.loading.plain_functions import (
    accepts,
    functions_model,
    has_functions,
    public_names,
    required_parameters,
    signature_of,
)
from gradscope.tracing.loading.target import Attribute, LiteralCall, Target, parse_target
from gradscope.tracing.user_frames import user_code


def load_model(text: str, request: Request | None = None) -> Model:
    """Returns the model that a target names.

    Args:
        text: A target, see `gradscope.tracing.loading.target`.
        request: The user's options for it; None for none.

    Returns:
        The model.

    Raises:
        UsageError: There is no such file, module or name, or the model does not accept the request.
        ModelError: The file does not import, or the name is not a model's.
    """
    request = request or Request()
    target = parse_target(text)
    seed_generators(request.seed)
    module = import_location(target)
    name = _name(target)
    holder = module if target.attribute is None else _holder(module, target.location, target.attribute, request.seed)
    label = "the file itself" if target.attribute is None else target.attribute.text
    model = None if has_functions(holder) else module_model(name, holder, request)
    model = model or functions_model(name, holder, label, request)
    source = _source(module)
    return replace(
        model,
        source=source,
        file_sha256=None if source is None else _hash(source),
        optimizer=_optimizer(holder) or _optimizer(module),
        choices=(_location_choice(target, source), *model.choices),
    )


def named_object(text: str) -> Any:
    """Returns the object that a target names, of any type; called if the target calls it.

    Raises:
        UsageError: There is no such file, module or name, or the target names none.
        ModelError: The file does not import.
    """
    target = parse_target(text)
    if target.attribute is None:
        raise UsageError(f"{text} names no object", hint=f"name one: {text}:NAME")
    return _holder(import_location(target), target.location, target.attribute, seed=0)


def source_of(text: str) -> Path | None:
    """Returns the file that the location of a target names, which was imported; None where it has none."""
    target = parse_target(text)
    if target.rule == "path":
        return Path(target.location).resolve()
    return None if target.location not in sys.modules else _source(sys.modules[target.location])


def seed_generators(seed: int) -> None:
    """Seeds the generators of Python and NumPy, which a file may use without a key while it is imported."""
    # Keras draws all its weights from them.
    random.seed(seed)
    np.random.seed(seed % 2**32)


#: What to do where an object is no function.
_WITHOUT_CALL: Final = "name it without the call"


def _name(target: Target) -> str:
    stem = Path(target.location).stem if target.rule == "path" else target.location.rpartition(".")[2]
    return stem if target.attribute is None else f"{stem}.{target.attribute.text}"


def _source(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _hash(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:  # it was removed when it ran, as a script of a temporary folder is
        return None


def _optimizer(holder: Any) -> Callable[[], Any] | None:
    """Returns the function `optimizer()` that an object has; None where it has none."""
    found = getattr(holder, "optimizer", None)
    signature = signature_of(found) if callable(found) else None
    return found if signature is not None and accepts(signature) else None


def _location_choice(target: Target, source: Path | None) -> str:
    found = {"path": "a path", "module": "a module", "zoo": "a model of the zoo"}[target.rule]
    return f"{target.location} is {found}" + ("" if source is None else f", loaded from {source}")


def _holder(module: ModuleType, location: str, attribute: Attribute, seed: int) -> Any:
    """Returns the object that an attribute of a target names, built if it is called or a framework's class."""
    found: Any = module
    with user_code(f"looking up {attribute.text}"):
        for depth, part in enumerate(attribute.path):
            if not hasattr(found, part):
                where = f"{location}:{'.'.join(attribute.path[:depth])}".rstrip(":")
                raise UsageError(f"{where} has no {part!r}", hint=nearest_hint(part, public_names(found)))
            found = getattr(found, part)
        builder = builder_of(found, seed=seed)
    if attribute.call is None and (builder is None or not isinstance(found, type)):
        return found
    if not callable(found):
        raise UsageError(f"{attribute.text} calls an object of type {type(found).__name__}", hint=_WITHOUT_CALL)
    call = attribute.call or LiteralCall()
    made: Mapping[str, Any] = builder.keywords if isinstance(builder, partial) else {}
    _require_fitting(found, attribute, call, made)
    with user_code(f"calling {attribute.text}"):
        return call.of(found if builder is None else builder)


def _require_fitting(function: Any, attribute: Attribute, call: LiteralCall, made: Mapping[str, Any]) -> None:
    """Raises `UsageError` where a function does not take the arguments of a call, and those that are made for it."""
    signature = signature_of(function)
    if signature is None or accepts(signature, *call.positional, **{**made, **call.keyword}):
        return
    needed = [f"{each.name}=..." for each in required_parameters(signature) if each.name not in made]
    by_seed = f"; {' and '.join(made)} is made of --seed" if made else ""
    raise UsageError(
        f"{attribute.text} does not fit its signature {signature_text(signature)}",
        hint=f"write {'.'.join(attribute.path)}({', '.join(needed)}) in the target{by_seed}",
    )
