"""A call of a module needs a parameter for each input, and the flags that set training or evaluation mode.

Inputs without a name fill the module's parameters in their order, named ones go to the parameter of their name.
Frameworks have no common way to set the mode of a module, but users have few: whichever of these parameters a module
takes is set for them.

    train, training, is_training                       true in training mode
    deterministic, inference, use_running_average      true in evaluation mode
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gradscope.errors import UsageError
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.naming.signature_text import signature_text

_WHEN_TRAINING: Final = frozenset({"train", "training", "is_training"})
_WHEN_NOT: Final = frozenset({"deterministic", "inference", "use_running_average"})

_Kind: Final = inspect.Parameter

#: What to do about described inputs that do not fit a module.
_DESCRIBE: Final = "describe each input, by position or name: --input float32[8,32,32,3] --input mask=bool[8]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """A `CallShape` states how a module is called.

    Attributes:
        positional: Names of the inputs passed by position, in order.
        named: Names of the inputs passed by name; a name with slashes is a leaf of the dictionary passed.
        flags: The flags that are passed, by name.
    """

    positional: tuple[str, ...]
    named: tuple[str, ...]
    flags: Mapping[str, bool]

    def arguments(self, inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns positional and keyword arguments, from inputs by name."""
        keyword: dict[str, Any] = dict(self.flags)
        for name in self.named:
            _put(keyword, name.split("/"), inputs[name])
        return tuple(inputs[name] for name in self.positional), keyword

    def in_training(self) -> CallShape:
        """Returns the same call in training mode."""
        return replace(self, flags={name: name in _WHEN_TRAINING for name in self.flags})


def call_shape(
    module: str,
    signature: inspect.Signature,
    specs: Sequence[InputSpec],
    *,
    train: bool,
    supplied: Collection[str] = (),
    given: Sequence[InputSpec] = (),
    hint: str = _DESCRIBE,
) -> tuple[CallShape, dict[str, InputSpec]]:
    """Returns how a module is called on some inputs, and the inputs by name.

    Args:
        module: Its name in messages.
        signature: Its parameters, without `self`.
        specs: The inputs.
        train: Whether it runs in training mode.
        supplied: Parameters that an adapter passes itself.
        given: The inputs as the user named them, where that is not how they are called here.
        hint: What to do where they do not fit.

    Raises:
        UsageError: The inputs do not fit the parameters.
    """
    unnamed = [spec for spec in specs if spec.name is None]
    positional = dict(zip(_position_names(signature, len(unnamed), supplied), unnamed, strict=False))
    named = {spec.name: spec for spec in specs if spec.name is not None}
    parameters = signature.parameters
    flags = {name: name in _WHEN_TRAINING for name in parameters if name in _WHEN_TRAINING | _WHEN_NOT}
    flags = {name: value == train for name, value in flags.items() if name not in {*positional, *named, *supplied}}
    shape = CallShape(positional=tuple(positional), named=tuple(named), flags=flags)
    twice = positional.keys() & named.keys()
    if len(positional) < len(unnamed) or twice or not _binds(signature, shape, {*positional, *named}, supplied):
        received = ", ".join(map(str, given or specs)) or "no --input"
        raise UsageError(
            f"{module} takes {signature_text(without(signature, supplied))}, and received {received}",
            hint=hint,
        )
    return shape, {**positional, **named}


def without(signature: inspect.Signature, names: Collection[str]) -> inspect.Signature:
    """Returns a signature without some of its parameters."""
    kept = [each for name, each in signature.parameters.items() if name not in names]
    return signature.replace(parameters=kept)


def method_signature(function: Any) -> inspect.Signature:
    """Returns the signature of a method as its caller sees it, without `self`."""
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def parameters_to_build(found: Any) -> Collection[str]:
    """Returns the names of the parameters of a class or function; empty for another object."""
    # A class is inspected by `__init__`: the metaclasses of frameworks hide it behind a `__call__(*args, **kwargs)`.
    if not isinstance(found, type):
        return inspect.signature(found).parameters if inspect.isroutine(found) else ()
    return inspect.signature(found.__init__).parameters


def _position_names(signature: inspect.Signature, count: int, supplied: Collection[str]) -> list[str]:
    """Returns the names of the first parameters that take positional arguments; those of a `*args` are numbers."""
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD) and parameter.name not in supplied:
            names.append(parameter.name)
        elif parameter.kind is _Kind.VAR_POSITIONAL:
            names += [str(number) for number in range(len(names), count)]
    return names[:count]


def _binds(signature: inspect.Signature, shape: CallShape, names: set[str], supplied: Collection[str]) -> bool:
    positional, keyword = shape.arguments(dict.fromkeys(names))
    try:
        without(signature, supplied).bind(*positional, **keyword)
    except TypeError:
        return False
    return True


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for component in path[:-1]:
        tree = tree.setdefault(component, {})
    tree[path[-1]] = value
