"""Isolating a candidate runs its layers one by one on the values of a reference's dump, all in one program.

Each value that both dumps contain splits the candidate's loss. The segments between such values run on the reference's
values and are differentiated with the reference's cotangents (`instrument.isolating`). The results are compared with
the reference's, by the rules of any comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gradscope.capturing.isolate.boundaries import Boundaries
from gradscope.capturing.isolate.isolated_dump import IsolatedDump
from gradscope.capturing.isolate.layer_inputs import CallAt, LayerInputs, inputs_between
from gradscope.capturing.isolate.pinned_arguments import PinnedArguments, pinned_arguments
from gradscope.capturing.isolate.pinned_values import PinnedValues, pinned_values
from gradscope.capturing.isolate.places import Places
from gradscope.capturing.timings import Timings
from gradscope.comparison.compare_dumps import unrefuted
from gradscope.comparison.follow_ups.isolation import Isolation, local_rows
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import ReversePairing, with_layouts_of_values
from gradscope.errors import ModelError
from gradscope.instrument.isolating import IsolatedRun, run_isolated
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.loading.model import Model
from gradscope.tracing.tracer import with_constant_inputs
from gradscope.tracing.user_frames import user_code


def isolate(model: Model, dumps: Dumps, options: CompareOptions, timings: Timings) -> Isolation:
    """Runs a candidate's layers one by one on the values of a reference, and judge each.

    Args:
        model: The candidate's model.
        dumps: The reference's dump and the candidate's.
        options: How tensors are paired and judged; only the selected layers are reported.
        timings: Receives the seconds of each phase.

    Returns:
        The error of each layer by itself.

    Raises:
        UsageError: The candidate's dump is of another model.
        ModelError: The user's code failed.
        DumpError: One of the dumps is damaged.
    """
    # All values of the reference are pinned, whatever is selected: a value that is not pinned lets errors through.
    pairing = unrefuted(dumps, options).pairing
    matched = tuple(with_layouts_of_values(dumps, pairing.matched))
    placing = ReversePairing(dumps, matched, pairing.inverse)
    with timings.phase("trace"):
        arguments = pinned_arguments(model, dumps, placing)
    return judged_layers(
        model, arguments, dumps, matched=matched, placing=placing, options=options, timings=timings
    ).isolation


class JudgedLayers(NamedTuple):
    """`JudgedLayers` are a candidate's layers, each run alone.

    Attributes:
        isolation: The error of each layer.
        run: What they computed.
    """

    isolation: Isolation
    run: IsolatedRun


def judged_layers(
    model: Model,
    arguments: PinnedArguments,
    dumps: Dumps,
    *,
    matched: Sequence[Match],
    placing: ReversePairing,
    options: CompareOptions,
    timings: Timings,
    computed: Callable[[ValueAt], bool] = lambda _: False,
) -> JudgedLayers:
    """Runs a candidate's layers one by one on arguments that are found already, and judges each.

    Args:
        model: The candidate's model.
        arguments: Its loss and arguments.
        dumps: The reference's dump and the candidate's.
        matched: The pairs of their tensors.
        placing: The reference's tensors by the candidate's keys.
        options: How tensors are judged; only the selected layers are reported.
        timings: Receives the seconds of each phase.
        computed: Whether a value is to be computed, and not the reference's.

    Raises:
        ModelError: The user's code failed.
        DumpError: One of the dumps is damaged.
    """

    def run(arguments: PinnedArguments) -> _Single:
        with timings.phase("trace"):
            pinned = pinned_values(arguments.trace, dumps.cand, placing, computed=computed)
            readers = inputs_between(arguments.trace, pinned)
        watched = dict.fromkeys(value_at.value for value_at in readers)
        with timings.phase("run"), user_code(f"running the layers of {model.name}"):
            found = run_isolated(arguments.trace, pinned.arrays, arguments.leaves, watched=watched)
        return _Single(pinned, readers, found)

    try:
        single = run(arguments)
    except ModelError:
        # A derivative rule may refuse an input, which only an observation differentiates.
        constant = with_constant_inputs(arguments.trace)
        if constant is None:
            raise
        arguments = replace(arguments, trace=constant)
        single = run(arguments)
    boundaries = Boundaries(arguments.trace, single.pinned)
    inputs = LayerInputs(dumps, matched, arguments, **single._asdict())
    places = Places(arguments.trace, boundaries, single.readers, inputs)
    local = IsolatedDump(dumps, arguments, single.run, boundaries=boundaries, places=places, placing=placing)
    rows = local_rows(tuple(local.findings(matched, options)), places.all())
    left_out = (*single.pinned.left_out, *local.left_out)
    isolation = Isolation(
        rows=tuple(row for row in rows if options.selection.selects(row.name, *row.tensors)),
        left_out=tuple(each for each in left_out if options.selection.selects(each.name)),
        arguments=arguments.origins,
    )
    return JudgedLayers(isolation, single.run)


class _Single(NamedTuple):
    """A `_Single` is an isolated run, with the values that were pinned in it, and those that layers read of it."""

    pinned: PinnedValues
    readers: Mapping[ValueAt, Sequence[CallAt]]
    run: IsolatedRun
