from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradscope.tracing.data.renaming.key_map import read_key_map
from gradscope.tracing.data.renaming.renaming_hints import key_map_hint

#: A file's names with the variables that they are.
TRANSFORMER = {
    f"blocks.{block}.{theirs}.{their_leaf}": f"params/layer{block}/{ours}/{our_leaf}"
    for block in range(3)
    for theirs, ours in {"ln_1": "norm1", "proj": "out", "ln_2": "norm2", "fc": "up", "fc_out": "down"}.items()
    for their_leaf, our_leaf in {"weight": "scale" if "ln" in theirs else "kernel", "bias": "bias"}.items()
} | {"ln_f.weight": "params/final_norm/scale", "ln_f.bias": "params/final_norm/bias"}

SHAPES = {"proj": (8, 8), "fc": (32, 8), "fc_out": (8, 32)}


def tensors(names: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns variables and the file's tensors, whose kernels are transposed."""
    extra: dict[str, np.ndarray] = {}
    for name in names:
        *_, layer, leaf = name.split(".")
        rows = SHAPES.get(layer, (8,))[:1]
        extra[name] = np.zeros(SHAPES[layer] if leaf == "weight" and layer in SHAPES else rows, np.float32)
    return {names[name]: array.T for name, array in sorted(extra.items(), key=lambda item: names[item[0]])}, extra


def renamed(hint: str, names: dict[str, str], folder: Path) -> dict[str, str]:
    lines = [line for line in hint.splitlines() if line.startswith("  ^")]
    (folder / "names.txt").write_text("\n".join(lines))
    key_map = read_key_map(folder / "names.txt")
    return {name: key_map.renamed(name) for name in names}


def test_the_proposed_lines_rename_each_tensor_of_a_module_to_the_same_module(tmp_path: Path) -> None:
    hint = key_map_hint(*tensors(TRANSFORMER))
    assert renamed(hint, TRANSFORMER, tmp_path) == TRANSFORMER


def test_layers_that_differ_by_their_numbers_share_a_line() -> None:
    hint = key_map_hint(*tensors(TRANSFORMER))
    assert r"^blocks\.(\d+)\.ln_(\d+)\.weight$ -> params/layer\1/norm\2/scale" in hint
    assert len([line for line in hint.splitlines() if line.startswith("  ^")]) == 10
    assert "more" not in hint


@pytest.mark.parametrize("first", [0, 1])
def test_equal_numbers_are_no_evidence_where_the_sides_count_from_different_ones(first: int, tmp_path: Path) -> None:
    names = {f"fc{layer + first}.proj.bias": f"params/dense{layer}/bias" for layer in range(3)}
    hint = key_map_hint(*tensors(names))
    assert renamed(hint, names, tmp_path) == (names if first == 0 else {name: name for name in names})
