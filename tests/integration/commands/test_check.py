"""`gradscope check`: gradients proved."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.integration import models
from tests.integration.command import gradscope, in_terminal

LOSS = models.LOSS.replace("forward(variables, batch)", "doubled(forward(variables, batch))")


@pytest.mark.slow
def test_a_right_model_is_correct_and_exits_0(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    done = gradscope("check", "model.py", "--json", folder=tmp_path)
    assert (done.status, done.errors) == (0, "")
    assert (done.json["schema"], done.json["command"], done.json["verdict"]) == (1, "check", "correct")
    rows = {row["what"]: row for row in done.json["rows"]}
    assert rows["param_grad/first/w"]["status"] == "correct"
    assert rows["param_grad/first/w"]["error"] <= rows["param_grad/first/w"]["expected"] < 1e-6
    assert rows["param_grad/first/w"]["source"].startswith("model.py:")
    assert rows["observed gradients against jax.grad"]["status"] == "correct"
    assert rows["two runs, bit for bit"]["error"] == 0


@pytest.mark.slow
def test_a_wrong_rule_is_named_by_file_and_line_and_exits_1(tmp_path: Path) -> None:
    models.write(tmp_path, models.source(loss=LOSS, more=models.WRONG_RULE))
    done = gradscope("check", "model.py", folder=tmp_path)
    assert done.status == 1
    verdict, _, title, *lines = done.output.splitlines()
    assert verdict.startswith("wrong  custom rule of doubled, used at model.py:")
    assert "1.5 times the derivative) and " in verdict
    assert title.startswith("Claims (")
    assert "--allow" not in done.output  # nobody triples a gradient on purpose
    line = next(
        number
        for number, text in enumerate((tmp_path / "model.py").read_text().splitlines(), 1)
        if "custom_vjp" in text
    )
    assert any("custom rule of doubled" in text and text.endswith(f"model.py:{line}") for text in lines)


def test_every_reason_is_read_on_a_narrow_screen_and_none_twice(tmp_path: Path) -> None:
    models.write(tmp_path, models.source(loss=LOSS, more=models.WRONG_RULE))
    narrow = in_terminal("check", "model.py", "-q", folder=tmp_path, columns=60).plain
    wide = in_terminal("check", "model.py", "-q", folder=tmp_path, columns=200).plain
    reasons = gradscope("check", "model.py", "--json", folder=tmp_path).json["rows"]
    assert (
        len([each for each in reasons if "why" in each]) == " ".join(narrow.split()).count("times the derivative") > 1
    )
    assert "why" not in narrow.partition("Claims (")[2].splitlines()[1]
    assert wide.partition("Claims (")[2].splitlines()[1].split()[-2:] == ["why", "source"]


@pytest.mark.slow
def test_an_allowed_rule_is_listed_as_excused_and_exits_0(tmp_path: Path) -> None:
    models.write(tmp_path, models.source(loss=LOSS, more=models.WRONG_RULE))
    wrong = gradscope("check", "model.py", "--json", folder=tmp_path)
    (row,) = (row for row in wrong.json["rows"] if row["what"].startswith("custom rule of doubled"))
    assert (row["status"], row["factor"], row["why"]) == (
        "wrong",
        1.5,
        f"{row['arguments'][0]}: 1.5 times the derivative",
    )
    done = gradscope("check", "model.py", "--allow", "doubled", "--json", folder=tmp_path)
    assert (done.status, done.json["verdict"]) == (0, "correct")
    rows = {row["what"].partition(",")[0]: row for row in done.json["rows"]}
    assert rows["custom rule of doubled"]["status"] == "excused"
    assert rows["param_grad/first/w"]["status"] == "correct"
    assert rows["param_grad/first/w"]["why"] == "made through the rule of doubled, which counts as right"
    assert gradscope("check", "model.py", "--tol", "0.4", folder=tmp_path).status == 0


def test_an_unknown_allowed_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    models.write(tmp_path, models.source(loss=LOSS, more=models.WRONG_RULE))
    done = gradscope("check", "model.py", "--allow", "double", folder=tmp_path)
    assert (done.status, done.output) == (2, "")
    assert "no function double with a custom rule" in done.errors
    assert "did you mean doubled?" in done.errors


def test_gradients_of_a_loss_that_is_nan_are_not_called_correct(tmp_path: Path) -> None:
    loss = models.LOSS.replace("forward(variables, batch)", "(0 * jnp.log(-jnp.exp(forward(variables, batch))))")
    models.write(tmp_path, models.source(loss=loss))
    done = gradscope("check", "model.py", "--json", folder=tmp_path)
    assert (done.status, done.json["verdict"]) == (2, "nothing checked")
    expected = "the loss is nan in its own precision: gradscope dump finds where that began\n"
    assert done.errors == expected
    grads = [row for row in done.json["rows"] if "_grad/" in row["what"]]
    assert {(row["status"], row["why"]) for row in grads} == {
        ("not checked", "the loss is not finite near these values")
    }
    assert not any("error" in row or "expected" in row for row in grads)


def test_csv_and_markdown_have_the_same_rows(tmp_path: Path) -> None:
    models.write(tmp_path, models.source())
    table = csv.DictReader(gradscope("check", "model.py", "--format", "csv", folder=tmp_path).output.splitlines())
    assert table.fieldnames == ["what", "error", "expected", "status", "source"]
    whats = [row["what"] for row in table]
    markdown = gradscope("check", "model.py", "--format", "markdown", folder=tmp_path).output
    assert "input_grad/x" in whats
    assert all(f"`{what}` |" in markdown for what in whats)


def test_a_model_that_cannot_be_differentiated_is_reported_with_its_line(tmp_path: Path) -> None:
    models.write(tmp_path, models.BROKEN["loops where reverse mode cannot follow"].text)
    done = gradscope("check", "model.py", folder=tmp_path)
    assert done.status == 4
    assert "Reverse-mode differentiation does not work" in done.errors


HALVED = """
import jax
import jax.numpy as jnp

def made(name, scale):
    def squashed(x): return jnp.tanh(x)
    squashed.__name__ = name
    function = jax.custom_vjp(squashed)
    function.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (scale * g * (1 - jnp.tanh(x) ** 2),))
    return function

first, second = made("first", 0.5), made("second", 1.0)

def init(key): return {"w": jax.random.normal(key, (4, 4)), "head": jnp.ones((4, 1))}
def batch(key, size): return {"x": jax.random.normal(key, (size, 4))}
def loss(variables, batch):
    h = first(batch["x"] @ variables["w"])
    return second(h @ variables["head"]).mean()
"""


@pytest.mark.slow
def test_a_wrong_gradient_says_which_wrong_rule_makes_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(HALVED)
    claims = gradscope("check", "net.py", "--json", folder=tmp_path).json["rows"]
    why = {each["what"]: (each["status"], each.get("why")) for each in claims if "_grad/" in each["what"]}
    halved = ("wrong", "0.5 times the derivative; made through the wrong rule of first")
    assert why == {"param_grad/w": halved, "input_grad/x": halved, "param_grad/head": ("correct", None)}
