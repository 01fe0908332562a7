"""`TermRounding` estimates how much of a gradient is rounding, where the sums that make it are not known.

The gradient of a value is compared with those of what is made of it, and of what is read beside it. A sum of gradients
that are rounding is rounding, too, however many layers it is passed on by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gradscope.comparison.judging.rounding.floor import Floor
from gradscope.comparison.judging.rounding.innermost_layers import layers_by_name
from gradscope.comparison.judging.rounding.tensor_sizes import l2_of, rms_of
from gradscope.comparison.precision import machine_epsilon
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Entry, Layer
from gradscope.naming import ACTIVATION, ACTIVATION_GRAD, PARAM_GRAD, is_gradient, key_of, split_key

#: How many epsilons of what is expected a gradient may be that is nothing but rounding, where the sums that make it are
#: not known. Ten times as large are those of a branch that is scaled by 1e-6 before it is added.
_FLAT: Final = 0.5

#: How many times as large as a value another one may be before their gradients tell nothing of each other's size.
_ALIKE: Final = 1e3

#: The most outputs of the layers of a parameter whose gradients are looked at, those of the iterations of a scan.
_MOST_TERMS: Final = 128

#: The most layers that are next to read a value, and outputs of one, that are looked at.
_MOST_NEXT: Final = 8

#: How many layers are followed from a gradient.
_FOLLOWED: Final = 16


class LayersAround:
    """LayersAround knows the innermost layers that read the values of a dump.

    Args:
        source: The dump.

    Attributes:
        readers: The layers that read a value, by its name.
        next: Those that read a value or a parameter with a step between, by its key.
        users: Those that use a parameter, by its name.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self._known = frozenset(source.keys())
        layers = source.manifest.layers
        composites = {layer.parent for layer in layers}
        self.readers: Mapping[str, Sequence[Layer]] = layers_by_name(layers, composites, lambda layer: layer.inputs)
        self.next: Mapping[str, Sequence[Layer]] = layers_by_name(layers, composites, lambda layer: layer.sources)
        self.users: Mapping[str, Sequence[Layer]] = layers_by_name(layers, composites, lambda layer: layer.params)
        self.read_by_loss: Sequence[str] = source.manifest.loss_sources

    def entry(self, key: str) -> Entry | None:
        """Returns the entry of the owner of a tensor; None where the dump has none."""
        return self._source.entry(self._source.resolve(key)) if key in self._known else None

    def entries(self, family: str, names: Iterable[str]) -> list[Entry]:
        """Returns the entries of the tensors of some names that the dump has."""
        found = (self.entry(key_of(family, name)) for name in names)
        return [each for each in found if each is not None]


class TermRounding:
    """TermRounding estimates how much of the gradients of a dump is rounding.

    Args:
        around: The layers around its values.
    """

    def __init__(self, around: LayersAround) -> None:
        self._around = around
        self._known: dict[tuple[str, str], float] = {}
        self._followed = 0

    def share(self, entry: Entry, dtype: str) -> float:
        """Returns the norm of what rounding makes of the terms of a gradient, as a share of theirs; 0 if unknown."""
        around = self._around.users if entry.family == PARAM_GRAD else self._around.readers
        outputs = [name for layer in around.get(entry.name, ())[:_MOST_TERMS] for name in layer.outputs[:_MOST_NEXT]]
        terms = self._around.entries(ACTIVATION_GRAD, outputs[:_MOST_TERMS]) if is_gradient(entry.family) else []
        length = math.hypot(*map(l2_of, terms))
        return math.hypot(*(self._rounding(each, dtype) for each in terms)) / length if 0 < length < math.inf else 0.0

    def _rounding(self, entry: Entry, dtype: str) -> float:
        """Returns the norm of what rounding makes of the gradient of a value."""
        place = entry.name, dtype
        if place not in self._known:
            self._known[place] = 0.0  # that of a value that is computed from itself, as in damaged dumps
            self._followed += 1
            if self._followed <= _FOLLOWED:
                floor = self.of_value(entry, dtype)
                own = 0.0 if floor is None else floor.l2
                self._known[place] = max(own, l2_of(entry) * self.share(entry, dtype))
            self._followed -= 1
        return self._known[place]

    def of_value(self, entry: Entry, dtype: str) -> Floor | None:
        """Returns the floor of the gradient of a value that no sums are known of; None where it has none.

        Of a step `y = f(v, w)`, `|dL/dv|` is about `|dL/dy| |y| / |v|` where `f` is about as steep as it is large, and
        of the size of `|dL/dw|`, for as many elements. A type of up to 16 bits makes rounding of its own size of a
        gradient that is zero but for that of wider ones.
        """
        key, epsilon = key_of(ACTIVATION, entry.name), machine_epsilon(dtype)
        value, count = self._around.entry(key), math.prod(entry.shape)
        if entry.family != ACTIVATION_GRAD or value is None:
            return None
        length, norms = l2_of(value), [0.0]
        beside = [(layer, layer.sources) for layer in self._around.next.get(key, ())]
        beside += [(layer, layer.inputs) for layer in self._around.readers.get(entry.name, ())]
        for layer, read in beside[:_MOST_NEXT]:
            made = layer.outputs[:_MOST_NEXT]
            arriving, values = (self._around.entries(family, made) for family in (ACTIVATION_GRAD, ACTIVATION))
            for gradient, other in zip(arriving if length > 0 else [], values, strict=False):
                size = max(l2_of(gradient), self._rounding(gradient, dtype) / (_FLAT * epsilon))
                norms.append(size * l2_of(other) / length)
            norms += self._beside(value, read)
        if key in self._around.read_by_loss:
            norms += self._beside(value, self._around.read_by_loss)
        floor, cancelled = (_FLAT * each * max(norms) for each in (epsilon, min(epsilon, machine_epsilon("float32"))))
        if not 0 < floor < math.inf:
            return None
        return Floor(l2=floor, cancelled=cancelled, terms=1, is_estimate=True, elements=count)

    def _beside(self, value: Entry, read: Sequence[str]) -> Iterator[float]:
        """Yields the norms that the gradient of a value has if it is of the size of those of values read beside it.

        Where the value is much larger than another one, as in another unit, its gradient is smaller by as much.
        """
        size, count = rms_of(value), math.prod(value.shape)
        for name in (split_key(each)[1] for each in read[:_MOST_NEXT]):
            gradients, others = (self._around.entries(family, [name]) for family in (ACTIVATION_GRAD, ACTIVATION))
            for gradient, other in zip(gradients, others, strict=False):
                share = min(1.0, _ALIKE * rms_of(other) / size) if size > 0 else 1.0
                yield math.sqrt(count) * rms_of(gradient) * share
