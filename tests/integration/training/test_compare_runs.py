"""`gradscope compare` of two runs: the first step that differs, and the first tensor in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison.diagnosis.runs.differing_rows import difference_of
from gradscope.comparison.diagnosis.runs.packed_in_runs import Packed, allow_missing
from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence, compare_runs
from gradscope.comparison.diagnosis.runs.run_stages import RunRow
from gradscope.comparison.judging.compare_options import CompareOptions
from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.renamed_tensors import without_roots
from gradscope.naming import split_key
from tests.integration.command import gradscope
from tests.integration.training.histories import write

KEYS = ("update/w", "slot/mu/w", "param_grad/w", "clipped_grad/w", "activation/one", "param/w", "input/x")
#: The stages in the order of a step, by the key of the tensor that is in it.
IN_ORDER = ("input/x", "param/w", "activation/one", "param_grad/w", "clipped_grad/w", "slot/mu/w", "update/w")


def statistics(array: np.ndarray) -> dict[str, float | int]:
    wide = array.astype(np.float64)
    return {
        "l2": float(np.linalg.norm(wide)), "rms": float(np.sqrt((wide**2).mean())), "mean": float(wide.mean()),
        "std": float(wide.std()), "amax": float(np.abs(wide).max()), "zeros": 0, "nan": 0, "inf": 0,
    }  # fmt: skip


def recorded(folder: Path, steps: dict[int, dict[str, np.ndarray]], loss: float = 1.0) -> Path:
    folder.mkdir()
    with HistoryWriter(folder, from_step=0, facts={"model": "net"}) as history:
        keys = dict.fromkeys(key for tensors in steps.values() for key in tensors)
        split = map(split_key, keys)
        history.describe({}, [TensorRow(family=family, name=name, dtype="float32") for family, name in split])
        for step, tensors in steps.items():
            stats = {key: statistics(array) for key, array in tensors.items()}
            history.write(lambda step=step, stats=stats: StepRecord(numbers={"step": step, "loss": loss}, stats=stats))
    return folder


def compared(ref: Path, cand: Path, **options: Any) -> RunDivergence:
    with History(ref) as one, History(cand) as other:
        return compare_runs(one, other, CompareOptions(**options))


def steps_of(seed: int = 0) -> dict[int, dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return {step: {key: generator.normal(size=24) for key in KEYS} for step in (0, 10, 20)}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": "loss", "family": "step", "ref": 0.02, "cand": 2.0, "bound": 99.0},
         "`loss` is 2 in the candidate and 0.02 in the reference (tolerance 0.0001)"),
        ({"name": "learning_rate", "family": "step", "ref": 0.0, "cand": 0.1, "bound": math.inf, "tolerance": None},
         "`learning_rate` is 0.1 in the candidate and 0 in the reference"),
        ({"ref": 0.5, "cand": 50.0, "bound": 99.0},
         "`param/w`, whose l2 is 100 times that of the reference: rel_l2 at least 99, tolerance 0.0001"),
        ({"ref": 1.0, "cand": 3.0, "bound": 5.0}, "`param/w`, rel_l2 at least 5, tolerance 0.0001"),
        ({"ref": 0.0, "cand": 3.0, "bound": math.inf},
         "`param/w` is zero in the reference, and in the other it has an l2 of 3"),
        ({"ref": 3.0, "cand": 0.0, "bound": 1.0},
         "`param/w` is zero in the candidate, and in the other it has an l2 of 3"),
        ({"ref": 3.0, "cand": 3.0, "bound": math.inf}, "`param/w` has another number of NaN or infinite elements"),
        ({"bound": math.inf}, "`param/w` has other values"),
    ],
)  # fmt: skip
def test_a_difference_is_told_by_the_numbers_that_are_known(changed: dict[str, Any], sentence: str) -> None:
    row: dict[str, Any] = {"name": "w", "family": "param", "status": "different", "tolerance": "0.0001"}
    assert difference_of(RunRow(**row | changed)) == sentence


@pytest.mark.slow
@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_first_tensor_is_that_of_the_first_stage(tmp_path: Path, first: int) -> None:
    ref, cand = steps_of(), steps_of()
    for step in (10, 20):
        for key in IN_ORDER[first:]:
            cand[step][key] = cand[step][key] * 1.01
    found = compared(recorded(tmp_path / "a", ref), recorded(tmp_path / "b", cand))
    assert (found.first_step, found.verdict) == (10, "different")
    assert found.first is not None
    assert f"{found.first.family}/{found.first.name}" == IN_ORDER[first]
    assert [row.status for row in found.rows].count("different") == len(IN_ORDER) - first
    assert "1 recorded step the same, then step 10 differs" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_never_more_than_the_difference(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    ref = {0: {key: generator.normal(generator.normal(), 1, 8) for key in KEYS}}
    cand = {0: {key: array + generator.normal(0, 0.1, 8) for key, array in ref[0].items()}}
    found = compared(recorded(tmp_path / "a", ref), recorded(tmp_path / "b", cand))
    for row in found.rows:
        if row.family == "step":
            continue
        one, other = (side[0][f"{row.family}/{row.name}"] for side in (ref, cand))
        assert row.bound is not None
        assert 0 < row.bound <= np.linalg.norm(other - one) / np.linalg.norm(one) * (1 + 1e-12)


def test_the_statistic_that_shows_a_difference_is_told_with_its_values(tmp_path: Path) -> None:
    ref = {0: {key: np.tile([1.0, -1.0], 12) for key in KEYS}}
    found = compared(recorded(tmp_path / "a", ref), recorded(tmp_path / "b", {0: {key: np.ones(24) for key in KEYS}}))
    rows = [row for row in found.rows if row.family != "step"]
    assert {(row.statistic, row.ref_statistic, row.cand_statistic) for row in rows} == {("mean", 0.0, 1.0)}
    assert {(row.ref, row.cand) for row in rows} == {(24**0.5, 24**0.5)}


def test_tolerances_are_those_of_a_comparison_of_dumps(tmp_path: Path) -> None:
    ref, cand = steps_of(), steps_of()
    for key in KEYS:
        cand[10][key] = cand[10][key] * (1 + 2e-4)
    one, other = recorded(tmp_path / "a", ref), recorded(tmp_path / "b", cand)
    by_default = {f"{row.family}/{row.name}": row.status for row in compared(one, other).rows}
    assert by_default["param/w"] == by_default["activation/one"] == "different"  # 1e-4
    assert by_default["param_grad/w"] == by_default["update/w"] == "same"  # 5e-4
    line = ("compare", one, other, "--tol")
    assert {row.tolerance for row in compared(one, other).rows} == {1e-4, 5e-4}
    assert gradscope(*line, "3e-4", folder=tmp_path).status == 0
    assert gradscope(*line, "update.*=rel_l2 < 1e-4", "--select", "update/*", folder=tmp_path).status == 1
    assert gradscope("compare", one, one, "--bitwise", folder=tmp_path).status == 0
    assert gradscope("compare", one, other, "--bitwise", "--select", "update/*", folder=tmp_path).status == 1


def test_what_one_run_lacks_differs_unless_it_may_be_missing(tmp_path: Path) -> None:
    ref, cand = steps_of(), steps_of()
    for tensors in cand.values():
        del tensors["slot/mu/w"]
    one, other = recorded(tmp_path / "a", ref), recorded(tmp_path / "b", cand)
    found = gradscope("compare", one, other, "--json", folder=tmp_path)
    assert (found.status, found.json["first"]["status"], found.json["first_step"]) == (1, "missing", 0)
    assert "of 1, only in the reference" in gradscope("compare", one, other, folder=tmp_path).output
    assert gradscope("compare", one, other, "--allow-missing", "slot/.*", folder=tmp_path).status == 0


def renamed(steps: dict[int, dict[str, np.ndarray]], names: dict[str, str]) -> dict[int, dict[str, np.ndarray]]:
    """The steps with other names."""
    return {step: {names.get(key, key): array for key, array in tensors.items()} for step, tensors in steps.items()}


def layered(seed: int = 0) -> dict[int, dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    keys = ("activation/layers/0/attn", "activation/layers/1/attn", "activation/layers", "param_grad/w", "param/w")
    return {step: {key: generator.normal(size=24) for key in keys} for step in (0, 10)}


SCANNED = {
    "activation/layers/0/attn": "activation/layers[0]/attn",
    "activation/layers/1/attn": "activation/layers[1]/attn",
}
SHARDED = {
    "activation/layers/0/attn": "activation/layers[0]/0/attn",
    "activation/layers/1/attn": "activation/layers[0]/1/attn",
}


def test_layers_that_a_loop_numbers_are_those_of_the_program_that_writes_it_out(tmp_path: Path) -> None:
    cand = renamed(layered(), SCANNED)
    for tensors in cand.values():
        tensors["activation/layers"] = -2 * tensors["activation/layers"]  # of the last iteration, not of the first
    one = recorded(tmp_path / "a", layered())
    found = compared(one, recorded(tmp_path / "b", cand))
    assert found.verdict == "same"
    assert {row.name for row in found.rows if row.status == "same"} >= {"layers/0/attn", "layers/1/attn"}
    cand[10]["activation/layers[1]/attn"] = 1.01 * cand[10]["activation/layers[1]/attn"]
    found = compared(one, recorded(tmp_path / "c", cand))
    assert found.first is not None
    assert (found.first_step, found.first.name) == (10, "layers/1/attn")


def test_a_further_name_of_a_layer_that_is_compared_is_no_difference(tmp_path: Path) -> None:
    ref = {step: {**each, "activation/around": each["activation/layers/1/attn"]} for step, each in layered().items()}
    one, other = recorded(tmp_path / "a", ref), recorded(tmp_path / "b", layered())
    assert (compared(one, other).verdict, compared(other, one).verdict) == ("same", "same")
    ref[10]["activation/around"] = 2 * ref[10]["activation/layers/1/attn"]
    found = compared(recorded(tmp_path / "c", ref), other)
    assert (found.first_step, found.first and found.first.name) == (10, "around")


@pytest.mark.parametrize(
    ("changed", "verdict"), [("", "same"), ("param_grad/w", "different"), ("param/w", "different")]
)
def test_layers_of_shards_do_not_count_where_the_loss_and_all_gradients_agree(
    tmp_path: Path, changed: str, verdict: str
) -> None:
    cand = renamed(layered(), SHARDED)
    for tensors in cand.values():
        tensors |= {key: 1.01 * array for key, array in tensors.items() if key == changed}
    found = compared(recorded(tmp_path / "a", layered()), recorded(tmp_path / "b", cand))
    assert found.verdict == verdict
    assert (found.first.key if found.first is not None else "") == changed, "what both have tells"


def test_a_batch_and_a_learning_rate_that_a_run_never_records_are_no_difference(tmp_path: Path) -> None:
    def run(name: str, keys: tuple[str, ...], **numbers: float) -> Path:
        (tmp_path / name).mkdir()
        with HistoryWriter(tmp_path / name, from_step=0, facts={"model": "net"}) as history:
            split = map(split_key, keys)
            history.describe({}, [TensorRow(family=family, name=each, dtype="float32") for family, each in split])
            stats = {key: statistics(np.ones(4)) for key in keys}
            history.write(lambda: StepRecord(numbers={"step": 0, "loss": 1.0, **numbers}, stats=stats))
        return tmp_path / name

    command = run("command", ("input/x", "param/w"), learning_rate=0.1)
    assert compared(run("loop", ("param/w",)), command).verdict == "same"
    assert compared(run("slower", ("input/x", "param/w"), learning_rate=0.05), command).verdict == "different"
    other = run("other", ("input/y", "param/w"), learning_rate=0.1)
    assert compared(other, command).verdict == "different"


def test_an_option_that_a_run_was_not_given_is_not_unknown(tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "a", steps_of()), recorded(tmp_path / "b", steps_of())
    with HistoryWriter(other, from_step=99, facts={}) as history:
        history.describe({"option --clip": "norm(1)", "jax": "0.9"})
    text = gradscope("compare", one, other, folder=tmp_path).output
    assert "(not given) -> norm(1)" in text
    assert "(unknown) -> 0.9" in text


def test_a_loss_that_is_not_finite_in_one_run_differs(tmp_path: Path) -> None:
    one = recorded(tmp_path / "a", steps_of())
    other = recorded(tmp_path / "b", steps_of(), loss=float("nan"))
    found = compared(one, other)
    assert found.first is not None
    assert (found.first.stage, found.first.bound, found.first.cand) == ("loss", np.inf, None)
    assert found.sentence.endswith("`loss` is not a number in the candidate and 1 in the reference (tolerance 0.0001).")
    assert compared(other, other).verdict == "same"


def test_only_common_steps_are_compared(tmp_path: Path) -> None:
    steps = steps_of()
    one = recorded(tmp_path / "a", steps)
    other = recorded(tmp_path / "b", {20: steps[20], 25: steps[0]})
    found = gradscope("compare", one, other, "--json", folder=tmp_path)
    assert (found.status, found.json["compared_steps"]) == (0, 1)
    assert (found.json["ref_only_steps"], found.json["cand_only_steps"]) == (2, 1)
    late = recorded(tmp_path / "c", {3: steps[0]})
    done = gradscope("compare", one, late, folder=tmp_path)
    assert (done.status, "no recorded step in common" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("dump.npz",), "dump.npz is none"),
        (("run", "run"), "a training run is compared with one other"),
        (("run", "--isolate", "model.py"), "--isolate is of dumps"),
        (("run", "--map", "map.toml"), ""),
        (("run", "--tol", "max_abs < 1"), "cannot decide 'max_abs < 1'"),
        (("run", "--tol", "v=1e-3"), "the tolerance of 'v' matches nothing"),
        (("run", "--select", "v*"), "pattern 'v*' selects nothing"),
    ],
)
def test_what_cannot_be_compared_is_one_message(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    write(tmp_path / "run")
    np.savez(tmp_path / "dump.npz", w=np.ones(2))
    (tmp_path / "map.toml").write_text("")
    done = gradscope("compare", "run", *options, folder=tmp_path)
    assert (done.status, done.errors.count("error:"), message in done.errors) == (2, 1, True), done.errors


#: Points of a line for `linear_regression`, and the same but for the fifth batch.
POINTS = """
import numpy as np


def batches():
    rng = np.random.default_rng(7)
    while True:
        x = rng.uniform(-1, 1, 8).astype(np.float32)
        yield {"x": x, "y": 3 * x + 2}


def others():
    for number, batch in enumerate(batches()):
        yield {**batch, "x": batch["x"] * np.float32(1.01)} if number == 4 else batch
"""


@pytest.mark.slow
def test_planted_differences_of_real_runs_are_found(tmp_path: Path) -> None:
    """Another batch at step 4, and another clip: the step, and the first tensor, that it reaches."""
    pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")
    (tmp_path / "points.py").write_text(POINTS)

    def train(run: str, data: str, clip: str, steps: int, *options: object) -> None:
        line = ("train", "linear_regression", "--every", 2, "--optimizer", "sgd(0.05)", "-q", "--data", data)
        done = gradscope(*line, "--clip", clip, "--steps", steps, "-o", run, *options, folder=tmp_path)
        assert done.status == 0, done.errors

    train("a", "points.py:batches", "norm(1)", 7)
    train("b", "points.py:others", "norm(1)", 7)
    train("c", "points.py:batches", "norm(0.9)", 1)
    assert gradscope("compare", "a", "a", "--bitwise", folder=tmp_path).status == 0
    train("resumed", "points.py:batches", "norm(1)", 4)  # step 3 is recorded as its last
    train("resumed", "points.py:batches", "norm(1)", 7, "--resume")
    done = gradscope("compare", "a", "resumed", "--bitwise", folder=tmp_path)
    assert done.status == 0, done.output
    batch = gradscope("compare", "a", "b", "--json", folder=tmp_path)
    first = batch.json["first"]
    assert (batch.status, batch.json["first_step"], first["family"], first["name"]) == (1, 4, "input", "x")
    assert first["rel_l2_at_least"] == pytest.approx(0.01, rel=1e-4)
    clip = gradscope("compare", "a", "c", "--json", folder=tmp_path).json
    assert (clip["first_step"], clip["first"]["stage"]) == (0, "clipped gradients")
    assert {"field": "option --clip", "ref": "norm(1)", "cand": "norm(0.9)"} in clip["provenance_differences"]


#: A network whose layers read and return float32, and compute in another type.
MIXED = """
import jax, jax.numpy as jnp, numpy as np

DTYPE, FACTOR = jnp.float32, 1.0

def init(key):
    draw = np.random.default_rng(0).normal
    return {name: (draw(size=size) / 4).astype(np.float32) for name, size in {"up": (8, 32), "down": (32, 4)}.items()}

def batch(key, n=16):
    draw = np.random.default_rng(1).normal
    return {"x": draw(size=(n, 8)).astype(np.float32), "y": draw(size=(n, 4)).astype(np.float32)}

def loss(variables, batch):
    def dense(name, x):
        with jax.named_scope(name):
            return (x.astype(DTYPE) @ variables[name].astype(DTYPE)).astype(jnp.float32)
    x = FACTOR * dense("down", jax.nn.relu(dense("up", batch["x"])))
    return jnp.square(x - batch["y"]).mean()
"""


@pytest.mark.slow
def test_a_run_that_computes_in_half_precision_is_judged_as_that(tmp_path: Path) -> None:
    narrow = MIXED.replace("DTYPE, FACTOR = jnp.float32", "DTYPE, FACTOR = jnp.bfloat16")
    programs = {"exact": MIXED, "narrow": narrow, "wrong": narrow.replace("16, 1.0", "16, 1.2")}
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)
        steps = ("--steps", "3", "--every", "1", "--optimizer", "sgd(0.1)")
        assert gradscope("train", f"{name}.py", "-o", name, *steps, "-q", folder=tmp_path).status == 0
    found = compared(tmp_path / "exact", tmp_path / "narrow")
    assert found.verdict == "same", found.sentence
    assert found.largest[0] > 1e-4  # the tolerance of float32
    assert compared(tmp_path / "narrow", tmp_path / "exact").verdict == "same"
    differing = {each["field"]: each for each in found.provenance_differences}
    assert differing["narrowest"] == {"field": "narrowest", "ref": "float32", "cand": "bfloat16"}
    wrong = compared(tmp_path / "exact", tmp_path / "wrong")
    assert (wrong.first_step, wrong.first and wrong.first.tolerance) == (0, 0.02)
    again = tmp_path / "again.py"  # what a run is given has the digits of its own type
    again.write_text(narrow.replace("/ 4)", "/ 3.99)"))
    assert gradscope("train", "again.py", "-o", "again", *steps, "-q", folder=tmp_path).status == 0
    given = compared(tmp_path / "exact", tmp_path / "again")
    assert given.first is not None
    assert given.first.key.startswith("param/")


def test_python_compares_runs_as_the_command_does(tmp_path: Path) -> None:
    steps = {number: {"param/w": np.full(3, 1.0 + number)} for number in range(3)}
    other = {**steps, 2: {"param/w": np.full(3, 30.0)}}
    paths = [recorded(tmp_path / name, each) for name, each in (("one", steps), ("same", steps), ("other", other))]
    with gs.Run(paths[0]) as one, gs.Run(paths[1]) as same, gs.Run(paths[2]) as changed:
        assert gs.compare(one, same)
        found = gs.compare(one, changed)
        assert isinstance(found, gs.RunDivergence)
        assert (bool(found), found.first_step, found.first.name if found.first else None) == (False, 2, "w")
        assert gs.compare(one, changed, tol=100.0)
        with pytest.raises(gs.UsageError, match="rtol is of dumps"):
            gs.compare(one, changed, rtol=1e-3)  # pyright: ignore[reportCallIssue]
        with pytest.raises(gs.UsageError, match="compared with a dump"):
            gs.compare(one, changed.at(1))  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("turned", [False, True])
def test_a_path_that_does_not_exist_is_no_run_of_another_kind(tmp_path: Path, turned: bool) -> None:
    paths = (recorded(tmp_path / "a", {0: steps_of()[0]}), "nowhere")
    done = gradscope("compare", *(reversed(paths) if turned else paths), folder=tmp_path)
    assert (done.status, "nowhere: it cannot be opened" in done.errors) == (3, True)


def rooted(folder: Path, root: str, scale: float = 1.0) -> Path:
    """A run whose layers have the root's name or not, as of an older version or a newer one."""
    values = np.ones((2, 3))
    names = {f"{root}first": 1.0, f"{root}block[0]/dense": 2.0, "Net": 3.0}
    keys = {f"{family}/{name}": each for family in ("activation", "activation_grad") for name, each in names.items()}
    rows = [TensorRow(family=key.partition("/")[0], name=key.partition("/")[2], shape=(2, 3), dtype="float32")
            for key in keys]  # fmt: skip
    folder.mkdir(exist_ok=True)
    begin = 1 if (folder / "history.sqlite").exists() else 0
    with HistoryWriter(folder, from_step=begin, facts={"model": "net"}) as history:
        history.describe({}, rows)
        stats = {key: statistics(each * scale * values) for key, each in keys.items()}
        history.write(lambda: StepRecord(numbers={"step": begin, "loss": 1.0}, stats=stats))
    return folder


def test_layers_are_compared_where_one_run_states_the_root(tmp_path: Path) -> None:
    old, new, other = (rooted(tmp_path / name, root, scale)
                       for name, root, scale in (("old", "Net/", 1), ("new", "", 1), ("other", "", 2)))  # fmt: skip
    for one, two in ((old, new), (new, old)):
        same = compared(one, two)
        assert (same.verdict, len(same.rows)) == ("same", 7)  # with the loss
        assert {row.name for row in same.rows} == {"first", "block[0]/dense", "Net", "loss"}
    assert compared(old, other).sentence.endswith(
        "`activation/first`, whose l2 is 2 times that of the reference: rel_l2 at least 1, tolerance 0.0001."
    )


def test_curves_go_on_under_the_name_that_a_layer_has_now(tmp_path: Path) -> None:
    rooted(rooted(tmp_path / "run", "Net/"), "")
    with gs.load(tmp_path / "run") as run:
        assert run.series("activation_grad/first", "l2").tolist() == pytest.approx([6**0.5] * 2)
    with History(tmp_path / "run") as history:
        assert sorted(each.key for each in history.tensors.values() if each.family == "activation") == [
            "activation/Net", "activation/block[0]/dense", "activation/first",
        ]  # fmt: skip


def test_a_layer_of_another_shape_or_without_its_root_is_another_layer() -> None:
    def row(name: str, *shape: int) -> TensorRow:
        return TensorRow(family="activation", name=name, shape=shape, dtype="float32")

    def paired(*names: TensorRow, others: list[TensorRow]) -> dict[str, str]:
        return without_roots({each.key: each for each in names}, {each.key: each for each in others})

    root = row("Net", 2)
    assert paired(root, row("Net/a", 2), others=[root, row("a", 2)]) == {"activation/Net/a": "activation/a"}
    assert paired(root, row("Net/a", 2), others=[root, row("a", 3)]) == {}
    assert paired(row("Net/a", 2), others=[row("a", 2)]) == {}
    assert paired(root, row("Net/a", 2), row("a", 2), others=[root, row("a", 2)]) == {}


def described(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Returns a run of one step that has parameters, with their shapes."""
    folder.mkdir()
    with HistoryWriter(folder, from_step=0, facts={"model": "net"}) as history:
        rows = [
            TensorRow(family="param", name=name, dtype="float32", shape=each.shape) for name, each in arrays.items()
        ]
        history.describe({}, rows)
        stats = {f"param/{name}": statistics(each) for name, each in arrays.items()}
        history.write(lambda: StepRecord(numbers={"step": 0, "loss": 1.0}, stats=stats))
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_parameters_that_hold_several_of_the_other_run_are_named(*, packed: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 8, 8))
    parts = {f"block/attn/{name}/kernel": each for name, each in zip("qkv", values, strict=True)}
    others = {"head": np.random.default_rng(1).normal(size=(8, 3)), "block/mlp/kernel": np.eye(8) * 3}
    whole = np.concatenate([*parts.values()], axis=1)
    whole = whole if packed else whole + np.random.default_rng(2).normal(size=whole.shape)
    ref = described(tmp_path / "ref", parts | others)
    cand = described(tmp_path / "cand", {"block/attn/qkv/kernel": whole, **others})
    found = compared(ref, cand)
    assert found.packed == (Packed(whole="block/attn/qkv/kernel", parts=tuple(parts), in_ref=False),) * packed
    output = gradscope("compare", ref, cand, folder=tmp_path).output
    said = "packed     `block/attn/qkv/kernel` of the candidate holds `block/attn/q/kernel`, "
    assert (said in output) == packed
    if packed:
        assert compared(ref, cand, allow_missing=(allow_missing(found.packed),)).verdict == "same"
        assert f"--allow-missing '{allow_missing(found.packed)}' compares all else" in output


def in_order(folder: Path, *layers: str, changed: str = "") -> Path:
    """Returns a run of one step whose activations are in some order, one of which has other values."""
    keys = [f"activation/{name}" for name in layers]
    values = {key: np.random.default_rng(sum(map(ord, key))).normal(size=24) for key in keys}
    values |= {key: 2 * each for key, each in values.items() if key.endswith(f"/{changed}")}
    return recorded(folder, {0: values})


@pytest.mark.parametrize(
    ("layers", "changed", "exchanged"),
    [
        (("one", "act", "norm", "out"), "norm", ("norm", "act")),
        (("one", "act", "norm", "out"), "out", ()),  # branches beside each other, in any order
        (("one", "norm", "act", "out"), "norm", ()),
    ],
)
def test_layers_that_are_called_in_another_order_are_named(
    layers: tuple[str, ...], changed: str, exchanged: tuple[str, ...], tmp_path: Path
) -> None:
    ref = in_order(tmp_path / "ref", "one", "norm", "act", "out")
    cand = in_order(tmp_path / "cand", *layers, changed=changed)
    assert compared(ref, cand).exchanged == exchanged
    said = "order      the reference calls `norm` before `act`, and the candidate the other way round\n"
    assert (said in gradscope("compare", ref, cand, folder=tmp_path).output) == bool(exchanged)
