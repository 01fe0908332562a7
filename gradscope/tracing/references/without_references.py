"""`traced_without_references` traces a program that reads and writes references as one of values alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax

from gradscope.errors import ModelError
from gradscope.tracing.jaxpr.jaxcompat import (
    Equation,
    FrameKind,
    Jaxpr,
    SubJaxpr,
    bind,
    is_literal,
    kind_of,
    opened,
    sub_jaxprs,
    trace,
    traced_as,
)
from gradscope.tracing.jaxpr.transfers import loop_operands
from gradscope.tracing.references.accesses import ACCESSES, accessed
from gradscope.tracing.references.reference_cells import Body, Cell, Threaded, unknown_use

#: Primitives that make a reference of a value; the first name is that before JAX 0.8.
_MAKES: Final = frozenset({"mutable_array", "new_ref"})
#: Primitives that return the last value of a reference.
_ENDS: Final = frozenset({"freeze", "free_ref"})


def traced_without_references(function: Callable[..., Any], *args: Any) -> tuple[Jaxpr, tuple[Any, ...], Any]:
    """Traces a function on arguments or their shapes, as a program without references.

    Returns:
        The open jaxpr, its constants, and the output's pytree of `jax.ShapeDtypeStruct`.

    Raises:
        ModelError: A reference was made outside the function, or is used where its values cannot be followed.
    """
    jaxpr, constants, out = trace(function, *args)
    if any(map(_is_reference, (*jaxpr.invars, *jaxpr.constvars))):
        raise ModelError(
            "the loss reads or writes a reference (jax.new_ref) that is made outside it",
            hint="pass the value, and make the reference inside: ref = jax.new_ref(value)",
        )
    if not (jaxpr.effects and _has_references(jaxpr)):  # most programs have no effects
        return jaxpr, constants, out
    tree = jax.tree_util.tree_structure(out)

    def without(*args: Any) -> Any:
        return jax.tree_util.tree_unflatten(tree, _evaluated(jaxpr, constants, jax.tree_util.tree_leaves(args)))

    return trace(without, *args)


def _is_reference(atom: Any) -> bool:
    # JAX has moved the class from module to module; its name did not change.
    return type(atom.aval).__name__ == "AbstractRef"


def _has_references(jaxpr: Jaxpr) -> bool:
    return any(map(_touches_references, jaxpr.eqns))


def _touches_references(equation: Equation) -> bool:
    """Returns whether an equation uses references, itself or inside; those of an operation that is not opened stay."""
    if any(map(_is_reference, (*equation.invars, *equation.outvars))):
        return True
    return kind_of(equation) in _RULES and any(_has_references(sub.jaxpr) for sub in sub_jaxprs(equation))


def _evaluated(jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Returns the outputs of a jaxpr, given values, and cells for references."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else known[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        made = _run(equation, values) if _touches_references(equation) else bind(equation, values)
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run(equation: Equation, values: Sequence[Any]) -> Sequence[Any]:
    """Returns the outputs of an equation that uses references."""
    name = equation.primitive.name
    with traced_as(equation):
        if name in _MAKES:
            return [Cell(values[0])]
        if name in _ENDS:
            return [cell.value for cell in values]
        if name in ACCESSES:
            return accessed(equation, *values)
        return _RULES.get(kind_of(equation) or "opaque", _refused)(equation, values)


def _call(equation: Equation, values: Sequence[Any]) -> Sequence[Any]:
    return _body(sub_jaxprs(equation)[0])(values)


def _remat(equation: Equation, values: Sequence[Any]) -> Sequence[Any]:
    threaded, params = Threaded(values), equation.params
    places = [at for at, each in enumerate(values) if not isinstance(each, Cell)]

    def body(held: Sequence[Any], plain: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        inside = list(values)
        for at, value in zip(places, plain, strict=True):
            inside[at] = value
        return threaded.run(_body(sub_jaxprs(equation)[0]), held, inside)

    checkpointed = jax.checkpoint(body, prevent_cse=params["prevent_cse"], policy=params["policy"])
    outputs, held = checkpointed(threaded.held, [values[at] for at in places])
    threaded.take(held)
    return outputs


def _scan(equation: Equation, values: Sequence[Any]) -> Sequence[Any]:
    operands, params = loop_operands(equation, values), equation.params
    scanned = [each for each in operands.sequences if isinstance(each, Cell)]
    threaded, carried = Threaded(operands.constants), len(operands.carries)
    body = _body(sub_jaxprs(equation)[0])

    def step(state: tuple[Sequence[Any], Sequence[Any]], slices: Sequence[Any]) -> Any:
        carries, held = state
        own = [Cell(one) if isinstance(each, Cell) else one
               for each, one in zip(operands.sequences, slices, strict=True)]  # fmt: skip
        made, held = threaded.run(body, held, [*operands.constants, *carries, *own])
        return (made[:carried], held), (made[carried:], [each.value for each in own if isinstance(each, Cell)])

    (carries, held), (stacked, written) = jax.lax.scan(
        step,
        (list(operands.carries), threaded.held),
        [each.value if isinstance(each, Cell) else each for each in operands.sequences],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    threaded.take(held)
    for cell, value in zip(scanned, written, strict=True):
        cell.value = value
    return [*carries, *stacked]


def _while(equation: Equation, values: Sequence[Any]) -> Sequence[Any]:
    operands = loop_operands(equation, values)
    threaded = Threaded([*operands.condition, *operands.constants])
    condition = partial(_evaluated, *opened(equation.params["cond_jaxpr"]))
    body = _body(sub_jaxprs(equation)[0])

    def goes_on(state: tuple[Sequence[Any], Sequence[Any]]) -> Any:
        carries, held = state
        return threaded.run(condition, held, [*operands.condition, *carries])[0][0]

    def step(state: tuple[Sequence[Any], Sequence[Any]]) -> tuple[list[Any], list[Any]]:
        carries, held = state
        return threaded.run(body, held, [*operands.constants, *carries])

    carries, held = jax.lax.while_loop(goes_on, step, (list(operands.carries), threaded.held))
    threaded.take(held)
    return carries


def _cond(equation: Equation, values: Sequence[Any]) -> Sequence[Any]:
    chosen, *operands = values
    threaded = Threaded(operands)
    branches = [partial(threaded.run, _body(sub)) for sub in sub_jaxprs(equation)]
    outputs, held = jax.lax.switch(chosen, branches, threaded.held)
    threaded.take(held)
    return outputs


def _refused(equation: Equation, _: Sequence[Any]) -> Sequence[Any]:
    raise unknown_use(equation)


def _body(sub: SubJaxpr) -> Body:
    return partial(_evaluated, sub.jaxpr, sub.constants)


_RULES: Final[dict[FrameKind, Callable[[Equation, Sequence[Any]], Sequence[Any]]]] = {
    "call": _call,
    "remat": _remat,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _refused,
}
