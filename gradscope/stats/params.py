"""Parameters against their gradients: `g/w`, how large a step of size one would be beside the parameter."""

from __future__ import annotations

from gradscope import naming
from gradscope.dump.manifest import Manifest
from gradscope.stats.columns import number


def gradient_ratios(manifest: Manifest) -> dict[str, float]:
    """`g/w = l2(gradient) / l2(parameter)` by parameter name, in the order of the entries.

    A parameter is left out where its gradient is absent, or where it is all zeros (as fresh biases are), which makes
    every step infinitely large beside it.
    """
    norms = {(entry.family, entry.name): number(entry.stats, "l2") for entry in manifest.entries}
    return {
        name: gradient / norm
        for (family, name), norm in norms.items()
        if family == naming.PARAM and norm and (gradient := norms.get((naming.PARAM_GRAD, name))) is not None
    }
