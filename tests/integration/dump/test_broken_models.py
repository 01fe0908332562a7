"""`gradscope dump` of models that are wrong: one message that says what and where, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import models
from tests.integration.command import gradscope


@pytest.mark.parametrize("name", models.BROKEN)
def test_a_model_that_is_wrong_is_reported_with_the_users_own_lines(tmp_path: Path, name: str) -> None:
    broken = models.BROKEN[name]
    models.write(tmp_path, broken.text)
    done = gradscope("dump", "model.py", folder=tmp_path)
    assert (done.status, done.output) == (4, ""), done.errors
    assert done.lines[0].startswith("gradscope: error: ")
    assert broken.says in done.errors.split("hint: ")[0]
    assert "Traceback" not in done.errors
    assert "/jax/" not in done.errors
    assert "/gradscope/" not in done.errors
    assert len(done.lines) <= 12
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
    frames = [line.strip() for line in done.lines if line.startswith("  ")]
    if broken.shows:
        assert any(line.startswith(broken.shows) for line in frames)
        assert any(line.startswith('File "model.py", line ') for line in frames)
    else:
        assert frames == []


def test_a_full_traceback_is_shown_on_request(tmp_path: Path) -> None:
    models.write(tmp_path, models.BROKEN["fails in loss"].text)
    done = gradscope("dump", "model.py", "--traceback", folder=tmp_path)
    assert done.status == 4
    assert done.lines[0] == "Traceback (most recent call last):"
    assert "/jax/" in done.errors
    assert any(line.startswith("gradscope: error: loss of model: TypeError") for line in done.lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "says", "hint"),
    [
        ("no.py", "there is no file no.py", "this folder has model.py"),
        ("resnet", "there is no file, module or zoo model called 'resnet'", "did you mean resnet50?"),
        ("model.py:los", "model.py has no 'los'", "did you mean loss?"),
        (
            "model.py:forward(x=y)",
            "argument 'y' is not a literal",
            "define a function that calls it, def build(): return forward(x=y)",
        ),
        ("no.such:model", "there is no module 'no'", "run from the folder that contains it, or install its package"),
        ("../", ".. is a folder", "name a file in it"),
        ("dump.npz", "dump.npz is not a Python file", "name a .py file; a dump is shown by 'gradscope show'"),
        ("", "'' does not name a model", "write model.py, model.py:NAME"),
    ],
)
def test_a_target_that_names_no_model_is_a_wrong_request(tmp_path: Path, target: str, says: str, hint: str) -> None:
    models.write(tmp_path, models.source())
    (tmp_path / "dump.npz").write_bytes(b"PK")
    done = gradscope("dump", target, folder=tmp_path)
    assert (done.status, done.output) == (2, "")
    message, hint_line = done.lines
    assert says in message
    assert hint_line.startswith(f"hint: {hint}")


@pytest.mark.slow
def test_a_loss_that_ignores_its_parameters_is_dumped_with_a_finding(tmp_path: Path) -> None:
    models.write(tmp_path, models.source(loss='def loss(variables, batch):\n    return batch["x"].sum()\n'))
    done = gradscope("dump", "model.py", "--json", folder=tmp_path)
    assert done.status == 0, done.errors
    unused = [finding["name"] for finding in done.json["findings"] if finding["rule"] == "unused-param"]
    assert unused == ["first/w"]  # one finding of all, since no parameter has an effect
    assert gradscope("show", "model.npz", "--check", "unused-param", folder=tmp_path).status == 1


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_is_finished_and_its_origin_named(tmp_path: Path) -> None:
    text = models.source().replace('x = batch["x"] @', 'x = jnp.log(-1 - batch["x"] ** 2) @')
    models.write(tmp_path, text)
    done = gradscope("dump", "model.py", "--check", "vanishing", "--json", folder=tmp_path)
    assert done.status == 0, done.errors
    report = done.json
    assert report["loss"] == "NaN"
    first = next(finding for finding in report["findings"] if finding["rule"] == "nonfinite")
    assert (first["family"], first["name"]) == ("activation", "first")
    assert first["source"].startswith("model.py:")
    (origin,) = report["origins"]
    assert (origin["name"], origin["primitive"]) == ("first/log", "log")
    assert origin["why"].startswith("made the first NaN: log of -")
    assert gradscope("show", "model.npz", "--check", "vanishing,nonfinite", folder=tmp_path).status == 1


def test_what_a_model_prints_stays_out_of_the_results(tmp_path: Path) -> None:
    loss = 'def loss(variables, batch):\n    print("tracing")\n    jax.debug.print("running")\n'
    loss += '    return batch["x"].sum()\n'
    models.write(tmp_path, models.source(more='print("importing")', loss=loss))
    done = gradscope("dump", "model.py", "--json", folder=tmp_path)
    assert done.status == 0
    assert done.json["command"] == "dump"
    assert done.lines == ["importing", "tracing", "running"]


@pytest.mark.slow
def test_the_forms_of_a_target_are_searched_in_their_order(tmp_path: Path) -> None:
    text = models.source(more="import types").replace("def init", "class Net:\n    pass\n\ndef init")
    text += "\ndef make(width, *, deep=False):\n    assert (width, deep) == (3, True)\n"
    text += "    return types.SimpleNamespace(init=init, batch=batch, loss=loss)\n\nnet = make(3, deep=True)\n"
    models.write(tmp_path, text)
    said = {}
    for target in ("./model.py:net", "model:make(3, deep=True)", "linear_regression"):
        done = gradscope("dump", target, "-v", "--families", "param", "--force", folder=tmp_path)
        assert done.status == 0, done.errors
        said[target] = done.lines
    assert said["./model.py:net"] == [
        f"./model.py is a path, loaded from {tmp_path / 'model.py'}",
        "init, batch and loss are those of net",
    ]
    assert said["model:make(3, deep=True)"] == [
        f"model is a module, loaded from {tmp_path / 'model.py'}",
        "init, batch and loss are those of make(3, deep=True)",
    ]
    zoo, holder = said["linear_regression"]
    assert zoo.startswith("linear_regression is a model of the zoo, loaded from ")
    assert holder == "init, batch and loss are those of the file itself"


CLOSED_OVER = """
import jax, jax.numpy as jnp

def init(key):
    return {"w": jnp.ones(3)}

def batch(key, size=2):
    return {"x": jax.random.normal(key, (size, 3)), "y": jnp.ones(3)}

def solved(f, w):
    @jax.custom_vjp
    def run(w):
        return f(w)
    run.defvjp(lambda w: (f(w), w), lambda w, g: jax.vjp(f, w)[1](g))
    return run(w)

def loss(variables, batch):
    return solved(lambda w: w * batch["y"], variables["w"]).sum() + batch["x"].sum()  # reads y from around it
"""


@pytest.mark.slow
def test_a_derivative_rule_that_reads_a_value_from_around_it_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(CLOSED_OVER)
    done = gradscope("dump", "model.py", folder=tmp_path)
    assert done.status == 4
    assert "uses a value that it does not take as an argument" in done.lines[0]
    assert done.lines[1].startswith("hint: pass every array that the function uses as an argument")
