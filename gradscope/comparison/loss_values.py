"""`is_loss` tells the loss among the values of a dump."""

from __future__ import annotations

import math

from gradscope.comparison.precision import dtype_class
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.json_text import as_float
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.errors import MissingKeyError
from gradscope.naming import ACTIVATION, is_gradient, split_key


def is_loss(source: DumpSource, key: str) -> bool:
    """Returns whether a value is the loss of a dump: the one number that has it, and from which nothing is computed.

    Args:
        source: The dump.
        key: The key of a value.
    """
    loss = source.manifest.loss
    try:
        entry = source.entry(source.resolve(key))
    except MissingKeyError:  # a dump need not have the value of each gradient
        return False
    if loss is None or entry.shape or entry.family != ACTIVATION or dtype_class(entry.dtype) != "float":
        return False
    value = float(source.array(key)) if source.has_tensor(key) else as_float(entry.stats.get("mean", math.nan))
    if value != loss:  # the graph is made for none of the other numbers of a program
        return False
    made_of = sources_of(source.manifest.layers)
    read = (each for made, each in made_of.items() if not is_gradient(split_key(made)[0]))
    return not any(source.resolve(key) in each for each in read)
