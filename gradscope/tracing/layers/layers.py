"""Layers are found in a traced function without help from any framework.

A *layer* is a maximal run of equations under one entry into one scope. Its outputs are the values it makes that are
used outside it, its inputs those it uses that are made outside it. A layer may be inside another (a *composite* and
its parts). A value that both return has two names.

Values that leave a layer only for outputs other than the loss, such as updated batch statistics, do not count as its
outputs unless it has no others. They are recorded as auxiliary outputs of the loss. A layer of which nothing is used
outside has the values that nothing reads for outputs, so that there is an account of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradscope.tracing.dataflow.liveness import Liveness
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, iterations, made_at, resolve, source_in
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation, is_dropped, is_literal
from gradscope.tracing.jaxpr.scopes import ScopePath
from gradscope.tracing.layers.fallback_scopes import OperationScope, Scoping, scoping_of, with_operations
from gradscope.tracing.layers.parameter_uses import parameter_uses
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.layers.root_names import roots_left_out, scopes_of_root


@dataclass(slots=True, kw_only=True, eq=False)
class LayerCall:
    """A `LayerCall` is one call of one layer, with all its iterations if it is inside loops.

    An operation is a `LayerCall` of a single equation.

    Attributes:
        frame: The frame it is in.
        path: Its scopes, occurrence included.
        order: Program order of its first equation.
        operation: Whether it is an operation.
        parent: The layer around it in the same frame or a frame further out; None at the top.
        equations: Numbers of its equations in the frame.
        params: Names of the parameters it uses, in order of use, with the number of the first equation that does.
        reads: Names of these, and of those that another layer converts for it.
        elementwise: Of those that a signal is multiplied by, added to or compared with, whether nothing mixes a signal
            by them, as a product of matrices does.
        inputs: Values it uses that are made outside it, parameters excepted, in order of use.
        outputs: Values it makes that are used outside it, in order of making; where there are none, those that nothing
            reads.
    """

    frame: Frame
    path: ScopePath
    order: int
    operation: bool = False
    parent: LayerCall | None = None
    equations: list[int] = field(default_factory=list[int])
    params: dict[str, int] = field(default_factory=dict[str, int])
    reads: set[str] = field(default_factory=set[str])
    elementwise: dict[str, bool] = field(default_factory=dict[str, bool])
    inputs: dict[ValueKey, None] = field(default_factory=dict[ValueKey, None])
    outputs: dict[ValueKey, None] = field(default_factory=dict[ValueKey, None])

    @property
    def innermost_layer(self) -> LayerCall | None:
        """The layer itself; for an operation, the layer that it is in; None outside all layers."""
        return self.parent if self.operation else self

    @property
    def depth(self) -> int:
        """The number of layers around it."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def source(self) -> str | None:
        """The `file:line` of the first equation that has one."""
        sources = (source_in(self.frame, self.frame.jaxpr.eqns[number]) for number in self.equations)
        return next((source for source in sources if source is not None), None)

    @property
    def primitive(self) -> str | None:
        """The primitive, if there is only one equation."""
        return self.frame.jaxpr.eqns[self.equations[0]].primitive.name if len(self.equations) == 1 else None


def find_layers(
    root: Frame, liveness: Liveness, origins: ParameterOrigins, *, operations: bool = False
) -> list[LayerCall]:
    """Returns every layer of a trace, composites before their parts, otherwise in execution order.

    Args:
        root: The root frame.
        liveness: What the loss depends on.
        origins: Which atoms are parameters.
        operations: Whether operations count as layers.
    """
    layers: list[LayerCall] = []
    scoping = scoping_of(root, origins)
    finding = _Finding(with_operations(scoping) if operations else scoping, liveness, origins)
    _enter(root, None, finding, layers)
    layers.sort(key=lambda layer: (layer.order, len(layer.path.components)))
    _leave_out_roots(layers)
    _number_calls(layers)
    return layers


def _leave_out_roots(layers: Sequence[LayerCall]) -> None:
    """Takes the names of roots from the paths of the layers inside them, and of the operations in these."""
    calls = [layer for layer in layers if not layer.operation]
    left_out = roots_left_out((call.path, call.reads, call.frame.jaxpr.eqns[call.equations[0]]) for call in calls)
    for layer in layers:
        scopes, depth = layer.path.components, scopes_of_root(layer.path)
        if scopes[0].name in left_out and len(scopes) - layer.operation > depth:
            layer.path = layer.path.without_outermost(depth)


def _number_calls(layers: Sequence[LayerCall]) -> None:
    """Numbers repeated calls, operations last, and skips names a scope may have on purpose: `dense#2`, `lstm.1`."""
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    for layer in sorted(layers, key=lambda layer: layer.operation):
        template = layer.path.template
        while True:
            seen[template] += 1
            path = layer.path.occurring(seen[template])
            names = _names(layer, path)
            if taken.isdisjoint(names):
                break
        layer.path = path
        taken |= names


def _names(layer: LayerCall, path: ScopePath) -> set[str]:
    """Returns all names of a layer and its outputs in any iteration, if its path is `path`."""
    outputs = [None, *range(len(layer.outputs))] if len(layer.outputs) > 1 else [None]
    return {
        str(path.at(iteration).with_output(output)) for iteration in iterations(layer.frame.loops) for output in outputs
    }


class _Finding(NamedTuple):
    """A `_Finding` has the facts by which the layers of one trace are found."""

    scoping: Scoping
    liveness: Liveness
    origins: ParameterOrigins


def _enter(frame: Frame, around: LayerCall | None, finding: _Finding, layers: list[LayerCall]) -> None:
    runs = _runs(frame, around, finding.scoping)
    _connect(frame, runs, finding)
    layers.extend(dict.fromkeys(layer for stack in runs for layer in stack))
    for number, children in frame.children.items():
        inside = next((layer for layer in reversed(runs[number]) if not layer.operation), around)
        for child in children:
            _enter(child, inside, finding, layers)


def _runs(frame: Frame, around: LayerCall | None, scoping: Scoping) -> list[tuple[LayerCall, ...]]:
    """Returns for each equation the layers it is in within this frame, outermost first.

    An iteration of a loop that runs under a scope is itself a layer: `blocks[3]` in addition to `blocks[3]/attn`.
    """
    iteration: tuple[LayerCall, ...] = ()
    if frame.transfer.loop is not None and not frame.path.pending_loops:
        iteration = (LayerCall(frame=frame, path=frame.path, order=frame.start, parent=around),)
    stacks: list[tuple[LayerCall, ...]] = []
    open_scopes: tuple[Any, ...] = ()
    open_layers = iteration
    for number, equation in enumerate(frame.jaxpr.eqns):
        entered = scoping(frame, equation)
        shared = _shared_prefix(open_scopes, entered)
        open_layers = open_layers[: len(iteration) + shared]
        for scope in entered[shared:]:
            parent = open_layers[-1] if open_layers else around
            path = (open_layers[-1].path if open_layers else frame.path).scope(scope.name)
            order, operation = _start(frame, number), isinstance(scope, OperationScope)
            open_layers += (LayerCall(frame=frame, path=path, order=order, operation=operation, parent=parent),)
        open_scopes = entered
        for layer in open_layers:
            layer.equations.append(number)
        stacks.append(open_layers)
    return stacks


def _start(frame: Frame, number: int) -> int:
    """Returns the program order at which an equation starts, which is the number of equations run before it."""
    return frame.orders[number - 1] + 1 if number else frame.start


def _shared_prefix(left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """Returns how many leading items are the same objects."""
    shared = 0
    for one, other in zip(left, right, strict=False):
        if one is not other:
            break
        shared += 1
    return shared


def _connect(frame: Frame, runs: list[tuple[LayerCall, ...]], finding: _Finding) -> None:
    """Fills params, inputs and outputs of the layers of one frame."""
    live = _Escapes()
    every = _Escapes()
    live_equations, live_outputs = finding.liveness.live(frame), finding.liveness.live_outputs(frame)
    for number, equation in enumerate(frame.jaxpr.eqns):
        for atom in equation.invars:
            if is_literal(atom) or atom not in frame.definitions:
                continue
            shared = _use(frame, runs, number, atom, finding.origins)
            every.note(atom, shared)
            if number in live_equations:
                live.note(atom, shared)
    for atom in frame.jaxpr.outvars:
        if not is_literal(atom):
            every.note(atom, 0)
            if atom in live_outputs:
                live.note(atom, 0)
    _hand_on(frame, runs, live)
    _hand_on(frame, runs, every, only_without=True)
    _keep_unread(frame, runs, every)
    for number, name, mixes in parameter_uses(frame, finding.origins):
        for layer in runs[number]:
            layer.elementwise[name] = not mixes and layer.elementwise.get(name, True)


def _use(frame: Frame, runs: list[tuple[LayerCall, ...]], number: int, atom: Atom, origins: ParameterOrigins) -> int:
    """Records that an equation uses a value, and returns how many layers the use and the definition share."""
    definition, _ = frame.definitions[atom]
    shared = 0 if definition == OPERAND else _shared_prefix(runs[definition], runs[number])
    # A parameter that another layer returns, viewed otherwise, is that layer's output and no parameter of this one.
    handed_on = definition != OPERAND and len(runs[definition]) > shared
    read = origins.names(frame, atom)
    names = () if handed_on else read
    value = None if names else resolve(frame, atom)
    for layer in runs[number][shared:]:
        layer.reads.update(read)
        layer.params.update({name: number for name in names if name not in layer.params})
        if value is not None:
            layer.inputs[value] = None
    return shared


class _Escapes:
    """`_Escapes` has for each value the smallest number of layers that any use of it shares with its definition."""

    def __init__(self) -> None:
        self.shared: dict[Atom, int] = {}

    def note(self, atom: Atom, shared: int) -> None:
        self.shared[atom] = min(shared, self.shared.get(atom, shared))


def _hand_on(frame: Frame, runs: list[tuple[LayerCall, ...]], escapes: _Escapes, *, only_without: bool = False) -> None:
    """Makes each value an output of the layers it escapes from; with `only_without`, of those without outputs."""
    without = _without_outputs(runs) if only_without else None
    for number, equation in enumerate(frame.jaxpr.eqns):
        for variable in _kept(equation):
            shared = escapes.shared.get(variable)
            value = None if shared is None else resolve(frame, variable)
            if value is None:
                continue
            for layer in runs[number][shared:]:
                if without is None or id(layer) in without:
                    layer.outputs[value] = None


def _keep_unread(frame: Frame, runs: list[tuple[LayerCall, ...]], escapes: _Escapes) -> None:
    """Makes each value that nothing reads an output of the layers without outputs that make it."""
    without = _without_outputs(runs)
    for number, equation in enumerate(frame.jaxpr.eqns):
        for position, variable in enumerate(equation.outvars):
            for layer in () if variable in escapes.shared else runs[number]:
                if id(layer) in without:
                    layer.outputs[made_at(frame, number, position)] = None


def _without_outputs(runs: list[tuple[LayerCall, ...]]) -> set[int]:
    return {id(layer) for stack in runs for layer in stack if not layer.outputs}


def _kept(equation: Equation) -> list[Any]:
    return [variable for variable in equation.outvars if not is_dropped(variable)]
