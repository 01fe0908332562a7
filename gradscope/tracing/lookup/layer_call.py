"""An isolated layer is one call of one layer, as a function of the values that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.naming.patterns import nearest_hint
from gradscope.tracing.jaxpr.frames import ValueKey, iterations, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import Atom, bind, is_dropped, is_literal
from gradscope.tracing.layers.layers import LayerCall


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedLayer:
    """An `IsolatedLayer` is one call of one layer in one iteration of the loops around it, isolated as a function.

    Attributes:
        layer: The layer.
        iteration: The iteration.
        inputs: The variables of its frame that it reads and does not make, in order of use.
        outputs: The variables that it makes and returns.
    """

    layer: LayerCall
    iteration: tuple[int, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Atom, ...]

    @property
    def name(self) -> str:
        """The path of the layer."""
        return str(self.layer.path.at(self.iteration))

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Returns the layer's outputs for the values of its inputs."""
        known = dict(zip(self.inputs, values, strict=True))
        for number in self.layer.equations:
            equation = self.layer.frame.jaxpr.eqns[number]
            read = [atom.val if is_literal(atom) else known[atom] for atom in equation.invars]
            known.update(zip(equation.outvars, bind(equation, read), strict=True))
        return [known[atom] for atom in self.outputs]

    def reads_its_outputs(self) -> bool:
        """Returns whether it reads a value that it returns, whose gradient then includes its own contribution."""
        equations = self.layer.frame.jaxpr.eqns
        return any(atom is read for n in self.layer.equations for read in equations[n].invars for atom in self.outputs)

    def makes(self, value_at: ValueAt) -> bool:
        """Returns whether a value is made inside it, in this iteration."""
        frame, depth = self.layer.frame, len(self.layer.frame.key)
        value = value_at.value
        if value.frame[:depth] != frame.key or value_at.iteration[: len(self.iteration)] != self.iteration:
            return False
        return _equation_in(value, depth) in self.layer.equations


def isolated_layer(layers: Sequence[LayerCall], name: str) -> IsolatedLayer:
    """Returns the call of a layer that a name selects.

    Args:
        layers: All layers.
        name: Its path, `block[3]/attn`, or the key of its activation.

    Raises:
        UsageError: There is none; the hint names the nearest names.
    """
    known = {
        str(layer.path.at(iteration)): (layer, iteration)
        for layer in layers
        for iteration in iterations(layer.frame.loops)
    }
    path = name.removeprefix(f"{naming.ACTIVATION}/")
    if path not in known:
        raise UsageError(f"no layer is called {naming.printable(name)}", hint=nearest_hint(path, known))
    layer, iteration = known[path]
    made = [v for number in layer.equations for v in layer.frame.jaxpr.eqns[number].outvars if not is_dropped(v)]
    read = [atom for number in layer.equations for atom in layer.frame.jaxpr.eqns[number].invars]
    return IsolatedLayer(
        layer=layer,
        iteration=iteration,
        inputs=tuple(dict.fromkeys(atom for atom in read if not is_literal(atom) and atom not in frozenset(made))),
        outputs=tuple(atom for atom in made if resolve(layer.frame, atom) in layer.outputs),
    )


def _equation_in(value: ValueKey, depth: int) -> int:
    """Returns the equation of the frame at a depth that makes a value, or inside which the value is made."""
    return value.frame[depth][0] if len(value.frame) > depth else value.equation
