"""An isolated layer is one call of one layer, as a function of the values that it reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from gradscope import naming
from gradscope.errors import UsageError
from gradscope.naming import IterationIndex
from gradscope.naming.paths import BEFORE, LOSS
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, iterations, resolve, variable_of
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import Atom, bind, is_dropped, is_literal
from gradscope.tracing.jaxpr.scopes import ScopePath
from gradscope.tracing.layers.layers import LayerCall

#: The number of an iteration in a path.
_NUMBER: Final = re.compile(r"\[\d+\]")

#: Whether the value of an atom of a frame is known in one iteration of the loops around that.
Known: TypeAlias = Callable[[Frame, Atom, IterationIndex], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedLayer:
    """An `IsolatedLayer` is one call of one layer in one iteration of the loops around it, isolated as a function.

    Attributes:
        layer: The layer; with the code before it, this has the equations of both.
        iteration: The iteration.
        inputs: The variables of its frame that it reads and does not make, in order of use.
        outputs: The variables that it makes and returns.
        name: The path of the layer, or that of the code before it.
    """

    layer: LayerCall
    iteration: tuple[int, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Atom, ...]
    name: str

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

    def encloses(self, value_at: ValueAt) -> bool:
        """Returns whether a value is made inside it, in this iteration, and not returned."""
        return self.makes(value_at) and value_at.value not in self.layer.outputs


def isolated_layer(layers: Sequence[LayerCall], root: Frame, name: str, known: Known) -> IsolatedLayer:
    """Returns the call of a layer that a name selects.

    Args:
        layers: All layers.
        root: The frame of the loss.
        name: Its path, `block[3]/attn`, or the key of its activation; `before PATH` for the layer with the code before
            it, from the values that are known; `(loss)` for the code that computes the loss from them.
        known: Whether a value is known.

    Raises:
        UsageError: There is none, or it is inside a `while` loop; the hint names the nearest names.
    """
    calls = {
        str(layer.path.at(iteration)): (layer, iteration)
        for layer in layers
        if layer.outputs and not _is_in_while(layer)  # a scope around a loop may have code of which nothing is used
        for iteration in iterations(layer.frame.loops)
    }
    path = name.removeprefix(f"{naming.ACTIVATION}/")
    own = path if path in calls else path.removeprefix(BEFORE)
    if name == LOSS and LOSS not in calls:
        return _isolated(_code_of_loss(layers, root, known), (), LOSS)
    if own not in calls:
        inside = next((each for each in layers if _is_in_while(each) and _has_name(each, own)), None)
        if inside is not None:
            why = f"{naming.printable(own)} is inside a while loop, of which a dump has the last iteration only"
            raise UsageError(why, hint=f"isolate the code around the loop: '{_around_loop(layers, inside)}'")
        raise UsageError(f"no layer is called {naming.printable(name)}", hint=nearest_hint(path, calls))
    layer, iteration = calls[own]
    if own != path:
        equations = _with_code_before(layer.frame, layer.equations, iteration, known)
        layer = replace(layer, equations=equations)
    return _isolated(layer, iteration, path)


def _is_in_while(layer: LayerCall) -> bool:
    return any(loop.length is None for loop in layer.frame.loops)


def _has_name(layer: LayerCall, path: str) -> bool:
    """Returns whether a path is that of a layer, whatever its iterations."""
    return layer.path.template.replace("[*]", "") == _NUMBER.sub("", path)


def _around_loop(layers: Sequence[LayerCall], inside: LayerCall) -> str:
    """Returns the name of the code that runs the loop which a layer is inside, in the first iteration of others."""
    around = inside.parent
    while around is not None and _is_in_while(around):
        around = around.parent
    if around is not None:
        return str(around.path.at((0,) * len(around.frame.loops)))
    behind = (each for each in layers if each.order > inside.order and not _is_in_while(each))
    found = next(behind, None)
    return LOSS if found is None else f"{BEFORE}{found.path.at((0,) * len(found.frame.loops))}"


def _isolated(layer: LayerCall, iteration: tuple[int, ...], name: str) -> IsolatedLayer:
    made = [v for number in layer.equations for v in layer.frame.jaxpr.eqns[number].outvars if not is_dropped(v)]
    read = [atom for number in layer.equations for atom in layer.frame.jaxpr.eqns[number].invars]
    return IsolatedLayer(
        layer=layer,
        iteration=iteration,
        inputs=tuple(dict.fromkeys(atom for atom in read if not is_literal(atom) and atom not in frozenset(made))),
        outputs=tuple(atom for atom in made if resolve(layer.frame, atom) in layer.outputs),
        name=name,
    )


def _code_of_loss(layers: Sequence[LayerCall], root: Frame, known: Known) -> LayerCall:
    """Returns the code that computes the loss from known values, as a layer.

    Raises:
        UsageError: There is none: the loss is itself known, as what a layer returns, or is a constant.
    """
    value = resolve(root, root.jaxpr.outvars[0])
    frame = next((each for each in root.walk() if value is not None and each.key == value.frame), root)
    if value is None or value.equation == OPERAND or known(frame, variable_of(frame, value), ()):
        makers = (naming.printable(str(layer.path.at(()))) for layer in layers if value in layer.outputs)
        maker = next(makers, "the last layer")
        raise UsageError(f"no code computes the loss behind {maker}, which returns it", hint=f"isolate {maker}")
    equations = _with_code_before(frame, [value.equation], (), known)
    order = frame.orders[equations[0]]
    return LayerCall(frame=frame, path=ScopePath(), order=order, equations=equations, outputs={value: None})


def _with_code_before(frame: Frame, own: Sequence[int], iteration: tuple[int, ...], known: Known) -> list[int]:
    """Returns some equations, and those in their frame that compute what they read from known values."""
    equations = {*own}
    waiting = list(own)
    while waiting:
        for atom in frame.jaxpr.eqns[waiting.pop()].invars:
            number = OPERAND if is_literal(atom) else frame.definitions.get(atom, (OPERAND, 0))[0]
            if number != OPERAND and number not in equations and not known(frame, atom, iteration):
                equations.add(number)
                waiting.append(number)
    return sorted(equations)


def _equation_in(value: ValueKey, depth: int) -> int:
    """Returns the equation of the frame at a depth that makes a value, or inside which the value is made."""
    return value.frame[depth][0] if len(value.frame) > depth else value.equation
