"""`checkpoint_request` requests a checkpoint: `--checkpoint`, `--map-keys`, `--map` and `--keep-init`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from gradscope.cli.options.shared import from_start
from gradscope.comparison.pairing.by_rules import MapRule, arrays_by_rules, unused_rules
from gradscope.comparison.pairing.map_file import read_map
from gradscope.naming.selecting.patterns import Pattern
from gradscope.tracing.data.files.checkpoint_files import SavedTensor
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.data.renaming.key_map import KeyMap, read_key_map


def checkpoint_request(
    path: Path, map_keys: Path | None, map_file: Path | None, keep_init: Sequence[str]
) -> CheckpointRequest:
    """Returns the request for a checkpoint.

    Args:
        path: The checkpoint.
        map_keys: The file of its key map; None for none.
        map_file: The file of rules that make variables of its tensors; None for none.
        keep_init: The patterns of the variables that stay as `init` makes them.

    Raises:
        UsageError: A line, a rule or a pattern is not one.
        DumpError: A file of rules cannot be read.
    """
    rules = None if map_file is None else read_map(from_start(map_file))
    return CheckpointRequest(
        path=from_start(path),
        key_map=KeyMap() if map_keys is None else read_key_map(from_start(map_keys)),
        rearrange=None if rules is None else partial(_rearranged, rules),
        unused=None if rules is None else partial(unused_rules, rules),
        keep_init=tuple(map(Pattern.parse, keep_init)),
    )


def _rearranged(rules: Sequence[MapRule], tensors: Mapping[str, SavedTensor]) -> Mapping[str, SavedTensor]:
    """Returns a checkpoint's tensors, those to which rules apply replaced by what the rules make of them."""
    made = list(arrays_by_rules(rules, {name: each.read for name, each in tensors.items()}))
    taken = {name for names, _ in made for name in names}
    others = {name: each for name, each in tensors.items() if name not in taken}
    return others | {name: SavedTensor.of(array, exact=True) for _, arrays in made for name, array in arrays.items()}
