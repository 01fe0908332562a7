"""This is the only module that depends on how JAX's jaxprs differ between versions (0.6 to 0.12).

Vocabulary: a *jaxpr* is a traced function: input variables, equations in execution order, output atoms. An *equation*
applies a *primitive* to *atoms* (variables or literals) and defines output variables. Higher-order primitives carry
*sub-jaxprs* in their parameters.

Sharp edges and their workarounds:

- Constructors of `Var`, `JaxprEqn` and `Jaxpr` change their arguments between versions, so nothing here builds one: a
  rewritten program is always traced anew by an interpreter.
- From JAX 0.11 `ClosedJaxpr` is `Jaxpr` itself; `opened` returns (jaxpr, constants) for either, and 0.12 keeps both.
- `jit`'s primitive was called `pjit` before 0.7; `closed_call` became `eval_jaxpr` in 0.11.
- `scan` stated its numbers of constants and carries directly before 0.12, and by a pair of trees since.
- Primitives may be objects of their own, `call_hi_primitive`, as `custom_root` is from 0.12; they `expand` to a jaxpr.

Only `jax.extend` is used, never `jax._src`; both are outside JAX's compatibility promise, which is why no other module
of gradscope may touch them. The exception is `kept_programs` of `gradscope.cli`, which does without what it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast
from weakref import WeakKeyDictionary

import jax
from jax.extend import core as jex_core
from jax.extend import source_info_util

#: A variable or a literal of a jaxpr.
Atom: TypeAlias = Any

#: How a sub-jaxpr relates to its equation.
FrameKind: TypeAlias = Literal[
    "root", "call", "remat", "scan", "while", "cond", "shard_map", "linear_solve", "custom_rule", "opaque"
]

#: The primitives that run a function with a derivative rule of its own.
CUSTOM_RULES: Final = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
_KINDS: Final[Mapping[str, FrameKind]] = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "eval_jaxpr"), "call"),
    **dict.fromkeys(("remat2", "remat", "checkpoint"), "remat"),
    "scan": "scan",
    "while": "while",
    "cond": "cond",
    "shard_map": "shard_map",
    "custom_linear_solve": "linear_solve",
    **dict.fromkeys(CUSTOM_RULES, "custom_rule"),
}
#: Whether a scope is opened anywhere in a jaxpr.
_opens_scopes: Final[WeakKeyDictionary[Any, bool]] = WeakKeyDictionary()
#: What a primitive that is an object runs, by its operands' types.
_expansions: Final[WeakKeyDictionary[Any, dict[Any, Any]]] = WeakKeyDictionary()
#: Primitives that return each operand as the output at its position.
OPERAND_BY_OPERAND: Final = frozenset({"device_put", "optimization_barrier"})


class Equation(Protocol):
    """An `Equation` is the part of a `JaxprEqn` that every supported version has."""

    primitive: Any
    params: dict[str, Any]
    invars: list[Atom]
    outvars: list[Any]
    source_info: Any
    ctx: Any
    effects: Any


class Jaxpr(Protocol):
    """A `Jaxpr` here is the part of JAX's `Jaxpr` that every supported version has."""

    constvars: list[Any]
    invars: list[Any]
    outvars: list[Atom]
    eqns: list[Equation]
    effects: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SubJaxpr:
    """A `SubJaxpr` is one jaxpr inside an equation.

    Attributes:
        kind: How the equation runs it.
        branch: Its number among the equation's sub-jaxprs that run alternatively; 0 otherwise.
        jaxpr: The open jaxpr.
        constants: Values of its constant variables.
    """

    kind: FrameKind
    branch: int
    jaxpr: Jaxpr
    constants: tuple[Any, ...]


class LoopArity(NamedTuple):
    """A `LoopArity` counts a loop's operands: constants of its condition and its body, carries; then sequences."""

    condition: int
    constants: int
    carries: int


#: The scopes that Equinox (0.13) and diffrax (0.7) open around the loops of a solver.
_LOOP_SCOPES: Final = frozenset(
    {"inner-loop", "outer-loop", "checkpointed-no-vjp", "checkpointed-fwd", "checkpointed-bwd"}
)


def opened(jaxpr: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Returns the open jaxpr and the constants of a closed or open jaxpr of any supported version."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, tuple(getattr(jaxpr, "consts", ()))


def is_literal(atom: Atom) -> bool:
    """Returns whether an atom is a literal and not a variable."""
    return isinstance(atom, jex_core.Literal)


def is_dropped(variable: Any) -> bool:
    """Returns whether an output variable is the placeholder `_` that nothing can read."""
    # `DropVar` lives in different modules from version to version; its name does not change.
    return type(variable).__name__ == "DropVar"


def kind_of(equation: Equation) -> FrameKind | None:
    """Returns how an equation's sub-jaxprs are run: None if it has none, `opaque` if they are never opened."""
    kind = _KINDS.get(equation.primitive.name)
    if kind == "custom_rule" and (equation.effects or not _calls_layers(equation)):
        return "opaque"  # one operation; what has effects is not run a second time to be looked into
    if kind == "shard_map" and "in_specs" not in equation.params:
        return "opaque"  # before 0.7 its operands were described by axis names we would have to guess
    if kind == "remat" and equation.params.get("differentiated"):
        return "opaque"  # the user's own gradient of a checkpointed function: already rewritten by JAX
    return kind or ("opaque" if any(True for _ in _jaxprs_in(equation.params.values())) else None)


def _calls_layers(equation: Equation) -> bool:
    """Returns whether a scope is opened in what an equation runs."""
    return any(_has_scopes(opened(inside)[0]) for inside in _jaxprs_in(equation.params.values()))


def _has_scopes(jaxpr: Jaxpr) -> bool:
    if jaxpr not in _opens_scopes:
        _opens_scopes[jaxpr] = any(scopes(equation) or _calls_layers(equation) for equation in jaxpr.eqns)
    return _opens_scopes[jaxpr]


def closed_over(equation: Equation) -> int:
    """Returns how many leading operands a function with a derivative rule closes over, which JAX cannot differentiate.

    A `scan` before 0.12 has a parameter of the same name, for operands that it can.
    """
    return equation.params.get("num_consts", 0) if equation.primitive.name in CUSTOM_RULES else 0


def sees_symbolic_zeros(equation: Equation) -> bool:
    """Returns whether an equation has a derivative rule that gets to know which operands are not differentiated."""
    return equation.primitive.name in CUSTOM_RULES and bool(equation.params.get("symbolic_zeros"))


def sub_jaxprs(equation: Equation) -> list[SubJaxpr]:
    """Returns the jaxprs inside an equation, opaque ones included; of a `while` only its body."""
    kind = kind_of(equation)
    if kind is None:
        return []
    params = equation.params
    if kind == "cond":
        inside = list(params["branches"])
    elif kind == "while":
        inside = [params["body_jaxpr"]]
    elif kind == "linear_solve":
        inside = [params["jaxprs"].solve]
    elif kind in ("custom_rule", "opaque"):
        inside = list(_jaxprs_in(params.values()))
    else:
        inside = [params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]]
    return [
        SubJaxpr(kind=kind, branch=branch, jaxpr=jaxpr, constants=constants)
        for branch, (jaxpr, constants) in enumerate(map(opened, inside))
    ]


def _jaxprs_in(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _jaxprs_in(value)
        elif hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "in_avals_flat"):
            yield _expanded(value)


def _expanded(primitive: Any) -> Any:
    """Returns the jaxpr of what a primitive that is an object runs, as a function of the operands."""
    known = _expansions.setdefault(primitive, {})  # primitives are equal whatever their operands are
    if (operands := (primitive.in_tree, *primitive.in_avals_flat)) not in known:
        run = lambda *leaves: primitive.expand(*primitive.in_tree.unflatten(leaves))  # noqa: E731
        known[operands] = jax.make_jaxpr(run)(*primitive.in_avals_flat)
    return known[operands]


def loop_arity(equation: Equation) -> LoopArity:
    """Returns how many operands of each purpose a `scan` or `while` equation has."""
    params = equation.params
    if "cond_nconsts" in params:
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        return LoopArity(of_condition, of_body, len(equation.invars) - of_condition - of_body)
    if "num_consts" in params:
        return LoopArity(0, params["num_consts"], params["num_carry"])
    constants, carries, _ = params["ft_in"].unpack()  # since 0.12
    return LoopArity(0, len(list(constants.vals)), len(list(carries.vals)))


def shard_count(equation: Equation) -> int:
    """Returns the number of shards that a `shard_map` splits its operands into."""
    return math.prod(equation.params["mesh"].shape[axis] for axis in manual_axes(equation))


def manual_axes(equation: Equation) -> tuple[str, ...]:
    """Returns the mesh axes over which a `shard_map` splits its operands, in the mesh's order."""
    params = equation.params
    axes = params.get("newly_manual_axes", params.get("manual_axes"))
    return tuple(axis for axis in params["mesh"].axis_names if axes is None or axis in axes)


def trace_state() -> object:
    """Returns what identifies the transformation that is being traced: equal where it is the same (0.6: in core)."""
    found = getattr(jex_core, "get_opaque_trace_state", None) or import_module("jax.core").get_opaque_trace_state
    return found(convention="gradscope")


def run_closed(jaxpr: Any, *operands: Any) -> list[Any]:
    """Returns the outputs of a closed jaxpr."""
    return jex_core.jaxpr_as_fun(jaxpr)(*operands)


def trace(function: Callable[..., Any], *args: Any) -> tuple[Jaxpr, tuple[Any, ...], Any]:
    """Returns the open jaxpr of a function of arguments or shapes, its constants, and the output's shapes and types."""
    closed, out_shape = jax.make_jaxpr(function, return_shape=True)(*args)
    jaxpr, constants = opened(closed)
    without = cast("Any", jaxpr).with_consts([None] * len(constants)) if getattr(jaxpr, "consts", ()) else jaxpr
    return without, constants, out_shape  # a trace is kept, and its jaxpr with it, but no arrays


def bind(equation: Equation, values: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
    """Runs an equation on `values`, with other parameters if given, under the name stack and context of its trace."""
    primitive = equation.primitive
    if primitive.name in CUSTOM_RULES:
        values = list(map(_as_in_plain_program, values))
    bound = primitive.get_bind_params(equation.params if params is None else dict(params))
    functions, named = bound if isinstance(bound, tuple) else ((), bound)  # a pair before 0.10
    with traced_as(equation):
        out = primitive.bind(*functions, *values, **named)
    return list(out) if primitive.multiple_results else [out]


def _as_in_plain_program(value: Any) -> Any:
    """Returns a constant array as a `jax.Array`, which a rule may index by a tracer; jaxprs have NumPy's since 0.9."""
    return value if isinstance(value, jax.Array) or not getattr(value, "shape", ()) else jax.numpy.asarray(value)


class traced_as:  # noqa: N801 - a context manager that reads as a clause
    """Traces its body under an equation's name stack, source line and context, so that a re-trace keeps the names."""

    __slots__ = ("_contexts", "_equation")

    def __init__(self, equation: Equation) -> None:
        self._equation = equation
        self._contexts: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        info = self._equation.source_info
        stack = source_info_util.current_name_stack() + info.name_stack
        self._contexts = (source_info_util.user_context(info.traceback, name_stack=stack), self._equation.ctx.manager)
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *exception: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*exception)


def scopes(equation: Equation) -> tuple[Any, ...]:
    """Returns the `Scope` items of an equation's own name stack, outermost first.

    Each entry into `jax.named_scope` makes a new `Scope`, so two equations share a scope *object* exactly when they
    were traced inside the same entry: a second call is distinct from the first even where nothing is between them.
    Transforms (`vmap`, `jvp`, ...) are dropped, and so are scopes without a name, those that `jnp.einsum` names after
    its equation, and those that name the loops inside a solver, between the user's modules.
    """
    found = [item for item in equation.source_info.name_stack.stack if type(item).__name__ == "Scope"]
    return tuple(
        scope for scope in found if scope.name.strip("/") and "->" not in scope.name and scope.name not in _LOOP_SCOPES
    )
