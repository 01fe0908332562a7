"""Constants before derivative rules are values that an observation must not differentiate.

In the user's own step a value that depends on no differentiated argument is a constant. A tap with a sink would make it
a differentiated one, and a custom derivative rule would see what it never sees without us:

- A rule with `symbolic_zeros=True` is informed which of its operands are differentiated at all. It may refuse some, as
  Equinox's checkpointed `while_loop` does, in which diffrax solves, or choose another program by them. So are JAX's own
  primitives, of which some refuse an operand, as `betainc` does the shape of the distribution.
- A rule without is only run where some operand is differentiated, and given zeros for the others. It may refuse to be
  run at all, as Equinox's `nondifferentiable` does.

A constant that leads to no such rule is observed as any other value: nothing changes by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, is_constant, is_inexact, reachability_from
from gradscope.tracing.jaxpr.derivatives.custom_rules import may_refuse
from gradscope.tracing.jaxpr.derivatives.refused_derivatives import refused_operands
from gradscope.tracing.jaxpr.frames import Frame, ValueKey
from gradscope.tracing.jaxpr.jaxcompat import Equation, is_literal, sees_symbolic_zeros


def constants_before_rules(root: Frame, differentiated: Iterable[int]) -> frozenset[FrameVariable]:
    """Returns the variables that depend on no differentiated argument and lead to a rule that would see a difference.

    Args:
        root: The root frame.
        differentiated: The numbers of the arguments that are differentiated.
    """
    calls = [(frame, equation) for frame in root.walk() if not frame.bypassed for equation in _refusing(frame)]
    if not calls:
        return frozenset()
    start = (FrameVariable(root, root.jaxpr.invars[number]) for number in differentiated)
    varying = ForwardFlow().closure(start, passes_tangents)
    noticed = {value for call in calls for value in _noticed(*call, varying)}
    leading = reachability_from(root, noticed)
    return frozenset(
        found
        for frame in root.walk()
        # No observation is differentiated in a solver, or in a loop that reverse mode cannot pass.
        if not (frame.bypassed or frame.forward_only)
        for variable in frame.definitions
        # Zeros are what JAX fills in for what leads nowhere; no tangent goes that way.
        if leading.of(frame, variable) in (Reach.GRADIENT, Reach.BARRED)
        and (found := FrameVariable(frame, variable)) not in varying
    )


def _refusing(frame: Frame) -> Iterator[Equation]:
    return filter(may_refuse, frame.jaxpr.eqns)


def _noticed(frame: Frame, equation: Equation, varying: Collection[FrameVariable]) -> Iterator[ValueKey]:
    """Yields the operands of a call whose being constant its rule notices."""
    atoms = [atom for atom in equation.invars if not is_literal(atom) and is_inexact(atom)]
    refused = [equation.invars[at] for at in refused_operands(equation)]
    # An operand that is differentiated stays so, whatever else of what it is computed from is.
    constant = [atom for atom in refused or atoms if not is_literal(atom) and FrameVariable(frame, atom) not in varying]
    if refused or sees_symbolic_zeros(equation) or len(constant) == len(atoms):
        yield from (ValueKey(frame.key, *frame.definitions[atom]) for atom in constant if atom in frame.definitions)


def passes_tangents(step: Step) -> bool:
    """Returns whether what a step leads to is differentiated where the value is that it begins at."""
    if step.way == "choose" or not is_inexact(step.to.atom):
        return False
    return step.way != "compute" or not is_constant(step.frame.jaxpr.eqns[step.number])
