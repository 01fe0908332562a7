"""The file of a page: it requests nothing, data is never markup, it is readable as it is, and its size is bounded."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gradscope.comparison.result import Series, SeriesMember
from gradscope.dump.manifest.manifest import Manifest
from gradscope.presentation import Compared, PageMaker, comparison_page, page_html
from gradscope.presentation.page.page_parts import Page, PageNotes
from gradscope.presentation.page.static_html import summary_html
from gradscope.presentation.render.document import Note
from gradscope.presentation.render.screen import Screen
from tests.support.page_samples import (
    HOSTILE,
    comparison_maker,
    content_of,
    deep_manifest,
    dump_maker,
    hostile_manifest,
    run_folder,
    run_maker,
)
from tests.support.report_samples import different_runs, entry, report_of, small_network, stats_of
from tests.support.sampled import sampled


class Markup(HTMLParser):
    """The elements of a page, with their attributes, and its text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.code: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.code.append(data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PageMaker]:
    run = run_maker(run_folder(tmp_path_factory.mktemp("run")))
    return {
        "dump": dump_maker(),
        "comparison": comparison_maker(),
        "run": run,
        "hostile": dump_maker(hostile_manifest()),
    }


@pytest.fixture(scope="module")
def pages(makers: dict[str, PageMaker]) -> dict[str, str]:
    return {kind: page_html(make) for kind, make in makers.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dump", "comparison", "run", "hostile"])
def test_nothing_in_a_page_names_another_file(pages: dict[str, str], kind: str) -> None:
    for tag, attributes in Markup(pages[kind]).elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data", "style"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]


def test_the_policy_allows_the_pages_own_scripts_and_styles_alone(pages: dict[str, str]) -> None:
    page = Markup(pages["dump"])
    (policy,) = (each["content"] for _, each in page.elements if each.get("http-equiv") == "Content-Security-Policy")
    directives = dict(each.strip().split(" ", 1) for each in (policy or "").split(";"))
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in str(policy)
    style, _, library, own = page.code
    assert directives["style-src"] == hashed(style)
    assert directives["script-src"].split() == [hashed(library), hashed(own)]


def hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_hostile_names_are_text_and_bounded(pages: dict[str, str]) -> None:
    page = Markup(pages["hostile"])
    assert [tag for tag, _ in page.elements].count("script") == 3
    assert "</script><script>document.title='owned'</script>" in page.text
    assert not re.search("[\x00-\x08\x0e-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", pages["hostile"])
    assert "\\u202e" in page.text
    assert len(pages["hostile"]) < 500_000
    content, _ = content_of(pages["hostile"])
    assert max(map(len, content["keys"])) < 2_200
    assert f"activation/{HOSTILE['script']}" in content["keys"]


def test_what_is_wrong_is_read_without_scripts(pages: dict[str, str]) -> None:
    text = Markup(pages["dump"]).text
    assert "dead: activation/block1/relu has 87.5% dead units" in text
    assert "Block by block (" in text
    assert "Forward first differs at `block1/conv`" in Markup(pages["comparison"]).text
    assert "nonfinite: at step 7 activation_grad/layer0 has 2 NaN" in Markup(pages["run"]).text


def test_a_page_has_the_tables_of_the_terminal_with_their_values(pages: dict[str, str]) -> None:
    content, _ = content_of(pages["dump"])
    shown = content["sets"][0]["tables"]
    expected = [table.without_empty_columns() for table in report_of(small_network()).tables(Screen())]
    assert [each["title"] for each in shown] == [table.title for table in expected]
    for table, each in zip(expected, shown, strict=True):
        assert [column["heading"] for column in each["columns"]] == [column.heading for column in table.columns]
        assert each["cells"][0] == list(table.cells_by_column()[0])
        assert [[content["keys"][key] for key in line] for line in each["keys"]] == [
            list(line.keys) for line in table.lines
        ]


def test_along_depth_are_the_innermost_layers_in_execution_order(pages: dict[str, str]) -> None:
    (depth,) = content_of(pages["dump"])[0]["depth"]
    assert depth["names"] == ["stem/conv", "stem/relu", "block1/conv", "block1/relu", "block2/conv", "loss"]
    forward, backward = depth["lines"]
    assert (forward["values"][:2], backward["values"][:2]) == ([1.02, 0.61], [2.0e-3, 2.1e-3])


def test_the_first_layer_that_is_not_finite_is_marked_in_the_order_of_each_pass() -> None:
    broken = {("activation", "b"), ("activation", "c"), ("activation_grad", "a"), ("activation_grad", "b")}
    entries = tuple(
        entry(family, name, index=at, stats=stats_of([1.0, float("inf") if (family, name) in broken else 2.0]))
        for at, name in enumerate("abc")
        for family in ("activation", "activation_grad")
    )
    (depth,) = content_of(page_html(dump_maker(Manifest(entries=entries))))[0]["depth"]
    assert [(mark["at"], mark["text"]) for mark in depth["marks"]] == [
        (1, "first not finite forward: b"),
        (1, "first not finite backward: b"),
    ]


def test_a_layer_of_whole_numbers_cuts_no_line_along_depth() -> None:
    entries = (
        entry("activation", "a", index=0), entry("activation", "label", index=1, dtype="int32"),
        entry("activation_grad", "label", index=1, dtype="int32"), entry("activation", "b", index=2),
    )  # fmt: skip
    (depth,) = content_of(page_html(dump_maker(Manifest(entries=entries))))[0]["depth"]
    assert depth["names"] == ["a", "b"]
    assert None not in depth["lines"][0]["values"]


def test_an_alarm_is_a_link_to_its_tensor_at_its_step_and_without_a_tensor_to_its_step() -> None:
    notes = [Note(label="nonfinite", text="one"), Note(label="loss-spike", text="two"), Note(label="", text="three")]
    shown = summary_html([PageNotes(notes=notes, keys=["update/a", ""], steps=[3, 4])])
    assert re.findall(r'href="([^"]*)">(\w+)<', shown) == [("#tensor=update/a&amp;step=3", "one"), ("#step=4", "two")]


def test_the_first_divergence_is_marked_and_candidates_are_superimposed(pages: dict[str, str]) -> None:
    content, _ = content_of(pages["comparison"])
    forward, backward = content["depth"][:2]
    assert [line["label"] for line in forward["lines"]] == ["a.npz", "b.npz"]
    assert [forward["names"][mark["at"]] for mark in forward["marks"]] == ["block1/conv"]
    assert [content["keys"][mark["key"]] for mark in backward["marks"]] == ["activation_grad/block1"]


def test_a_block_has_the_siblings_whose_values_it_reads(pages: dict[str, str]) -> None:
    blocks = content_of(pages["dump"])[0]["blocks"]
    assert [name for name, parent in zip(blocks["names"], blocks["parents"], strict=True) if parent == -1][:2] == [
        "input",
        "stem",
    ]
    assert all(parent < at for at, parent in enumerate(blocks["parents"]))


@sampled("largest_bytes", [130_000, 115_000])
def test_what_is_too_large_loses_detail_and_says_so(largest_bytes: int) -> None:
    make = dump_maker(deep_manifest(1_000))
    page = page_html(make, largest_bytes)
    assert len(page.encode()) <= largest_bytes
    assert "left out" in Markup(page).text
    assert "left out" not in Markup(page_html(make)).text


def test_a_page_that_cannot_be_small_enough_is_its_summary() -> None:
    def make(level: int) -> Page:
        noise = "".join(hashlib.sha256(bytes([at, level])).hexdigest() for at in range(200))
        return Page(
            kind="dump",
            title="t",
            summary=[PageNotes(notes=[Note(label="verdict", text="fine")])],
            content=[("keys", [noise])],
        )

    page = page_html(make, 20_000)
    assert "fine" in Markup(page).text
    assert "<script" not in page


def test_the_word_that_all_rows_of_a_compared_family_have_is_in_the_title_alone() -> None:
    found = different_runs()
    rows = tuple(row for row in found.rows if row.family != "activation" or row.status == "different")
    comparison = replace(found, rows=rows)
    members = (SeriesMember(name="a.npz", comparison=comparison),)
    compared = [Compared(name="a.npz", comparison=comparison, ref=small_network(), cand=small_network())]
    content, _ = content_of(page_html(comparison_page("ref.npz", Series(members=members), compared)))
    headings = {
        table["title"]: [column["heading"] for column in table["columns"]] for table in content["sets"][0]["tables"]
    }
    number = sum(row.family == "activation" for row in rows)
    assert "status" not in headings[f"activation ({number} of {number}, all different)"]
    assert "status" in headings["param (2 of 2)"]  # one is the same


def test_a_module_that_first_differs_is_marked_behind_the_layers_inside_it() -> None:
    found = different_runs()
    stem, *inside, around = (row for row in found.rows if row.family == "activation")
    right = (replace(row, status="same") for row in inside)
    comparison = replace(found, rows=(stem, *right, around, replace(around, name="head", index=5)))
    members = (SeriesMember(name="a.npz", comparison=comparison),)
    compared = [Compared(name="a.npz", comparison=comparison, ref=small_network(), cand=small_network())]
    content, _ = content_of(page_html(comparison_page("ref.npz", Series(members=members), compared)))
    chart = next(each for each in content["depth"] if "forward" in each["title"])
    (mark,) = chart["marks"]
    assert mark["text"] == "first divergence forward: block1"
    assert chart["names"][mark["at"]] == "head"


def test_the_rms_of_what_several_tensors_make_is_along_depth() -> None:
    found = different_runs()
    first = next(row for row in found.rows if row.name == "block1/conv")
    made = replace(first, counterpart="a[0], a[1]", made_by="concatenate 0", metrics={"norm_ratio": 3.0})
    comparison = replace(found, rows=(made, *(row for row in found.rows if row is not first)))
    members = (SeriesMember(name="a.npz", comparison=comparison),)
    compared = [Compared(name="a.npz", comparison=comparison, ref=small_network(), cand=small_network())]
    content, _ = content_of(page_html(comparison_page("ref.npz", Series(members=members), compared)))
    chart = next(each for each in content["depth"] if each["title"].startswith("Activation"))
    at = chart["names"].index(first.name)
    ref, cand = (line["values"] for line in chart["lines"])
    assert (cand[at], chart["unit"]) == (pytest.approx(3 * ref[at], rel=1e-3), "rms")
    assert cand[:at] + cand[at + 1 :] == ref[:at] + ref[at + 1 :]
    number = content["keys"].index(f"activation/{first.name}")
    assert content["sides"][1]["counterparts"] == {str(number): None}


def test_a_run_has_its_series_and_alarms(pages: dict[str, str]) -> None:
    content, packed = content_of(pages["run"])
    (run,) = content["runs"]
    assert run["steps"] == list(range(8))
    planes = (1 + 3 * len(run["keys"]) * 8) * len(run["packed"])
    assert len(packed) == planes + (1 + 3 * 2 * 3) * len(run["noise"]["packed"])
    assert run["alarms"] == [
        {"step": 7, "rule": "nonfinite", "why": "has 2 NaN", "key": content["keys"].index("activation_grad/layer0")}
    ]
    assert [key if key is None else content["keys"][key] for key in run["noise"]["keys"]] == [
        None,
        "param_grad/weight0",
    ]
    assert (run["noise"]["steps"], run["noise"]["offset"]) == ([0, 3, 6], planes)
    assert [[column["name"] for column in each["columns"]] for each in run["curves"]] == [["loss"], ["grad_norm"]]
    assert [(each["step"], each["octaves"][0]) for each in run["histograms"]] == [(at, [at, 4]) for at in (0, 2, 4, 6)]


def test_the_noise_of_gradients_is_read_without_scripts(pages: dict[str, str]) -> None:
    assert "noise scale 16.0 examples at step 6; the batch has 16" in Markup(pages["run"]).text
