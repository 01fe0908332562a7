"""Inputs with which a module fails are explained, as PyTorch tells of an operation deep inside that got something else.

What the inputs have to do with: they do not fit the arguments of the module, or are no tensors where it needs some. Any
other failure is the module's own, and its exception is raised as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor, nn

from gradscope.errors import UsageError
from gradscope.frameworks.torch.conversion import leaves_in
from gradscope.naming import printable

#: What PyTorch and Python raise where an operation gets an argument of another kind.
_OF_OTHER_KINDS: Final = (TypeError, AttributeError, ValueError, RuntimeError)


@contextmanager
def explained(module: nn.Module, inputs: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[None]:
    """Runs a module in its body, and explains a failure for which its inputs are the reason.

    Args:
        module: The module.
        inputs: The inputs, as the user gave them.
        args: The positional arguments that were made of them.
        kwargs: The named ones.

    Raises:
        UsageError: The module failed because of them.
    """
    try:
        yield
    except _OF_OTHER_KINDS as error:
        name = type(module).__name__
        if isinstance(error, TypeError) and (mismatch := _mismatch(module, args, kwargs)):
            raise UsageError(f"forward of {name} cannot take these inputs: {mismatch}", hint=_of(inputs)) from error
        odd = next(_odd(inputs, {**dict(zip(map(str, range(len(args))), args, strict=True)), **kwargs}), None)
        if odd is None:
            raise
        what, hint = odd
        raise UsageError(f"{name} failed on {what}: {type(error).__name__}: {error}", hint=hint) from error


def _mismatch(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Returns why arguments do not fit those of `forward`; "" where they do."""
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as mismatch:
        return str(mismatch)
    return ""


def _of(inputs: Any) -> str:
    """Returns how inputs become arguments."""
    if isinstance(inputs, Mapping):
        return "a mapping has named arguments; where it is an argument itself, put it into a tuple: (inputs,)"
    return "inputs are one tensor, a tuple of positional arguments or a mapping of named ones"


def _odd(inputs: Any, arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what of the inputs may be none of what a module takes, and what to do about it."""
    if isinstance(inputs, list):
        yield "a list", "a list is one argument; several are a tuple"
    if inputs is None:
        yield "None", "inputs are one tensor, a tuple of positional arguments or a mapping of named ones"
    for path, leaf in leaves_in(arguments):
        if not isinstance(leaf, Tensor) and (hasattr(leaf, "__array__") or isinstance(leaf, Iterator)):
            yield (
                f"the input {printable('/'.join(path))}, which is of type {type(leaf).__name__}",
                "give it as a tensor, such as with torch.from_numpy; only tensors have gradients",
            )
