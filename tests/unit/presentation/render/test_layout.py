"""Layout: what a terminal shows and what a pipe gets."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from gradscope.dump.manifest.manifest import Layer, Manifest
from gradscope.naming import printable
from gradscope.presentation import Screen, to_text
from gradscope.presentation.render.cells import column_texts
from gradscope.presentation.render.outline import Item, outline
from gradscope.presentation.render.text_layout import lay_out
from gradscope.presentation.tables.table import Column, Line, Table
from tests.support.report_samples import (
    HOSTILE_NAMES,
    PIPE,
    TERMINAL,
    entry,
    numbers,
    report_of,
    small_network,
    text_of,
)
from tests.support.work import calls

SHORT_HOSTILE = {kind: name for kind, name in HOSTILE_NAMES.items() if len(name) < 40}


def printed(text: Text, **console: object) -> str:
    """What a terminal receives."""
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, **console).print(text, end="", soft_wrap=True)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 132, 160])
def test_lines_fit_the_terminal(width: int) -> None:
    assert max(map(len, text_of(small_network(), Screen(width=width)).splitlines())) <= width


def test_columns_that_do_not_fit_are_named() -> None:
    text = text_of(small_network())
    assert "fwd_gain" not in text.partition("hidden at this width")[0].partition("Layers")[2]
    assert "activation fwd_gain" in " ".join(text.split())


def test_the_main_columns_of_layers_fit_160() -> None:
    heading = text_of(small_network(), Screen(width=160)).partition("Layers")[2].splitlines()[2].split()
    assert {"name", "shape", "std", "rms", "zeros", "dead", "fwd_gain", "bwd_gain", "bwd_total", "source"} <= set(
        heading
    )


def test_a_terminal_of_one_column_still_shows_names() -> None:
    assert "image" in text_of(small_network(), Screen(width=1))


def test_a_long_name_loses_scopes_on_a_terminal_only() -> None:
    manifest = Manifest(entries=(entry("param", HOSTILE_NAMES["very long"]),))
    assert re.search(r"^scope/…(/scope){6}/leaf ", text_of(manifest), re.MULTILINE)
    assert re.search(
        r"^scope/\.\.\.(/scope){6}/leaf ", text_of(manifest, Screen(width=80, unicode=False)), re.MULTILINE
    )
    assert HOSTILE_NAMES["very long"] in text_of(manifest, PIPE)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_long_name_that_is_not_the_first_column_loses_scopes_too(width: int) -> None:
    columns = (
        Column(heading="stage", kind="name"),
        Column(heading="first", kind="name"),
        Column(heading="rel_l2", kind="number"),
    )
    long = f"param/{HOSTILE_NAMES['very long']}"
    lines = (Line(cells=("gradients", long, 0.25), keys=()), Line(cells=("loss", "loss", 0.5), keys=()))
    table = Table(title="Stages", columns=columns, lines=lines, in_order=False)
    shown = lay_out(table, Screen(width=width)).plain.splitlines()
    assert [len(line) for line in shown[2:]] == [width, width]  # the column takes the room that there is
    assert re.search(r"param/.*….*leaf +0.250$", shown[2])
    assert long in lay_out(table, PIPE).plain


def test_columns_that_say_nothing_without_each_other_are_hidden_together() -> None:
    pair = [Column(heading=heading, kind="number", priority=2, pair="runs") for heading in ("ref", "cand")]
    columns = (Column(heading="name", kind="name"), Column(heading="noise", kind="number", priority=1), *pair)
    table = Table(title="t", columns=columns, lines=(Line(cells=("layer", 0.25, 123.0, 456.0), keys=()),))
    for width in range(12, 40):
        shown = lay_out(table, Screen(width=width)).plain.splitlines()[1].split()
        assert shown in (["name", "noise", "ref", "cand"], ["name", "noise"], ["name"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT_HOSTILE.values(), ids=SHORT_HOSTILE)
@pytest.mark.parametrize("screen", [TERMINAL, PIPE], ids=["terminal", "pipe"])
def test_a_hostile_name_is_shown_and_not_obeyed(name: str, screen: Screen) -> None:
    report = report_of(Manifest(entries=(entry("activation", name),)))
    out = printed(to_text(report, screen), color_system=None)
    assert f"\n{printable(name)}  " in out
    assert all(char.isprintable() or char == "\n" for char in out)


def test_no_tensor_is_shown_as_that() -> None:
    assert text_of(Manifest(entries=())) == "tensors  none\n\ndump  run.npz\n"


def test_nan_everywhere_is_shown_everywhere() -> None:
    columns = dict.fromkeys(("mean", "std", "rms"), "NaN")
    stats = numbers((2, 4), **columns, dead=math.nan) | {"nan": 8}
    rms = {"in": math.nan, "out": math.nan}
    manifest = Manifest(
        entries=(entry("activation", "a", stats=stats),), layers=(Layer(path="a", index=0, rms=rms),), loss=math.nan
    )
    assert text_of(manifest, PIPE).startswith(
        """\
Layers (1)
             activation ─────────────────────────
name  shape  mean  std  rms  zeros  nan  fwd_gain  notes
a     [2,4]   nan  nan  nan     0%    8       nan  nonfinite
"""
    )


def test_counts_of_nonfinite_elements_are_columns_only_where_there_are_some() -> None:
    assert "nan" not in text_of(Manifest(entries=(entry("activation", "a"),)), PIPE)
    assert "block2/conv" in text_of(small_network(), PIPE).partition(" nan ")[2]


def test_colour_repeats_what_words_say() -> None:
    text = to_text(report_of(replace(small_network(), loss=math.nan)), TERMINAL)
    coloured = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}
    assert coloured["nonfinite"] == "red"
    assert coloured["unused-param"] == "yellow"


def test_without_colour_the_words_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_text(report_of(replace(small_network(), loss=math.nan)), TERMINAL)
    assert "\x1b[31m" in printed(text, color_system="standard", _environ={"TERM": "xterm"})
    assert "\x1b[31m" not in printed(text, _environ={"TERM": "xterm", "NO_COLOR": "1"})
    assert printed(text, _environ={"TERM": "dumb"}) == text.plain


@pytest.mark.slow
def test_rendering_grows_with_the_layers_and_no_faster() -> None:
    def many(layers: int) -> Manifest:
        names = [f"stage{n // 10}/layer{n % 10}" for n in range(layers)]
        entries = tuple(
            entry(family, name, index=n, stats=numbers((2, 4), mean=1 / (n + 1), std=1.0, rms=n / 7, l1=1.0))
            for n, name in enumerate(names)
            for family in ("activation", "activation_grad")
        )
        return Manifest(entries=entries, layers=tuple(Layer(path=name, index=n) for n, name in enumerate(names)))

    assert text_of(many(1000)).count("\n") > 1000
    assert calls(lambda: text_of(many(1000))) < 11 * calls(lambda: text_of(many(100)))


class Unlike(tuple[int, ...]):
    """A shape that has one hash with all others, and counts how often it is compared."""

    times = 0

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        Unlike.times += 1
        return super().__eq__(other)


def test_shapes_of_one_hash_are_not_compared_with_each_other() -> None:
    shapes = [Unlike((1, number)) for number in range(9)]
    assert column_texts(Column(heading="shape", kind="shape"), shapes, PIPE) == [f"[1,{number}]" for number in range(9)]
    assert Unlike.times == 0


def test_what_neighbours_share_is_written_once() -> None:
    names = ["stem", "stem/conv", "a/b/c", "a/b/d/e", "a/b/d/f", "head/kernel", "head/bias"]
    assert outline(names) == [
        Item(0, "stem", 0),
        Item(1, "conv", 1),
        Item(0, "a/b", None),
        Item(1, "c", 2),
        Item(1, "d/e", 3),
        Item(1, "d/f", 4),
        Item(0, "head/kernel", 5),
        Item(0, "head/bias", 6),
    ]
