"""A model of plain functions is found on an object, and checked as far as possible without running any of them.

A file that has no `batch` gets one of zeros that are shaped as the user's data, which take their place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import jax
import jax.numpy as jnp

from gradscope.arrays.dtypes import is_key
from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.detect import adapter_of, builder_of, hint_without_adapter
from gradscope.frameworks.modules.input_spec import InputSpec
from gradscope.frameworks.modules.request import Request
from gradscope.naming.signature_text import signature_text
from gradscope.tracing.loading.model import Model
from gradscope.tracing.user_frames import user_code

#: The name of the tensor of a batch that is an array.
_ALONE: Final = "value"

#: The functions of a model and their arguments.
_EXPECTED: Final = {"init": ("key",), "batch": ("key", "size"), "loss": ("variables", "batch")}
_SIGNATURES: Final = ", ".join(f"{role}({', '.join(arguments)})" for role, arguments in _EXPECTED.items())

#: How a loss has a mode that the user selects.
_LOSS_WITH_MODE: Final = "loss(variables, batch, *, train=True)"

_WITHOUT_BATCH: Final = "define it, or give a real batch: --data FILE"

#: The number of names that an error lists; the others are counted.
_MOST_NAMES: Final = 8


def has_functions(holder: Any) -> bool:
    """Returns whether an object has all the functions of a model."""
    with user_code("looking up init, batch and loss"):
        return all(hasattr(holder, role) for role in _EXPECTED)


def functions_model(name: str, holder: Any, label: str, request: Request) -> Model:
    """Returns the model of the functions that an object has.

    Args:
        name: The model's name in messages.
        holder: The object.
        label: The user's name of the object.
        request: The user's options for the model.

    Returns:
        The model.

    Raises:
        ModelError: The object lacks a function, or has one that takes other arguments.
        UsageError: The request has options of a framework's module, or a mode that the loss does not have.
    """
    functions, own = _functions(name, holder, request)
    set_options = [option for option, value in (("--input", request.inputs), ("--loss", request.loss)) if value]
    if set_options:
        raise UsageError(
            f"a framework's module takes {' and '.join(set_options)}, and {name} has its own batch and loss",
            hint="leave them out, or name the module itself",
        )
    return Model(
        name=name,
        init=functions["init"],
        batch=functions["batch"],
        loss=_in_mode(name, functions["loss"], train=request.train),
        choices=(
            f"{', '.join(own[:-1])} and {own[-1]} are those of {label}"
            + ("" if "batch" in own else ", and batch is as --data"),
        ),
    )


def _in_mode(name: str, loss: Callable[..., Any], *, train: bool | None) -> Callable[..., Any]:
    """Returns the loss in training or evaluation mode, where the user selects one."""
    if train is None:
        return loss
    signature = signature_of(loss)
    if signature is None or "train" not in signature.parameters:
        raise UsageError(
            f"the loss of {name} does not distinguish training from evaluation",
            hint=f"give it a parameter: {_LOSS_WITH_MODE}; a module that init returns has the mode of the file",
        )
    return functools.partial(loss, train=train)


def _functions(name: str, holder: Any, request: Request) -> tuple[Mapping[str, Callable[..., Any]], list[str]]:
    """Returns a model's functions by role, and the roles of those that the holder has.

    Raises:
        UsageError: The holder is a class or a function, which has to be called to make a model.
        ModelError: The holder lacks one, or one is not a function of the right arguments; the message lists everything.
    """
    with user_code(f"looking up the functions of {name}"):
        functions = {role: getattr(holder, role) for role in _EXPECTED if hasattr(holder, role)}
    own = list(functions)
    functions |= {} if own != ["init", "loss"] else _batch_like_data(request)
    missing = [role for role in _EXPECTED if role not in functions]
    problems = [problem for role, function in functions.items() if (problem := _problem(role, function))]
    if (missing or problems) and _is_uncalled(holder):
        kind = "class" if inspect.isclass(holder) else "function"
        raise UsageError(f"{name} is a {kind}, and no model", hint=_hint_to_call(holder))
    if missing:
        problem = f"has no {' and no '.join(missing)}: a model has {_SIGNATURES}; found {_found(holder)}"
        raise ModelError(f"{name} {problem}", hint=_hint_for(holder) if missing != ["batch"] else _WITHOUT_BATCH)
    if problems:
        defined = f"a model has {_SIGNATURES}; a function takes each of its arguments, also one that it does not use"
        hint = _hint_on_mode(functions.get("loss")) or _hint_for(holder, defined)
        raise ModelError(f"{name} is not a model: {'; '.join(problems)}", hint=hint)
    return functions, own


def _hint_on_mode(loss: Any) -> str:
    """Returns how a loss has its mode that takes `train` as a third argument; "" of any other."""
    signature = signature_of(loss) if callable(loss) else None
    if (
        signature is None
        or "train" not in signature.parameters
        or not accepts(signature, *_EXPECTED["loss"], train=True)
    ):
        return ""
    return f"--train and --eval set a parameter with a default: {_LOSS_WITH_MODE}"


def _batch_like_data(request: Request) -> dict[str, Callable[..., Any]]:
    """Returns the function `batch` that real data replace; no function where there are none, or of random keys."""
    if not request.data or any(is_key(spec.dtype) for spec in request.data.values()):
        return {}
    shapes = dict.fromkeys([_ALONE], *request.data.values()) if request.data_is_array else request.data
    return {"batch": _batch_like(shapes)}


def _hint_to_call(holder: Any) -> str:
    if holder.__name__ in _EXPECTED:
        return f"a model is all of its functions, {_SIGNATURES}: name the file alone"
    signature = signature_of(holder)
    builder = builder_of(holder, seed=0)
    made = builder.keywords if isinstance(builder, functools.partial) else {}  # a random key, of --seed
    needed = [] if signature is None else [each for each in required_parameters(signature) if each.name not in made]
    if not needed:
        return f"to call it, write {holder.__name__}() in the target"
    arguments = ", ".join(f"{each.name}=..." for each in needed)
    return (
        f"to call it, write {holder.__name__}({arguments}) in the target, with literals; where one is none, such as a "
        f"random key, write build() and define it: def build(): return {holder.__name__}({arguments})"
    )


def _is_uncalled(holder: Any) -> bool:
    """Returns whether calling an object may make a model: a function, or a class that has no functions of a model."""
    own = (inspect.getattr_static(holder, role, None) for role in _EXPECTED)
    return inspect.isfunction(holder) or (
        inspect.isclass(holder) and not any(isinstance(each, staticmethod | classmethod) for each in own)
    )


def _problem(role: str, function: Any) -> str | None:
    """Returns why a value cannot have its role; None where no reason is known."""
    if not callable(function):
        return f"{role} is of type {type(function).__name__}, not a function"
    signature = signature_of(function)
    if signature is None or accepts(signature, *_EXPECTED[role]):
        return None
    return f"{role} takes {signature_text(signature)}, expected {role}({', '.join(_EXPECTED[role])})"


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns a function's signature; None where it cannot be known."""
    kind, bound = (function.func, function.keywords) if isinstance(function, functools.partial) else (function, {})
    try:
        if not isinstance(kind, type) or type(kind).__call__ is type.__call__:
            return inspect.signature(function)
        # The metaclasses of frameworks hide `__init__` behind a `__call__(*args, **kwargs)`.
        _, *own = inspect.signature(kind.__init__).parameters.values()
        return inspect.Signature([parameter for parameter in own if parameter.name not in bound])
    except (ValueError, TypeError):  # written in C without a text signature
        return None


def accepts(signature: inspect.Signature, *positional: Any, **keyword: Any) -> bool:
    """Returns whether a signature accepts these arguments."""
    try:
        signature.bind(*positional, **keyword)
    except TypeError:
        return False
    return True


def required_parameters(signature: inspect.Signature) -> list[inspect.Parameter]:
    """Returns the parameters of a signature that have no default."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in signature.parameters.values() if each.default is each.empty and each.kind not in variable]


def _found(holder: Any) -> str:
    names = public_names(holder)
    if isinstance(holder, ModuleType):  # what could be meant comes before the constants of a file
        names.sort(key=lambda each: not callable(vars(holder)[each]))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more or f"nothing in an object of type {type(holder).__name__}"


def public_names(holder: Any) -> list[str]:
    """Returns the public names of an object; of a module, without the modules that it imports."""
    if isinstance(holder, ModuleType):
        return [n for n, value in vars(holder).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
    return [name for name in dir(holder) if not name.startswith("_")]


def _hint_for(holder: Any, otherwise: str = "") -> str:
    """Returns what to do about an object that is no model; `otherwise` where nothing in it could be meant instead."""
    if isinstance(holder, ModuleType):
        nets = [name for name in public_names(holder) if _is_module(getattr(holder, name))]
        if nets:
            return f"to run a framework's module, name it: FILE.py:{nets[-1]}"
        return otherwise or "define them in the file, or name the object that has them: FILE.py:NAME"
    return hint_without_adapter(holder) or otherwise or "name an object that has them"


def _is_module(value: Any) -> bool:
    """Returns whether a target could name a value as a framework's module."""
    return adapter_of(value, train=True) is not None or (
        isinstance(value, type) and builder_of(value, seed=0) is not None
    )


def _batch_like(shapes: Mapping[str, InputSpec]) -> Callable[[Any, int], Any]:
    """Returns the function `batch(key, size)` of zeros in the place of a batch's tensors.

    `text/mask` is `batch["text"]["mask"]`, tensors that are numbered from 0 are a tuple, and a single tensor that is
    called `value` is the batch.

    Args:
        shapes: The tensors by name, examples first.
    """

    def batch(_key: Any, size: int) -> Any:
        leaves = {tuple(name.split("/")): _zeros(spec, size) for name, spec in shapes.items()}
        return leaves[_ALONE,] if list(leaves) == [(_ALONE,)] else _nested(leaves)

    return batch


def _zeros(spec: InputSpec, size: int) -> jax.Array:
    shape = (size, *spec.shape[1:]) if spec.shape else ()
    return jnp.zeros(shape, jax.dtypes.canonicalize_dtype(jnp.dtype(spec.dtype)))


def _nested(leaves: Mapping[tuple[str, ...], Any]) -> Any:
    """Returns the pytree whose leaves have these paths."""
    if list(leaves) == [()]:
        return leaves[()]
    inside: dict[str, dict[tuple[str, ...], Any]] = {}
    for (key, *rest), leaf in leaves.items():
        inside.setdefault(key, {})[tuple(rest)] = leaf
    found = {key: _nested(each) for key, each in inside.items()}
    positions = [str(at) for at in range(len(found))]
    return tuple(found[at] for at in positions) if set(found) == set(positions) else found
