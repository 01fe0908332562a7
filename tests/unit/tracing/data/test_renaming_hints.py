from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gradscope.comparison.pairing.by_rules import arrays_by_rules
from gradscope.comparison.pairing.map_file import read_map
from gradscope.tracing.data.renaming.key_map import read_key_map
from gradscope.tracing.data.renaming.renaming_hints import Unmatched, key_map_hint
from tests.support.work import calls

#: A file's names with the variables that they are.
TRANSFORMER = {
    f"blocks.{block}.{theirs}.{their_leaf}": f"params/layer{block}/{ours}/{our_leaf}"
    for block in range(3)
    for theirs, ours in {"ln_1": "norm1", "proj": "out", "ln_2": "norm2", "fc": "up", "fc_out": "down"}.items()
    for their_leaf, our_leaf in {"weight": "scale" if "ln" in theirs else "kernel", "bias": "bias"}.items()
} | {"ln_f.weight": "params/final_norm/scale", "ln_f.bias": "params/final_norm/bias"}

SHAPES = {"proj": (8, 8), "fc": (32, 8), "fc_out": (8, 32)}


def tensors(names: dict[str, str]) -> Unmatched:
    """Returns variables and the file's tensors, whose kernels are transposed."""
    extra: dict[str, np.ndarray] = {}
    for name in names:
        *_, layer, leaf = name.split(".")
        rows = SHAPES.get(layer, (8,))[:1]
        extra[name] = np.zeros(SHAPES[layer] if leaf == "weight" and layer in SHAPES else rows, np.float32)
    lacking = {names[name]: array.T for name, array in sorted(extra.items(), key=lambda item: names[item[0]])}
    return Unmatched(lacking=lacking, extra=extra)


def renamed(hint: str, names: dict[str, str], folder: Path) -> dict[str, str]:
    lines = [line for line in hint.splitlines() if line.startswith("  ^")]
    (folder / "names.txt").write_text("\n".join(lines))
    found, unused = read_key_map(folder / "names.txt").renamed(names)
    assert not unused
    return found


def test_the_proposed_lines_rename_each_tensor_of_a_module_to_the_same_module(tmp_path: Path) -> None:
    hint = key_map_hint(tensors(TRANSFORMER))
    assert renamed(hint, TRANSFORMER, tmp_path) == TRANSFORMER


def test_variables_for_which_the_file_has_nothing_are_said_to_be_such() -> None:
    model = tensors(TRANSFORMER)
    state = {"state/average": np.zeros((3, 5), np.float32)}
    hint = key_map_hint(Unmatched(lacking={**model.lacking, **state}, extra=model.extra))
    assert hint.endswith("\nIt has nothing for state/average")


@pytest.mark.parametrize("moment", ["optim.{}.exp_avg", "optimizer.state.{}.momentum"])
def test_what_an_optimizer_stores_is_proposed_for_no_variable(moment: str, tmp_path: Path) -> None:
    model = tensors(TRANSFORMER)
    moments = {moment.format(name): each for name, each in model.extra.items()}
    hint = key_map_hint(Unmatched(lacking=model.lacking, extra=moments | dict(model.extra)))
    assert renamed(hint, TRANSFORMER, tmp_path) == TRANSFORMER


def test_what_an_optimizer_stores_of_a_model_below_a_prefix_is_proposed_for_no_variable(tmp_path: Path) -> None:
    names = {f"model.layers.{at}.conv{conv}.weight": f"params/Block_{at}/conv{conv}/kernel"
             for at in range(2) for conv in (1, 2)}  # fmt: skip
    lacking, extra = (dict.fromkeys(each, np.zeros((8, 8, 3, 3), np.float32)) for each in (names.values(), names))
    moments = {f"optimizer.state.{name.removeprefix('model.')}.exp_avg": each for name, each in extra.items()}
    hint = key_map_hint(Unmatched(lacking=lacking, extra=moments | extra))
    assert renamed(hint, names, tmp_path) == names


def test_of_a_norm_whose_statistics_were_not_saved_the_parameters_are_proposed(tmp_path: Path) -> None:
    leaves = {"weight": "scale", "bias": "bias"}
    names = {f"layers.{at}.bn{norm}.{theirs}": f"params/layers_{at}/bn{norm}/{ours}"
             for at in range(2) for norm in (1, 2) for theirs, ours in leaves.items()}  # fmt: skip
    paths = [*names.values(), *(f"batch_stats/layers_{at}/bn{norm}/{each}"
                                for at in range(2) for norm in (1, 2) for each in ("mean", "var"))]  # fmt: skip
    array = np.zeros(8, np.float32)
    hint = key_map_hint(Unmatched(lacking=dict.fromkeys(paths, array), extra=dict.fromkeys(names, array)))
    assert renamed(hint, names, tmp_path) == names


def test_the_state_of_a_norm_is_that_of_the_module_whose_parameters_were_found(tmp_path: Path) -> None:
    array, norms = np.zeros(8, np.float32), ["0.bn1", "0.bn2", "1.bn1"]
    statistics = ["running_mean", "running_var"]
    names = {f"layers.{norm}.{leaf}": f"state/layers/{norm.replace('.', '/')}/index/{number}"
             for norm in norms for number, leaf in enumerate(statistics)}  # fmt: skip
    found = {f"params/layers/{norm.replace('.', '/')}/bias": f"net.layers.{norm}.bias" for norm in norms}
    unmatched = Unmatched(
        lacking=dict.fromkeys(names.values(), array),
        extra={f"net.{name}": array for name in names},
        found=found,
        prefix="net.",
    )
    hint = key_map_hint(unmatched)
    assert renamed(hint.replace("  ^net\\. ->\n", ""), names, tmp_path) == names


@pytest.mark.parametrize(
    "leaves",
    [("gamma", "beta", "moving_mean", "moving_variance"), ("scale", "offset", "mean", "var")],
    ids=["Keras", "Haiku"],
)
def test_a_parameter_has_another_word_in_each_library(leaves: tuple[str, ...], tmp_path: Path) -> None:
    ours = ["params/{}/scale", "params/{}/bias", "batch_stats/{}/mean", "batch_stats/{}/var"]
    names = {f"net/bn_{at}/{leaf}": path.format(f"BatchNorm_{at}")
             for at in range(2) for leaf, path in zip(leaves, ours, strict=True)}  # fmt: skip
    array = np.zeros(8, np.float32)
    hint = key_map_hint(Unmatched(lacking=dict.fromkeys(names.values(), array), extra=dict.fromkeys(names, array)))
    assert renamed(hint, names, tmp_path) == names


def test_a_layer_may_have_the_name_of_a_moment(tmp_path: Path) -> None:
    names = {"encoder.mu.weight": "params/encoder/mean/kernel", "encoder.fc.weight": "params/encoder/hidden/kernel"}
    shapes = {"encoder.mu.weight": (4, 8), "encoder.fc.weight": (8, 6)}
    extra = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    lacking = {names[name]: each.T for name, each in extra.items()}
    assert renamed(key_map_hint(Unmatched(lacking=lacking, extra=extra)), names, tmp_path) == names


def test_layers_that_differ_by_their_numbers_share_a_line() -> None:
    hint = key_map_hint(tensors(TRANSFORMER))
    assert r"^blocks\.(\d+)\.ln_(\d+)\.weight$ -> params/layer\1/norm\2/scale" in hint
    assert len([line for line in hint.splitlines() if line.startswith("  ^")]) == 10
    assert "more" not in hint


@pytest.mark.parametrize("first", [0, 1])
def test_names_that_numbers_alone_tell_apart_are_paired_in_their_order(first: int, tmp_path: Path) -> None:
    names = {f"fc{layer + first}.proj.bias": f"params/dense{layer}/bias" for layer in (10, 9, 0)}
    assert renamed(key_map_hint(tensors(names)), names, tmp_path) == names
    fewer = tensors({name: path for name, path in names.items() if not path.startswith("params/dense0")})
    found = renamed(key_map_hint(Unmatched(lacking=tensors(names).lacking, extra=fewer.extra)), names, tmp_path)
    assert found == {name: name for name in names}  # no order tells which is missing


def test_the_state_of_a_norm_is_that_of_the_module_whose_parameters_are_paired(tmp_path: Path) -> None:
    """PyTorch counts norms with the convolutions; Equinox numbers statistics, and has biases with axes of size one."""
    names: dict[str, str] = {}
    for at in range(2):
        names |= {f"features.{2 * at}.{leaf}": f"params/conv{at}/{leaf}" for leaf in ("weight", "bias")}
        names |= {f"features.{2 * at + 1}.{leaf}": f"params/norm{at}/{leaf}" for leaf in ("weight", "bias")}
        names |= {f"features.{2 * at + 1}.{leaf}": f"state/norm{at}/index/{number}"
                  for number, leaf in enumerate(("running_mean", "running_var"))}  # fmt: skip
        names[f"features.{2 * at + 1}.num_batches_tracked"] = f"state/norm{at}/counter"
    kernels = {"params/conv0/weight": (8, 3, 3, 3), "params/conv1/weight": (8, 8, 3, 3)}
    lacking = {
        path: np.zeros(kernels.get(path, () if "counter" in path else (8,)), np.float32) for path in names.values()
    }
    extra = {name: lacking[path] for name, path in names.items()}
    lacking |= {path: array[:, None, None] for path, array in lacking.items() if "conv" in path and "bias" in path}
    hint = key_map_hint(Unmatched(lacking=lacking, extra=extra, ruled=True))
    assert renamed(hint, names, tmp_path) == names
    assert ". Behind those that you have, the lines may be\n" in hint


def test_a_number_of_a_layer_does_not_choose_between_its_modules(tmp_path: Path) -> None:
    """Of the biases of a layer's convolution and norm, one has the convolution's number as well."""
    leaves = {"c2.bias": "bias_b", "gn.weight": "group/gain", "gn.bias": "group/shift"}
    names = {f"res.{at}.{theirs}": f"params/stage{at}/{ours}" for at in range(2) for theirs, ours in leaves.items()}
    assert renamed(key_map_hint(tensors(names)), names, tmp_path) == {name: name for name in names}


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("names", "sizes"),
    [({"b1/w": "params/a1/w", "b#/w": "params/a2/w"}, (3, 5)),
     ({"c1/w": "params/a1/w", "c2/w": "params/a2/w", f"c{LONG}/w": "params/a3/w"}, (4, 4, 4))],
    ids=["a sign for numbers", "a number that Python reads none of"],
)  # fmt: skip
def test_names_of_any_file_are_proposed(names: dict[str, str], sizes: tuple[int, ...], tmp_path: Path) -> None:
    arrays = [np.zeros((4, size), np.float32) for size in sizes]
    unmatched = Unmatched(
        lacking=dict(zip(names.values(), arrays, strict=True)), extra=dict(zip(names, arrays, strict=True))
    )
    assert renamed(key_map_hint(unmatched), names, tmp_path) == names


@pytest.mark.parametrize(("theirs", "told"), [({"att.in_proj.weight": "params/att/q"}, True), ({}, False)])
def test_names_without_a_counterpart_in_both_are_answered_with_what_divides_tensors(
    theirs: dict[str, str], told: bool
) -> None:
    lacking = {f"params/att/{name}": np.zeros((8, 2, 4), np.float32) for name in "qkv"}
    hint = key_map_hint(Unmatched(lacking=lacking, extra={name: np.zeros((24, 8), np.float32) for name in theirs}))
    assert ("--map FILE splits, stacks and reshapes them" in hint) is told


@pytest.mark.parametrize(
    ("numbers", "length", "told"),
    [
        (range(12), 12, True),
        (range(1, 13), 12, False),  # the rule counts from 0
        (range(12), 11, False),  # another number of layers
    ],
)
def test_layers_in_one_stack_are_answered_with_the_rule_that_divides_it(
    numbers: range, length: int, told: bool
) -> None:
    shapes = {"fc1/kernel": (4, 8), "ln/scale": (4,)}
    lacking = {f"params/block_{at}/{name}": np.zeros(shape) for name, shape in shapes.items() for at in numbers}
    extra = {f"params/blocks/{name}": np.zeros((length, *shape)) for name, shape in shapes.items()}
    rule = (
        "  [[rule]]\n  candidate = 'params/blocks/(.*)'\n  reference = 'params/block_{i}/{1}'\n"
        "  steps = [{ unstack = 0 }]"
    )
    assert key_map_hint(Unmatched(lacking=lacking, extra=extra)).endswith(rule) is told


@pytest.mark.parametrize(("numbers", "length", "told"), [(range(12), 12, True), (range(1, 13), 12, False)])
def test_layers_apart_are_answered_with_the_rule_that_stacks_them(
    numbers: range, length: int, told: bool, tmp_path: Path
) -> None:
    shapes = {"fc1/kernel": (4, 8), "ln/scale": (4,)}
    lacking = {f"params/blocks/{name}": np.zeros((length, *shape)) for name, shape in shapes.items()}
    extra = {f"params/block_{at}/{name}": np.zeros(shape) for name, shape in shapes.items() for at in numbers}
    rule = (
        "  [[rule]]\n  candidate = 'params/block_\\d+[/.](.*)'\n  reference = 'params/blocks/{1}'\n"
        "  steps = [{ stack = 0 }]"
    )
    hint = key_map_hint(Unmatched(lacking=lacking, extra=extra))
    assert hint.endswith(rule) is told
    if told:
        (tmp_path / "rules.toml").write_text("\n".join(hint.splitlines()[-4:]))
        rules = read_map(tmp_path / "rules.toml")
        read = {name: partial(np.full, shape.shape, float(at)) for at, (name, shape) in enumerate(extra.items())}
        made = {name: array for _, arrays in arrays_by_rules(rules, read) for name, array in arrays.items()}
        assert {name: array.shape for name, array in made.items()} == {name: a.shape for name, a in lacking.items()}
        assert made["params/blocks/ln/scale"][:, 0].tolist() == [float(each) for each in range(12, 24)]


@pytest.mark.slow
def test_work_grows_with_the_variables_of_one_size() -> None:
    def hint(count: int) -> str:
        names = {f"h{layer}.ln.bias": f"params/layer{layer}/norm/bias" for layer in range(count)}
        return key_map_hint(tensors(names))

    hint(4)
    few, many = (calls(lambda each=count: hint(each)) for count in (100, 400))
    assert many < 6 * few
