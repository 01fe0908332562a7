"""Of several places that may have a model's parameters, each is read by the lines that a refusal proposes for it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from gradscope.errors import DumpError
from gradscope.tracing.data.checkpoints import Checkpoint, variables_from_file
from gradscope.tracing.data.renaming.checkpoint_request import CheckpointRequest
from gradscope.tracing.data.renaming.key_map import read_key_map
from gradscope.tracing.data.renaming.rival_homes import copies_hint

PARAMS = {"conv/kernel": (3, 3, 2, 4), "conv/bias": (4,), "norm/scale": (4,), "head/kernel": (4, 5)}
STATE = {"norm/mean": (4,), "norm/var": (4,)}


def expected(*, collections: bool = True) -> Any:
    def tree(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, shape in shapes.items():
            module, leaf = name.split("/")
            made.setdefault(module, {})[leaf] = jax.ShapeDtypeStruct(shape, np.dtype(np.float32))
        return made

    return {"params": tree(PARAMS), "batch_stats": tree(STATE)} if collections else tree(PARAMS)


def array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)


def at(*places: str, shapes: Mapping[str, tuple[int, ...]] = PARAMS) -> dict[str, np.ndarray]:
    names = {f"{place}/{name}".lstrip("/"): shape for place in places for name, shape in shapes.items()}
    return {name: array(name, shape) for name, shape in names.items()}


def nested(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, each in flat.items():
        *modules, leaf = name.split("/")
        inside = tree
        for module in modules:
            inside = inside.setdefault(module, {})
        inside[leaf] = each
    return tree


def npz(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    np.savez(folder / "saved.npz", **dict(tensors))
    return folder / "saved.npz"


def npz_with_dots(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    return npz(folder, {name.replace("/", "."): each for name, each in tensors.items()})


def npz_of_paths(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    leaves = jax.tree_util.tree_leaves_with_path(nested(tensors))
    return npz(folder, {jax.tree_util.keystr(path): each for path, each in leaves})


def npz_of_tuples(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    return npz(folder, {str(tuple(name.split("/"))): each for name, each in tensors.items()})


def safetensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors is absent: its files were NOT read back")
    named = {name.replace("/", "."): each for name, each in tensors.items()}
    library.save_file(named, str(folder / "saved.safetensors"))
    return folder / "saved.safetensors"


def msgpack(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    library = pytest.importorskip("flax.serialization", reason="Flax is absent: its checkpoints were NOT read back")
    (folder / "saved.msgpack").write_bytes(library.msgpack_serialize(nested(tensors)))
    return folder / "saved.msgpack"


def orbax(folder: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    library = pytest.importorskip("orbax.checkpoint", reason="Orbax is absent: its checkpoints were NOT read back")
    with library.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder / "saved", nested(tensors))
    return folder / "saved"


#: A file's tensors, whether the model has collections, and each place that may be meant, with where it has what.
LAYOUTS = {
    "averages beside a model with statistics": (
        at("model/params", "ema/params") | at("model/batch_stats", shapes=STATE),
        {"model": ("model/params", "model/batch_stats"), "ema": ("ema/params", "model/batch_stats")},
    ),
    "averages of the statistics, too": (
        at("model/params", "ema/params") | at("model/batch_stats", "ema/batch_stats", shapes=STATE),
        {"model": ("model/params", "model/batch_stats"), "ema": ("ema/params", "ema/batch_stats")},
    ),
    "three": (
        at("a/net/params", "b/net/params", "c/net/params") | at("b/net/batch_stats", shapes=STATE),
        {f"{each}/net": (f"{each}/net/params", "b/net/batch_stats") for each in "abc"},
    ),
    "deeper than the averages": (
        at("state_dict_ema/params", "run/state_dict/params") | at("run/state_dict/batch_stats", shapes=STATE),
        {
            "state_dict_ema": ("state_dict_ema/params", "run/state_dict/batch_stats"),
            "run/state_dict": ("run/state_dict/params", "run/state_dict/batch_stats"),
        },
    ),
    "at the top": (
        at("", "ema/params") | at("", shapes=STATE),
        {"the top of the file": ("", ""), "ema": ("ema/params", "")},
    ),
    "without collections": (
        at("state_dict", "state_dict_ema"),
        {"state_dict": ("state_dict", None), "state_dict_ema": ("state_dict_ema", None)},
    ),
    "a state of training": (
        at("params", "ema_params", "opt_state/0/mu") | {"step": np.asarray(7)},
        {"params": ("params", None), "ema_params": ("ema_params", None)},
    ),
}


def load(path: Path, lines: list[str], model: Any) -> Checkpoint:
    (path.parent / "names.txt").write_text("\n".join(lines))
    request = CheckpointRequest(path=path, key_map=read_key_map(path.parent / "names.txt"))
    return variables_from_file(request, model, dict)


def proposed(hint: str) -> dict[str, list[str]]:
    """The lines that a hint proposes for each place."""
    blocks = re.findall(r"To read (.*?), (?:behind those that you have, )?the lines? (?:is|are)\n((?:  .*\n?)+)", hint)
    return {place: [line.strip() for line in text.splitlines()] for place, text in blocks}


def assert_each_place_is_read(path: Path, layout: str, *rules: str) -> None:
    tensors, places = LAYOUTS[layout]
    model = expected(collections=not any(state is None for _, state in places.values()))
    with pytest.raises(DumpError) as refused:
        load(path, list(rules), model)
    blocks = proposed(str(refused.value.hint))
    assert blocks.keys() == places.keys()
    for place, (params, state) in places.items():
        found = load(path, [*rules, *blocks[place]], model).variables
        own, rest = (found, {}) if state is None else (found["params"], found["batch_stats"])
        wanted = {name: tensors[f"{params}/{name}".lstrip("/")] for name in PARAMS}
        wanted_state = {} if state is None else {name: tensors[f"{state}/{name}".lstrip("/")] for name in STATE}
        jax.tree.map(np.testing.assert_array_equal, own, nested(wanted))
        jax.tree.map(np.testing.assert_array_equal, rest, nested(wanted_state))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("save", [npz, npz_with_dots, npz_of_paths, npz_of_tuples, safetensors, msgpack, orbax])
def test_the_lines_for_either_place_load_all_that_the_model_needs(
    save: Callable[[Path, Mapping[str, np.ndarray]], Path], layout: str, tmp_path: Path
) -> None:
    assert_each_place_is_read(save(tmp_path, LAYOUTS[layout][0]), layout)


def test_the_lines_apply_behind_those_that_the_user_has(tmp_path: Path) -> None:
    layout = "averages beside a model with statistics"
    renamed = {name.replace("kernel", "weight"): each for name, each in LAYOUTS[layout][0].items()}
    assert_each_place_is_read(npz(tmp_path, renamed), layout, "weight$ -> kernel")


#: The names of another library's, without numbers in common with the model's, and the model's own.
FOREIGN = {"0.weight": "conv/kernel", "0.bias": "conv/bias", "1.gamma": "norm/scale", "5.weight": "head/kernel"}


@pytest.mark.parametrize(
    "places",
    [
        ["state_dict", "state_dict_ema"],
        ["student.backbone", "teacher.backbone"],
        ["run.a", "run.b", "run.c"],
        ["state_dict", "ema.module"],
    ],
)
def test_copies_under_names_of_another_library_are_told_apart_first(places: list[str], tmp_path: Path) -> None:
    saved = {
        f"{place}.{name}": array(f"{place}{name}", PARAMS[own]) for place in places for name, own in FOREIGN.items()
    }
    path = npz(tmp_path, saved | {f"opt.state.{at}.exp_avg": np.ones(4, np.float32) for at in range(4)})
    model = expected(collections=False)
    with pytest.raises(DumpError) as refused:
        load(path, [], model)
    blocks = proposed(str(refused.value.hint))
    assert len(blocks) == len(places)
    for place, lines in blocks.items():
        with pytest.raises(DumpError) as refused:
            load(path, lines, model)
        names = [line.strip() for line in str(refused.value.hint).splitlines() if line.startswith("  ^")]
        found = load(path, [*lines, *names], model)
        (whole,) = (each for each in places if each.startswith(place) and (each + ".")[len(place)] == ".")
        wanted = {own: saved[f"{whole}.{name}"] for name, own in FOREIGN.items()}
        jax.tree.map(np.testing.assert_array_equal, found.variables, nested(wanted))


def test_layers_that_are_alike_are_no_copies(tmp_path: Path) -> None:
    saved = {
        f"h.{layer}.{name}": array(name, shape) for layer in range(3) for name, shape in (("w", (4, 5)), ("b", (5,)))
    }
    layers = {f"block_{at}": {"kernel": (4, 5), "bias": (5,)} for at in range(3)}
    model = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, np.dtype(np.float32)),
        layers,
        is_leaf=lambda each: isinstance(each, tuple),
    )
    with pytest.raises(DumpError) as refused:
        load(npz(tmp_path, saved), [], model)
    assert "To read" not in str(refused.value.hint)
    assert "block_" in str(refused.value.hint)


def test_copies_below_very_many_components_are_no_error() -> None:
    deep = "a." * 3000
    saved = {f"{deep}{place}.{name}": np.zeros(PARAMS[own]) for place in "pq" for name, own in FOREIGN.items()}
    lacking = {name: np.zeros(shape) for name, shape in PARAMS.items()}
    assert copies_hint(lacking, saved, ruled=False) is None


def test_averages_are_not_read_in_place_of_parameters_of_which_one_is_missing(tmp_path: Path) -> None:
    tensors, model = at("params", "ema"), {"params": expected(collections=False)}
    del tensors["params/head/kernel"]
    with pytest.raises(DumpError, match="params may be ema or the top of the file") as refused:
        load(npz(tmp_path, tensors), [], model)
    blocks = proposed(str(refused.value.hint))
    read = load(tmp_path / "saved.npz", blocks["ema"], model).variables["params"]["norm"]["scale"]
    np.testing.assert_array_equal(read, tensors["ema/norm/scale"])
    with pytest.raises(DumpError, match=r"it lacks params/head/kernel float32\[4, 5\]\n"):
        load(tmp_path / "saved.npz", blocks["the top of the file"], model)


def test_of_two_spellings_of_a_name_the_one_with_slashes_is_the_models(tmp_path: Path) -> None:
    tensors = at("params") | at("batch_stats", shapes=STATE)
    for name, each in [*tensors.items()]:
        tensors[name.replace("/", ".")] = each + 1
    found = load(npz(tmp_path, tensors), [], expected()).variables
    np.testing.assert_array_equal(found["params"]["head"]["kernel"], tensors["params/head/kernel"])
    np.testing.assert_array_equal(found["batch_stats"]["norm"]["var"], tensors["batch_stats/norm/var"])
