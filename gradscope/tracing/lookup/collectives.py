"""Collectives are the operations of a program by which the devices of a mesh exchange values.

Only those that the program states are found: where the compiler divides a program among devices, it adds others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

from gradscope.dump.manifest.operation_facts import Collective
from gradscope.naming import IterationIndex
from gradscope.naming.paths import without_iterations
from gradscope.primitive_groups import COLLECTIVES
from gradscope.tracing.jaxpr.frames import FrameKey, Loop, source_in
from gradscope.tracing.jaxpr.jaxcompat import Equation, manual_axes
from gradscope.tracing.jaxpr.sharding import meshes_of, meshes_of_shardings
from gradscope.tracing.jaxpr.source_lines import is_library_file
from gradscope.tracing.layers.layers import LayerCall
from gradscope.tracing.tracer import Trace

#: Returns the execution index of what follows a program order in one iteration of the loops around it.
_Rank: TypeAlias = Callable[[Sequence[Loop], int, IterationIndex], int]

#: JAX's file of the functions that make collectives.
_FUNCTIONS_FILE: Final = "lax/parallel.py"


def collectives(trace: Trace, rank: _Rank) -> tuple[Collective, ...]:
    """Returns the collectives of a trace that are needed, in execution order; those of one line and layer once.

    Args:
        trace: The trace.
        rank: Returns the execution index of what follows something.
    """
    return tuple(sorted(dict.fromkeys(_collectives(trace, rank)), key=attrgetter("index")))


def mesh_axes(trace: Trace, arguments: Iterable[Any]) -> dict[str, int]:
    """Returns the axes of the meshes that a program is run on, each with its number of devices.

    Args:
        trace: Its trace.
        arguments: The arrays that it is run on, or their shapes.
    """
    placed = (mesh for each in arguments for mesh in meshes_of_shardings(getattr(each, "sharding", None)))
    named = (mesh for frame in trace.root.walk() for equation in frame.jaxpr.eqns for mesh in meshes_of(equation))
    return {str(axis): size for mesh in (*placed, *named) for axis, size in mesh.shape.items()}


def shard_axes(trace: Trace) -> tuple[str, ...]:
    """Returns the axes of meshes by which the shards of a `shard_map` are numbered, in the order of the mesh."""
    equations = (equation for frame in trace.root.walk() for equation in frame.jaxpr.eqns)
    maps = (each for each in equations if "in_specs" in each.params)
    return tuple(dict.fromkeys(str(axis) for each in maps for axis in manual_axes(each)))


def _collectives(trace: Trace, rank: _Rank) -> Iterator[Collective]:
    calls = [call for call in trace.layers if not call.operation]  # parts after the layers around them
    layers = {(call.frame.key, number): call for call in calls for number in call.equations}
    for frame in trace.root.walk():
        live, first = trace.liveness.live(frame), (0,) * len(frame.loops)
        for number, equation in enumerate(frame.jaxpr.eqns):
            if equation.primitive.name in COLLECTIVES and number in live and (axes := _axes(equation)):
                yield Collective(
                    function=_function(equation),
                    axes=axes,
                    index=rank(frame.loops, frame.orders[number], first),
                    layer=_layer(layers, frame.key, number),
                    source=source_in(frame, equation),
                )


def _layer(layers: Mapping[tuple[FrameKey, int], LayerCall], frame: FrameKey, number: int) -> str | None:
    """Returns the innermost layer that an equation is in, without iterations; None outside all layers."""
    while (found := layers.get((frame, number))) is None and frame:
        frame, (number, _) = frame[:-1], frame[-1]
    return None if found is None else without_iterations(str(found.path.at((0,) * len(found.frame.loops))))


def _axes(equation: Equation) -> tuple[str, ...]:
    """Returns the axes of the mesh over which a collective is; a `vmap` with a name has none of them."""
    params = equation.params
    axes = params.get("axes", params.get("axis_name", ()))
    return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if isinstance(axis, str))


def _function(equation: Equation) -> str:
    """Returns the function of JAX that the user called for a collective."""
    traceback: Any = equation.source_info.traceback
    called = equation.primitive.name
    for frame in [] if traceback is None else traceback.frames:
        if not is_library_file(frame.file_name):
            break
        if frame.file_name.endswith(_FUNCTIONS_FILE):
            called = frame.function_name.partition(".")[0]
    return called
