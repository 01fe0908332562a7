"""`run_once` runs a program a single time, so that compiling it is what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import jax

_Result = TypeVar("_Result")

#: XLA's options for the least time of compilation. Which elements are finite does not depend on them, but for rounding.
_OPTIONS: Final = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}


def run_once(program: Callable[[Any], _Result], arguments: Any) -> _Result:
    """Returns the result of a pure function that is compiled for one call.

    Args:
        program: The function.
        arguments: Its argument, a pytree.
    """
    return jax.jit(program).lower(arguments).compile(compiler_options=dict(_OPTIONS))(arguments)
