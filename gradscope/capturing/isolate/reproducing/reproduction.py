"""A reproduction is one layer as a script of its own, with its inputs and the expected results from a dump.

An expected array is the dump's wherever the dump has it. The dump has the full gradient of a value: where another layer
reads that value too, the term of this layer comes from a run of the layer itself, and so does everything that the dump
lacks. Each expectation states where it comes from.

Where such a sum is wrong and `isolate` charges this layer with it, the term is what the sum leaves for it: the dump's
sum, less what the other layers return when each runs alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, count
from keyword import iskeyword
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.explain.zeros.neighbourhood import is_hidden, observe_values
from gradscope.capturing.isolate.isolate import judged_layers
from gradscope.capturing.isolate.layer_inputs import known_source
from gradscope.capturing.isolate.pinned_arguments import pinned_arguments
from gradscope.capturing.isolate.pinned_values import PinnedValues, pinned_values
from gradscope.capturing.isolate.reproducing.expectation import Expectation, Origin
from gradscope.capturing.isolate.reproducing.gradient_floors import accepted, gradient_floors
from gradscope.capturing.isolate.reproducing.layer_functions import LayerFunctions
from gradscope.capturing.isolate.reproducing.layer_values import COMPUTED, LayerValues
from gradscope.capturing.isolate.reproducing.paired_layers import own_name, paired
from gradscope.capturing.timings import Timings
from gradscope.comparison.default_tolerances import default_tolerance, in_products
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.comparison.judging.rounding.floor import Floor
from gradscope.comparison.pairing.matching import Dumps
from gradscope.comparison.precision import coarser
from gradscope.dump.interfaces import DumpSource
from gradscope.errors import UsageError
from gradscope.instrument.isolating import IsolatedRun
from gradscope.naming.paths import BEFORE
from gradscope.tracing.dataflow.forward import FrameVariable
from gradscope.tracing.jaxpr.frames import Frame, resolve
from gradscope.tracing.jaxpr.iterations import ValueAt
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.layers.parameter_views import ParameterOrigins
from gradscope.tracing.loading.model import Model
from gradscope.tracing.lookup.layer_call import IsolatedLayer, Known, isolated_layer
from gradscope.tracing.tracer import Trace
from gradscope.tracing.user_frames import user_code

#: JAX's names of the implementations of random keys, by the dtypes of their keys.
_KEYS: Final = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A `Reproduction` is a layer with its inputs and the expected results.

    Attributes:
        name: The layer's path.
        source: Its `file:line`; None where unknown.
        code: The lines of its functions `forward` and `vjp`.
        inputs: The inputs of both functions, by the names of parameters.
        origins: A sentence about where each of those comes from.
        cotangents: The further inputs of `vjp`.
        constants: Arrays that the code reads.
        outputs: The expected results of `forward`.
        gradients: The expected results of `vjp`.
        computed: The inputs with gradients that the code before the layer computes, and the dump does not have.
        whose: Whose the values of the dump are, in words: the dump's, or those of the reference in its place.
    """

    name: str
    source: str | None
    code: tuple[str, ...]
    inputs: dict[str, Array]
    origins: dict[str, str]
    cotangents: dict[str, Array]
    constants: dict[str, Array]
    outputs: tuple[Expectation, ...]
    gradients: tuple[Expectation, ...]
    computed: tuple[str, ...] = ()
    whose: str = "the dump's"

    @property
    def shows_error(self) -> bool:
        """Whether the script shows an error of the layer as it was when the script was written."""
        return any(each.differs for each in (*self.outputs, *self.gradients))


def reproduce(model: Model, name: str, dump: DumpSource, reference: DumpSource | None = None) -> Reproduction:
    """Returns one layer of a model with its inputs and expected results from a dump.

    Where `compare --isolate` charges the layer with an error that shows in none of the gradients which the dump has for
    what it reads, the code that computes what it reads is included, as for `before LAYER`.

    Args:
        model: The model.
        name: The layer, by its name in the dump or in the reference; `before LAYER` for the layer with the code before
            it; `(loss)` for the code behind the last.
        dump: A dump of the model, or of another that has the same names.
        reference: The dump of another program, whose values take the place of the dump's, in the model's layout; None
            for the dump's own.

    Returns:
        The reproduction.

    Raises:
        UsageError: There is no such layer, it cannot be written as Python, or the dump is of another model.
        ModelError: The user's code failed.
        DumpError: The dump is damaged.
    """
    dumps = Dumps(ref=dump if reference is None else reference, cand=dump)
    reproducing = _Reproducing(model, dumps)
    name = own_name(name, dumps, reproducing.matched)
    found, charged = reproducing.of(name)
    if charged and not found.shows_error and not name.startswith(BEFORE) and found.computed:
        wider, _ = reproducing.of(f"{BEFORE}{found.name}")
        found = wider if wider.shows_error else found
    return found if reference is None else replace(found, whose="the reference's")


class _Reproducing:
    """`_Reproducing` makes the reproductions of a model's layers.

    Args:
        model: The model.
        dumps: The dump whose values they have, and the model's.

    Attributes:
        matched: The pairs of the dumps' tensors.
    """

    def __init__(self, model: Model, dumps: Dumps) -> None:
        self._model = model
        self._dumps = dumps
        self.matched, self._placing = paired(dumps)
        self._arguments = pinned_arguments(model, dumps, self._placing)
        self._pinned = pinned_values(self._arguments.trace, dumps.cand, self._placing)

    def of(self, name: str) -> tuple[Reproduction, bool]:
        """Returns the reproduction of a layer, and whether the layer is charged with a wrong gradient.

        Only a layer with gradients whose terms the dump does not have is tried for that.
        """
        trace = self._arguments.trace
        isolated = isolated_layer(trace.layers, trace.root, name, _known(trace, self._pinned))
        if is_hidden(isolated.layer.frame):
            raise UsageError(
                f"{naming.printable(name)} is inside a custom rule or a sharded function",
                hint="isolate the layer around it",
            )
        values = LayerValues(isolated, self._arguments, self._pinned, self._placing, loss=self._dumps.ref.manifest.loss)
        variables = [FrameVariable(isolated.layer.frame, atom) for atom in isolated.inputs]
        with user_code(f"running {isolated.name} of {self._model.name}"):
            seen = observe_values(trace, self._arguments.leaves, variables)
            inputs = {
                variable.atom: _value(isolated, values, variable, seen.value(variable, isolated.iteration))
                for variable in variables
            }
            found = _reproduction(isolated, values, inputs, products=self._dumps.products)
        charging = any(each.origin == "run" for each in found.gradients) and self._charging(isolated)
        if not charging:
            return found, False
        differentiated = LayerFunctions(isolated).differentiated
        gradients = tuple(
            each.of_rest(values.full_gradient(atom), values.gradient_in(charging, atom))
            if each.origin == "run"
            else each
            for atom, each in zip(differentiated, found.gradients, strict=True)
        )
        return replace(found, gradients=gradients), True

    def _charging(self, isolated: IsolatedLayer) -> IsolatedRun | None:
        """Returns the run of all layers by themselves that shows a layer to return wrong gradients; None for none."""
        layers = judged_layers(
            self._model, self._arguments, self._dumps,
            matched=self.matched, placing=self._placing, options=CompareOptions(), timings=Timings(),
            computed=isolated.encloses,
        )  # fmt: skip
        own = {isolated.name, *map(self._pinned.name, filter(isolated.makes, self._pinned.keys))}
        returned = [row.vjp for row in layers.isolation.rows if row.name in own and row.vjp is not None]
        return layers.run if any(each.status == "different" for each in returned) else None


def _known(trace: Trace, pinned: PinnedValues) -> Known:
    """Returns whether a dump has the value of an atom, or that is a view of a parameter."""
    frames = {frame.key: frame for frame in trace.root.walk()}
    params = {at: leaf.name for at, leaf in enumerate(trace.arguments) if leaf.family == naming.PARAM}
    views = ParameterOrigins(params)

    def known(frame: Frame, atom: Atom, iteration: naming.IterationIndex) -> bool:
        value = resolve(frame, atom)
        if value is None:
            return bool(views.names(frame, atom))
        value_at = ValueAt(value, iteration[: len(frames[value.frame].loops)])
        return known_source(frames, pinned, value_at) in pinned.keys or bool(views.names(frame, atom))

    return known


def _value(isolated: IsolatedLayer, values: LayerValues, variable: FrameVariable, computed: Any) -> Any:
    """Returns the value of one of a layer's inputs, from the dump where it has one; random keys stay random keys."""
    from_dump, dtype = values.value(variable.atom), variable.atom.aval.dtype
    found = computed if from_dump is None else from_dump
    random = is_key(str(dtype))
    if found is None or (random and str(dtype) not in _KEYS):
        raise UsageError(
            f"{naming.printable(isolated.name)} reads {variable.atom.aval}, which a script cannot contain",
            hint="isolate a layer inside it",
        )
    if not random:
        return np.asarray(found)
    return found if found.dtype == dtype else jax.random.wrap_key_data(jnp.asarray(found), impl=_KEYS[str(dtype)])


@dataclass(slots=True)
class _Names:
    """`_Names` are the names of variables in the script, each used once."""

    taken: set[str] = field(default_factory=lambda: {"lax", "jnp", "np", "jax", "forward", "vjp"})

    def of(self, paths: Sequence[str | None], otherwise: str) -> list[str]:
        """Returns names for some paths: their last components, and the one before as well where several end alike."""
        last_components = Counter((path or "").rpartition("/")[2] for path in paths)
        ambiguous = [path is not None and last_components[path.rpartition("/")[2]] > 1 for path in paths]
        starts = [-2 if several else -1 for several in ambiguous]
        components = [(path or otherwise).split("/")[start:] for path, start in zip(paths, starts, strict=True)]
        return [self._fresh("_".join(each), otherwise) for each in components]

    def _fresh(self, spelling: str, otherwise: str) -> str:
        plain = re.sub(r"\W+", "_", spelling).strip("_")
        plain = plain if plain.isidentifier() and not iskeyword(plain) else f"{otherwise}_{plain}"
        numbered = (f"{plain}_{number}" for number in count(2))
        name = next(each for each in chain((plain,), numbered) if each not in self.taken)
        self.taken.add(name)
        return name


def _reproduction(
    isolated: IsolatedLayer, values: LayerValues, inputs: dict[Atom, Array], *, products: str
) -> Reproduction:
    functions, names = LayerFunctions(isolated), _Names()
    input_names = dict(zip(inputs, names.of(list(map(values.name, inputs)), "x"), strict=True))
    output_names = dict(zip(isolated.outputs, names.of(list(map(values.name, isolated.outputs)), "out"), strict=True))
    arriving = names.of([f"d_{output_names[atom]}" for atom in functions.pulled], "d")
    cotangents = {name: _cotangent(values, atom) for name, atom in zip(arriving, functions.pulled, strict=True)}
    arguments, arrived = list(inputs.values()), list(cotangents.values())
    outputs, gradients = functions.run(arguments, arrived)
    code, constants = functions.written(list(input_names.values()), list(cotangents), arguments, arrived)
    forward_dtypes, vjp_dtypes = functions.computed_dtypes(arguments, arrived)
    coarsest = in_products(reduce(coarser, vjp_dtypes, "float64"), products)
    floors = gradient_floors(functions.vjp, [*arguments, *arrived], coarsest)

    def expected(family: str, name: str, of_dump: Array | None, own: Array, floor: Floor | None = None) -> Expectation:
        dtype, inside = str(own.dtype), vjp_dtypes if naming.is_gradient(family) else forward_dtypes
        # What a narrower type inside the layer rounds differs by the compiler's fusions.
        tolerance = max(default_tolerance(family, dtype, each, products=products) for each in (dtype, *inside))
        origin: Origin = "run" if of_dump is None else "dump"
        array = own if of_dump is None else of_dump
        floor_l2 = accepted(floor, array)
        return Expectation(name=name, array=array, returned=own, origin=origin, tolerance=tolerance, floor=floor_l2)

    return Reproduction(
        name=isolated.name,
        source=isolated.layer.source,
        code=code,
        inputs={input_names[atom]: array for atom, array in inputs.items()},
        origins={input_names[atom]: values.origin(atom) for atom in inputs},
        cotangents=cotangents,
        constants=constants,
        outputs=tuple(
            expected(naming.ACTIVATION, output_names[atom], values.value(atom), own)
            for atom, own in zip(isolated.outputs, outputs, strict=True)
        ),
        gradients=tuple(
            expected(naming.ACTIVATION_GRAD, input_names[atom], values.own_gradient(atom), own, floor)
            for atom, own, floor in zip(functions.differentiated, gradients, floors, strict=True)
        ),
        computed=tuple(input_names[atom] for atom in functions.differentiated if values.origin(atom) == COMPUTED),
    )


def _cotangent(values: LayerValues, atom: Atom) -> Array:
    """Returns the gradient that arrived at an output; ones where the dump has none."""
    found = values.full_gradient(atom)
    return np.ones(atom.aval.shape, atom.aval.dtype) if found is None else found
