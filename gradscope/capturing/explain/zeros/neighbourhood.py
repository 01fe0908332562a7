"""A neighbourhood holds the values around some gradients that are exactly zero, observed in a second run.

The second run observes single operations, but only those between these gradients and the nearest ones that are not
zero. So it observes little, however large the model is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from gradscope.arrays.dtypes import as_numpy_dtype
from gradscope.capturing.execution.run import Run
from gradscope.instrument.observing_program import observing_program
from gradscope.instrument.plan import Plan, iterations
from gradscope.instrument.query.planning import has_gradient
from gradscope.instrument.taps import full_tensor
from gradscope.naming import IterationIndex
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable, Step
from gradscope.tracing.dataflow.reachability import Reach, Reachability, is_inexact
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, ValueKey, resolve
from gradscope.tracing.jaxpr.jaxcompat import is_literal
from gradscope.tracing.layers.sites import Site
from gradscope.tracing.lookup.constants import Constants
from gradscope.tracing.tracer import Trace

#: The bytes that are observed where the caller gives no limit.
MOST_BYTES: Final = 1 << 30


class Neighbourhood:
    """A `Neighbourhood` holds what a second run observed.

    Args:
        trace: The traced loss.
        arguments: Its flat arguments.
        values: Observed values by the key of the value, with the iterations of loops as leading axes.
        cotangents: The gradients with respect to them, in the same form.
        executed: Whether values inside branches were computed, in the same form.
    """

    def __init__(
        self,
        trace: Trace,
        arguments: Sequence[Any],
        values: Mapping[ValueKey, np.ndarray],
        cotangents: Mapping[ValueKey, np.ndarray],
        executed: Mapping[ValueKey, np.ndarray],
    ) -> None:
        self._depths = {frame.key: len(frame.loops) for frame in trace.root.walk()}
        self._constants = Constants(trace)
        self._arguments = arguments
        self._values = dict(values)
        self._cotangents = dict(cotangents)
        self._executed = dict(executed)

    def include(self, other: Neighbourhood) -> None:
        """Adds what another run of the same loss observed."""
        self._values |= other._values
        self._cotangents |= other._cotangents
        self._executed |= other._executed

    def value(self, variable: FrameVariable, iteration: IterationIndex) -> Any:
        """Returns the value of an atom in one iteration of the loops around its frame; None where it is not known."""
        key = resolve(*variable)
        if key is None:
            return self._constants.value(*variable)
        if not key.frame and key.equation == OPERAND:
            return self._arguments[key.position]
        return self._at(self._values, key, iteration)

    def cotangent(self, variable: FrameVariable, iteration: IterationIndex) -> np.ndarray | None:
        """Returns the gradient of the loss with respect to a variable in one iteration; None where it is not known."""
        key = resolve(*variable)
        return None if key is None else self._at(self._cotangents, key, iteration)

    def was_executed(self, frame: Frame, iteration: IterationIndex) -> bool:
        """Returns whether a branch was taken in one iteration, judged by the observed values inside it."""
        inside = (key for key in self._executed if key.frame[: len(frame.key)] == frame.key)
        return all(bool(np.any(self._at(self._executed, key, iteration))) for key in inside)

    def _at(
        self, observed: Mapping[ValueKey, np.ndarray], key: ValueKey, iteration: IterationIndex
    ) -> np.ndarray | None:
        return observed[key][iteration[: self._depths[key.frame]]] if key in observed else None


def observe_neighbourhood(
    run: Run, starts: Sequence[FrameVariable], known: Collection[ValueKey], most_bytes: int = MOST_BYTES
) -> Neighbourhood | None:
    """Observes the values between some values and those whose gradients are known not to be zero.

    Args:
        run: The first run.
        starts: The values whose gradients are zero.
        known: The values whose gradients are not.
        most_bytes: The most bytes that may be observed.

    Returns:
        The neighbourhood; None where it has more bytes than that.
    """
    return _observed_within(run.trace, run.arguments, _sites(run.trace, _around(run.trace, starts, known)), most_bytes)


def observe_values(trace: Trace, arguments: Sequence[Any], variables: Iterable[FrameVariable]) -> Neighbourhood:
    """Observes some values, and no gradients.

    Args:
        trace: A traced loss.
        arguments: Its flat arguments.
        variables: The values.

    Returns:
        What was observed.
    """
    return _observed(trace, arguments, _sites(trace, variables), frozenset())


def observe_gradients(
    trace: Trace, arguments: Sequence[Any], variables: Iterable[FrameVariable], most_bytes: int
) -> Neighbourhood | None:
    """Observes some values and, where one comes back to them, their gradients.

    Args:
        trace: A traced loss.
        arguments: Its flat arguments.
        variables: The values.
        most_bytes: The most bytes that may be observed.

    Returns:
        What was observed; None where it has more bytes than that.
    """
    return _observed_within(trace, arguments, _sites(trace, variables), most_bytes)


def _observed_within(
    trace: Trace, arguments: Sequence[Any], sites: tuple[Site, ...], most_bytes: int
) -> Neighbourhood | None:
    gradients = frozenset(number for number, site in enumerate(sites) if has_gradient(site))
    if sum(_bytes(site) * (1 + (number in gradients)) for number, site in enumerate(sites)) > most_bytes:
        return None
    return _observed(trace, arguments, sites, gradients)


def _observed(
    trace: Trace, arguments: Sequence[Any], sites: tuple[Site, ...], gradients: frozenset[int]
) -> Neighbourhood:
    program, _ = observing_program(trace, Plan(sites=sites, gradients=gradients, observe=full_tensor))

    def seen(arguments: Sequence[Any]) -> tuple[Any, Any, Any]:
        observed = program(arguments)
        return observed.captured.values, observed.cotangents, observed.captured.executed

    found = jax.device_get(jax.jit(seen)(list(arguments)))
    values, cotangents, executed = ({sites[n].value: np.asarray(array) for n, array in each.items()} for each in found)
    return Neighbourhood(trace, arguments, values, cotangents, executed)


def _sites(trace: Trace, variables: Iterable[FrameVariable]) -> tuple[Site, ...]:
    keys = dict.fromkeys(resolve(*variable) for variable in variables if not is_barred(variable.frame))
    return tuple(trace.site_at(key) for key in keys if key and (key.frame or key.equation != OPERAND))


def _around(trace: Trace, starts: Sequence[FrameVariable], known: Collection[ValueKey]) -> dict[FrameVariable, None]:
    """Returns the values to observe: those made from the starts up to the known ones, and what they are made of."""
    flow = ForwardFlow()

    def goes(step: Step) -> bool:
        return differentiably(trace.reachability, step) and resolve(*step.to) not in known

    region = flow.closure(starts, goes)
    observed_variables: dict[FrameVariable, None] = dict(region)
    for variable in region:
        for step in flow.steps(variable):
            observed_variables[step.to] = None
            if step.way == "compute":
                operands = step.frame.jaxpr.eqns[step.number].invars
                observed_variables |= {
                    FrameVariable(step.frame, atom): None for atom in operands if not is_literal(atom)
                }
    return observed_variables


def differentiably(reachability: Reachability, step: Step) -> bool:
    """Returns whether a gradient may come back over a step and can be observed there."""
    reaches = reachability.of(*step.to) is Reach.GRADIENT
    return step.way != "choose" and reaches and is_inexact(step.to.atom) and not is_barred(step.to.frame)


def is_hidden(frame: Frame) -> bool:
    """Returns whether a frame is, or is inside, one whose values have no gradients or are split over devices."""
    return is_split(frame) or is_barred(frame)


def is_split(frame: Frame) -> bool:
    """Returns whether a frame is, or is inside, one whose values are split over devices."""
    loop = frame.transfer.loop
    return (loop is not None and loop.parallel) or (frame.parent is not None and is_split(frame.parent))


def is_barred(frame: Frame) -> bool:
    """Returns whether a frame is, or is inside, one whose values have no gradients."""
    return frame.transfer.gradients != "through" or (frame.parent is not None and is_barred(frame.parent))


def _bytes(site: Site) -> int:
    return math.prod((*site.shape, *iterations(site.loops))) * as_numpy_dtype(str(site.dtype)).itemsize
