"""`replicas_hint` tells a checkpoint that was saved with one copy for each device, as `jax.pmap` keeps its arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Final

import numpy as np

from gradscope.tracing.data.files.checkpoint_files import SavedTensor

#: The most tensors that are read to see whether they are copies, the smallest first, and the most elements of one.
_MOST_READ: Final = 8
_MOST_ELEMENTS: Final = 1 << 24


def replicas_hint(saved: Mapping[str, SavedTensor]) -> str | None:
    """Returns what to do about copies for each device; None where the tensors are none.

    Args:
        saved: The file's tensors by name. Those without axes may be counts beside the copies.
    """
    tensors = [each for each in saved.values() if each.shape]
    sizes = {each.shape[0] for each in tensors}
    if len(tensors) < 2 or len(sizes) != 1 or min(sizes) < 2:
        return None
    tensors.sort(key=lambda each: math.prod(each.shape))
    small = [each for each in tensors if math.prod(each.shape) <= _MOST_ELEMENTS and len(each.shape) > 1]
    arrays = (np.asarray(each.read()) for each in small)
    # The values of one copy differ among themselves: zeros alone are the same along any axis.
    varied = [*islice((array for array in arrays if array.size and (array[0] != array[0].flat[0]).any()), _MOST_READ)]
    if not varied or not all((array == array[:1]).all() for array in varied):
        return None
    return (
        f"its tensors are {min(sizes)} equal copies, one for each device, as jax.pmap keeps them: save one of them, "
        "as of flax.jax_utils.unreplicate(state) or jax.tree.map(lambda x: x[0], state)"
    )
