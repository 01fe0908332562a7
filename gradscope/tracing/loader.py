"""Loading: from a target to a model, checked as far as can be without running any of its functions."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from gradscope.errors import ModelError, UsageError
from gradscope.naming.patterns import nearest_hint
from gradscope.tracing.importing import import_place
from gradscope.tracing.model import Model
from gradscope.tracing.target import Attribute, Call, Target, parse_target
from gradscope.tracing.userframes import user_code

#: The functions of a model and their arguments.
_EXPECTED: Final = {"init": ("key",), "batch": ("key", "size"), "loss": ("variables", "batch")}
_SIGNATURES: Final = ", ".join(f"{role}({', '.join(arguments)})" for role, arguments in _EXPECTED.items())

#: Names that an error lists before it says how many more there are.
_MOST_NAMES: Final = 8


def load_model(text: str) -> Model:
    """The model that a target names.

    Args:
        text: A target, see `gradscope.tracing.target`.

    Raises:
        UsageError: There is no such file, module or name.
        ModelError: The file does not import, or what it names is not a model.
    """
    target = parse_target(text)
    module = import_place(target)
    name = _name(target)
    holder = module if target.attribute is None else _holder(module, target.place, target.attribute)
    functions = _functions(name, holder)
    source = _source(module)
    return Model(
        name=name,
        init=functions["init"],
        batch=functions["batch"],
        loss=functions["loss"],
        source=source,
        file_sha256=None if source is None else hashlib.sha256(source.read_bytes()).hexdigest(),
        choices=_choices(target, source),
    )


def named_object(text: str) -> Any:
    """The object that a target names, whatever it is; called if the target calls it.

    Raises:
        UsageError: There is no such file, module or name, or the target names none.
        ModelError: The file does not import.
    """
    target = parse_target(text)
    if target.attribute is None:
        raise UsageError(f"{text} names no object", hint=f"name one: {text}:NAME")
    return _holder(import_place(target), target.place, target.attribute)


def _name(target: Target) -> str:
    stem = Path(target.place).stem if target.rule == "path" else target.place.rpartition(".")[2]
    return stem if target.attribute is None else f"{stem}.{target.attribute.text}"


def _source(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _choices(target: Target, source: Path | None) -> tuple[str, ...]:
    found = {"path": "a path", "module": "a module", "zoo": "a model of the zoo"}[target.rule]
    file = "" if source is None else f", loaded from {source}"
    holder = "the file itself" if target.attribute is None else target.attribute.text
    return (f"{target.place} is {found}{file}", f"init, batch and loss are those of {holder}")


def _holder(module: ModuleType, place: str, attribute: Attribute) -> Any:
    """The object that an attribute of a target names, called if the target calls it."""
    found: Any = module
    with user_code(f"looking up {attribute.text}"):
        for depth, part in enumerate(attribute.path):
            if not hasattr(found, part):
                where = f"{place}:{'.'.join(attribute.path[:depth])}".rstrip(":")
                raise UsageError(f"{where} has no {part!r}", hint=nearest_hint(part, _public_names(found)))
            found = getattr(found, part)
    return found if attribute.call is None else _called(found, attribute.text, attribute.call)


def _called(function: Any, text: str, call: Call) -> Any:
    if not callable(function):
        raise UsageError(f"{text} calls an object of type {type(function).__name__}", hint="name it without the call")
    signature = _signature(function)
    if signature is not None and not _accepts(signature, *call.positional, **call.keyword):
        raise UsageError(f"{text} does not fit its signature {signature}", hint="change the arguments in the target")
    with user_code(f"calling {text}"):
        return call.of(function)


def _functions(name: str, holder: Any) -> Mapping[str, Callable[..., Any]]:
    """A model's functions by role; a holder that lacks any is refused with everything that is wrong about it."""
    with user_code(f"looking up the functions of {name}"):
        functions = {role: getattr(holder, role) for role in _EXPECTED if hasattr(holder, role)}
    missing = [role for role in _EXPECTED if role not in functions]
    if missing:
        problem = f"has no {' and no '.join(missing)}: a model has {_SIGNATURES}; found {_found(holder)}"
        raise ModelError(f"{name} {problem}", hint=_hint_for(holder))
    problems = [problem for role, function in functions.items() if (problem := _problem(role, function))]
    if problems:
        raise ModelError(f"{name} is not a model: {'; '.join(problems)}", hint=_hint_for(holder))
    return functions


def _problem(role: str, function: Any) -> str | None:
    """What keeps a value from its role; None where nothing is known to."""
    if not callable(function):
        return f"{role} is of type {type(function).__name__}, not a function"
    signature = _signature(function)
    if signature is None or _accepts(signature, *_EXPECTED[role]):
        return None
    return f"{role} takes {signature}, expected {role}({', '.join(_EXPECTED[role])})"


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """A function's signature; None where it cannot be known."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):  # written in C without a text signature
        return None


def _accepts(signature: inspect.Signature, *positional: Any, **keyword: Any) -> bool:
    try:
        signature.bind(*positional, **keyword)
    except TypeError:
        return False
    return True


def _found(holder: Any) -> str:
    names = _public_names(holder)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more or f"nothing in an object of type {type(holder).__name__}"


def _public_names(holder: Any) -> list[str]:
    """The names that an object offers; of a module, without the modules it imports."""
    if isinstance(holder, ModuleType):
        return [n for n, value in vars(holder).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
    return [name for name in dir(holder) if not name.startswith("_")]


def _hint_for(holder: Any) -> str:
    if inspect.isclass(holder) or inspect.isfunction(holder):
        return f"to call it first, write {holder.__name__}() in the target"
    if isinstance(holder, ModuleType):
        return "define them in the file, or name the object that has them: FILE.py:NAME"
    return "name an object that has them"
