"""These look-ups ask for rows that a table does not have: JAX takes the last row in their place without an error.

`table[ids]` clips indices, where `jnp.take` fills with NaN and PyTorch raises. A vocabulary that is smaller than the
tokenizer's, or labels from 1 on, train the wrong rows; so does a sequence that is longer than the table of positions.
The indices are computed again here, as far as integers of the batch, or of the program, and a few operations make them.
Only tables count that are made of parameters alone: neighbours in a batch, say, are often padded with an index beyond
it, and masked. So do values of which one is picked for each example, as the logit of its label. Padding with an index
beyond a vocabulary is masked, too, where no gradient comes back to any of the rows that were looked up in its place:
that is no mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from gradscope import naming
from gradscope.capturing.explain.attempt import Attempt
from gradscope.capturing.explain.known_integers import KnownIntegers
from gradscope.capturing.explain.zeros.neighbourhood import observe_gradients
from gradscope.dump.manifest.operation_facts.out_of_bounds import LookedUp, OutOfBounds
from gradscope.primitive_groups import COPIES
from gradscope.tracing.dataflow.forward import ForwardFlow, FrameVariable
from gradscope.tracing.jaxpr.frames import OPERAND, Frame, resolve
from gradscope.tracing.jaxpr.jaxcompat import Atom, Equation
from gradscope.tracing.jaxpr.source_lines import source_of
from gradscope.tracing.tracer import Trace

_CLIP: Final = frozenset({jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS, jax.lax.GatherScatterMode.CLIP})

_Compute = Callable[..., np.ndarray]


class _LookUp(NamedTuple):
    """A `_LookUp` is one by indices of which some are beyond the table.

    Attributes:
        rows: The rows that were looked up.
        offsets: The axes of the rows that are no axes of the indices.
        beyond: Which indices are beyond.
        facts: What is reported of it.
    """

    rows: FrameVariable
    offsets: tuple[int, ...]
    beyond: np.ndarray
    facts: OutOfBounds


def out_of_bounds(trace: Trace, leaves: Sequence[Any], *, most_bytes: int) -> tuple[OutOfBounds, ...]:
    """Returns the look-ups by indices beyond what is looked up, one for each table and array of the batch.

    Those that are masked are left out where the loss can run again to find them.

    Args:
        trace: The loss.
        leaves: Its flat arguments; None for those that are not known.
        most_bytes: The most bytes that may be observed when it runs again; 0 where it may not.
    """
    found = list(_Search(trace, leaves).found())
    if found and most_bytes and all(leaf is not None for leaf in leaves):
        with Attempt():  # the look-ups are known without it
            observed = observe_gradients(trace, leaves, [each.rows for each in found], most_bytes)
            if observed is not None:
                found = [each for each in found if _matters(each, observed.cotangent(each.rows, ()))]
    by_names: dict[tuple[str, str | None], OutOfBounds] = {}
    for each in found:
        by_names.setdefault((each.facts.input, each.facts.table), each.facts)
    return tuple(by_names.values())


def _matters(found: _LookUp, gradient: np.ndarray | None) -> bool:
    """Returns whether a gradient comes back to a row that stands for one beyond the table; also where none comes."""
    if gradient is None:
        return True
    reached = (gradient != 0).any(axis=found.offsets)
    return bool(reached[found.beyond].any() or not reached.any())


class _Search:
    def __init__(self, trace: Trace, leaves: Sequence[Any]) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._integers = KnownIntegers(trace, leaves)

    def found(self) -> Iterator[_LookUp]:
        """Yields the look-ups in program order."""
        for frame in self._frames.values():
            if frame.opaque or frame.bypassed or frame.loops:
                continue
            live = self._trace.liveness.live(frame)
            for number, equation in enumerate(frame.jaxpr.eqns):
                if number in live and _clips(equation):
                    yield from self._at(frame, equation)

    def _at(self, frame: Frame, gather: Equation) -> Iterator[_LookUp]:
        table, indices = gather.invars
        inputs = self._integers.inputs_behind(frame, indices)
        if len(inputs) > 1 or (known := self._integers.value(frame, indices)) is None:
            return
        own = inputs[0].name if inputs else ""
        for position, axis in enumerate(gather.params["dimension_numbers"].start_index_map):
            rows, starts = table.aval.shape[axis], known[..., position]
            if gather.params["slice_sizes"][axis] != 1:
                continue
            beyond = (starts < 0) | (starts >= rows)
            looked_up = self._looked_up(frame, gather, known, axis) if beyond.any() else None
            if looked_up is not None:
                parameter = self._parameter(frame, table)
                if not inputs and parameter is None:
                    continue  # nothing has a name
                farthest = starts.flat[np.where(starts < 0, -starts, starts - rows + 1).argmax()]
                facts = OutOfBounds(
                    looked_up=looked_up, input=own, table=parameter, rows=rows,
                    index=int(farthest), beyond=int(beyond.sum()), indices=starts.size, source=source_of(gather),
                )  # fmt: skip
                offsets = tuple(gather.params["dimension_numbers"].offset_dims)
                yield _LookUp(FrameVariable(frame, gather.outvars[0]), offsets, beyond, facts)

    def _looked_up(self, frame: Frame, gather: Equation, indices: np.ndarray, axis: int) -> LookedUp | None:
        """Returns what a gather looks up by its indices along one axis; None for what may be beyond on purpose."""
        table = FrameVariable(frame, gather.invars[0])
        if table not in self._made_of[naming.PARAM]:
            return None
        if table not in self._made_of[naming.INPUT]:
            return "rows"
        return "values" if _picks_one_of_each(gather, indices, axis) else None

    @cached_property
    def _made_of(self) -> Mapping[str, Collection[FrameVariable]]:
        root, flow = self._trace.root, ForwardFlow()
        leaves = list(zip(root.jaxpr.invars, self._trace.arguments, strict=True))
        return {
            family: flow.closure(FrameVariable(root, variable) for variable, leaf in leaves if leaf.family == family)
            for family in (naming.PARAM, naming.INPUT)
        }

    def _parameter(self, frame: Frame, atom: Atom) -> str | None:
        """Returns the parameter that a table is, in another shape or type; None for what is made of several."""
        value = resolve(frame, atom)
        while value is not None and value.equation != OPERAND:
            around = self._frames[value.frame]
            equation = around.jaxpr.eqns[value.equation]
            value = resolve(around, equation.invars[0]) if equation.primitive.name in COPIES else None
        leaf = None if value is None or value.frame else self._trace.arguments[value.position]
        return None if leaf is None else leaf.name


def _picks_one_of_each(gather: Equation, indices: np.ndarray, axis: int) -> bool:
    """Returns whether a gather picks one element along an axis for every index of all other axes, of one at least."""
    shape, numbers = gather.invars[0].aval.shape, gather.params["dimension_numbers"]
    others = [each for each in range(len(shape)) if each != axis]
    at = {along: indices[..., position] for position, along in enumerate(numbers.start_index_map)}
    return bool(others) and all(
        each in numbers.operand_batching_dims
        or (each in at and gather.params["slice_sizes"][each] == 1 and len(np.unique(at[each])) == shape[each])
        for each in others
    )


def _clips(equation: Equation) -> bool:
    """Returns whether an equation is a look-up that clips its indices where the program does not state it.

    Indexing promises that indices are in bounds. A single index that is mapped over becomes one that clips all axes;
    `mode="clip"` collapses the axis of the rows.
    """
    if equation.primitive.name != "gather" or equation.params["mode"] not in _CLIP:
        return False
    is_stated = equation.params["mode"] is jax.lax.GatherScatterMode.CLIP
    return not is_stated or not equation.params["dimension_numbers"].collapsed_slice_dims
