"""Constants before rules with symbolic zeros: the values that an observation must not differentiate.

A derivative rule with `symbolic_zeros=True` is told which of its operands are differentiated at all. It may refuse some
(Equinox's checkpointed `while_loop`, in which diffrax solves, does) or choose another program by them. In the
user's own step a value that depends on no differentiated argument is a constant there. A tap with a sink would make it a
differentiated one, and the rule would see what it never sees without us.

A rule without symbolic zeros is given zeros for its constants, so that nothing depends on what is observed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, is_constant, is_inexact, reachability_from
from gradscope.tracing.jaxpr.frames import Frame, ValueKey
from gradscope.tracing.jaxpr.jaxcompat import is_literal, sees_symbolic_zeros


def constants_before_rules(root: Frame, differentiated: Iterable[int]) -> frozenset[FrameVariable]:
    """Returns the variables that are no function of the differentiated arguments and lead to a rule that is told so.

    Args:
        root: The root frame.
        differentiated: The numbers of the arguments that are differentiated.
    """
    asked = set(_operands_of_rules(root))
    if not asked:
        return frozenset()
    start = (FrameVariable(root, root.jaxpr.invars[number]) for number in differentiated)
    varying = ForwardFlow().closure(start, _passes_tangents)
    leading = reachability_from(root, asked)
    return frozenset(
        found
        for frame in root.walk()
        if not frame.opaque
        for variable in frame.definitions
        # Zeros are what JAX fills in for what leads nowhere; no tangent goes that way.
        if leading.of(frame, variable) in (Reach.GRADIENT, Reach.BARRED)
        and (found := FrameVariable(frame, variable)) not in varying
    )


def _operands_of_rules(root: Frame) -> Iterator[ValueKey]:
    for frame in root.walk():
        if frame.opaque:
            continue
        for equation in filter(sees_symbolic_zeros, frame.jaxpr.eqns):
            for atom in equation.invars:
                if not is_literal(atom) and is_inexact(atom) and atom in frame.definitions:
                    yield ValueKey(frame.key, *frame.definitions[atom])


def _passes_tangents(step: Step) -> bool:
    """Returns whether what a step leads to is differentiated where the value is that it begins at."""
    if step.way == "choose" or not is_inexact(step.to.atom):
        return False
    return step.way != "compute" or not is_constant(step.frame.jaxpr.eqns[step.number])
