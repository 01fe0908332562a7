"""An equation's scope comes from the name stack, or is inferred in a model without any scope.

A trace in which no equation has a scope still has layers. An equation that reads a parameter belongs to the layer in
the parameter's path: `dense1/kernel` and `dense1/bias` make `dense1`. An equation that reads none is named by the line
of the user's code that traced it, `forward:12`. One that makes a view of a parameter, as a model does that converts all
of them before it begins, belongs to the layer that follows it, and to none where that is of another parameter.

Where operations are requested, each is in a scope of its own, named after its primitive or function. An operation is a
layer of one equation, and has names, inputs, outputs and gains as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Equation, scopes, sub_jaxprs
from gradscope.tracing.jaxpr.source_lines import user_frame
from gradscope.tracing.jaxpr.transfers import transfer_of
from gradscope.tracing.layers.parameter_views import ParameterOrigins

#: The scopes of an equation, outermost first: objects with a `name`, the same object within one entry into a scope.
Scoping: TypeAlias = Callable[[Frame, Equation], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class InferredScope:
    """An `InferredScope` is a scope that no code opened."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class OperationScope:
    """An `OperationScope` is the scope of a single equation."""

    name: str


def with_operations(scoping: Scoping) -> Scoping:
    """Returns the scoping with one more scope around every equation that computes something itself."""

    def scoped(frame: Frame, equation: Equation) -> tuple[Any, ...]:
        name = operation_name(equation)
        return (*scoping(frame, equation), *(() if name is None else (OperationScope(name),)))

    return scoped


def operation_name(equation: Equation) -> str | None:
    """Returns the name of an equation's operation; None for one that only runs a jaxpr in place.

    A custom rule has the name of its function, `relu` and not `custom_jvp_call`; a plain checkpoint's name is one, too.
    """
    given = checkpoint_name_of(equation)
    if given is not None and given.isidentifier():
        return given
    inside = sub_jaxprs(equation)
    if not inside:
        return equation.primitive.name
    transfer = transfer_of(equation, inside[0])
    if transfer.in_place:
        return None
    only = inside[0].jaxpr.eqns if transfer.opaque or transfer.beside else []
    called: list[str | None] = [each.params.get("name") for each in only if operation_name(each) is None]
    return called[0] if len(only) == len(called) == 1 and called[0] else equation.primitive.name


def checkpoint_name_of(equation: Equation) -> str | None:
    """Returns the name that `jax.ad_checkpoint.checkpoint_name` gave an equation's output; None for other equations."""
    return equation.params["name"] if equation.primitive.name == "name" else None


def has_scopes(root: Frame) -> bool:
    """Returns whether any equation of a trace has a scope from the user's code."""
    return any(scopes(equation) for frame in root.walk() for equation in frame.jaxpr.eqns)


def scoping_of(root: Frame, origins: ParameterOrigins) -> Scoping:
    """Returns the scoping of a trace: by its scopes, or inferred if it has none."""
    if has_scopes(root):
        return lambda _, equation: scopes(equation)
    known: dict[str, InferredScope] = {}
    names_of = cache(partial(_inferred_names, origins=origins))

    def inferred(frame: Frame, equation: Equation) -> tuple[InferredScope, ...]:
        name = names_of(frame).get(id(equation))
        return () if name is None else (known.setdefault(name, InferredScope(name)),)

    return inferred


def _inferred_names(frame: Frame, *, origins: ParameterOrigins) -> dict[int, str]:
    """Returns the inferred scopes of a frame's equations, by the identity of those that have one."""
    found: dict[int, str] = {}
    following: str | None = None
    for equation in reversed(frame.jaxpr.eqns):
        name = _inferred_name(frame, equation, origins)
        if any(origins.names(frame, variable) for variable in equation.outvars) and name != following:
            name = None  # nor is what comes before it next to the layer
        following = name
        if name is not None:
            found[id(equation)] = name
    return found


def _inferred_name(frame: Frame, equation: Equation, origins: ParameterOrigins) -> str | None:
    transfers = (transfer_of(equation, sub) for sub in sub_jaxprs(equation))
    if frame.bypassed or any(transfer.gradients != "around" for transfer in transfers):
        return None  # a custom derivative rule is one layer; what other equations run has names of its own
    for atom in equation.invars:
        for parameter in origins.names(frame, atom):
            return parameter.rpartition("/")[0] or parameter
    frame_of_user = user_frame(equation)
    if frame_of_user is None:
        return None
    _, line, function = frame_of_user
    return f"{function.rpartition('.')[2]}:{line}"
