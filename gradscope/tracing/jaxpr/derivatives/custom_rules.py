"""Custom differentiation rules in a trace belong to a function, which is found with where it is defined.

JAX stores the function in the debug information of a trace, as `NAME at FILE:LINE`. Where a version does not, the rule
has the name of its primitive. Decorators store a function of their own, which calls the user's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gradscope.tracing.jaxpr.derivatives.refused_derivatives import refused_operands
from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import CUSTOM_RULES, Equation, closed_over, kind_of, opened, sees_symbolic_zeros
from gradscope.tracing.jaxpr.source_lines import function_inside, is_file_of, is_library_file
from gradscope.tracing.jaxpr.transfers import solve_operands

#: The functions that decorators give rules to in place of the user's, by file: `jax.custom_gradient`, and
#: `equinox.filter_custom_vjp` and `filter_custom_jvp`.
_STAND_INS: Final[Mapping[str, Sequence[str]]] = {
    "custom_derivatives.py": ("wrapped_fun",),
    "_ad.py": ("fn_wrapped", "fn_wrapper"),
}
#: How JAX calls the arguments of a function that does not name them.
_UNNAMED: Final = re.compile(r"args\[\d+\]")
_FUNCTION: Final = re.compile(r"(?P<name>.+) at (?P<file>.+):(?P<line>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRule:
    """A `CustomRule` is a function with a differentiation rule of its own.

    Attributes:
        function: Its name.
        source: `file:line` of its definition, the file without its folder; None where unknown.
        of_library: Whether it is defined by JAX or a modelling library.
        of_jax: Whether it is defined by JAX.
    """

    function: str
    source: str | None
    of_library: bool
    of_jax: bool


def custom_rule(equation: Equation) -> CustomRule | None:
    """Returns the function whose own rule differentiates an equation; None for an equation that JAX differentiates."""
    if equation.primitive.name not in CUSTOM_RULES:
        return None
    found = _function(equation)
    if found is None:
        return CustomRule(function=equation.primitive.name, source=None, of_library=False, of_jax=False)
    file_name, line, name = found
    if _is_stand_in(name, file_name):
        equations = opened(carried_function(equation))[0].eqns
        file_name, line, name = function_inside(equations, name, file_name) or found
    of_jax = is_file_of("jax", file_name)
    return CustomRule(
        function=name.lstrip("_") if of_jax else name,  # what users call in JAX begins with no underscore
        source=f"{Path(file_name).name}:{line}",
        of_library=is_library_file(file_name),
        of_jax=of_jax,
    )


def _function(equation: Equation) -> tuple[str, int, str] | None:
    """Returns file, line and name of the function that has a rule; None where JAX does not store them."""
    found = _FUNCTION.fullmatch(str(getattr(_debug_information(equation), "func_src_info", "")))
    return None if found is None else (found["file"], int(found["line"]), found["name"])


def _is_stand_in(name: str, file_name: str) -> bool:
    """Returns whether a function is one that a decorator gives a rule to in place of the user's."""
    return name in _STAND_INS.get(Path(file_name).name, ()) and is_library_file(file_name)


def stated_rule(equation: Equation) -> CustomRule | None:
    """Returns the rule by which the program, and not JAX, differentiates an equation; None where JAX does.

    Beside functions with rules of their own, that is a linear solve: the program states how the transposed system is
    solved. One that does not, as where a gradient is stopped behind it, has no rule.
    """
    if kind_of(equation) == "linear_solve":
        if equation.params["jaxprs"].transpose_solve is None:
            return None
        return CustomRule(function=equation.primitive.name, source=None, of_library=False, of_jax=True)
    return custom_rule(equation)


def constants_of_functions(equation: Equation) -> Sequence[int]:
    """Returns the positions of the operands that the functions of a linear solve close over; none of others.

    The matrix is an operand of each of its functions: one that moves by itself makes it another system in one of them.
    """
    if kind_of(equation) != "linear_solve":
        return ()
    return range(len(equation.invars) - len(solve_operands(equation, equation.invars).right))


def rules_of_libraries(root: Frame) -> list[str]:
    """Returns the functions of libraries other than JAX that have a rule of their own in a trace: `f (file.py:3)`."""
    found = (custom_rule(equation) for frame in root.walk() for equation in frame.jaxpr.eqns)
    own = (rule for rule in found if rule is not None and rule.of_library and not rule.of_jax)
    return list(dict.fromkeys(f"{rule.function} ({rule.source})" for rule in own))


def may_refuse(equation: Equation) -> bool:
    """Returns whether an equation has a derivative rule that may fail where an operand of it is differentiated.

    JAX's own, of its activation functions for one, take every operand.
    """
    if refused_operands(equation):
        return True
    rule = custom_rule(equation)
    return rule is not None and (sees_symbolic_zeros(equation) or not rule.of_jax)


def argument_name(equation: Equation, position: int) -> str:
    """Returns the name of an operand in the function with a rule, or its number where JAX does not keep the name."""
    return _argument_names(equation).get(position) or f"argument {position - closed_over(equation) + 1}"


def _argument_names(equation: Equation) -> dict[int, str]:
    if constants := constants_of_functions(equation):
        return dict.fromkeys(range(len(constants), len(equation.invars)), "b")
    function = _function(equation)
    if function is not None and _is_stand_in(function[2], function[0]):  # its arguments are not the user's
        return {}
    # Of a `custom_vjp` JAX keeps those of its forward function, which has the same arguments.
    forward = getattr(equation.params.get("fwd_jaxpr_thunk"), "debug_info", None)
    for names in (getattr(each, "arg_names", None) or () for each in (_debug_information(equation), forward)):
        first = len(equation.invars) - len(names)
        if names and first in (0, closed_over(equation)):
            return {at: name for at, name in enumerate(names, first) if name and not _UNNAMED.fullmatch(name)}
    return {}


def _debug_information(equation: Equation) -> Any:
    return getattr(opened(carried_function(equation))[0], "debug_info", None)


def carried_function(equation: Equation) -> Any:
    """Returns the closed jaxpr of a function with a rule, without the rule."""
    return equation.params.get("call_jaxpr") or equation.params.get("fun_jaxpr")
