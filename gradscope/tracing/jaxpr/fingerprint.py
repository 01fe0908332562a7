"""The fingerprint of a trace is equal for equal programs, in every process and on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from gradscope.tracing.jaxpr.frames import Frame
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal, scopes


def fingerprint(root: Frame) -> str:
    """Returns the SHA-256 of a trace's dataflow, operations and scopes.

    Parameters of primitives count only by the shapes that they lead to, because some are functions, whose text differs
    between processes.
    """
    digest = hashlib.sha256()
    for frame in root.walk():
        digest.update("\n".join(_lines(frame)).encode())
    return digest.hexdigest()


def _lines(frame: Frame) -> Iterator[str]:
    numbers: dict[Atom, int] = {}

    def written(atoms: Iterable[Atom]) -> list[str]:
        return [
            f"{atom.val if is_literal(atom) else numbers.setdefault(atom, len(numbers))}:{atom.aval}" for atom in atoms
        ]

    yield f"{frame.key} {frame.kind} {frame.path} {written(frame.jaxpr.invars)}"
    for equation in frame.jaxpr.eqns:
        under = [scope.name for scope in scopes(equation)]
        operands = written(equation.invars)
        yield f"{under} {written(equation.outvars)} = {equation.primitive.name} {operands}"
    yield f"{written(frame.jaxpr.outvars)}"
