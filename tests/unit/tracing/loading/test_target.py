"""Targets: the search order, names with and without calls, and texts that are no targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import UsageError
from gradscope.tracing.loading.target import LiteralCall, Target, parse_target
from gradscope.tracing.loading.zoo import zoo_file, zoo_names
from gradscope.training.optimizers.literal_expressions import parse_expression


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call_of(text: str) -> LiteralCall | None:
    attribute = parse_target(text).attribute
    assert attribute is not None
    return attribute.call


def test_the_zoo_has_the_models_of_the_tour() -> None:
    assert set(zoo_names()) >= {"linear_regression", "mlp", "resnet50", "transformer"}
    assert all(zoo_file(name).is_file() for name in zoo_names())


@pytest.mark.parametrize("text", ["model.py", "missing.py", "./model.py", "runs/model.py", "runs/model"])
def test_what_looks_like_a_path_is_one(text: str) -> None:
    assert parse_target(text) == Target(text=text, rule="path", location=text)


def test_a_file_of_any_name_is_a_path(folder: Path) -> None:
    (folder / "resnet50").write_text("")
    assert parse_target("resnet50").rule == "path"


@pytest.mark.parametrize("text", ["resnet50", "resnet50:ResNet(depth=18)"])
def test_a_zoo_name_is_found_where_no_file_or_module_is(text: str) -> None:
    assert parse_target(text).rule == "zoo"


def test_a_module_hides_the_zoo(folder: Path) -> None:
    (folder / "resnet50.py").write_text("")
    assert parse_target("resnet50").rule == "module"


def test_a_folder_of_results_does_not_hide_the_zoo(folder: Path) -> None:
    (folder / "resnet50").mkdir()
    assert parse_target("resnet50").rule == "zoo"


@pytest.mark.parametrize("text", ["json", "json:loads", "json.decoder:JSONDecoder", "no_such_package.module"])
def test_modules_are_found_by_their_outermost_package(text: str) -> None:
    assert parse_target(text).rule == "module"


def test_finding_a_module_runs_nothing_of_it(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("raise AssertionError('imported')")
    assert parse_target("package.module:model").rule == "module"


def test_a_name_may_be_dotted() -> None:
    target = parse_target("model.py:configs.small")
    assert target.location == "model.py"
    assert target.attribute is not None
    assert target.attribute.path == ("configs", "small")
    assert target.attribute.call is None


@pytest.mark.parametrize(
    ("text", "positional", "keyword"),
    [
        ("m.py:Net()", (), {}),
        ("m.py:Net(18)", (18,), {}),
        ("m.py:Net(depth=18, image_size=32)", (), {"depth": 18, "image_size": 32}),
        (
            "m.py:nets.Net([1, -2.5], {'a': (None, True)}, name='x:y')",
            ([1, -2.5], {"a": (None, True)}),
            {"name": "x:y"},
        ),
        ("m.py: Net(1) ", (1,), {}),
    ],
)
def test_a_call_takes_literals(text: str, positional: tuple[object, ...], keyword: dict[str, object]) -> None:
    assert call_of(text) == LiteralCall(positional=positional, keyword=keyword)


def test_a_call_passes_its_arguments() -> None:
    assert LiteralCall(positional=("10",), keyword={"base": 2}).of(int) == 2


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("resnet50(depth=18)", "resnet50:NAME(depth=18)"),
        ("net.py(18)", "net.py:NAME(18)"),
        ("a.b(x", "a.b:NAME(x"),
    ],
)
def test_a_file_or_module_that_is_called_has_the_form_of_a_call(text: str, form: str) -> None:
    with pytest.raises(UsageError, match="is called, and no name in it") as caught:
        parse_target(text)
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(f": {form}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no file, module or zoo name"),
        (":x", "before the colon"),
        ("a:", "no name after the colon"),
        ("a.b:c.d(", "'c.d(' is not a name, nor a call of one"),
        ("a.b:c d", "'c d' is not a name, nor a call of one"),
        ("a.b:c\0", "is not a name"),
        ("a.b:3", "'3' is not a dotted name"),
        ("a.b:c[0]", "'c[0]' is not a dotted name"),
        ("a.b:f().g()", "'f()' is not a dotted name"),
        ("a.b:f(**{'x': 1})", "is not a keyword argument"),
        ("a b", "neither a file nor the name of a module"),
        ("a..b", "neither a file nor the name of a module"),
        ("-x", "neither a file nor the name of a module"),
    ],
)
def test_what_is_no_target_is_refused_with_the_forms_there_are(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match="does not name a model") as refused:
        parse_target(text)
    assert reason in refused.value.message
    assert "package.module:NAME" in str(refused.value.hint)


@pytest.mark.parametrize("around", ["-", "not ", "a.", "1 + ", "lambda: ", "["])
@pytest.mark.parametrize("depth", [500, 3_000, 50_000])
def test_a_name_that_is_deep_in_itself_is_refused(around: str, depth: int) -> None:
    for text in (around * depth + "b", f"f({around * depth}b)"):
        with pytest.raises(UsageError, match="is not a name, nor a call of one"):
            parse_target(f"m.py:{text}")
        with pytest.raises(UsageError, match="is not a name with literal arguments"):
            parse_expression(text)


@pytest.mark.parametrize(
    ("text", "argument", "hint"),
    [
        ("a.b:f(x)", "x", "def build(): return f(x), and write 'FILE.py:build()'"),
        ("m.py:f(x=open('y'))", "open('y')", "def build(): return f(x=open('y')), and write 'm.py:build()'"),
        ("m.py:build(x)", "x", "def make(): return build(x), and write 'm.py:make()'"),
        ("a.b:f({[]: 1})", "{[]: 1}", "return f({[]: 1})"),
        ("m.py:Net(4, key=jr.key(0))", "jr.key(0)", "leave the random key out, it is made of --seed: 'm.py:Net(4)'"),
        ("a.b:Net(jax.random.PRNGKey(0), depth=2)", "jax.random.PRNGKey(0)", "--seed: 'a.b:Net(depth=2)'"),
        ("a.b:Net(rngs=nnx.Rngs(0))", "nnx.Rngs(0)", "--seed: 'a.b:Net()'"),
    ],
)
def test_arguments_that_are_no_literals_are_answered_with_what_to_write(text: str, argument: str, hint: str) -> None:
    with pytest.raises(UsageError, match="does not name a model: argument ") as refused:
        parse_target(text)
    assert refused.value.message.endswith(f"argument {argument!r} is not a literal")
    assert hint in str(refused.value.hint)


def test_a_misspelt_zoo_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="called 'resnet5'") as refused:
        parse_target("resnet5")
    assert refused.value.hint == "did you mean resnet50?"


@pytest.mark.parametrize(("text", "near"), [("tmodle", True), ("model", True), ("notamodel", False), ("video", False)])
def test_only_near_names_are_asked_for(folder: Path, text: str, *, near: bool) -> None:
    (folder / "tmodel.py").write_text("")
    with pytest.raises(UsageError, match="there is no file, module or zoo model") as refused:
        parse_target(text)
    forms = "write model.py, model.py:NAME, package.module:NAME or a name of the zoo: "
    assert str(refused.value.hint).startswith("did you mean tmodel.py?" if near else forms)


def test_a_file_named_without_its_suffix_is_answered_with_the_file(folder: Path) -> None:
    (folder / "my-net.py").write_text("")
    with pytest.raises(UsageError) as refused:
        parse_target("mynet")
    assert "my-net.py" in str(refused.value.hint)
