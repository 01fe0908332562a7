"""`gradscope train` against the loop that people write by hand, and what it says where it cannot train."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shlex
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
import models
from gradscope.cli.running.terminal.progress import Progress
from tests.integration.command import Finished, gradscope, in_terminal
from tests.integration.training.trained import contents, rows, write_files

optax = pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

pytestmark = pytest.mark.usefixtures("usual_promotion")

TRAIN = ("train", "net.py", "--data", "data.py:batches", "-q")
RUN = ("--steps", 24, "--every", 3, "--clip", "global_norm(1)", "--ema", 0.9, "--save-every", 10, "--keep", 2)


@pytest.fixture(scope="module")
def folder(usual_promotion: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models and a run of 24 steps, `run`, of which every third is recorded."""
    path = tmp_path_factory.mktemp("training")
    write_files(path)
    done = gradscope(*TRAIN, *RUN, "-o", "run", folder=path)
    assert done.status == 0, done.errors
    return path


@pytest.fixture(scope="module")
def numbered(folder: Path) -> Finished:
    """What the same run says whose pipeline gives batches by their numbers, and which is profiled, in `numbered`."""
    line = ("train", "net.py", "--data", "data.py:numbered", "-q", *RUN, "--json", "-o", "numbered")
    return gradscope(*line, "--trace-every", 12, folder=folder)


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def by_hand(folder: Path) -> tuple[list[Any], list[Any], Any]:
    """The losses and gradients of each of 24 steps, and the last variables, of a loop with optax."""
    net, data = module(folder / "net.py"), module(folder / "data.py").batches()
    optimizer = optax.chain(optax.clip_by_global_norm(1), net.optimizer())
    init_key, _ = jax.random.split(jax.random.key(0))
    variables = net.init(init_key)

    @jax.jit
    def step(variables: Any, slots: Any, batch: Any) -> Any:
        of_params = lambda params: net.loss({**variables, "params": params}, batch)  # noqa: E731
        (value, aux), gradients = jax.value_and_grad(of_params, has_aux=True)(variables["params"])
        updates, slots = optimizer.update(gradients, slots, variables["params"])
        params = optax.apply_updates(variables["params"], updates)
        rngs = {"dropout": jax.random.fold_in(variables["rngs"]["dropout"], 1)}
        return {"params": params, "rngs": rngs, **aux}, slots, value, gradients

    slots, losses, found = optimizer.init(variables["params"]), [], []
    for _ in range(24):
        variables, slots, value, gradients = step(variables, slots, next(data))
        losses.append(float(value))
        found.append(gradients)
    return losses, found, variables


def test_a_terminal_ends_with_the_trends_and_a_pipe_with_the_last_step(folder: Path) -> None:
    again = (*TRAIN, *RUN, "--resume", "-o", "run")
    shown = in_terminal(*again, folder=folder, columns=100).plain.splitlines()
    assert len(shown) <= 41  # and what is said of the state that it goes on from
    assert sum(line.startswith("Trends") for line in shown) == 1
    assert any("gradscope show run --full" in line for line in shown)
    assert "Parameters (" in gradscope(*again, folder=folder).output


@pytest.mark.slow
def test_a_run_is_the_loop_by_hand(folder: Path, by_hand: tuple[list[Any], list[Any], Any]) -> None:
    losses, gradients, variables = by_hand
    with gs.load(folder / "run") as run:
        assert run.steps["step"].tolist() == [0, 3, 6, 9, 12, 15, 18, 21, 23]
        # The same operations, compiled in another order.
        np.testing.assert_allclose(run.steps["loss"], [losses[step] for step in run.steps["step"]], rtol=1e-4)
        norms = [np.linalg.norm(np.asarray(each["head"]["kernel"], np.float64)) for each in gradients]
        recorded = run.series("param_grad/head/kernel", "l2")
        np.testing.assert_allclose(recorded, [norms[step] for step in run.steps["step"]], rtol=1e-5)
    with gs.load(folder / "run" / "state-000024.npz") as state:
        for name in ("head/kernel", "hidden/kernel"):
            layer, kernel = name.split("/")
            np.testing.assert_allclose(state[f"param/{name}"], variables["params"][layer][kernel], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(state["state/batch_stats/var"], variables["batch_stats"]["var"], rtol=1e-4)
        key = jax.random.key_data(variables["rngs"]["dropout"])
        np.testing.assert_array_equal(state["state/rngs/dropout"], key)


def test_losses_are_bit_for_bit_those_of_a_loop_by_hand(folder: Path) -> None:
    line = (Path(models.__file__).parent / "linear_regression.py").read_text(encoding="utf-8")
    (folder / "line.py").write_text(line, encoding="utf-8")
    options = ("--optimizer", "adam(0.1)", "--steps", 40, "--every", 3, "-q", "-o", "line")
    assert gradscope("train", "line.py", *options, folder=folder).status == 0
    net, optimizer = module(folder / "line.py"), optax.adam(0.1)
    init_key, batch_key = jax.random.split(jax.random.key(0))
    batch = jax.jit(lambda number: net.batch(jax.random.fold_in(batch_key, number), 32))

    @jax.jit
    def step(params: Any, slots: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(net.loss)(params, batch)
        updates, slots = optimizer.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, value

    params = net.init(init_key)
    slots, losses = optimizer.init(params), []
    for number in range(40):
        params, slots, value = step(params, slots, batch(np.uint32(number)))
        losses.append(float(value))
    with gs.load(folder / "line") as run:
        assert run.steps["loss"].tolist() == [losses[step] for step in run.steps["step"]]


def test_derived_columns_are_those_of_numpy(folder: Path, by_hand: tuple[list[Any], list[Any], Any]) -> None:
    _, gradients, _ = by_hand
    with gs.load(folder / "run") as run:
        steps = run.steps["step"].tolist()
        flat = [np.asarray(gradients[step]["hidden"]["kernel"], np.float64).ravel() for step in steps]
        cosines = [one @ two / np.linalg.norm(one) / np.linalg.norm(two) for one, two in zip(flat, flat[1:])]  # noqa: RUF007, B905
        found = run.series("param_grad/hidden/kernel", "cosine")
        assert np.isnan(found[0])
        np.testing.assert_allclose(found[1:], cosines, rtol=1e-4)
        shares = [run.series(f"param_grad/{name}/kernel", "share") for name in ("hidden", "head")]
        np.testing.assert_allclose(shares[0] + shares[1], 1, rtol=1e-5)
        ratio = run.series("update/head/kernel", "l2") / run.series("param/head/kernel", "l2")
        np.testing.assert_allclose(run.series("update/head/kernel", "ratio"), ratio, rtol=1e-6)
        assert run.steps["examples"].tolist() == [8 * (step + 1) for step in steps]
        assert (run.steps["grad_norm_clipped"] <= 1 + 1e-6).all()
        rates = [0.05 * 0.9 ** (step / 20) for step in steps]
        assert "learning_rate" in run.steps
        assert np.isnan(run.steps["learning_rate"]).all() or np.allclose(run.steps["learning_rate"], rates)


def test_the_state_is_a_checkpoint_of_other_commands(folder: Path) -> None:
    done = gradscope(
        "dump", "net.py", "--checkpoint", "run/state-000024.npz", "-o", "at.npz", "--json", "-q", folder=folder
    )
    assert done.status == 0, done.errors
    with gs.load(folder / "at.npz") as dump, gs.load(folder / "run" / "state-000024.npz") as state:
        for key in ("param/head/kernel", "state/batch_stats/mean", "state/rngs/dropout"):
            np.testing.assert_array_equal(dump[key], state[key])


@pytest.mark.slow
def test_the_folder_of_a_run_is_its_last_state(folder: Path) -> None:
    options = ("--stats-only", "--json", "-q")
    losses = [
        gradscope("dump", "net.py", "--checkpoint", at, *options, "-o", f"{name}.npz", folder=folder).json["loss"]
        for at, name in (("run", "last"), ("run/state-000024.npz", "same"), ("run/state-000020.npz", "before"))
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_a_loss_that_does_not_fall_has_the_command_that_dumps_its_model(folder: Path) -> None:
    options = ("--optimizer", "sgd(1e-5)", "--matmul-precision", "highest", "--steps", 40, "-o", "a flat run")
    done = gradscope(*TRAIN, *options, folder=folder)
    assert "gradscope explain learning" in done.plain, done.errors
    look = (
        next(line for line in done.plain.splitlines() if line.startswith("look "))
        .removeprefix("look")
        .split("gradscope ")[1]
    )
    assert look == "dump net.py --data data.py:batches --matmul-precision highest --checkpoint 'a flat run'"
    dumped = gradscope(*shlex.split(look), "-o", "flat.npz", "-q", folder=folder)
    assert dumped.status == 0, dumped.errors
    # A run whose loss falls needs none.
    assert "look " not in gradscope("show", "run", folder=folder).plain


def test_the_last_states_are_kept(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "run").glob("state-*")) == ["state-000020.npz", "state-000024.npz"]


@pytest.mark.slow
def test_dumps_of_steps_are_those_of_the_dump_command(folder: Path) -> None:
    options = ("--steps", 4, "--every", 5, "--dump-every", 3, "--dump-at", "1, 2", "--save-every", 2, "-o", "dumped")
    assert gradscope(*TRAIN, *options, folder=folder).status == 0
    run = folder / "dumped"
    assert [path.name for path in sorted(run.glob("step-*"))] == [f"step-{step:06}.npz" for step in (0, 1, 2, 3)]
    state = "dumped/state-000002.npz"
    inputs = ("--data", "data.py:batches", "--batch-index", 2, "--checkpoint", state, "-q", "-o", "two.npz")
    assert gradscope("dump", "net.py", *inputs, folder=folder).status == 0
    with gs.load(run / "step-000002.npz") as ours, gs.load(folder / "two.npz") as other:
        assert list(ours) == list(other)
        assert ours.loss == other.loss
        assert all(ours[key].tobytes() == other[key].tobytes() for key in ours)


def test_a_numbered_pipeline_is_the_same_run(numbered: Finished, folder: Path) -> None:
    assert numbered.status == 0, numbered.errors
    assert contents(folder / "numbered", 24) == contents(folder / "run", 24)


@pytest.mark.slow
def test_json_and_table_show_the_same(numbered: Finished, folder: Path) -> None:
    found = numbered.json
    assert (found["run"], found["steps"], found["recorded"], found["alarms"]) == ("numbered", 24, 9, [])
    losses = [row[1] for row in rows(folder / "numbered", "steps")]
    assert found["loss"] == {"first": losses[0], "last": losses[-1]}
    update = next(row for row in found["rows"] if (row["family"], row["name"]) == ("update", "head/kernel"))
    assert update["ratio"] == pytest.approx(update["l2"] / 2.5, rel=1)
    line = ("train", "net.py", "--data", "data.py:numbered", "-q", *RUN, "--json", "-o", "numbered", "--resume")
    again = gradscope(*line, folder=folder).json
    assert again.pop("resumed_from") == 24
    assert again == found


_PAIRS = """
import jax.numpy as jnp

def init(key):
    return {"w": jnp.ones((3, 1))}

def batch(key, size):
    return {"x": jnp.ones((size, 3)), "y": jnp.arange(float(size))}

def loss(p, batch):
    return jnp.mean((batch["x"] @ p["w"] - batch["y"][None]) ** 2)
"""


def test_a_loss_of_all_pairs_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "pairs.py").write_text(_PAIRS)
    line = ("train", "pairs.py", "--steps", 3, "--every", 1, "--optimizer", "sgd(0.1)", "--batch-size", 4, "-o", "run")
    message = "broadcast: input/y has shape [4] and meets a value of the model of shape [4, 1]"
    pairs = module(tmp_path / "pairs.py")
    with gs.Probe(tmp_path / "probed", every=1) as probe:
        assert gradscope(*line, folder=tmp_path).errors.count(message) == 1
        step = probe.jit(probe.value_and_grad(pairs.loss))
        for _ in range(2):
            step(pairs.init(None), pairs.batch(None, 4))
    assert caplog.text.count(message) == 1
    assert "; 'gradscope explain broadcast' says what to do" in caplog.text
    for run in ("run", "probed"):
        (fault,) = gradscope("show", run, "--json", folder=tmp_path).json["faults"]
        assert (fault["rule"], message.partition(": ")[2] in fault["why"]) == ("broadcast", True)
        assert f"\nbroadcast  {fault['why']}" in gradscope("show", run, folder=tmp_path).output


_FROM_ONE = """
import jax
import jax.numpy as jnp

def init(key):
    return {"w": jnp.ones((3, 4))}

def batch(key, size):
    return {"x": jnp.ones((size, 3)), "y": jnp.arange(size) % 4 + 1}

def loss(p, batch):
    return -(jax.nn.one_hot(batch["y"], 4) * jax.nn.log_softmax(batch["x"] @ p["w"])).sum(1).mean()
"""


def test_labels_from_one_are_told_of_a_run_and_fail_where_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_FROM_ONE)
    line = ("train", "net.py", "--steps", 3, "--every", 1, "--optimizer", "sgd(0.1)", "--batch-size", 16, "-o", "run")
    net = module(tmp_path / "net.py")
    with gs.Probe(tmp_path / "probed", every=1) as probe:
        assert gradscope(*line, "--check", "all", folder=tmp_path).status == 0
        step = probe.jit(probe.value_and_grad(net.loss))
        for _ in range(2):
            step(net.init(None), net.batch(None, 16))
    for run in ("run", "probed"):
        shown = gradscope("show", run, "--check", "out-of-bounds", folder=tmp_path)
        said = (
            "y goes up to 4 in the recorded batches and is never 0, and there are 4 classes at net.py:12, from 0 to 3"
        )
        assert (shown.status, said in " ".join(shown.output.split())) == (1, True)
        bound = {"name": "y", "looked_up": "classes", "rows": 4, "most": 4, "source": "net.py:12"}
        assert gradscope("show", run, "--json", folder=tmp_path).json["bounds"] == [bound | {"table": None}]


@pytest.mark.parametrize(
    ("function", "word", "said"),
    [
        (jax.nn.softmax, "saturated", "the result of the softmax at test_train.py:{} goes through another one"),
        (jnp.tanh, "squashed", "takes for logits what the tanh at test_train.py:{} returns"),
        (jax.nn.relu, "rectified", "takes for logits what the rectifier at test_train.py:{} returns"),
    ],
)
def test_what_a_loss_takes_for_logits_is_reported_by_a_probe_and_what_a_history_states_otherwise_is_none(
    function: Callable[[Any], Any], word: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(p: Any, x: Any) -> Any:
        return -jax.nn.log_softmax(function(x @ p["w"]))[:, 0].mean()

    with gs.Probe(tmp_path / "run", every=1) as probe:
        probe.jit(probe.value_and_grad(twice))({"w": np.ones((3, 4), np.float32)}, np.ones((2, 3), np.float32))
    (message,) = (record.getMessage() for record in caplog.records if f"{word}: " in record.getMessage())
    line = twice.__code__.co_firstlineno + 1
    assert said.format(line) in message
    alone = gradscope("show", "run", "--check", "all", folder=tmp_path)
    assert alone.status == int(word == "saturated")  # the others may be meant
    assert said.partition(" at ")[0] in gradscope("watch", "run", folder=tmp_path).output
    shown = gradscope("show", "run", "--check", f"all,{word}", folder=tmp_path)
    assert (shown.status, shown.lines, said.partition(" at ")[0] in shown.output) == (
        1,
        [f"failed: {word} in run"],
        True,
    )
    (tmp_path / "test_train.py").touch()  # a file is named by its place in the repository
    annotation = gradscope("show", "run", "--format", "github", folder=tmp_path).output
    assert f"file=test_train.py,line={line},title=gradscope%3A {word}::" in annotation
    with sqlite3.connect(tmp_path / "run" / "history.sqlite") as connection:
        connection.execute("UPDATE run SET value = '[[1], [\"a\", \"b\", 3], 7]' WHERE key = 'faults of the loss'")
    assert "faults" not in gradscope("show", "run", "--json", folder=tmp_path).json


def test_a_nan_ends_the_run_with_its_origin_and_the_state_before_it(tmp_path: Path) -> None:
    write_files(tmp_path)
    options = ("--optimizer", "sgd(0.3)", "--steps", 50, "--every", 2)
    done = gradscope("train", "to_nan.py", *options, "-q", "-o", "run", folder=tmp_path)
    assert done.status == 1, done.errors
    assert "square root of" in done.output
    assert "to_nan.py:16" in done.output
    ((step, rule, *_, folder),) = rows(tmp_path / "run", "alarms")
    assert (rule, folder) == ("nonfinite", f"alarm-{step:06}")
    w, losses = 1.1, []
    while w > 0:
        losses.append(np.sqrt(w) + 0.25 * w)
        w -= 0.3 * (0.5 / np.sqrt(w) + 0.25)
    *known, last = rows(tmp_path / "run", "losses")  # SQLite has NULL for a NaN
    np.testing.assert_allclose(known, [*enumerate(losses)], rtol=1e-5)
    assert last == (step, None)
    shown = gradscope("show", "run", folder=tmp_path)
    for line in (each for each in done.lines if each.startswith(("origin", "repair", "steps"))):
        assert line in shown.lines
    assert f"{step} taken" in shown.output
    stated = gradscope("show", "run", "--json", folder=tmp_path).json
    assert (stated["taken"], stated["origins"][0]["source"]) == (step, "to_nan.py:16")
    assert gradscope("report", "run", "-o", "page.html", folder=tmp_path).status == 0
    assert stated["origins"][0]["why"] in (tmp_path / "page.html").read_text(encoding="utf-8")
    alarm = tmp_path / "run" / folder
    assert json.loads((alarm / "alarm.json").read_text(encoding="utf-8"))["step"] == step
    with gs.load(alarm / "state.npz") as state:
        w = 1.1
        for _ in range(step):
            w -= 0.3 * (0.5 / np.sqrt(w) + 0.25)
        np.testing.assert_allclose(state["param/w"], w, rtol=1e-4)
    assert all(number <= step for number, *_ in rows(tmp_path / "run", "steps"))
    batch, state = f"run/{folder}/batch.npz", f"run/{folder}/state.npz"
    again = gradscope("dump", "to_nan.py", "--data", batch, "--checkpoint", state, "-q", "--json", folder=tmp_path)
    assert again.json["loss"] == "NaN"
    refused = gradscope(
        "train", "to_nan.py", *options, "--clip", "norm(0.01)", "--resume", "-o", "run", folder=tmp_path
    )
    assert refused.status == 2
    on = gradscope(
        "train", "to_nan.py", *options, "--clip", "norm(0.01)", "--resume", "--force", "-o", "run", folder=tmp_path
    )
    assert on.status == 1  # it starts below zero
    unchecked = gradscope("train", "to_nan.py", *options, "--no-check-numerics", "-q", "-o", "on", folder=tmp_path)
    assert unchecked.status == 0
    assert (tmp_path / "on" / "state-000050.npz").exists()


@pytest.mark.slow
def test_a_terminal_shows_what_the_search_for_a_nan_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    shown: list[str] = []
    monkeypatch.setattr(Progress, "phase", lambda _, name: shown.append(name))
    gradscope("train", "to_nan.py", "--optimizer", "sgd(0.3)", "--steps", 50, "-o", "run", folder=tmp_path)
    assert shown[0] == "compile"
    assert "search for the origin" in shown[1:]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--optimizer", "adm(0.1)"), 2, "there is no optimizer called 'adm'"),
        (("--optimizer", "adam()"), 2, "state one, as in 'adam(0.1)', or beside it, as --learning-rate does"),
        (("--optimizer", "adam", "--learning-rate", "exponential_decy(1, 2, 3)"), 2, "no schedule called"),
        (("--optimizer", "adam(0.1)", "--learning-rate", "0.1"), 2, "'adam(0.1)' has a learning rate, and another is"),
        (("--optimizer", "polyak_sgd", "--learning-rate", "0.1"), 2, "polyak_sgd takes no learning rate"),
        (("--optimizer", "sgd(momentun=0.9)"), 2, "did you mean momentum?"),
        (("--learning-rate", "0.1"), 2, "--learning-rate goes to --optimizer"),
        (("--clip", "norm(0)"), 2, "clipping by norm needs a limit above 0"),
        (("--multiply", "head/*"), 2, "is not PATTERN=FACTOR"),
        (("--multiply", "head/*=nan"), 2, "the gradients of 'head/*' cannot be multiplied by nan"),
        (("--multiply", "head/*=-inf"), 2, "the gradients of 'head/*' cannot be multiplied by -inf"),
        (("--optimizer", "sgd(1e400)"), 2, "has a learning rate that is infinite"),
        (("--optimizer", "chain(clip(1.0), sgd(-1e400))"), 2, "has a learning rate that is infinite"),
        (("--optimizer", "sgd", "--learning-rate", "1e400"), 2, "has a learning rate that is infinite"),
        (("--optimizer", "sgd(cosine_decay_schedule(1e400, 9))"), 2, "has a learning rate that is infinite"),
        (("--only", "haed/*"), 2, "selects nothing"),
        (("--freeze", "*"), 2, "no parameter is trained"),
        (("--ema", "2"), 2, "between 0 and 1"),
        (("--select", "haed/*"), 2, "selects nothing"),
        (("--save-every", "often"), 2, "is no number of steps"),
        (("--dump-at", "1,last"), 2, "is no list of steps"),
        (("--dump-at", "1,900"), 2, "there is no step 900 among"),
        (("--batch-index", "3"), 2, "step n takes batch n"),
        (("--resume", "-o", "empty"), 2, "there is no run in empty to resume"),
        (("-o", "run"), 2, "run holds a run"),
        (("-o", "."), 2, ". holds other files"),
        (("-o", "net.py"), 2, "net.py is not a folder"),
        (("--resume", "-o", "run"), 2, "the run in run has --clip global_norm(1), and this command no --clip"),
        (("--resume", "--force", "--steps", "9", "-o", "run"), 2, "has taken 24 steps already, more than the 9"),
        (("--data", "data.py:ten"), 2, "ends before batch 10\nhint: give --steps 10, or"),
        (("--data", "data.py:smaller_last"), 3, "batch 10 of data.py:smaller_last has another shape than the first"),
        (("--data", "data.py:nothing"), 2, "data.py has no 'nothing'"),
    ],
)
def test_bad_input_is_one_message(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    defaults = {"--steps": "12", "--every": "1", "-o": str(tmp_path / "bad")} | {"--data": "data.py:batches"}
    options = [each for name, value in defaults.items() if name not in arguments for each in (name, value)]
    done = gradscope("train", "net.py", "-q", *options, *arguments, folder=folder)
    assert (done.status, done.errors.count("error:")) == (status, 1), done.errors
    assert message in done.errors
    bad = tmp_path / "bad"
    assert bad.exists() == (bad / "history.sqlite").exists(), "a request that is refused leaves no folder"


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("", 2, "has no optimizer()"),
        ("def optimizer(rate):\n    return rate\n", 2, "or define it, without arguments"),
        ("def optimizer():\n    return None\n", 4, "optimizer() of to_nan returned NoneType, expected an optimizer"),
        ("def optimizer():\n    raise ValueError('no')\n", 4, "optimizer of to_nan: ValueError: no"),
    ],
)
def test_a_model_without_an_optimizer_says_so(tmp_path: Path, text: str, status: int, message: str) -> None:
    write_files(tmp_path)
    with (tmp_path / "to_nan.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{text}")
    done = gradscope("train", "to_nan.py", "--steps", 3, "-o", "run", folder=tmp_path)
    assert (done.status, message in done.errors) == (status, True), done.errors


FAILING = """
import jax, jax.numpy as jnp

def init(key):
    return {"w": jnp.ones(3)}

def batch(key, size):
    return {"x": jax.random.normal(key, (size, 3)), "bad": jnp.asarray(%s)}

def _refuse(bad):
    if bad:
        raise ValueError("no")

def loss(variables, batch):
    jax.debug.callback(_refuse, batch["bad"])
    return %s
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "value", "status"),
    [("True", '(batch["x"] @ variables["w"]).mean()', 4), ("False", 'batch["x"] @ variables["w"]', 4)],
    ids=["raises", "no scalar"],
)
@pytest.mark.parametrize("tensorboard", [(), ("--tensorboard",)], ids=["", "tensorboard"])
def test_a_run_that_fails_before_its_first_step_leaves_what_was_there(
    tmp_path: Path, bad: str, value: str, status: int, tensorboard: tuple[str, ...]
) -> None:
    (tmp_path / "failing.py").write_text(FAILING % (bad, value), encoding="utf-8")
    there = tmp_path / "there"
    there.mkdir()
    (there / "events.out.tfevents.1.other").write_bytes(b"kept")
    for name in ("new", "there"):
        line = ("train", "failing.py", "--steps", 3, "--optimizer", "sgd(0.1)", "-q", *tensorboard, "-o", name)
        done = gradscope(*line, folder=tmp_path)
        assert done.status == status, done.errors
    assert not (tmp_path / "new").exists()
    assert [path.name for path in there.iterdir() if path.name != ".lock"] == ["events.out.tfevents.1.other"]


@pytest.mark.slow
def test_a_run_that_is_continued_and_fails_at_once_keeps_its_history(tmp_path: Path) -> None:
    wanted = FAILING % ("False", '(batch["x"] @ variables["w"]).mean()')
    (tmp_path / "failing.py").write_text(wanted, encoding="utf-8")
    line = ("train", "failing.py", "--optimizer", "sgd(0.1)", "-q", "-o", "run")
    assert gradscope(*line, "--steps", 2, folder=tmp_path).status == 0
    (tmp_path / "failing.py").write_text(wanted.replace("asarray(False)", "asarray(True)"), encoding="utf-8")
    assert gradscope(*line, "--steps", 4, "--resume", "--force", folder=tmp_path).status == 4
    with gs.Run(tmp_path / "run") as run:
        assert run.steps["step"].tolist()[0] == 0
    assert (tmp_path / "run" / "state-000002.npz").exists()


def test_a_run_stays_where_the_one_that_replaces_it_fails_at_once(tmp_path: Path) -> None:
    wanted = FAILING % ("False", '(batch["x"] @ variables["w"]).mean()')
    (tmp_path / "failing.py").write_text(wanted, encoding="utf-8")
    line = ("train", "failing.py", "--optimizer", "sgd(0.1)", "-q", "-o", "run")
    assert gradscope(*line, "--steps", 2, "--dump-at", "1", folder=tmp_path).status == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    reading = "\nwith open('run/step-000001.npz', 'rb') as file:\n    file.read(1)\n"
    for text, status in ((wanted.replace("asarray(False)", "asarray(True)"), 4), (wanted + reading, 2)):
        (tmp_path / "failing.py").write_text(text, encoding="utf-8")
        assert gradscope(*line, "--steps", 4, "--force", folder=tmp_path).status == status
        assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    (tmp_path / "failing.py").write_text(wanted, encoding="utf-8")
    assert gradscope(*line, "--steps", 4, "--force", folder=tmp_path).status == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "history.sqlite", "state-000004.npz"}


def test_frozen_and_multiplied_parameters(folder: Path) -> None:
    options = ("--steps", 3, "--every", 1, "--freeze", "hidden/*", "--multiply", "head/*=0.5", "-o", "frozen")
    assert gradscope(*TRAIN, *options, folder=folder).status == 0
    with gs.load(folder / "frozen") as run, gs.load(folder / "frozen" / "state-000003.npz") as state:
        assert "update/hidden/kernel" not in run.keys()  # noqa: SIM118 - a run is no mapping
        half = run.series("clipped_grad/head/kernel", "l2") / run.series("param_grad/head/kernel", "l2")
        np.testing.assert_allclose(half, 0.5, rtol=1e-6)
        first = module(folder / "net.py").init(jax.random.split(jax.random.key(0))[0])
        np.testing.assert_array_equal(state["param/hidden/kernel"], first["params"]["hidden"]["kernel"])


def test_histograms_are_those_of_the_state_before_the_step(folder: Path) -> None:
    line = (*TRAIN, *RUN, "--steps", 8, "--every", 4, "--histograms-every", 3, "--save-every", 3, "--keep", 9)
    assert gradscope(*line, "-o", "drawn", folder=folder).status == 0
    key = "param/hidden/kernel"
    with gs.Run(folder / "drawn") as run, gs.load(folder / "drawn" / "state-000006.npz") as state:
        assert run.steps["step"].tolist() == [0, 3, 4, 6, 7]
        found = run.histograms(key)
        assert list(found) == [0, 3, 6, 7]
        assert all(run.histograms(each) for each in run.keys())  # noqa: SIM118 - a run is no mapping
        edges = np.unique([*found[6].lower, *found[6].upper])
        expected, _ = np.histogram(state[key], edges)
        assert expected[expected > 0].tolist() == list(found[6].counts)
    with gs.Run(folder / "drawn") as drawn, gs.Run(folder / "run") as run:  # what is drawn changes no number
        assert run.steps["step"][:3].tolist() == [0, 3, 6]
        np.testing.assert_allclose(drawn.series(key, "l2")[[0, 1, 3]], run.series(key, "l2")[:3], rtol=1e-6)
    shown = gradscope("show", "drawn", "--tensor", key, folder=folder).output
    assert "Histograms (4)" in shown
    rows = gradscope("show", "drawn", "--tensor", key, "--json", folder=folder).json["histograms"]
    assert [sum(each["counts"]) for each in rows] == [96] * 4


@pytest.mark.slow
def test_a_run_that_is_resumed_keeps_as_many_states_as_it_has(folder: Path) -> None:
    line = (*TRAIN, "--every", 4, "--save-every", 2, "-o", "kept")
    assert gradscope(*line, "--steps", 10, "--keep", 5, folder=folder).status == 0
    for steps, options, first in ((14, (), 6), (16, ("--keep", 2), 14)):
        assert gradscope(*line, "--steps", steps, *options, "--resume", folder=folder).status == 0
        states = sorted(path.stem for path in (folder / "kept").glob("state-*.npz"))
        assert states == [f"state-{number:06}" for number in range(first, steps + 1, 2)]


def test_profiles_are_of_the_steps_that_their_folders_name(folder: Path, numbered: Finished) -> None:
    assert numbered.status == 0
    found = sorted((folder / "numbered").glob("trace-*/plugins/profile/*/*.trace.json.gz"))
    assert [path.relative_to(folder / "numbered").parts[0] for path in found] == ["trace-000000", "trace-000012"]
    for path in found:
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert any("_observed_step" in event.get("name", "") for event in events)
