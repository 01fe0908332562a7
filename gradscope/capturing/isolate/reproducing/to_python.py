"""`PythonSource` writes a traced function as Python that calls `jax.lax` and nothing else.

Functions that are only called (`jit`, `checkpoint`, one with a rule for derivatives or batches) are written in place.
The bodies of loops and branches become inner functions. Equations on which no output depends are left out. Custom rules
are not written: they matter for gradients only, and the gradient is another function whose trace has the rules applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gradscope.capturing.isolate.reproducing.lax_calls import call, scalar
from gradscope.errors import UsageError
from gradscope.tracing.jaxpr.jaxcompat import (
    CUSTOM_RULES,
    Atom,
    Equation,
    Jaxpr,
    is_dropped,
    is_literal,
    kind_of,
    opened,
    sub_jaxprs,
)
from gradscope.tracing.jaxpr.source_lines import source_of
from gradscope.tracing.jaxpr.transfers import loop_operands

#: Opaque to an interpreter that must keep rules of differentiation and batching; a writer of values inlines them.
_IN_PLACE: Final = CUSTOM_RULES | {"checkpoint", "composite", "custom_vmap_call", "remat2", "remat"}


class PythonSource:
    """A `PythonSource` writes traced functions as Python, with names that are unique in everything that it has written.

    Attributes:
        constants: The constants of the written functions, by the names under which they read them.
    """

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}
        self._taken = 0

    def function(
        self, name: str, parameters: Sequence[str], jaxpr: Jaxpr, constants: Sequence[Any], docstring: str
    ) -> list[str]:
        """Returns the lines of one function.

        Args:
            name: Name of the function.
            parameters: Names of its parameters, in the jaxpr's order.
            jaxpr: The jaxpr that it computes.
            constants: Values of the jaxpr's constant variables.
            docstring: Its docstring.

        Returns:
            The lines.

        Raises:
            UsageError: A part of it cannot be written as Python.
        """
        known = dict(zip(jaxpr.invars, parameters, strict=True)) | self._constants(jaxpr, constants)
        body = self._body(jaxpr, known)
        head = [f"def {name}({', '.join(parameters)}):", f'    """{docstring}"""']
        return [*head, *_indented(body)]

    def _constants(self, jaxpr: Jaxpr, values: Sequence[Any]) -> dict[Atom, str]:
        names: dict[Atom, str] = {}
        for variable, value in zip(jaxpr.constvars, values, strict=True):
            names[variable] = f'ARRAYS["constant/{len(self.constants)}"]'
            self.constants[f"constant/{len(self.constants)}"] = value
        return names

    def _body(self, jaxpr: Jaxpr, known: dict[Atom, str]) -> list[str]:
        lines = self._equations(jaxpr, known)
        return [*lines, f"return {_tuple([_read(atom, known) for atom in jaxpr.outvars])}"]

    def _equations(self, jaxpr: Jaxpr, known: dict[Atom, str]) -> list[str]:
        """Returns the lines of a jaxpr's equations, and adds the names of their results to `known`."""
        lines: list[str] = []
        source = None
        for equation in _needed(jaxpr):
            written = self._equation(equation, known)
            if written and source_of(equation) not in (None, source):
                source = source_of(equation)
                lines.append(f"# {source}")
            lines += written
        return lines

    def _equation(self, equation: Equation, known: dict[Atom, str]) -> list[str]:
        name = equation.primitive.name
        operands = [_read(atom, known) for atom in equation.invars]
        if kind_of(equation) in ("call", "remat") or name in _IN_PLACE:
            return self._in_place(equation, operands, known)
        before, value = self._value(equation, operands)
        names = [self._fresh(name) for _ in equation.outvars]
        known.update((v, each) for v, each in zip(equation.outvars, names, strict=True) if not is_dropped(v))
        return [*before, f"{_tuple(names) if equation.primitive.multiple_results else names[0]} = {value}"]

    def _in_place(self, equation: Equation, operands: Sequence[str], known: dict[Atom, str]) -> list[str]:
        """Returns the lines of a function that is only called."""
        sub = sub_jaxprs(equation)[0]
        inside = dict(zip(sub.jaxpr.invars, operands, strict=True)) | self._constants(sub.jaxpr, sub.constants)
        lines = self._equations(sub.jaxpr, inside)
        known.update(zip(equation.outvars, (_read(atom, inside) for atom in sub.jaxpr.outvars), strict=True))
        return lines

    def _value(self, equation: Equation, operands: Sequence[str]) -> tuple[list[str], str]:
        """Returns an equation's result as an expression, and the lines that have to precede it."""
        kind = kind_of(equation)
        if kind in (None, "opaque"):
            return [], call(equation, operands)
        if kind == "scan":
            return self._scan(equation, operands)
        if kind == "while":
            return self._while(equation, operands)
        if kind == "cond" and equation.params.get("branches_platforms") is None:
            return self._cond(equation, operands)
        raise UsageError(
            f"{equation.primitive.name} cannot be written as a script of jax.lax",
            hint="isolate a layer that does not contain it",
        )

    def _cond(self, equation: Equation, operands: Sequence[str]) -> tuple[list[str], str]:
        index, *first = operands
        branches = [self._inner("branch", sub.jaxpr, sub.constants) for sub in sub_jaxprs(equation)]
        lines = [line for written, _ in branches for line in written]
        return lines, f"lax.switch({', '.join((index, _tuple([name for _, name in branches]), *first))})"

    def _scan(self, equation: Equation, operands: Sequence[str]) -> tuple[list[str], str]:
        sub, (_, constants, carries, sequences) = sub_jaxprs(equation)[0], loop_operands(equation, operands)
        names = [self._fresh("x") for _ in (*carries, *sequences)]
        known = dict(zip(sub.jaxpr.invars, (*constants, *names), strict=True))
        known |= self._constants(sub.jaxpr, sub.constants)
        body = self._equations(sub.jaxpr, known)
        outputs = [_read(atom, known) for atom in sub.jaxpr.outvars]
        step, scanned = self._fresh("step"), self._fresh("scanned")
        how = f"length={equation.params['length']}, reverse={equation.params['reverse']}"
        lines = [
            f"def {step}(carries, slices):",
            f"    {_tuple(names)} = (*carries, *slices)",
            *_indented(body),
            f"    return {_tuple(outputs[: len(carries)])}, {_tuple(outputs[len(carries) :])}",
            f"{scanned} = lax.scan({step}, {_tuple(carries)}, {_tuple(sequences)}, {how})",
        ]
        return lines, f"(*{scanned}[0], *{scanned}[1])"

    def _while(self, equation: Equation, operands: Sequence[str]) -> tuple[list[str], str]:
        params, state = equation.params, self._fresh("state")
        of_condition, of_body, carries, _ = loop_operands(equation, operands)
        tested, test = self._inner("condition", *opened(params["cond_jaxpr"]), of_condition)
        run, body = self._inner("body", *opened(params["body_jaxpr"]), of_body)
        if not opened(params["cond_jaxpr"])[0].outvars[0].aval.shape:
            functions = f"lambda {state}: {test}(*{state})[0], lambda {state}: {body}(*{state})"
            return [*tested, *run], f"lax.while_loop({functions}, {_tuple(carries)})"
        # A batch of loops goes on while one of them does, and leaves the others as they are.
        chosen = self._fresh("chosen")
        lines = [
            f"def {chosen}(going, new, old):",
            "    return jnp.where(jnp.reshape(going, going.shape + (1,) * (new.ndim - going.ndim)), new, old)",
        ]
        going = f"{test}(*{state})[0]"
        step = f"tuple({chosen}({going}, new, old) for new, old in zip({body}(*{state}), {state}))"
        functions = f"lambda {state}: jnp.any({going}), lambda {state}: {step}"
        return [*tested, *run, *lines], f"lax.while_loop({functions}, {_tuple(carries)})"

    def _inner(
        self, role: str, jaxpr: Jaxpr, constants: Sequence[Any], first: Sequence[str] = ()
    ) -> tuple[list[str], str]:
        """Returns an inner function and its name; `first` are expressions for its first variables."""
        name, parameters = self._fresh(role), [self._fresh("x") for _ in jaxpr.invars[len(first) :]]
        known = dict(zip(jaxpr.invars, (*first, *parameters), strict=True)) | self._constants(jaxpr, constants)
        return [f"def {name}({', '.join(parameters)}):", *_indented(self._body(jaxpr, known))], name

    def _fresh(self, name: str) -> str:
        self._taken += 1
        return f"{re.sub(r'[^a-z0-9_]', '_', name)}_{self._taken}"


def _needed(jaxpr: Jaxpr) -> list[Equation]:
    """Returns the equations that the outputs depend on, in order."""
    needed = {atom for atom in jaxpr.outvars if not is_literal(atom)}
    found: list[Equation] = []
    for equation in reversed(jaxpr.eqns):
        if not needed.isdisjoint(equation.outvars):
            found.append(equation)
            needed.update(atom for atom in equation.invars if not is_literal(atom))
    return found[::-1]


def _read(atom: Atom, known: Mapping[Atom, str]) -> str:
    return scalar(atom.val, atom.aval.dtype) if is_literal(atom) else known[atom]


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
