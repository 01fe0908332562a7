"""`count_notes` tells of counts that the model's library reads otherwise than the one that saved them, or has alone.

PyTorch counts the batches that a batch norm has seen, and divides its running statistics by nothing. Equinox' begin at
zero, and are divided by one minus the momentum to the power of its own count where they are used. Running statistics of
PyTorch need a count of zero there, which `init` makes, and a file of PyTorch has no such count (`unsaved_counts`).

Haiku has three tensors for each average: the `average`, which evaluation reads, and a `counter` with a `hidden` sum, of
which the next one is made. Other libraries have the average alone; the others are zero then, as `init` makes them:
a sum that belongs to another count would make the next average a wrong one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradscope.naming import printable
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.variable_names import Matches, components

#: The last words of the counts of PyTorch and of Equinox.
_OF_PYTORCH: Final = "num_batches_tracked"
_OF_EQUINOX: Final = "batch_counter"

#: The last words of an average of Haiku's, and of what it has beside that.
_AVERAGE: Final = "average"
_SUM: Final = "hidden"
_BESIDE_AVERAGE: Final = (_SUM, "counter")

_WHY_AVERAGES: Final = "Haiku makes the next average of them, and evaluation reads the average that is there"
_WHY: Final = "Equinox divides running statistics by a power of its count, and those of PyTorch are divided by nothing"


def unsaved_counts(paths: Iterable[str], lacking: Collection[str], names: Collection[str]) -> frozenset[str]:
    """Returns the counts among variables that a file lacks which the library that wrote it does not have.

    These are Equinox's where the file has those of PyTorch, and what Haiku has beside an average where the file has no
    sum of Haiku's.

    Args:
        paths: The paths of the model's variables.
        lacking: Those that the file lacks.
        names: The names of the file's tensors.
    """
    last = {components(name)[-1] for name in names}
    of_equinox = (path for path in lacking if _OF_PYTORCH in last and components(path)[-1] == _OF_EQUINOX)
    return frozenset(of_equinox) | (frozenset() if _SUM in last else _beside_averages(paths, lacking))


def _beside_averages(paths: Iterable[str], lacking: Iterable[str]) -> frozenset[str]:
    averages = {components(path)[:-1] for path in paths if components(path)[-1] == _AVERAGE}
    apart = {path: components(path) for path in lacking}
    return frozenset(path for path, parts in apart.items() if parts[-1] in _BESIDE_AVERAGE and parts[:-1] in averages)


def count_notes(
    paths: Sequence[str], found: Matches, tensors: Mapping[str, SavedTensor], arrays: Sequence[Any]
) -> Iterator[str]:
    """Yields sentences that name the counts by which running statistics are divided that were not saved for that.

    Args:
        paths: The paths of the variables.
        found: Where they are.
        tensors: The file's tensors.
        arrays: The values of the variables.
    """
    read = [
        (tensors[name].origin or name, path)
        for path, name, array in zip(paths, found.names, arrays, strict=True)
        if name is not None and components(path)[-1] == _OF_EQUINOX and np.any(array)
    ]
    counts = [(name, path) for name, path in read if components(name)[-1] == _OF_PYTORCH]
    if counts:
        name, path = map(printable, counts[0])
        yield f"{name} is read as {path}{_more(counts)}: {_WHY}, so that evaluation needs a count of 0"
    lacking = [path for path, name in zip(paths, found.names, strict=True) if name is None]
    unsaved = unsaved_counts(paths, lacking, tensors)
    beside = _beside_averages(paths, unsaved)
    for counts_of, why in ((unsaved - beside, _WHY), (beside, _WHY_AVERAGES)):
        if first := next(iter(sorted(counts_of)), None):
            made = "are as init makes them" if len(counts_of) > 1 else "is as init makes it"
            yield f"{printable(first)}{_more(counts_of)} {made}: {why}"


def _more(all_of_them: Collection[object]) -> str:
    return f" and {len(all_of_them) - 1:,} more" if len(all_of_them) > 1 else ""
