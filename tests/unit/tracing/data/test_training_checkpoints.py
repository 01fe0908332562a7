"""Checkpoints of training runs and of other libraries: what a model needs is found, and the rest is said in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.integration.command import Finished, gradscope

MODEL = """
import jax, jax.numpy as jnp

def init(key):
    a, b, c = jax.random.split(key, 3)
    params = {"conv": {"kernel": jax.random.normal(a, (3, 3, 2, 4))}, "mid": {"kernel": jax.random.normal(b, (4, 4))},
              "head": {"kernel": jax.random.normal(c, (4, 5)), "bias": jnp.zeros(5)}}
    return {"params": params, "batch_stats": {"norm": {"mean": jnp.zeros(4)}}}

def batch(key, size=2):
    return {"x": jax.random.normal(key, (size, 6, 6, 2))}

def loss(variables, batch):
    p = variables["params"]
    x = jax.lax.conv_general_dilated(batch["x"], p["conv"]["kernel"], (1, 1), "SAME",
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = (jax.nn.relu(x).mean((1, 2)) - variables["batch_stats"]["norm"]["mean"][None]) @ p["mid"]["kernel"]
    return ((x @ p["head"]["kernel"] + p["head"]["bias"][None]) ** 2).mean()
"""


def values(*, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"params/conv/kernel": (3, 3, 2, 4), "params/mid/kernel": (4, 4), "params/head/kernel": (4, 5),
              "params/head/bias": (5,), "batch_stats/norm/mean": (4,)}  # fmt: skip
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def torch_values() -> dict[str, np.ndarray]:
    """The same variables, named and laid out as PyTorch does."""
    own = values()
    return {
        "conv.weight": own["params/conv/kernel"].transpose(3, 2, 0, 1),
        "mid.weight": own["params/mid/kernel"].T,
        "head.weight": own["params/head/kernel"].T,
        "head.bias": own["params/head/bias"],
        "norm.running_mean": own["batch_stats/norm/mean"],
        "norm.num_batches_tracked": np.asarray(7),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def dump(folder: Path, saved: dict[str, Any], *options: object) -> Finished:
    np.savez(folder / "saved.npz", **saved)
    return gradscope("dump", "model.py", "--force", "--checkpoint", "saved.npz", *options, folder=folder)


def assert_restored(command: Finished, folder: Path) -> None:
    assert command.status == 0, command.errors
    with np.load(folder / "model.npz") as members:
        for name, array in values().items():
            key = f"state/{name}" if name.startswith("batch_stats") else name.replace("params", "param", 1)
            np.testing.assert_array_equal(members[key], array)


def moments(prefix: str, names: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}/{name.removeprefix('params/')}": 9 + array for name, array in names.items() if "params" in name}


def test_the_variables_of_a_training_state_are_found_and_the_rest_is_one_line(folder: Path) -> None:
    rest = {"step": np.asarray(3), **moments("opt_state/0/mu", values()), **moments("opt_state/0/nu", values())}
    command = dump(folder, {**values(), **rest})
    assert_restored(command, folder)
    (line,) = command.errors.splitlines()
    assert line == "saved.npz: 9 other tensors left out: step int64[], opt_state (8 tensors)"


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["state/", "train/model/"])
def test_a_common_prefix_is_seen_and_said(folder: Path, prefix: str) -> None:
    command = dump(folder, {prefix + name: array for name, array in values().items()})
    assert_restored(command, folder)
    (line,) = command.errors.splitlines()
    assert line == f"saved.npz: params and batch_stats found under {prefix[:-1]}"


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["model.", "module._orig_mod."])
def test_the_lines_for_names_below_a_common_prefix_leave_nothing_behind(folder: Path, prefix: str) -> None:
    saved = {prefix + name: array for name, array in torch_values().items()}
    command = dump(folder, saved)
    assert command.status == 3
    lines = [line.strip() for line in command.errors.splitlines() if line.startswith("  ^")]
    assert lines[0] == f"^{prefix.replace('.', chr(92) + '.')} ->"
    (folder / "names.txt").write_text("\n".join(lines))
    assert_restored(dump(folder, saved, "--map-keys", "names.txt"), folder)


@pytest.mark.slow
def test_collections_may_be_in_places_of_their_own_beside_the_moments_of_an_optimizer(folder: Path) -> None:
    inside = {name.replace("params", "model").replace("batch_stats", "stats"): a for name, a in values().items()}
    command = dump(folder, {**moments("opt/m", values()), **moments("opt/v", values()), **inside})
    assert_restored(command, folder)
    (line,) = command.errors.splitlines()
    assert line == ("saved.npz: params found under model; batch_stats found under stats; "
                    "8 other tensors left out: opt (8 tensors)")  # fmt: skip


@pytest.mark.slow
def test_the_values_of_nnx_variables_are_the_variables(folder: Path) -> None:
    saved = {f"{name.partition('/')[2]}/value": array for name, array in values().items()}
    assert_restored(dump(folder, saved), folder)


@pytest.mark.slow
def test_a_square_kernel_of_nnx_is_one_of_the_same_name_and_taken_as_it_is(folder: Path) -> None:
    blocks, read = '"blocks": {"kernel": jnp.zeros((3, 4, 4))}', '@ p["blocks"]["kernel"].sum(0)'
    model = MODEL.replace('"mid": {', f'{blocks}, "mid": {{').replace('@ p["mid"]', f'{read} @ p["mid"]')
    (folder / "model.py").write_text(model)
    stacked = np.arange(48, dtype=np.float32).reshape(3, 4, 4)
    saved = {f"{name.partition('/')[2]}/value": array for name, array in values().items()}
    assert_restored(dump(folder, {**saved, "blocks/kernel/value": stacked}), folder)
    with np.load(folder / "model.npz") as members:
        np.testing.assert_array_equal(members["param/blocks/kernel"], stacked)


@pytest.mark.slow
def test_two_places_that_nothing_distinguishes_are_refused_with_the_lines_that_decide(folder: Path) -> None:
    saved = {f"{prefix}/{name}": array for prefix in ("model", "ema") for name, array in values().items()}
    command = dump(folder, saved)
    assert command.status == 3
    assert "params may be model or ema" in command.errors
    lines = [each.strip() for each in command.errors.splitlines() if each.startswith("  ^")]
    assert lines == ["^ema[/.].* ->", "^model[/.].* ->"]
    for line in lines:
        (folder / "names.txt").write_text(line)
        assert_restored(dump(folder, saved, "--map-keys", "names.txt"), folder)


@pytest.mark.slow
def test_averages_are_not_taken_for_parameters_that_are_spelled_less_fully(folder: Path) -> None:
    own = {name: array for name, array in values().items() if name.startswith("params/")}
    statistics = {name: array for name, array in values().items() if name not in own}
    averages = {f"ema/{name}": 0.5 * array for name, array in own.items()}
    target = {name.replace("params/", "target/"): array for name, array in own.items()}
    command = dump(folder, averages | target | statistics)
    assert command.status == 3
    assert "params may be ema or target" in command.errors
    (folder / "names.txt").write_text("^ema/.* ->")
    assert_restored(dump(folder, averages | target | statistics, "--map-keys", "names.txt"), folder)
    assert dump(folder, averages | statistics).status == 0


@pytest.mark.slow
def test_what_is_left_out_is_named_as_in_the_file_and_layers_are_one_item(folder: Path) -> None:
    saved = {f"net.{name.replace('/', '.')}": array for name, array in values().items()}
    rest = {f"net.{layer}.attn.index": np.zeros((2, 2), np.int32) for layer in range(4)}
    (folder / "names.txt").write_text("^net[.] ->")
    command = dump(folder, saved | rest, "--map-keys", "names.txt")
    assert_restored(command, folder)
    (line,) = command.errors.splitlines()
    assert line == "saved.npz: 4 other tensors left out: net.{0..3} (4 tensors)"


def test_lines_that_leave_all_out_are_told(folder: Path) -> None:
    (folder / "names.txt").write_text(".* ->")
    command = dump(folder, values(), "--map-keys", "names.txt")
    assert command.errors == "gradscope: error: saved.npz: --map-keys leaves all of its tensors out\n"


@pytest.mark.slow
def test_what_is_missing_is_grouped(folder: Path) -> None:
    kept = {name: array for name, array in values().items() if "params" not in name}
    command = dump(folder, kept)
    assert command.status == 3
    assert command.errors == (
        "gradscope: error: saved.npz is not a checkpoint of this model: it lacks params (4 tensors)\n"
        "hint: name the model that it is of, or add to the file what it lacks\n"
    )


def test_what_an_optimizer_stores_is_not_taken_for_the_parameters(folder: Path) -> None:
    command = dump(folder, {"step/value": np.asarray(3), **moments("opt_state/0/trace", values())})
    assert command.status == 3
    assert "hint: it has an optimizer's state alone: " in command.errors


@pytest.mark.slow
def test_the_lines_that_a_refusal_proposes_make_a_foreign_file_load(folder: Path) -> None:
    refused = dump(folder, torch_values())
    assert refused.status == 3
    assert "REGEX -> REPLACEMENT" in refused.errors
    lines = [each.strip() for each in refused.errors.splitlines() if each.startswith("  ^")]
    assert r"^mid\.weight$ -> params/mid/kernel" in lines
    (folder / "names.txt").write_text("\n".join(lines))
    command = dump(folder, torch_values(), "--map-keys", "names.txt")
    assert_restored(command, folder)  # with the square kernel, whose shape tells nothing: it follows the head's
    assert command.errors.splitlines() == [
        "saved.npz: 1 other tensor left out: norm.num_batches_tracked int64[]",
        "axes put into the order [2, 3, 1, 0]: conv.weight",
        "axes put into the order [1, 0]: head.weight, mid.weight",
    ]


@pytest.mark.slow
def test_a_square_kernel_that_nothing_decides_is_refused_with_the_rule_to_write(folder: Path) -> None:
    saved = {name.replace("params/", ""): array for name, array in values().items()}
    saved["mid.weight"] = saved.pop("mid/kernel").T
    (folder / "names.txt").write_text(r"^mid\.weight -> mid/kernel")
    command = dump(folder, saved, "--map-keys", "names.txt")
    assert command.status == 3
    assert "the axes of mid.weight [4, 4] fit in more than one order" in command.errors
    assert "which goes before --map-keys and names tensors as the file does" in command.errors
    rule = "\n".join(line.strip() for line in command.errors.splitlines()[2:6])
    (folder / "rules.toml").write_text(rule)
    assert_restored(dump(folder, saved, "--map", "rules.toml"), folder)


def test_rules_make_variables_of_tensors_of_another_form(folder: Path) -> None:
    saved = torch_values()
    saved["fused.weight"] = np.concatenate([saved.pop("mid.weight"), saved.pop("head.weight")])
    rules = r"""
    [[rule]]
    candidate = 'fused\.weight'
    reference = ['params/mid/kernel', 'params/head/kernel']
    steps = [{ transpose = [1, 0] }, { split = 1, into = [4, 5] }]
    [[rule]]
    candidate = 'norm\.running_(.*)'
    reference = 'norm/{1}'
    """
    (folder / "rules.toml").write_text(rules)
    (folder / "names.txt").write_text("weight -> kernel")
    assert_restored(dump(folder, saved, "--map", "rules.toml", "--map-keys", "names.txt"), folder)


@pytest.mark.slow
def test_a_rule_that_applies_to_no_tensor_is_told(folder: Path) -> None:
    rule = "[[rule]]\ncandidate = '{}'\nreference = 'params/mid/kernel'\n"
    said = "a rule of --map applies to no tensor of saved.npz: midd/kernel"
    (folder / "rules.toml").write_text(rule.format("params/mid/kernel") + rule.format("midd/kernel"))
    command = dump(folder, values(), "--map", "rules.toml")
    assert_restored(command, folder)
    assert command.errors.splitlines() == [said]
    saved = {name.replace("mid/kernel", "middle"): array for name, array in values().items()}
    command = dump(folder, saved, "--map", "rules.toml")
    assert command.status == 3
    assert "2 rules of --map apply to no tensor of saved.npz: params/mid/kernel, midd/kernel" in command.errors


@pytest.mark.slow
def test_a_line_of_a_key_map_that_changes_no_name_is_told(folder: Path) -> None:
    saved = {name.replace("params/mid/", "middle/"): array for name, array in values().items()}
    (folder / "names.txt").write_text("^midle/ -> mid/\nmiddle -> params/mid\n^params/(mid) -> params/\\1\n")
    command = dump(folder, saved, "--map-keys", "names.txt")
    assert_restored(command, folder)
    assert command.errors.splitlines() == ["2 lines of --map-keys change no name of saved.npz: ^midle/, ^params/(mid)"]
    (folder / "names.txt").write_text("^midle/ -> mid/")
    command = dump(folder, saved, "--map-keys", "names.txt")
    assert command.status == 3
    assert "\n  a line of --map-keys changes no name of saved.npz: ^midle/\n" in command.errors


@pytest.mark.slow
def test_no_line_of_a_key_map_is_proposed_for_what_rules_have_made(folder: Path) -> None:
    saved = {name.replace("params/", ""): array for name, array in values().items()}
    saved["mid.weight"] = saved.pop("mid/kernel").T
    (folder / "rules.toml").write_text(r"""
    [[rule]]
    candidate = 'mid\.weight'
    reference = 'params/middle/kernel'
    steps = [{ transpose = [1, 0] }]
    """)
    command = dump(folder, saved, "--map", "rules.toml")
    assert command.status == 3
    assert "  ^" not in command.errors, command.errors
    assert "--map makes params/middle/kernel, which the model does not have: name variables of the model" in (
        command.errors
    )


@pytest.mark.slow
def test_the_gradients_are_those_of_the_variables_in_the_file(folder: Path) -> None:
    (folder / "names.txt").write_text("weight -> kernel\nrunning_ ->")
    assert dump(folder, torch_values(), "--map-keys", "names.txt").status == 0
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    tree: dict[str, Any] = {}
    for name, array in values().items():
        collection, layer, leaf = name.split("/")
        tree.setdefault(collection, {}).setdefault(layer, {})[leaf] = array
    with np.load(folder / "model.npz") as members:
        expected = jax.grad(lambda p: scope["loss"]({**tree, "params": p}, {"x": members["input/x"]}))(tree["params"])
        np.testing.assert_allclose(members["param_grad/conv/kernel"], expected["conv"]["kernel"], rtol=1e-4, atol=1e-6)


def test_copies_for_each_device_are_answered_with_how_to_save_one(folder: Path) -> None:
    copies = {name: np.stack([array] * 4) for name, array in values().items()}
    command = dump(folder, copies | {"step": np.asarray(7)})
    assert command.status != 0
    assert "hint: its tensors are 4 equal copies, one for each device, as jax.pmap keeps them: save one of them" in (
        command.errors
    )
    assert_restored(dump(folder, {name: array[0] for name, array in copies.items()}), folder)
    other = dump(folder, {name: np.stack([array, array + 1]) for name, array in values().items()})
    assert "copies" not in other.errors, other.errors  # two models
    zeros = dump(folder, {name: np.zeros((2, *array.shape)) for name, array in values().items()})
    assert "copies" not in zeros.errors, zeros.errors
