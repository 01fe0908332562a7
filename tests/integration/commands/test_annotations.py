"""Annotations for GitHub name the user's lines, and Markdown fits a comment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.manifest.operation_facts import SoftmaxUse
from gradscope.presentation import to_github, to_markdown
from gradscope.presentation.render.for_ci.github import Annotation, annotations_text
from tests.integration.command import gradscope
from tests.support.report_samples import entry, report_of, small_network

MODEL = """\
import jax.numpy as jnp

def init(key):
    return {"w": jnp.ones(3)}

def batch(key, size):
    return {"x": jnp.zeros((size, 3))}

def loss(variables, batch):
    return jnp.log(batch["x"] * variables["w"][None]).sum()
"""


LAYERS = """\
import jax
import jax.numpy as jnp

def init(key):
    return {"a": jnp.eye(3) + 0.1, "b": jnp.eye(3) - 0.2, "s": jnp.ones(3) * 2}

def batch(key, size):
    return {"x": jax.random.normal(key, (size, 3))}

def loss(variables, batch):
    with jax.named_scope("first"):
        x = jnp.tanh(batch["x"] @ variables["a"])
    with jax.named_scope("norm"):
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * variables["s"][None]
    with jax.named_scope("second"):
        x = jnp.tanh(x @ variables["b"])
    return (x**2).mean()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "net.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "net.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


def test_findings_are_at_the_users_lines(repository: Path) -> None:
    done = gradscope("dump", "src/net.py", "--batch-size", 2, "--format", "github", folder=repository)
    assert done.status == 0, done.errors
    lines = done.output.splitlines()
    assert all(re.fullmatch(r"::(warning|error|notice) \S.*?::.+", line) for line in lines)
    assert any(line.startswith("::warning file=src/net.py,line=10,title=gradscope%3A ") for line in lines)
    below = gradscope("show", "../net.npz", "--format", "github", folder=repository / "src",
                      GITHUB_WORKSPACE=str(repository))  # fmt: skip
    assert "file=src/net.py,line=10," in below.output


def test_what_failed_is_an_error_and_is_reported_once(repository: Path) -> None:
    done = gradscope("dump", "src/net.py", "--batch-size", 2, "--check", "nonfinite", "--format", "github",
                     folder=repository)  # fmt: skip
    assert done.status == 1
    (line,) = done.output.splitlines()
    assert line.startswith("::error file=src/net.py,line=10,title=gradscope%3A where it began::")
    other = gradscope("show", "net.npz", "--check", "dead", "--format", "github", folder=repository)
    assert (other.status, other.output.partition(" ")[0]) == (0, "::warning")


def test_a_difference_is_at_the_line_of_the_candidate_that_diverges_first(repository: Path) -> None:
    (repository / "net.py").write_text(MODEL, encoding="utf-8")  # another file of that name
    scoped = MODEL.replace("jnp.log(batch", "jnp.sin(batch")
    (repository / "src" / "net.py").write_text(scoped, encoding="utf-8")
    gradscope("dump", "src/net.py", "--batch-size", 2, "-o", "a.npz", folder=repository)
    changed = scoped.replace("    return jnp.sin(", "    # changed\n    return 2 + jnp.sin(1 + ")
    (repository / "src" / "net.py").write_text(changed, encoding="utf-8")
    gradscope("dump", "src/net.py", "--batch-size", 2, "-o", "b.npz", folder=repository)
    done = gradscope("compare", "a.npz", "b.npz", "--format", "github", folder=repository)
    assert done.status == 1, done.output
    assert done.output.startswith("::error file=src/net.py,line="), done.output


@pytest.mark.parametrize("added", [True, False])
def test_a_layer_that_one_program_has_alone_is_named_at_its_own_line(repository: Path, added: bool) -> None:
    lines = LAYERS.splitlines(keepends=True)
    without = "".join([*lines[:12], *lines[14:]]).replace(', "s": jnp.ones(3) * 2', "")
    (repository / "old.py").write_text(without if added else LAYERS, encoding="utf-8")
    (repository / "new.py").write_text(LAYERS if added else without, encoding="utf-8")
    for name in ("old", "new"):
        gradscope("dump", f"{name}.py", "--batch-size", 4, folder=repository)
    done = gradscope("compare", "old.npz", "new.npz", "--format", "github", folder=repository)
    assert "first differs at `norm`, only in the" in done.output
    assert done.output.startswith(f"::error file={'new' if added else 'old'}.py,line=14,title="), done.output


@pytest.mark.slow
def test_of_files_with_one_name_that_of_the_target_is_meant(repository: Path) -> None:
    (repository / "net.py").write_text(MODEL, encoding="utf-8")
    done = gradscope("dump", "src/net.py", "--batch-size", 2, "--format", "github", folder=repository)
    assert "::warning file=src/net.py,line=10," in done.output
    assert "file=src/net.py,line=10," in gradscope("show", "net.npz", "--format", "github", folder=repository).output
    (repository / "src" / "net.py").write_text(
        f"{MODEL}\n", encoding="utf-8"
    )  # so that its lines are not known to be those
    output = gradscope("show", "net.npz", "--format", "github", folder=repository).output
    assert "file=" not in output
    assert "(net.py:10)" in output


def test_a_command_that_fails_has_an_annotation_at_the_line_of_the_model(repository: Path) -> None:
    (repository / "net.py").write_text(MODEL, encoding="utf-8")
    (repository / "src" / "net.py").write_text(MODEL.replace("jnp.log(", "jnp.lag("), encoding="utf-8")
    done = gradscope("dump", "src/net.py", "--format", "github", folder=repository)
    assert done.status == 4
    assert re.fullmatch(r"::error file=src/net.py,line=10,title=gradscope::loss of net: .* 'lag'.*\n", done.output)
    wrong = gradscope("show", "none.npz", "--format=github", folder=repository)
    assert (wrong.status, wrong.output.partition("::none.npz")[0]) == (3, "::error title=gradscope"), wrong.output


def test_comparisons_and_proofs_annotate_and_tables_of_the_ledger_do_not(dumps: Path) -> None:
    same, different = (
        gradscope("compare", "a.npz", name, "--format", "github", folder=dumps) for name in ("a.npz", "b.npz")
    )
    assert (same.status, same.output.partition(" ")[0]) == (0, "::notice")
    assert (different.status, different.output.partition(" ")[0]) == (1, "::error")
    assert gradscope("check", "model.py", "--format", "github", folder=dumps).output.startswith("::notice ")
    refused = gradscope("show", "a.npz", "--ledger", "--format", "github", folder=dumps)
    assert (refused.status, len(refused.lines)) == (2, 2)


@pytest.mark.parametrize(
    ("text", "data", "title"),
    [
        ("a,b:c", "a,b:c", "a%2Cb%3Ac"),
        ("100%", "100%25", "100%25"),
        ("one\n::error::two", r"one\x0a::error::two", r"one\x0a%3A%3Aerror%3A%3Atwo"),
    ],
)
def test_no_name_begins_a_command_of_its_own(text: str, data: str, title: str) -> None:
    written = annotations_text([Annotation(level="notice", title=text, message=text)], lambda _: None)
    assert written == f"::notice title={title}::{data}\n"


def test_what_is_fine_is_said() -> None:
    manifest = Manifest(entries=(entry("activation", "a"),))
    assert to_github(report_of(manifest), lambda _: None) == "::notice title=gradscope::run.npz: nothing looks wrong\n"


def test_what_may_be_meant_is_said_in_place_of_that() -> None:
    use = SoftmaxUse(shape=(6, 6), over=(0,), summed=(1,), source="net.py:3")
    manifest = Manifest(entries=(entry("activation", "a"),), softmax_uses=(use,))
    text = to_github(report_of(manifest), lambda _: None)
    assert text.startswith("::notice title=gradscope%3A softmax::the softmax at net.py:3 is over axis 0 of [6, 6]")
    assert "nothing looks wrong" not in text


@pytest.mark.parametrize("length", [20, 1000])
def test_markdown_fits_a_comment_and_says_what_it_leaves_out(length: int) -> None:
    manifest = Manifest(entries=tuple(entry("param", f"{at:0{length}}", index=at) for at in range(3000)))
    text = to_markdown(report_of(manifest))
    assert len(text) <= 65_536
    left_out = re.search(r"([\d,]+) of 3,000 lines are left out", text)
    assert left_out is not None
    shown = sum(line.startswith("| `0") for line in text.splitlines())
    assert int(left_out[1].replace(",", "")) + shown == 3000
    assert len(text) > 50_000


def test_short_markdown_is_complete() -> None:
    assert "left out" not in to_markdown(report_of(small_network()))
