"""Stopped data are the results of parts of a model that count as data: a `stop_gradient` follows them on purpose.

A target network, an exponential moving average and a teacher lie among the parameters, and no gradient reaches them:
what is made of them enters the loss as a label does. A branch that was cut off by mistake looks the same at the
`stop_gradient`. These facts distinguish the two; what is made of a value counts as data where all of them hold:

- Each path to the loss passes a `stop_gradient`.
- A trained part has the structure of this one, or more, as that has of which it is an average. Or nothing trained goes
  into what is stopped, and weights that are applied to something else as well read it, as a discriminator's do. Or
  nothing trained goes into it, and it is only added to what such a part makes, as a centre of a teacher's outputs is.
- No other weights read it behind there: no product with trained parameters.
- The gradient of what is trained depends on it: it is compared with, or multiplies, a trained value, and is not a term
  of the loss of its own.

A layer in the middle of a trained network is read by weights behind it. A head that is cut off is a term of its own. A
teacher of another structure cannot be distinguished from a policy, a router or a branch that was cut off: it
does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from gradscope.primitive_groups import ADDITIONS, COPIES, MATRIX_PRODUCTS, PRODUCTS, SLICES
from gradscope.tracing.dataflow.constants_before_rules import passes_tangents
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, is_literal

#: Linear in all operands together: a term of a sum does not change the derivative of the others.
_SUMS: Final = COPIES | SLICES | ADDITIONS | {
    "neg", "reduce_sum", "rev", "concatenate", "pad", "cumsum", "split", "psum",
}  # fmt: skip

_Equation: TypeAlias = tuple[Frame, int]
#: The shapes of parameters, by their names inside a part of the model.
_Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


class StoppedData:
    """`StoppedData` finds the values of a trace that count as data behind a `stop_gradient`.

    Args:
        root: The root frame.
        liveness: What the loss depends on.
        trained: The positions among the root's variables of the parameters that a gradient reaches, with their names.
        stopped: Those of the parameters that none reaches.
        batch: The positions of the batch.
    """

    def __init__(
        self,
        root: Frame,
        liveness: Liveness,
        trained: Mapping[int, str],
        stopped: Mapping[int, str],
        batch: Collection[int],
    ) -> None:
        self._root = root
        self._liveness = liveness
        self._trained, self._stopped, self._batch = trained, stopped, batch
        self._frames = {frame.key: frame for frame in root.walk()}
        self._flow = ForwardFlow()
        self._known: dict[frozenset[FrameVariable], Collection[ValueKey] | None] = {}

    def has(self, start: FrameVariable) -> bool:
        """Returns whether what is made of a value counts as data, wherever the loss depends on it."""
        before = self._flow.closure([start], lambda step: not _stops(step))
        loss = FrameVariable(self._root, self._root.jaxpr.outvars[0])
        if not self._trained or is_literal(loss.atom) or loss in before:
            return False
        stops = [step for variable in before for step in self._flow.steps(variable) if _stops(step)]
        behind = frozenset(step.to for step in stops)
        if behind not in self._known:
            self._known[behind] = self._weights_behind(behind)
        weights = self._known[behind]
        if weights is None:
            return False
        enters = any(self._is_trained(step.frame, step.frame.jaxpr.eqns[step.number].invars[0]) for step in stops)
        if self._has_trained_twin(start, of_layers=enters):
            return True
        return not enters and (bool(weights) or self._shifts_target(start))

    def _weights_behind(self, behind: Collection[FrameVariable]) -> Collection[ValueKey] | None:
        """Returns the weights that read values behind a `stop_gradient`; None where these count as data in no case."""
        made = self._flow.closure(behind)
        readers = self._readers(made)
        if not any(self._depends(frame, number, made) for frame, number in readers):
            return None
        read = {key for each in readers if each in self._products for key in self._products[each]}
        elsewhere = {key for each, keys in self._products.items() if each not in readers for key in keys}
        return read if read <= elsewhere else None

    def _readers(self, made: Collection[FrameVariable]) -> dict[_Equation, None]:
        """Returns the equations on the way to the loss that read some values."""
        steps = (step for variable in made for step in self._flow.steps(variable) if step.way in ("compute", "choose"))
        return {(step.frame, step.number): None for step in steps if step.number in self._liveness.live(step.frame)}

    def _depends(self, frame: Frame, number: int, made: Collection[FrameVariable]) -> bool:
        """Returns whether the derivative of an equation with respect to what is trained depends on some values."""
        equation = frame.jaxpr.eqns[number]
        atoms = [atom for atom in equation.invars if not is_literal(atom)]
        own = {atom for atom in atoms if FrameVariable(frame, atom) in made}
        trained = {atom for atom in atoms if self._is_trained(frame, atom)}
        if not own or not trained or equation.primitive.name in _SUMS:
            return False
        return equation.primitive.name not in PRODUCTS or len(own | trained) > 1 or len(atoms) > len(set(atoms))

    @cached_property
    def _products(self) -> Mapping[_Equation, Sequence[ValueKey]]:
        """The products with weights, and which weights."""
        found: dict[_Equation, Sequence[ValueKey]] = {}
        for frame in self._frames.values():
            for number, equation in enumerate(frame.jaxpr.eqns):
                if equation.primitive.name in MATRIX_PRODUCTS and number in self._liveness.live(frame):
                    keys = [key for atom in equation.invars if (key := self._weight(frame, atom)) is not None]
                    if keys:
                        found[frame, number] = keys
        return found

    def _weight(self, frame: Frame, atom: Atom) -> ValueKey | None:
        """Returns the value that weights are made from by a change of shape or type; None for what is none."""
        if is_literal(atom) or not self._is_trained(frame, atom) or FrameVariable(frame, atom) in self._of_batch:
            return None
        key = resolve(frame, atom)
        while key is not None and key.equation != OPERAND:
            around = self._frames[key.frame]
            equation = around.jaxpr.eqns[key.equation]
            if equation.primitive.name not in COPIES:
                break
            key = resolve(around, equation.invars[0])
        return key

    def _is_trained(self, frame: Frame, atom: Atom) -> bool:
        return not is_literal(atom) and FrameVariable(frame, atom) in self._of_trained

    @cached_property
    def _of_trained(self) -> Collection[FrameVariable]:
        """The values through which a gradient reaches trained parameters."""
        return self._flow.closure(self._variables(self._trained), passes_tangents)

    @cached_property
    def _of_batch(self) -> Collection[FrameVariable]:
        constants = (FrameVariable(self._root, variable) for variable in self._root.jaxpr.constvars)
        return self._flow.closure(self._variables(self._batch) if self._batch else constants)

    def _variables(self, positions: Collection[int]) -> Iterator[FrameVariable]:
        return (FrameVariable(self._root, self._root.jaxpr.invars[at]) for at in positions)

    def _has_trained_twin(self, start: FrameVariable, *, of_layers: bool) -> bool:
        """Returns whether a parameter is in a part without a gradient that is built as a trained part, or a part of it.

        Args:
            start: The parameter.
            of_layers: Whether the part has to have several layers: single kernels are alike by chance.
        """
        position = next((at for at, each in enumerate(self._root.jaxpr.invars) if each is start.atom), None)
        name = self._stopped.get(-1 if position is None else position)
        shapes = None if name is None else self._twins.get(_part(name, self._prefixes_of_trained))
        return shapes is not None and (not of_layers or any("/" in each for each in shapes))

    def _shifts_target(self, start: FrameVariable) -> bool:
        """Returns whether a parameter is only added to what a part with a trained twin makes, as a centre is."""
        moved = self._flow.closure([start], lambda step: step.way != "compute" or _moves(step))
        uses = [step for each in moved for step in self._flow.steps(each) if step.way == "compute" and not _moves(step)]
        return bool(uses) and all(self._is_sum_with_target(step, moved) for step in uses)

    def _is_sum_with_target(self, step: Step, moved: Collection[FrameVariable]) -> bool:
        equation = step.frame.jaxpr.eqns[step.number]
        read = {FrameVariable(step.frame, atom) for atom in equation.invars if not is_literal(atom)}
        return equation.primitive.name in ADDITIONS and any(each in self._of_targets for each in read.difference(moved))

    @cached_property
    def _of_targets(self) -> Collection[FrameVariable]:
        """The values that are made of parts with a trained twin."""
        names = self._stopped.items()
        return self._flow.closure(
            self._variables([at for at, name in names if _part(name, self._prefixes_of_trained) in self._twins])
        )

    @cached_property
    def _prefixes_of_trained(self) -> Collection[str]:
        return {each for name in self._trained.values() for each in _prefixes(name)}

    @cached_property
    def _twins(self) -> Mapping[str, _Shapes]:
        """The outermost parts that get no gradient and are built as one that is trained, or as a part of one."""
        stopped = self._parts(self._stopped, self._prefixes_of_trained)
        models = self._parts(self._trained, {each for name in self._stopped.values() for each in _prefixes(name)})
        return {
            part: shapes for part, shapes in stopped.items()
            if any(shapes.items() <= model.items() for model in models.values())
        }  # fmt: skip

    def _parts(self, names: Mapping[int, str], others: Collection[str]) -> Mapping[str, _Shapes]:
        """Returns the shapes of parameters, by the outermost parts around them that others are not in."""
        parts: dict[str, dict[str, tuple[int, ...]]] = {}
        for position, name in names.items():
            part = _part(name, others)
            rest = name.removeprefix(part).removeprefix("/")
            parts.setdefault(part, {})[rest] = tuple(self._root.jaxpr.invars[position].aval.shape)
        return parts


def _part(name: str, others: Collection[str]) -> str:
    """Returns the shortest path around a parameter that is around none of some others, or else its name."""
    return next((each for each in _prefixes(name) if each not in others), name)


def _prefixes(name: str) -> Iterator[str]:
    """Yields the paths around a parameter, the outermost first, and its name."""
    parts = name.split("/")
    return ("/".join(parts[:length]) for length in range(1, len(parts) + 1))


def _moves(step: Step) -> bool:
    """Returns whether a step leads to the same numbers in another shape or type, or to some of them."""
    return step.frame.jaxpr.eqns[step.number].primitive.name in COPIES | SLICES


def _stops(step: Step) -> bool:
    return step.frame.jaxpr.eqns[step.number].primitive.name == "stop_gradient"
