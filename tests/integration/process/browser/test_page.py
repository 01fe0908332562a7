"""Pages in a real browser: read, sorted, filtered, folded, linked, hovered, on a phone, offline, of untrusted files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope.presentation import page_html
from tests.integration.process.browser.conftest import Opened
from tests.support.page_samples import HOSTILE, content_of, dump_maker, run_folder, run_maker

Open = Callable[..., Opened]
FIRST_DIFFERENCE = "step 0: first difference"


def names(page: Any, table: int = 0) -> list[str]:
    """The names in the rows of a table that are in sight."""
    return page.locator(".virtual").nth(table).locator("tbody th").all_inner_texts()


def legend_of(chart: Any) -> list[str]:
    """The lines and marks that are named below a chart."""
    return [each.strip() for each in chart.locator(".legend li").all_inner_texts()]


def until(page: Any, condition: str) -> None:
    """Waits until an expression is true; Playwright's own way evaluates text in the page, which the policy forbids."""
    end = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


@pytest.mark.parametrize("kind", ["dump", "comparison", "run", "runs", "hostile", "long"])
def test_a_page_opens_without_an_error_a_request_or_a_scroll_bar_below(opened: Open, kind: str) -> None:
    page = opened(kind, width=2560).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 2560
    page.set_viewport_size({"width": 360, "height": 780})
    until(page, "document.documentElement.scrollWidth <= 360")
    assert page.locator(".virtual").count() > 0


def test_without_javascript_the_summary_is_read(opened: Open) -> None:
    page = opened("dump", java_script_enabled=False).page
    assert "dead: activation/block1/relu" in page.inner_text("#summary")
    assert "Block by block" in page.inner_text("#overview")
    assert "need JavaScript" in page.inner_text("main")


def test_a_table_is_sorted_in_both_directions_and_put_back(opened: Open) -> None:
    page = opened("dump").page
    layers = page.locator(".table-box", has_text="Layers (")
    head = layers.get_by_role("button", name="rms").first
    shown = layers.locator("tbody tr:not(.spacer)")
    before = shown.all_inner_texts()
    head.click()
    assert shown.first.inner_text().startswith("block2/conv")
    assert layers.locator("th[aria-sort=descending]").count() == 1
    head.click()
    assert layers.locator("th[aria-sort=ascending]").count() == 1
    head.click()
    assert shown.all_inner_texts() == before


def test_names_are_searched_by_words_and_by_glob(opened: Open) -> None:
    page = opened("dump").page
    page.keyboard.press("/")
    page.keyboard.type("block1")
    until(page, "location.hash === '#search=block1'")
    assert set(names(page, 1)) == {"block1", "block1/conv", "block1/relu"}
    page.keyboard.press("Escape")
    page.get_by_role("searchbox").fill("*/relu")
    until(page, "location.hash.includes('relu')")
    assert names(page, 1) == ["stem/relu", "block1/relu"]


def test_a_tensor_is_linked_shown_and_left_with_escape(opened: Open) -> None:
    page = opened("dump", "#tensor=activation/block1/relu").page
    panel = page.get_by_role("complementary")
    assert panel.get_by_role("heading", name="activation/block1/relu").is_visible()
    assert "0.22" in panel.inner_text()
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    assert page.evaluate("location.hash") == ""
    page.locator("#summary dd a").first.click()
    assert page.evaluate("location.hash") == "#tensor=activation/block1/relu"
    assert panel.is_visible()
    page.go_back()
    assert not panel.is_visible()


def test_every_number_of_a_tensor_is_the_dumps(opened: Open, pages: dict[str, Path]) -> None:
    page = opened("dump", "#tensor=activation/stem/conv").page
    content, _ = content_of(pages["dump"].read_text(encoding="utf-8"))
    tensors = content["sides"][0]["tensors"]
    row = tensors["keys"].index(content["keys"].index("activation/stem/conv"))
    shown = dict(line.split("\t") for line in page.locator("#tensor .facts tr").all_inner_texts())
    expected = {column["name"] for column in tensors["columns"] if column["cells"][row] is not None}
    assert set(shown) == expected
    assert (shown["rms"], shown["mean"], shown["shape"]) == ("1.02", "-0.00400", "[8,16,16,16]")


def test_a_tree_opens_and_follows_the_keyboard(opened: Open) -> None:
    page = opened("dump").page
    tree = page.locator(".tree")
    assert tree.get_by_role("link", name="relu", exact=True).count() == 0
    tree.locator("summary", has_text="block1").focus()
    page.keyboard.press("Enter")
    tree.get_by_role("link", name="relu", exact=True).click()
    assert page.evaluate("location.hash") == "#tensor=activation/block1/relu"


def test_a_chart_names_what_is_under_the_pointer_and_under_the_arrow_keys(opened: Open) -> None:
    page = opened("dump").page
    plot = page.locator(".plot").first
    plot.hover()
    assert "activation rms" in page.locator(".chart .readout").first.inner_text()
    plot.focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    assert page.locator(".chart .readout").first.inner_text().startswith("stem/conv")
    assert "1.02" in page.locator(".chart .readout").first.inner_text()


def test_tables_and_charts_are_saved(opened: Open, tmp_path: Path) -> None:
    page = opened("dump").page
    with page.expect_download() as saving:
        page.locator(".table-box", has_text="Layers (").get_by_role("button", name="CSV").click()
    saving.value.save_as(tmp_path / "layers.csv")
    lines = (tmp_path / "layers.csv").read_text().splitlines()
    assert lines[0].startswith("name,shape")
    assert [line.split(",")[0] for line in lines[1:3]] == ["stem", "stem/conv"]
    with page.expect_download() as saving:
        page.get_by_role("button", name="SVG").first.click()
    saving.value.save_as(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().count("<path ") == 2


def test_a_line_has_a_gap_where_layers_have_no_gradient(opened: Open, tmp_path: Path) -> None:
    page = opened("gap").page
    with page.expect_download() as saving:
        page.get_by_role("button", name="SVG").first.click()
    saving.value.save_as(tmp_path / "chart.svg")
    activations, gradients = re.findall(r' d="([^"]*)"', (tmp_path / "chart.svg").read_text())
    assert [piece.count(" L") for piece in activations.split("M")[1:]] == [6]
    # A point between two gaps is a line of no length.
    assert [piece.count(" L") for piece in gradients.split("M")[1:]] == [2, 1, 1]


def test_a_saved_chart_of_a_comparison_has_its_first_divergence(
    opened: Open, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = opened("comparison").page
    with page.expect_download() as saving:
        page.locator(".chart").first.get_by_role("button", name="SVG").click()
    saving.value.save_as(tmp_path / "chart.svg")
    saved = (tmp_path / "chart.svg").read_text()
    assert saved.count("<line ") == 1
    assert "first divergence forward of a.npz: block1/conv" in saved
    layers = content_of(pages["comparison"].read_text(encoding="utf-8"))[0]["depth"][0]["names"]
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", saved)
    assert {"a.npz", "b.npz", layers[0], layers[-1]} <= set(labels)


def test_candidates_are_chosen_and_stand_beside_each_other(opened: Open) -> None:
    page = opened("comparison", "#tensor=activation/stem").page
    assert page.locator("#tensor thead").first.inner_text().split() == ["a.npz", "b.npz"]
    assert "first divergence forward of a.npz: block1/conv" in page.locator(".chart").first.inner_text()
    page.locator("#tables select").select_option("b.npz")
    assert page.evaluate("location.hash").endswith("of=b.npz")
    assert page.locator("#tables .virtual").count() == 2


def test_a_run_is_followed_step_by_step(opened: Open) -> None:
    page = opened("run", "#tensor=activation_grad/layer0&step=3").page
    table = page.locator(".table-box", has_text="Layers (")
    gradient = table.locator("tbody tr:not(.spacer)").first
    assert "1000" in gradient.inner_text()
    page.locator("input[type=range]").fill("5")
    assert page.evaluate("location.hash").endswith("step=5")
    assert "1.00e+05" in gradient.inner_text()
    assert page.locator("#tensor .plot canvas").count() == 2
    assert page.locator("#tensor h3").inner_text() == "Elements by magnitude at step 4"
    assert page.locator("#tensor .bars rect title").first.text_content() == "2^4 .. 2^5: 4"
    assert page.locator(".legend .mark").first.inner_text() == "step 7: nonfinite"
    heat = page.locator("canvas.heat")
    assert heat.evaluate("canvas => [canvas.width, canvas.height]") == [8, 3]
    heat.focus()
    broken = "canvas => canvas.getContext('2d').getImageData(7, 1, 1, 1).data.slice(0, 3).join()"
    assert heat.evaluate(broken) == "197,34,31"  # two elements of the last step are NaN, whatever the others are
    page.keyboard.press("ArrowDown")
    assert "activation_grad/layer1" in page.locator("#heat .readout").inner_text()
    page.keyboard.press("Enter")
    assert "tensor=activation_grad/layer1" in page.evaluate("location.hash")


def test_several_runs_are_superimposed_and_their_first_difference_is_marked(opened: Open) -> None:
    page = opened("runs", "#tensor=activation_grad/layer0&step=7").page
    assert page.locator("#summary dt").first.inner_text() == "different"
    chart = page.locator("#curves .chart").nth(1)
    assert (chart.locator("strong").inner_text(), legend_of(chart)[:3]) == ("loss", ["a", "b", FIRST_DIFFERENCE])
    forward = page.locator("#step .chart").first
    assert legend_of(forward) == ["a", "b, step 5"]
    assert page.locator("#tensor thead").last.inner_text().split() == ["a", "b"]  # `layer[0]` of b
    page.evaluate("location.hash = '#tensor=activation_grad/layer[1]'")
    assert page.locator("#tensor thead").last.inner_text().split() == ["a", "b"]
    page.locator("#step select").select_option("b")
    assert page.evaluate("location.hash").endswith("of=b")
    assert page.locator("#step output").first.inner_text() == "5"
    assert page.locator("#step .virtual").first.locator("tbody th").all_inner_texts() == ["layer[0]", "layer[1]"]
    assert "activation/layer2" in page.locator("#differences .virtual tbody").inner_text()


def test_the_noise_of_gradients_is_a_curve_a_table_and_a_heat_map(opened: Open) -> None:
    page = opened("run", "#tensor=param_grad/weight0&step=5").page
    noise = page.locator("#curves .chart", has_text="Noise of gradients")
    assert legend_of(noise)[:3] == ["noise_scale", "gsnr", "examples in the batch"]
    table = page.locator(".table-box", has_text="Noise of gradients, of step 3")
    first = table.locator("tbody tr:not(.spacer)").first.inner_text()
    assert first.split("\t")[:2] == ["all parameters", "13.0"]
    assert "Noise of the gradient" in page.locator("#tensor").inner_text()
    page.locator("#heat select").nth(1).select_option("noise_scale")
    assert page.locator("#heat select").first.input_value() == "param_grad"
    assert page.locator("canvas.heat").evaluate("canvas => [canvas.width, canvas.height]") == [3, 1]


def test_what_is_chosen_is_in_the_address_and_a_link_shows_it(opened: Open) -> None:
    page = opened("run").page
    page.locator("#heat select").first.select_option("activation")
    page.locator("#heat select").nth(1).select_option("zeros")
    page.locator("#tree select").select_option("activation rms")
    layers = page.locator(".table-box", has_text="Layers (")
    layers.get_by_role("button", name="rms").first.click()
    place = page.evaluate("location.hash")
    other = opened("run", place).page
    assert [other.locator("#heat select").nth(at).input_value() for at in (0, 1)] == ["activation", "zeros"]
    assert other.locator("#tree select").input_value() == "activation rms"
    head = other.locator(".table-box", has_text="Layers (").locator("th[aria-sort=descending]")
    assert head.inner_text().startswith("rms")
    assert other.locator(".table-box", has_text="Layers (").locator("tbody th").first.inner_text() == "layer2"


def test_columns_are_chosen_in_the_address_and_their_menu_closes(opened: Open) -> None:
    page = opened("dump").page
    layers = page.locator(".table-box", has_text="Layers (")
    menu = layers.locator("details.menu")
    for leave in (lambda: page.keyboard.press("Escape"), lambda: page.mouse.click(1200, 5)):
        menu.locator("summary").click()
        assert menu.get_by_role("checkbox").first.is_visible()
        leave()
        assert not menu.get_by_role("checkbox").first.is_visible()
    menu.locator("summary").click()
    menu.get_by_label("shape", exact=True).uncheck()
    menu.get_by_label("activation mean", exact=True).check()
    other = opened("dump", page.evaluate("location.hash")).page.locator(".table-box", has_text="Layers (")
    heads = other.locator("thead tr").last.locator("th").all_inner_texts()
    assert "mean" in heads
    assert "shape" not in heads
    assert not other.locator("details.menu input").first.is_checked()


def test_an_alarm_links_to_its_step_and_a_finding_to_its_tensor(opened: Open) -> None:
    page = opened("run", "#step=2").page
    page.locator("#summary dd a").first.click()
    assert page.evaluate("location.hash") == "#step=7&tensor=activation_grad/layer0"
    assert page.locator("#step output").first.inner_text() == "7"


def test_a_link_to_what_is_not_there_says_so(opened: Open) -> None:
    page = opened("dump", "#tensor=activation/gone").page
    assert "No tensor of this name" in page.locator("#tensor").inner_text()


def test_a_heat_map_a_histogram_and_the_tree_are_saved(opened: Open, tmp_path: Path) -> None:
    page = opened("run", "#tensor=activation_grad/layer0").page
    expected = {"#heat": ("CSV", "activation_grad/layer2"), "#tree": ("CSV", "layer1"), "#tensor": ("SVG", "<rect")}
    for place, (kind, text) in expected.items():
        with page.expect_download() as saving:
            page.locator(place).get_by_role("button", name=kind).first.click()
        saving.value.save_as(tmp_path / "saved")
        assert text in (tmp_path / "saved").read_text()


def test_a_page_is_printed_on_white_with_the_rows_that_were_out_of_sight(opened: Open) -> None:
    page = opened("long", color_scheme="dark").page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".virtual").first.locator("tbody tr:not(.spacer)").count() == 301
    assert page.locator(".virtual thead button").first.is_visible()
    assert not page.get_by_role("searchbox").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".plot canvas").first.evaluate("canvas => canvas.clientWidth") < 700
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".virtual").first.locator("tbody tr").count() < 60
    assert page.evaluate("document.documentElement.dataset.theme") is None


@pytest.mark.parametrize("name", ["script", "attribute", "entity", "markup", "bidi override", "a megabyte"])
def test_hostile_names_are_shown_as_text(opened: Open, name: str) -> None:
    page = opened("hostile").page
    keys = page.evaluate("document.title")
    assert keys.endswith("- gradscope")
    page.get_by_role("searchbox").fill(HOSTILE[name].split()[0][:30])
    until(page, "location.hash !== ''")
    link = page.locator(".virtual a").first
    link.click()
    shown = page.locator("#tensor h2").inner_text()
    assert shown.startswith("activation/")
    assert len(shown) < 400
    assert page.locator("script").count() == 3
    assert "\u202e" not in page.evaluate("document.body.innerText")


def test_5000_tensors_scroll_with_few_elements(opened: Open) -> None:
    page = opened("long").page
    scroller = page.locator(".scroller").first
    scroller.evaluate("box => { box.scrollTop = box.scrollHeight }")
    until(page, "document.querySelector('.virtual tbody').innerText.includes('block39/layer')")
    assert page.locator(".virtual tbody tr").count() < 60
    assert page.evaluate("document.querySelectorAll('*').length") < 5_000


def test_light_and_dark_follow_the_system_and_the_button(opened: Open) -> None:
    page = opened("dump", color_scheme="dark").page
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(paper) == "rgb(255, 255, 255)" != dark


def test_a_page_works_in_the_frame_of_a_notebook(browser: Any, tmp_path: Path) -> None:
    from gradscope.api.reporting import ReportPage

    (tmp_path / "book.html").write_text(ReportPage(page_html(dump_maker()))._repr_html_(), encoding="utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto((tmp_path / "book.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".virtual a", has_text="block1/relu").first.click()
    assert frame.locator("#tensor h2").inner_text() == "activation/block1/relu"
    page.close()
    assert problems == []


def test_an_axis_is_as_wide_as_its_numbers_with_their_signs(browser: Any, tmp_path: Path) -> None:
    maker = run_maker(run_folder(tmp_path / "run", loss=-8e9))
    (tmp_path / "run.html").write_text(page_html(maker), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto((tmp_path / "run.html").as_uri())
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    widest = "(pen => (pen.font = '12px system-ui, sans-serif', pen.measureText('-8.00e+09').width))"
    text = page.evaluate(f"{widest}(document.createElement('canvas').getContext('2d'))")
    assert page.evaluate("document.querySelector('#curves .u-over').offsetLeft") >= text + 15  # a tick, and its gap
    page.close()


def test_the_places_along_depth_are_the_names_of_layers(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.add_init_script("""
        window.drawn = [];
        const pen = CanvasRenderingContext2D.prototype, own = pen.fillText;
        pen.fillText = function (text, ...rest) { window.drawn.push(text); return own.call(this, text, ...rest); };
    """)
    page.goto(pages["dump"].as_uri())
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    page.wait_for_selector("#depth .u-over")
    drawn = page.evaluate("window.drawn")
    assert {"stem/conv", "block1/relu"} <= {*drawn}
    assert not {"2", "4", "6"} & {*drawn}
    page.close()


def test_a_run_that_is_lost_opens_at_the_last_step_with_values_and_names_the_rows_of_its_heat_map(
    browser: Any, tmp_path: Path
) -> None:
    maker = run_maker(run_folder(tmp_path / "run", lost_from=5))
    (tmp_path / "run.html").write_text(page_html(maker), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto((tmp_path / "run.html").as_uri())
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    assert page.locator("#step output").first.inner_text() == "4, the last with a value to draw along depth"
    assert page.locator("#step .plot canvas").count() == 1
    assert page.locator(".heat-names div").all_inner_texts() == ["layer0", "layer1", "layer2"]
    tops = "[...document.querySelectorAll('.heat-names div, canvas.heat')].map(each => each.getBoundingClientRect())"
    *rows, heat = page.evaluate(f"{tops}.map(box => [box.top, box.height])")
    assert [row[0] for row in rows] == pytest.approx([heat[0] + heat[1] / 3 * at for at in range(3)], abs=1)
    page.locator("input[type=range]").fill("6")
    assert page.locator("#step output").first.inner_text() == "6"
    nothing = "There is no value to draw: none is finite and larger than 0."
    assert nothing in page.locator("#step .note").all_inner_texts()
    page.close()
