"""`layers_by_name` returns the innermost layers that have to do with each name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from gradscope.dump.manifest.manifest import Layer


def layers_by_name(
    layers: Iterable[Layer], composites: set[str | None], names: Callable[[Layer], Iterable[str]]
) -> Mapping[str, list[Layer]]:
    """Returns the innermost layers by the names that they have to do with.

    Args:
        layers: All layers.
        composites: The paths of those that have others inside.
        names: What names a layer has to do with.
    """
    found: defaultdict[str, list[Layer]] = defaultdict(list)
    around: defaultdict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        for name in names(layer):
            (around if layer.path in composites else found)[name].append(layer)
    return {**around, **found}
