"""A reproduction: one layer as a script of its own, with what a dump has for its inputs and what should come out.

What is expected is the dump's wherever the dump has it. It has the gradient of a value as a whole: where another layer
reads that value too, the part that this layer sends back is taken from a run of the layer itself, and so is what the
dump lacks. Each expectation says where it is from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from keyword import iskeyword
from typing import Any, Final, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradscope import naming
from gradscope.arrays.blocks import Array
from gradscope.arrays.dtypes import is_key
from gradscope.capturing.explain.neighbourhood import is_hidden, look_at
from gradscope.capturing.isolate.layer_functions import LayerFunctions
from gradscope.capturing.isolate.layer_values import LayerValues
from gradscope.capturing.isolate.pinned_arguments import given_arguments
from gradscope.capturing.isolate.pinned_values import held_values
from gradscope.comparison.default_tolerances import default_tolerance, reduced_matmul
from gradscope.comparison.pairing.matching import Dumps, Match
from gradscope.comparison.pairing.reverse import ReversePairing
from gradscope.dump.interfaces import DumpSource
from gradscope.errors import UsageError
from gradscope.tracing.dataflow.forward import Place
from gradscope.tracing.jaxpr.jaxcompat import Atom
from gradscope.tracing.loading.model import Model
from gradscope.tracing.lookup.layer_call import LayerAlone, layer_alone
from gradscope.tracing.user_frames import user_code

#: What JAX calls the implementations of random keys, by the dtypes of their keys.
_KEYS: Final = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}

#: Where an expected array is from: the dump, or a run of the layer when the script was written.
Origin: TypeAlias = Literal["dump", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One array that the script must give.

    Attributes:
        name: The output's name, or that of the input whose gradient it is.
        array: The array.
        origin: Where it is from.
        tolerance: On `rel_l2`.
    """

    name: str
    array: Array
    origin: Origin
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A layer with its inputs and what should come out.

    Attributes:
        name: The layer's path.
        source: `file:line` of it; None where unknown.
        code: The lines of its functions `forward` and `vjp`.
        inputs: What both are given, by the names of parameters.
        origins: Where each of those is from, in words.
        cotangents: What `vjp` is given beside that.
        constants: Arrays that the code reads.
        outputs: What `forward` should give.
        gradients: What `vjp` should give.
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


def reproduce(model: Model, name: str, dump: DumpSource) -> Reproduction:
    """One layer of a model with what a dump has for it.

    Args:
        model: The model.
        name: The layer.
        dump: A dump of the model, or of another that has the same names.

    Raises:
        UsageError: There is no such layer, it cannot be written as Python, or the dump is of another model.
        ModelError: The user's code failed.
        DumpError: The dump is damaged.
    """
    dumps = Dumps(ref=dump, cand=dump)
    placing = ReversePairing(dumps, [Match.of(key, key, "name") for key in dump.keys()])  # noqa: SIM118 - no mapping
    given = given_arguments(model, dumps, placing)
    alone = layer_alone(given.trace.layers, name)
    if is_hidden(alone.layer.frame):
        raise UsageError(
            f"{naming.printable(name)} lies inside a while loop, a custom rule or a sharded function",
            hint="isolate the layer around it",
        )
    values = LayerValues(alone, given, held_values(given.trace, dump, placing), dump)
    places = [Place(alone.layer.frame, atom) for atom in alone.inputs]
    with user_code(f"running {alone.name} of {model.name}"):
        seen = look_at(given.trace, given.leaves, places)
        inputs = {place.atom: _value(alone, values, place, seen.value(place, alone.turn)) for place in places}
        return _reproduction(alone, values, inputs, reduced=reduced_matmul(dump.manifest.provenance))


def _value(alone: LayerAlone, values: LayerValues, place: Place, computed: Any) -> Any:
    """The value of one of a layer's inputs: the dump's where it has one. Random keys stay what they are."""
    held, dtype = values.value(place.atom), place.atom.aval.dtype
    found = computed if held is None else held
    random = is_key(str(dtype))
    if found is None or (random and str(dtype) not in _KEYS):
        raise UsageError(
            f"{naming.printable(alone.name)} reads a value of type {place.atom.aval} that a script cannot be given",
            hint="isolate a layer inside it",
        )
    if not random:
        return np.asarray(found)
    return found if found.dtype == dtype else jax.random.wrap_key_data(jnp.asarray(found), impl=_KEYS[str(dtype)])


@dataclass(slots=True)
class _Names:
    """Names of variables in the script, each once."""

    taken: set[str] = field(default_factory=lambda: {"lax", "jnp", "np", "jax", "forward", "vjp"})

    def of(self, paths: Sequence[str | None], otherwise: str) -> list[str]:
        """Names for what is known by some paths: their ends, with what is before where several end alike."""
        ends = Counter((path or "").rpartition("/")[2] for path in paths)
        alike = [path is not None and ends[path.rpartition("/")[2]] > 1 for path in paths]
        kept = [-2 if several else -1 for several in alike]
        parts = [(path or otherwise).split("/")[last:] for path, last in zip(paths, kept, strict=True)]
        return [self._fresh("_".join(each), otherwise) for each in parts]

    def _fresh(self, spelling: str, otherwise: str) -> str:
        plain = re.sub(r"\W+", "_", spelling).strip("_")
        plain = plain if plain.isidentifier() and not iskeyword(plain) else f"{otherwise}_{plain}"
        numbered = (f"{plain}_{number}" for number in count(2))
        name = next(each for each in chain((plain,), numbered) if each not in self.taken)
        self.taken.add(name)
        return name


def _reproduction(alone: LayerAlone, values: LayerValues, inputs: dict[Atom, Array], *, reduced: bool) -> Reproduction:
    functions, names = LayerFunctions(alone), _Names()
    read = dict(zip(inputs, names.of(list(map(values.name, inputs)), "x"), strict=True))
    made = dict(zip(alone.outputs, names.of(list(map(values.name, alone.outputs)), "out"), strict=True))
    arriving = names.of([f"d_{made[atom]}" for atom in functions.pulled], "d")
    cotangents = {name: _cotangent(values, atom) for name, atom in zip(arriving, functions.pulled, strict=True)}
    given, arrived = list(inputs.values()), list(cotangents.values())
    outputs, sent = functions.run(given, arrived)
    code, constants = functions.written(list(read.values()), list(cotangents), given, arrived)

    def expected(family: str, name: str, of_dump: Array | None, own: Array) -> Expectation:
        tolerance = default_tolerance(family, str(own.dtype), str(own.dtype), reduced=reduced)
        origin: Origin = "run" if of_dump is None else "dump"
        return Expectation(name=name, array=own if of_dump is None else of_dump, origin=origin, tolerance=tolerance)

    return Reproduction(
        name=alone.name,
        source=alone.layer.source,
        code=code,
        inputs={read[atom]: array for atom, array in inputs.items()},
        origins={read[atom]: values.origin(atom) for atom in inputs},
        cotangents=cotangents,
        constants=constants,
        outputs=tuple(
            expected(naming.ACTIVATION, made[atom], values.value(atom), own)
            for atom, own in zip(alone.outputs, outputs, strict=True)
        ),
        gradients=tuple(
            expected(naming.ACTIVATION_GRAD, read[atom], values.own_gradient(atom), own)
            for atom, own in zip(functions.differentiated, sent, strict=True)
        ),
    )


def _cotangent(values: LayerValues, atom: Atom) -> Array:
    """The gradient that arrived at an output; ones where the dump has none."""
    found = values.whole_gradient(atom)
    return np.ones(atom.aval.shape, atom.aval.dtype) if found is None else found
