"""An invariance makes a gradient zero: the loss does not change with the value.

The bias of a key under a softmax, a bias before a batch normalisation, everything before a layer normalisation of two
features: the terms of such a gradient cancel, and what is left is rounding. No list of names has them. The value is
*displaced* at random, the loss runs once more, and the difference to the first run is followed from operation to
operation. An invariance is an operation that takes the displacement out: several of its operands, or elements, differ,
and its result does not. A gradient that vanishes is something else: differences shrink gradually, or in an operation
that saturates, element by element or row by row, which takes nothing out.

One program observes a sample of every value between the displaced ones and the loss. It runs once as it is, once with
all values displaced together, and, where that does not settle it, once for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.capturing.execution.run import Run
from gradscope.capturing.explain.zeros.displacement import Change, change_of, is_taken_out, mixes, precision, sample
from gradscope.capturing.explain.zeros.neighbourhood import differentiably
from gradscope.capturing.explain.zeros.softmax_rows import is_saturated
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan
from gradscope.tracing.dataflow.cut_flow import Cut, CutFlow
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.gradient_barriers import location_of
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, resolve, source_in, variable_of
from gradscope.tracing.jaxpr.jaxcompat import is_literal
from gradscope.tracing.jaxpr.source_lines import library_function
from gradscope.tracing.lookup.softmax_axes import SoftmaxAxes

#: The most values that are displaced one by one.
_MOST_ALONE: Final = 16


class Invariances:
    """`Invariances` are those of some arguments of a loss.

    Args:
        run: A run of the loss.
        arguments: The arguments, by number, whose gradients may be zero but for rounding.
        far: Whether they are displaced beyond where they are, as by what no margin of a hinge is wide enough for.

    Attributes:
        of_arguments: The arguments that the loss does not change with, each with the equations that take it out.
        moved: The most that the loss changed with any of the arguments, or with all of them.
    """

    def __init__(self, run: Run, arguments: Sequence[int], *, far: bool = False) -> None:
        self._run = run
        self._leaves: list[Any] = [None if leaf is None else jnp.asarray(leaf) for leaf in run.arguments]
        self._host = {n: np.asarray(self._leaves[n]) for n in arguments}
        self._flow = ForwardFlow()
        self._reachability = run.trace.reachability
        root = run.trace.root
        self._starts = {n: FrameVariable(root, variable_of(root, ValueKey((), OPERAND, n))) for n in arguments}
        self._precision = precision(site.dtype for site in run.trace.sites)
        self._far = far
        region = self._flow.closure(self._starts.values(), self._goes)
        keys = dict.fromkeys(key for variable in self._with_operands(region) if (key := resolve(*variable)))
        self._sites = tuple(run.trace.site_at(key) for key in keys if not _is_argument(key))
        self._program = jax.jit(self._sampled)
        self._before = self._samples(())
        self.of_arguments: dict[int, list[Cut]] = {}
        self.moved = 0.0
        for group in ([*arguments], *([n] for n in arguments[:_MOST_ALONE])):
            remaining = [n for n in group if n not in self.of_arguments]
            if remaining:
                self._try(remaining)

    def of_values(self, values: Iterable[ValueKey]) -> dict[ValueKey, list[Cut]]:
        """Returns the values that get to the loss only through equations that take an invariant argument out.

        Returns:
            These equations, by value.
        """
        cuts = {cut for found in self.of_arguments.values() for cut in found}
        frames = {frame.key: frame for frame in self._run.trace.root.walk()}
        starts = {each: FrameVariable(frames[each.frame], variable_of(frames[each.frame], each)) for each in values}
        flow = self._cut_flow(starts.values(), lambda step: Cut(step.frame, step.number) in cuts)
        return {value: found for value, start in starts.items() if (found := flow.cuts_of(start))}

    def beyond(self, cuts: Sequence[Cut]) -> Iterator[ValueKey]:
        """Yields the values that are made of the results of some equations, nearest first."""
        outputs = (FrameVariable(cut.frame, v) for cut in cuts for v in cut.frame.jaxpr.eqns[cut.number].outvars)
        return (key for variable in self._flow.reached(outputs, self._goes) if (key := resolve(*variable)))

    def _goes(self, step: Step) -> bool:
        return differentiably(self._reachability, step)

    def _with_operands(self, region: Iterable[FrameVariable]) -> Iterator[FrameVariable]:
        """Yields some variables, and the other operands of what is made of them: a maximum that is subtracted, say."""
        for variable in region:
            yield variable
            for step in self._flow.steps(variable):
                if step.way == "compute" and self._goes(step):
                    operands = step.frame.jaxpr.eqns[step.number].invars
                    yield from (FrameVariable(step.frame, atom) for atom in operands if not is_literal(atom))

    def _try(self, numbers: Sequence[int]) -> None:
        """Displaces some arguments together, and notes those that the loss does not change with."""
        after = self._samples(numbers)
        changes = {key: change_of(self._before[key], after[key]) for key in self._before}
        root = self._run.trace.root
        loss = resolve(root, root.jaxpr.outvars[0])
        change = None if loss is None else changes.get(loss)
        self.moved = math.inf if change is None else max(self.moved, change.typical(1.0))
        # An argument gets to the loss, however small its displacement is by then, or all of its ways are cut.
        flow = self._cut_flow([self._starts[n] for n in numbers], lambda step: self._takes_out(step, changes))
        self.of_arguments |= {n: cuts for n in numbers if (cuts := flow.cuts_of(self._starts[n]))}

    def _samples(self, displaced: Sequence[int]) -> dict[ValueKey, np.ndarray]:
        """Returns a sample of every value while some arguments are displaced, by what is added to them."""
        added = {n: np.zeros(self._host[n].shape, self._host[n].dtype) for n in self._starts}
        added |= {n: self._displacement(n) for n in displaced}
        observed, own = jax.device_get(self._program(self._leaves, added))
        found = {site.value: np.asarray(observed[n]).ravel() for n, site in enumerate(self._sites) if n in observed}
        return found | {ValueKey((), OPERAND, n): np.asarray(each) for n, each in own.items()}

    def _sampled(self, leaves: Sequence[Any], added: Mapping[int, Any]) -> tuple[Mapping[int, Any], dict[int, Any]]:
        """Returns samples of the sites' values, and of the arguments themselves; a program."""
        plan = Plan(sites=self._sites, gradients=frozenset(), observe=sample)
        program, _ = observing_program(self._run.trace, plan)
        displaced = [leaf + added[n] if n in added else leaf for n, leaf in enumerate(leaves)]
        return program(displaced).captured.values, {n: sample(displaced[n]) for n in added}

    def _displacement(self, number: int) -> np.ndarray:
        """Returns a random displacement of an argument: a fraction of its own scale or of what it is added to."""
        host = self._host[number].astype(np.float64)
        scales = [float(np.sqrt(np.mean(host**2))) if host.size else 0.0, *self._added_to(self._starts[number])]
        drawn = np.random.default_rng(number).standard_normal(host.shape)
        if self._far:
            drawn += np.sign(drawn)  # a single element that is drawn near zero would stay where it is
        scale = self._precision.far_displacement if self._far else self._precision.displacement
        return (scale * (max(scales) or 1.0) * drawn).astype(self._host[number].dtype)

    def _added_to(self, start: FrameVariable) -> list[float]:
        """Returns the root mean squares of the sums that a value is a term of."""
        found: list[float] = []
        for variable in self._flow.closure([start], lambda step: self._goes(step) and _only_reshapes(step)):
            for step in self._flow.steps(variable):
                adds = step.way == "compute" and step.frame.jaxpr.eqns[step.number].primitive.name in ("add", "sub")
                key = resolve(*step.to) if adds else None
                if key is not None and key in self._before:
                    found.append(float(np.sqrt(np.mean(self._before[key].astype(np.float64) ** 2))))
        return [each for each in found if np.isfinite(each)]

    def _cut_flow(self, starts: Iterable[FrameVariable], cuts: Callable[[Step], bool]) -> CutFlow:
        root = self._run.trace.root
        return CutFlow(self._flow, starts, FrameVariable(root, root.jaxpr.outvars[0]), self._goes, cuts)

    def _takes_out(self, step: Step, changes: Mapping[ValueKey, Change]) -> bool:
        """Returns whether an equation's operands have changed and its result has not."""
        equation = step.frame.jaxpr.eqns[step.number]
        keys = dict.fromkeys(resolve(step.frame, atom) for atom in equation.invars if not is_literal(atom))
        operands = [changes[key] for key in keys if key is not None and key in changes and changes[key].share]
        made = resolve(*step.to)
        result = None if made is None else changes.get(made)
        if result is None or not operands or not (len(operands) > 1 or mixes(equation)):
            return False
        if made is not None and is_saturated(self._before[made]):
            return False  # a softmax at its limits, where rounding takes out what is displaced
        return is_taken_out(equation, operands, result, self._precision)


def words_of(cuts: Sequence[Cut], axes: SoftmaxAxes) -> str:
    """Returns the clause that names what takes a displacement out, with the library function that does it.

    Args:
        cuts: The equations that take it out.
        axes: The axes of the softmaxes, of which one over the examples is named.
    """
    names = list(dict.fromkeys(_located(cut.frame, cut.number) for cut in cuts))
    over = {axes.over_examples(cut.frame, cut.number) for cut in cuts}
    said = f"{' and '.join(names)} {'takes' if len(names) == 1 else 'take'} out what it adds"
    return said if len(over) > 1 or None in over else f"{said}{''.join(f', {each}' for each in over)}"


def _located(frame: Frame, number: int) -> str:
    """Returns an equation's location; in a library's function, that function's name in place of the primitive."""
    equation = frame.jaxpr.eqns[number]
    where, source, function = location_of(frame, number), source_in(frame, equation), library_function(equation)
    if function is not None and source is not None and not function.startswith("__"):
        return f"{function.strip('_')} at {source}"
    while frame.parent is not None and frame.equation is not None and frame.kind == "call":
        if source is None or source_in(frame.parent, frame.equation) != source:
            break
        where = f"{str(frame.equation.params.get('name', 'jit')).strip('_')} at {source}"
        frame = frame.parent
    return where


def _only_reshapes(step: Step) -> bool:
    shapes = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "convert_element_type")
    return step.way != "compute" or step.frame.jaxpr.eqns[step.number].primitive.name in shapes


def _is_argument(key: ValueKey) -> bool:
    return not key.frame and key.equation == OPERAND
