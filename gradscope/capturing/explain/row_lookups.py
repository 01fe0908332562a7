"""These look-ups ask for rows that a table does not have: JAX takes the last row in their place without an error.

`table[ids]` clips indices, where `jnp.take` fills with NaN and PyTorch raises. A vocabulary that is smaller than the
tokenizer's, or labels from 1 on, train the wrong rows; so does a sequence that is longer than the table of positions.
The indices are computed again here, as far as integers of the batch, or of the program, and a few operations make them.
Only tables count that are made of parameters alone: neighbours in a batch, say, are often padded with an index beyond
it, and masked. So do values of which one is picked for each example, as the logit of its label. Padding with an index
beyond a vocabulary is masked, too, where no gradient comes back to any of the rows that were looked up in its place:
that is no mistake. A label below 0 is no index beyond anything: it is counted from the end, and picks another class.
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
from gradscope.tracing.leaves import Leaf
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


class _Column(NamedTuple):
    """A `_Column` has the indices of a gather along one axis.

    Attributes:
        inputs: The arrays of the batch that they are computed from.
        starts: The indices; None where they are not known.
        given: The same where negative ones are not counted from the end yet.
    """

    inputs: Sequence[Leaf]
    starts: np.ndarray | None
    given: np.ndarray | None


def out_of_bounds(trace: Trace, leaves: Sequence[Any], *, most_bytes: int) -> tuple[OutOfBounds, ...]:
    """Returns the look-ups by indices beyond what is looked up, one for each table and array of the batch.

    Those that are masked are left out where the loss can run again to find them; where it cannot, all values that are
    picked for an example are, since labels that stand for none are often beyond them, and masked.

    Args:
        trace: The loss.
        leaves: Its flat arguments; None for those that are not known.
        most_bytes: The most bytes that may be observed when it runs again; 0 where it may not.
    """
    found, observed = list(_Search(trace, leaves).found()), None
    if found and most_bytes and all(leaf is not None for leaf in leaves):
        with Attempt():  # the look-ups are known without it
            observed = observe_gradients(trace, leaves, [each.rows for each in found], most_bytes)
    by_names: dict[tuple[str, str | None], OutOfBounds] = {}
    for each in found:
        if not _matters(each, None if observed is None else observed.cotangent(each.rows, ())):
            continue
        by_names.setdefault((each.facts.input, each.facts.table), each.facts)
    return tuple(by_names.values())


def all_out_of_bounds(trace: Trace, leaves: Sequence[Any]) -> Iterator[OutOfBounds]:
    """Yields the look-ups by indices beyond what is looked up, also those that are masked, in program order.

    Args:
        trace: The loss.
        leaves: Its flat arguments; None for those that are not known.
    """
    return (each.facts for each in _Search(trace, leaves).found())


def _matters(found: _LookUp, gradient: np.ndarray | None) -> bool:
    """Returns whether a gradient comes back to what stands for something beyond; of a row also where none comes."""
    is_row = found.facts.looked_up == "rows"
    if gradient is None:
        return is_row
    reached = (gradient != 0).any(axis=found.offsets)
    return bool(reached[found.beyond].any() or (is_row and not reached.any()))


class _Search:
    def __init__(self, trace: Trace, leaves: Sequence[Any]) -> None:
        self._trace = trace
        self._frames = {frame.key: frame for frame in trace.root.walk()}
        self._leaves = leaves
        self._integers = KnownIntegers(trace, leaves)
        self._given = KnownIntegers(trace, leaves, from_end=False)

    def found(self) -> Iterator[_LookUp]:
        """Yields the look-ups in program order."""
        for frame in self._frames.values():
            if frame.opaque or frame.bypassed or frame.loops:
                continue
            live = self._trace.liveness.live(frame)
            for number, equation in enumerate(frame.jaxpr.eqns):
                if number in live and equation.primitive.name == "gather":
                    yield from self._at(frame, equation)

    def _at(self, frame: Frame, gather: Equation) -> Iterator[_LookUp]:
        table, numbers = gather.invars[0], gather.params["dimension_numbers"]
        columns = self._columns(frame, gather.invars[1], len(numbers.start_index_map))
        at = dict(zip(numbers.start_index_map, columns, strict=True))
        known = {axis: column.starts for axis, column in at.items() if column.starts is not None}
        for axis, starts in known.items():
            rows, inputs = table.aval.shape[axis], at[axis].inputs
            if len(inputs) > 1 or gather.params["slice_sizes"][axis] != 1:
                continue
            beyond, index = (starts < 0) | (starts >= rows), _farthest(starts, rows)
            looked_up = self._looked_up(frame, gather, known, axis) if _clips(gather) and beyond.any() else None
            if looked_up is None and (below := self._below(at[axis])) is not None:
                beyond, index = below < 0, int(below.min())
                is_picked = self._looked_up(frame, gather, known, axis) == "values"
                looked_up = "last values" if is_picked else None
            parameter = self._parameter(frame, table) if looked_up is not None else None
            if looked_up is not None and (inputs or parameter is not None):  # else nothing has a name
                facts = OutOfBounds(
                    looked_up=looked_up, input=inputs[0].name if inputs else "", table=parameter, rows=rows,
                    index=index, beyond=int(beyond.sum()), indices=starts.size, source=source_of(gather),
                )  # fmt: skip
                yield _LookUp(FrameVariable(frame, gather.outvars[0]), tuple(numbers.offset_dims), beyond, facts)

    def _below(self, column: _Column) -> np.ndarray | None:
        """Returns labels of which some are below 0 and are counted from the end; None for indices without such.

        A program that computes negative indices means them so, and so do data that have no others.
        """
        if column.given is None or not column.inputs or not (column.given < 0).any():
            return None
        labels = np.asarray(self._leaves[self._trace.arguments.index(column.inputs[0])])
        return column.given if labels.min() == column.given.min() and labels.max() >= 0 else None

    def _columns(self, frame: Frame, indices: Atom, number: int) -> Iterator[_Column]:
        """Yields the indices along each axis that a gather looks up along."""
        made = resolve(frame, indices)
        if made is not None and made.equation != OPERAND and number > 1:
            around = self._frames[made.frame]
            joined = around.jaxpr.eqns[made.equation]
            if joined.primitive.name == "concatenate" and len(joined.invars) == number:
                yield from (next(self._columns(around, each, 1)) for each in joined.invars)
                return
        inputs = self._integers.inputs_behind(frame, indices)
        known, given = (each.value(frame, indices) for each in (self._integers, self._given))
        for at in range(number):
            yield _Column(inputs, *(None if each is None else each[..., at] for each in (known, given)))

    def _looked_up(
        self, frame: Frame, gather: Equation, indices: Mapping[int, np.ndarray], axis: int
    ) -> LookedUp | None:
        """Returns what a gather looks up by its indices along one axis; None for what may be beyond on purpose."""
        table = FrameVariable(frame, gather.invars[0])
        if table not in self._made_of[naming.PARAM]:
            return None
        if table not in self._made_of[naming.INPUT]:
            return "rows"
        return "values" if _picks_for_each(gather, indices, axis) else None

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


def _farthest(starts: np.ndarray, rows: int) -> int:
    """Returns the index that is farthest beyond some rows."""
    return int(starts.flat[np.where(starts < 0, -starts, starts - rows + 1).argmax()])


def _picks_for_each(gather: Equation, indices: Mapping[int, np.ndarray], axis: int) -> bool:
    """Returns whether a gather picks along an axis for every index of another one, as of examples."""
    shape, numbers = gather.invars[0].aval.shape, gather.params["dimension_numbers"]
    others = [each for each in range(len(shape)) if each != axis]
    every = [each for each in others if each in indices and len(np.unique(indices[each])) == shape[each]]
    return bool(every or numbers.operand_batching_dims)


def _clips(gather: Equation) -> bool:
    """Returns whether a look-up clips its indices where the program does not state it.

    Indexing promises that indices are in bounds. A single index that is mapped over becomes one that clips all axes;
    `mode="clip"` collapses the axis of the rows.
    """
    if gather.params["mode"] not in _CLIP:
        return False
    is_stated = gather.params["mode"] is jax.lax.GatherScatterMode.CLIP
    return not is_stated or not gather.params["dimension_numbers"].collapsed_slice_dims
