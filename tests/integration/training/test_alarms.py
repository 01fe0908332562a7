"""Alarms of `gradscope train`: the step, what is saved of it, what `--on-alarm` does, and who exits 1."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import gradscope as gs
from gradscope.tracing.data.files.checkpoint_folders import checkpoint_in
from tests.integration.command import Finished, gradscope, in_terminal
from tests.integration.training.trained import contents, rows, write_files
from tests.support.sampled import sampled

pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

#: Batches of which one has targets a hundred times as large, and one that makes every number NaN.
SPIKED = """

def spiked():
    for number, batch in enumerate(batches()):
        yield {**batch, "y": batch["y"] * (100 if number in (75, 90) else 1)}


def broken():
    for number, batch in enumerate(batches()):
        yield {**batch, "y": batch["y"] * (np.nan if number == 7 else 1)}
"""
AT = 75
#: A state between the two alarms, more than 64 steps before which are needed for the second.
BETWEEN = 78
SKIP = ("--steps", 95, "--save-every", BETWEEN, "--every", 1, "--on-alarm", "skip")
TRAIN = ("train", "net.py", "--data", "data.py:spiked", "--every", 10, "--optimizer", "sgd(0.001)")


@pytest.fixture(scope="module")
def folder(usual_promotion: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alarms")
    write_files(path)
    with (path / "data.py").open("a", encoding="utf-8") as file:
        file.write(SPIKED)
    return path


@pytest.fixture(scope="module")
def saved(folder: Path) -> Finished:
    """A run whose alarms save, and which saved the state before the second one by itself."""
    options = ("--steps", 100, "--save-every", 15, "--keep", 9, "--keep-alarms", 1, "-o", "saved", "--json")
    return gradscope(*TRAIN, *options, folder=folder)


@pytest.fixture(scope="module")
def skipped(folder: Path) -> Finished:
    """A run that skips the updates of two steps, each of which is observed."""
    return gradscope(*TRAIN, *SKIP, "--check", "stuck,dying", "-o", "skipped", folder=folder)


@pytest.mark.slow
def test_what_is_no_alarm_fails_a_job_where_it_is_named(folder: Path) -> None:
    climb = ("train", "net.py", "--steps", 12, "--every", 1, "--optimizer", "sgd(-0.001)", "-o", "climbs")
    trained = gradscope(*climb, "--check", "all,climbing", folder=folder)
    assert (trained.status, trained.lines[-1]) == (1, "failed: climbing in climbs")
    for words, status in (("climbing", 1), ("learning,climbing", 1), ("all", 0), ("unchanged,saturated", 0)):
        done = gradscope("show", "climbs", "--check", words, folder=folder)
        assert (done.status, "\nclimbing " in done.output) == (status, True), words
        assert done.lines == ["failed: climbing in climbs"] * status
    for words, level in (("climbing", "::error "), ("all", "::notice ")):
        line = gradscope("show", "climbs", "--check", words, "--format", "github", folder=folder).output
        assert line.startswith(f"{level}title=gradscope%3A climbing::the updates point along the gradients"), line
    unknown = gradscope("show", "climbs", "--check", "unscaled", folder=folder)
    assert (unknown.status, "there is no alarm 'unscaled'" in unknown.errors) == (2, True)
    errors = gradscope("show", "climbs", "--check", "qqq", folder=folder).errors
    assert {"diverging,", "climbing,", "squashed,"} <= {*errors.split()}, "all that there are"


def test_a_spike_saves_the_state_before_its_step_and_its_batch(saved: Finished, folder: Path) -> None:
    assert saved.status == 0, saved.errors
    alarms = {(each["step"], each["rule"]): each for each in saved.json["alarms"]}
    assert {step for step, _ in alarms} == {AT, 90}
    assert {rule for _, rule in alarms} == {"loss-spike", "grad-spike", "update-spike"}
    assert (alarms[AT, "update-spike"]["family"], alarms[AT, "update-spike"]["name"]) == ("update", "head/kernel")
    assert f"step {AT}: loss-spike" in saved.errors
    assert all("folder" not in each for each in saved.json["alarms"] if each["step"] == AT)  # --keep-alarms 1
    assert not (folder / "saved" / f"alarm-{AT:06}").exists()
    assert alarms[90, "loss-spike"]["folder"] == "alarm-000090"
    with gs.load(folder / "saved") as run:
        assert [each.step for each in run.alarms] == [each["step"] for each in saved.json["alarms"]]
    shown = gradscope("show", "saved", folder=folder).output
    assert "loss-spike" in shown
    assert "alarm-000090" in shown


@pytest.mark.slow
def test_what_was_saved_gives_the_step_again(saved: Finished, folder: Path) -> None:
    alarm = "saved/alarm-000090"
    found = json.loads((folder / alarm / "alarm.json").read_text(encoding="utf-8"))
    options = ("--data", f"{alarm}/batch.npz", "--checkpoint", f"{alarm}/state.npz", "-q", "--json")
    again = gradscope("dump", "net.py", *options, folder=folder).json
    with gs.load(folder / alarm / "dump.npz") as dump:
        assert again["loss"] == dump.loss == float(found["loss"])
    value = next(each["value"] for each in found["alarms"] if each["rule"] == "loss-spike")
    assert again["loss"] == pytest.approx(value, rel=1e-5)


def test_the_dump_of_an_alarm_begins_with_the_alarm(saved: Finished, folder: Path) -> None:
    assert saved.status == 0
    shown = gradscope("show", "saved/alarm-000090", folder=folder).output
    assert re.search(r"^alarm +loss-spike: \S", shown, re.MULTILINE), shown
    assert "nothing looks wrong" not in shown


def test_the_folder_of_an_alarm_is_its_state(saved: Finished, folder: Path) -> None:
    assert checkpoint_in(folder / "saved" / "alarm-000090").name == "state.npz"


def test_the_state_that_is_computed_again_is_bit_for_bit_the_one_that_there_was(saved: Finished, folder: Path) -> None:
    with (
        gs.load(folder / "saved" / "alarm-000090" / "state.npz") as again,
        gs.load(folder / "saved" / "state-000090.npz") as state,
    ):
        assert len(again) > 5
        for key in again:
            assert again[key].tobytes() == state[key].tobytes(), key


@pytest.mark.slow
def test_a_skipped_update_leaves_the_state_and_is_counted(skipped: Finished, folder: Path) -> None:
    assert skipped.status == 0, skipped.errors  # other rules are checked than those of its alarms
    assert f"step {AT}: its update is skipped, 1 so far" in skipped.errors
    with gs.load(folder / "skipped") as run:
        assert run.steps["step"].tolist() == list(range(95))
        assert run.steps["skipped"].tolist() == [0] * AT + [1] * (90 - AT) + [2] * 5
        kernel = run.series("param/head/kernel", "l2")
        assert kernel[AT] == kernel[AT + 1] != kernel[AT + 2]
        assert {each.step for each in run.alarms} == {AT, 90}


def test_stop_ends_before_the_step_and_note_goes_on(folder: Path) -> None:
    stopped = gradscope(*TRAIN, "--steps", 100, "--on-alarm", "stop", "-o", "stopped", "-q", folder=folder)
    assert stopped.status == 1
    assert (folder / "stopped" / f"state-{AT:06}.npz").exists()
    assert (folder / "stopped" / f"alarm-{AT:06}" / "batch.npz").exists()
    noted = gradscope(*TRAIN, "--steps", 80, "--on-alarm", "note", "-o", "noted", "--check", "all", "-q", folder=folder)
    assert (noted.status, noted.lines[-1]) == (
        1,
        f"failed: loss-spike at step {AT}; grad-spike at step {AT}; update-spike at step {AT}",
    )
    (line, *_) = gradscope("show", "noted", "--format", "github", folder=folder).output.splitlines()
    assert line.startswith(f"::warning title=gradscope%3A loss-spike::at step {AT} the loss is ")
    assert {row[0] for row in rows(folder / "noted", "alarms")} == {AT}
    assert not list((folder / "noted").glob("alarm-*"))


def test_a_step_that_is_not_finite_is_skipped_where_that_is_requested(folder: Path) -> None:
    options = ("--data", "data.py:broken", "--steps", 12, "--every", 1, "--on-alarm", "skip", "-q", "-o", "broken")
    done = gradscope("train", "net.py", *options, folder=folder)
    assert done.status == 0, done.errors
    ((step, rule, *_, saved),) = rows(folder / "broken", "alarms")
    assert (step, rule, saved) == (7, "nonfinite", "alarm-000007")
    with gs.load(folder / "broken") as run, gs.load(folder / "broken" / "state-000012.npz") as state:
        assert run.steps["skipped"].tolist() == [0] * 7 + [1] * 5
        assert all(np.isfinite(state[key]).all() for key in state if key.startswith("param/"))


@pytest.mark.slow
def test_a_run_that_is_resumed_raises_the_alarms_of_one_that_was_not_stopped(skipped: Finished, folder: Path) -> None:
    shutil.copytree(folder / "skipped", folder / "parts")
    (folder / "parts" / "state-000095.npz").unlink()
    done = gradscope(*TRAIN, *SKIP, "--resume", "--json", "-o", "parts", folder=folder)
    assert (done.status, done.json["resumed_from"]) == (0, BETWEEN), done.errors
    assert contents(folder / "parts", 95) == contents(folder / "skipped", 95)


def test_a_rule_that_does_not_exist_is_one_message(folder: Path) -> None:
    done = gradscope(*TRAIN, "--steps", 2, "--check", "loss-spik", "-o", "bad", folder=folder)
    assert (done.status, done.errors.count("error:")) == (2, 1)
    assert "loss-spike" in done.errors


#: An online and a target network of one structure; a first bias far below zero keeps every unit at zero.
NETWORKS = """
import jax, jax.numpy as jnp

def layers(key):
    return {"w": jax.random.normal(key, (6, 16)) / 2, "b": jnp.full(16, BIAS), "out": jnp.ones((16, 1)) / 4}

def init(key):
    return {"online": layers(key), "target": layers(key)}

def batch(key, size=16):
    state, after = jax.random.normal(key, (2, size, 6))
    return {"state": state, "next": after}

def value(params, state):
    return jax.nn.relu(state @ params["w"] + params["b"][None]) @ params["out"]

def loss(variables, batch):
    target = jax.lax.stop_gradient(1 + 0.9 * value(variables["target"], batch["next"]))
    return ((value(variables["online"], batch["state"]) - target) ** 2).mean()
"""


@pytest.mark.slow
def test_a_parameter_that_is_stuck_has_its_cause(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text(NETWORKS.replace("BIAS", "-99.0"), encoding="utf-8")
    options = ("--steps", 12, "--every", 1, "--optimizer", "sgd(0.01)", "-o", "run")
    (line,) = [each for each in gradscope("train", "dead.py", *options, folder=tmp_path).lines if each]
    assert line.startswith(
        "step 2: stuck: param/online/b did not change at 3 recorded steps in a row, and online/out and online/w too"
    )
    assert "its gradient is exactly zero, dead units: the output of relu at dead.py:15 " in line


@pytest.mark.slow
@pytest.mark.usefixtures("usual_promotion")
def test_accumulated_gradients_are_no_alarm(tmp_path: Path) -> None:
    optimizer = "\n\ndef optimizer():\n    import optax\n    return optax.MultiSteps(optax.sgd(0.01), 4)\n"
    (tmp_path / "net.py").write_text(NETWORKS.replace("BIAS", "0.0") + optimizer, encoding="utf-8")
    done = gradscope("train", "net.py", "--steps", 8, "--every", 1, "-o", "run", folder=tmp_path)
    assert (done.status, [line for line in done.lines if line]) == (0, []), done.errors
    assert "verdict  no alarm\n" in done.output


@pytest.mark.slow
@pytest.mark.usefixtures("usual_promotion")
def test_parameters_that_an_optimizer_freezes_and_a_target_network_are_no_alarm(tmp_path: Path) -> None:
    optimizer = """

def optimizer():
    import optax
    label = lambda path, _: "off" if path[-1].key == "w" else "on"
    labels = lambda params: jax.tree_util.tree_map_with_path(label, params)
    return optax.multi_transform({"on": optax.sgd(0.01), "off": optax.set_to_zero()}, labels)
"""
    (tmp_path / "net.py").write_text(NETWORKS.replace("BIAS", "0.0") + optimizer, encoding="utf-8")
    done = gradscope("train", "net.py", "--steps", 5, "--every", 1, "-o", "run", folder=tmp_path)
    assert (done.status, [line for line in done.lines if line]) == (0, []), done.errors
    assert "unchanged  online/w: no recorded step changes it, though it has a gradient\n" in done.output
    shown = gradscope("show", "run", "--json", folder=tmp_path)
    assert json.loads(shown.output)["unchanged"] == ["online/w"]


def test_a_parameter_behind_a_dead_rectifier_is_stuck_because_of_it(tmp_path: Path) -> None:
    behind = NETWORKS.replace("BIAS", "-99.0").replace('"out"', '"after"')  # the first name of all that are stuck
    twice = (
        NETWORKS.replace("BIAS", "-99.0")
        .replace("    return jax.nn", "    return jax.nn.relu(jax.nn")
        .replace('@ params["out"]', '@ params["out"])')
    )
    for name, program, first in (("behind", behind, "after"), ("twice", twice, "b")):
        (tmp_path / f"{name}.py").write_text(program, encoding="utf-8")
        options = ("--steps", 4, "--every", 1, "--optimizer", "sgd(0.01)", "-o", f"run_{name}")
        done = gradscope("train", f"{name}.py", *options, folder=tmp_path)
        assert done.lines[0].startswith(f"step 2: stuck: param/online/{first} did not change")
        assert "has 100.0% dead units: 16 of 16" in done.lines[0]
        assert f" gradscope show run_{name}/alarm-000002; gradscope explain stuck\n" in done.output


@pytest.mark.slow
def test_a_learning_rate_that_is_too_large_is_the_verdict_also_where_the_run_ends_by_a_nan(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORKS.replace("BIAS", "0.0"), encoding="utf-8")
    options = ("--steps", 60, "--every", 10, "--optimizer", "sgd(100)", "--on-alarm", "note", "-o", "run")
    done = gradscope("train", "net.py", *options, folder=tmp_path)
    assert done.status == 1
    rules = [(each.split(":")[1].strip()) for each in done.lines if each.startswith("step ")]
    assert rules[0] == "diverging"
    assert rules[-1] == "nonfinite"
    shown = in_terminal("show", "run", folder=tmp_path, columns=160).plain
    assert "verdict  diverging: at step 1 the update of step 0 is " in shown
    assert "the learning rate, 100, is too" in shown


@sampled(
    ("rectifier", "said"),
    [
        ("leaky_relu", ("step 2: diverging: the update of step 0 is 4 times the parameters, and the loss grew from ",
                        "the learning rate, 0.001, is too large; input/", "which no layer normalises")),
        ("relu", ("step 3: stuck: param/online/b ", "is exactly zero, dead units: the output of relu at net.py:15 ",
                  "; the update of step 0 is 4 times the parameters, as by a learning rate, 0.001, that is too large")),
    ],
)  # fmt: skip
def test_inputs_that_nothing_scales_are_named_and_the_update_that_killed_units(
    tmp_path: Path, rectifier: str, said: tuple[str, ...]
) -> None:
    scaled = NETWORKS.replace("BIAS", "0.0").replace("jax.random.normal(key, (2", "100 + jax.random.normal(key, (2")
    (tmp_path / "net.py").write_text(scaled.replace("nn.relu", f"nn.{rectifier}"), encoding="utf-8")
    options = ("--steps", 9, "--every", 1, "--optimizer", "sgd(0.001)", "--on-alarm", "stop", "-o", "run")
    (line, *_) = gradscope("train", "net.py", *options, folder=tmp_path).lines
    assert [each for each in said if each not in line] == []


DEEP = """
import jax
import jax.numpy as jnp

SIZES = (16, 32, 32, 4)


def init(key):
    keys = jax.random.split(key, 3)
    pairs = zip(SIZES, SIZES[1:])
    layers = [{"w": jax.random.normal(k, (a, b)) / a**0.5, "b": jnp.zeros(b)} for k, (a, b) in zip(keys, pairs)]
    return {f"l{n}": layer for n, layer in enumerate(layers)}


def batch(key, size=32):
    x = jax.random.normal(key, (size, SIZES[0]))
    return {"x": x, "y": jnp.argmax(x[:, :4], axis=-1)}


def loss(params, batch):
    x = batch["x"]
    for n in range(3):
        x = (jax.nn.relu if n < 2 else lambda x: x)(x @ params[f"l{n}"]["w"] + params[f"l{n}"]["b"][None])
    return -jnp.take_along_axis(jax.nn.log_softmax(x), batch["y"][:, None], axis=-1).mean()
"""


@pytest.mark.usefixtures("usual_promotion")
def test_units_that_a_large_update_killed_have_the_rate_once_and_later_ones_follow_from_it(tmp_path: Path) -> None:
    deeper = DEEP.replace("32, 4)", "32, 32, 4)").replace("(key, 3)", "(key, 4)")
    net = deeper.replace("range(3)", "range(4)").replace("n < 2", "n < 3")
    (tmp_path / "net.py").write_text(net, encoding="utf-8")
    options = ("--steps", 31, "--every", 3, "--on-alarm", "note", "-o", "run", "--force")
    lines = gradscope("train", "net.py", *options, "--optimizer", "adam(0.25)", folder=tmp_path).lines
    dying = [each for each in lines if each.startswith("step ")]
    assert len(dying) > 1
    assert all(": dying: " in each for each in dying)
    assert re.search(r"; the update of step 0 is 1.\d times the parameters, as by a learning rate, 0.25, th", dying[0])
    assert all(each.endswith("; it follows from the update of step 0, too") for each in dying[1:])
    lines = gradscope("train", "net.py", *options, "--optimizer", "adam(0.003)", folder=tmp_path).lines
    assert not [each for each in lines if each.startswith("step ")]


def test_units_that_die_when_the_loss_has_diverged_say_so(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DEEP, encoding="utf-8")
    options = ("--steps", 31, "--every", 3, "--on-alarm", "note", "-o", "run", "--optimizer", "sgd(10)")
    lines = gradscope("train", "net.py", *options, folder=tmp_path).lines
    (dying,) = [each for each in lines if ": dying: " in each]
    (*_, stuck) = [each for each in lines if ": stuck: " in each]
    assert ": diverging: " in lines[0]
    assert dying.endswith("; it follows from the loss that diverged at step 8")
    assert stuck.endswith("; it follows from the loss that diverged at step 8")


FITTED = """
import jax
import jax.numpy as jnp


def init(key):
    return {"table": jax.random.normal(key, (8, 16)), "out": jnp.zeros((16, 8))}


def batch(key, size=32):
    return {"x": jax.random.randint(key, (size,), 0, 8)}


def loss(variables, batch):
    logits = variables["table"][batch["x"]] @ variables["out"]
    logits = logits - logits.max(axis=-1, keepdims=True)
    total = jnp.log(jnp.exp(logits).sum(axis=-1))
    right = jnp.take_along_axis(logits, (batch["x"][:, None] + 1) % 8, axis=-1)
    each = total - right[:, 0]
    return each.mean()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("usual_promotion")
def test_a_loss_that_is_fitted_has_no_gradients_that_vanish(tmp_path: Path) -> None:
    (tmp_path / "fitted.py").write_text(FITTED, encoding="utf-8")
    command = ("train", "fitted.py", "--optimizer", "adam(0.3)", "--steps", 60, "--every", 2, "-o", "run", "--json")
    printed = gradscope(*command, folder=tmp_path)
    assert (printed.status, json.loads(printed.output)["alarms"]) == (0, [])
