"""The overview of a dump: which blocks share a line, and what the line says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.presentation.reports.dump_overview import dump_blocks
from gradscope.presentation.tables.by_block.contents import block_tree
from gradscope.presentation.tables.by_block.folded_blocks import Block, Folding
from gradscope.presentation.tables.dump_rows import rows_of
from gradscope.presentation.tables.numbers import Range
from gradscope.presentation.tables.table import Cell
from tests.support.report_samples import entry, stats_of


def folded(names: Sequence[str], *, loops_only: bool = False) -> list[str]:
    """The lines of a tree, with all blocks open."""
    root = Block("")
    for name in names:
        root.at(name)
    folding = Folding(loops_only=loops_only)

    def lines(blocks: Sequence[Block], path: str) -> list[str]:
        return [
            line
            for group in folding.groups(blocks, path)
            for line in (group.name, *lines(group.blocks, group.name))
        ]  # fmt: skip

    return lines([root], "")


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (["a1", "a2", "a3"], ["a[1..3]"]),
        (["a1", "a3"], ["a1", "a3"]),
        (["a1", "b", "a2"], ["a1", "b", "a2"]),
        (["conv1", "bn1", "conv2", "bn2", "head"], ["conv[1..2]", "bn[1..2]", "head"]),
        (["relu", "relu#2", "relu#3"], ["relu#[1..3]"]),
        (["h[0]/a", "h[0]/b", "h[1]/a", "h[1]/b"], ["h[0..1]", "h[0..1]/a", "h[0..1]/b"]),
        (["x[0][0]", "x[0][1]", "x[1][0]", "x[1][1]"], ["x[0..1][0..1]"]),
        (["b1/proj", "b1/c", "b2/c", "b3/c"], ["b1", "b1/proj", "b1/c", "b[2..3]", "b[2..3]/c"]),
        (["b1/c1", "b2/c2"], ["b[1..2]", "b[1..2]/c[1..2]"]),
        (["s1_b1", "s1_b2", "s2_b1", "s2_b2"], ["s1_b[1..2]", "s2_b[1..2]"]),
        (["layer_007", "layer_008"], ["layer_[7..8]"]),
        (["层1", "层2"], ["层[1..2]"]),
    ],
)
def test_blocks_that_repeat_share_a_line(names: list[str], lines: list[str]) -> None:
    assert folded(names) == lines


def test_only_iterations_of_loops_share_a_line_where_that_is_requested() -> None:
    assert folded(["a1", "a2", "h[0]", "h[1]"], loops_only=True) == ["a1", "a2", "h[0..1]"]


def test_a_path_of_very_many_components_is_no_deep_recursion() -> None:
    assert folded(["/".join("a" * 10_000)])[0] == "a"


def manifest(*entries: Entry, layers: Sequence[Layer] = ()) -> Manifest:
    return Manifest(entries=entries, layers=tuple(layers))


def cells(made: Manifest, room: int) -> dict[str, dict[str, Cell]]:
    """The cells of each line by heading, of the columns that have values."""
    notes = {"activation/b[7]": ["dead"]} if any(each.name == "b[7]" for each in made.entries) else {}
    table = dump_blocks(rows_of(made), made.layers, notes).table(room).without_empty_columns()
    return {
        str(line.cells[0]): {column.full_heading: cell for column, cell in zip(table.columns, line.cells, strict=True)}
        for line in table.lines
    }  # fmt: skip


def chain(length: int) -> Manifest:
    """A chain of layers, each with a parameter; the gradient halves from the last to the first."""
    entries, layers = [], []
    for at in range(length):
        gradient = 0.5 ** (length - at)
        values = {"activation": 1.0, "activation_grad": gradient, "param": 2.0, "param_grad": gradient}
        for family, value in values.items():
            name = f"b{at}/w" if family.startswith("param") else f"b{at}"
            entries.append(entry(family, name, index=at, stats=stats_of([value] * 4)))
        layers.append(Layer(path=f"b{at}", index=at, params=(f"b{at}/w",), outputs=(f"b{at}",)))
    return manifest(*entries, layers=layers)


def test_a_line_of_several_blocks_has_the_extremes_over_them() -> None:
    (line,) = cells(chain(6), 4).values()
    assert line["name"] == "b[0..5]"
    assert line["activation rms"] == 1.0
    assert line["gradient rms"] == Range(0.5**6, 0.5)
    assert line["parameters g/w"] == Range(0.5**7, 0.25)
    assert line["parameters l2"] == 4.0


def test_a_short_model_has_a_line_for_each_layer() -> None:
    assert list(cells(chain(6), 6)) == [f"b{at}" for at in range(6)]


def test_a_long_chain_has_several_lines_so_that_a_trend_shows() -> None:
    lines = list(cells(chain(90), 20).values())
    gradients = [line["gradient rms"] for line in lines]
    assert len(lines) == 9
    assert [each.high for each in gradients if isinstance(each, Range)] == pytest.approx(
        [0.5 ** (91 - 10 * at) for at in range(1, 10)]
    )


def test_what_repeats_inside_blocks_of_one_line_has_one_line() -> None:
    names = [f"b{at}/fc{part}" for at in range(20) for part in range(2)]
    made = (entry("activation", name, index=at, stats=stats_of([1.0])) for at, name in enumerate(names))
    table = dump_blocks(rows_of(manifest(*made)), (), {}).table(12)
    assert [line.cells[0] for line in table.lines] == ["b[0..19]", "b[0..19]/fc[0..1]"]


def test_calls_of_one_layer_are_distinguished_by_the_parameter_that_each_alone_uses() -> None:
    used = {"b": {"w1": 2, "b1": 1, "all": 3}, "b#2": {"w2": 2, "all": 3}, "b#3": {"u": 2, "v": 2}, "c": {"w": 2}}
    used |= {"d": {"w": 2}, "d#2": {"w": 2}}
    params = {f"{path[0]}/{name}": axes for path, names in used.items() for name, axes in names.items()}
    entries = [entry("activation", path, index=at) for at, path in enumerate(used)]
    entries += [replace(entry("param", name), shape=(2,) * axes) for name, axes in params.items()]
    layers = [
        Layer(path=path, index=at, params=tuple(f"{path[0]}/{name}" for name in names), outputs=(path,))
        for at, (path, names) in enumerate(used.items())
    ]
    assert list(cells(manifest(*entries, layers=layers), 10)) == ["b (w1)", "b#2 (w2)", "b#3", "c", "d", "d#2"]


def test_state_of_no_layer_has_one_line() -> None:
    moments = [entry("state", f"opt_state/0/{slot}/b{at}/w", index=0) for slot in ("mu", "nu") for at in range(3)]
    of_layer = entry("state", "batch_stats/b0/mean", index=0)
    lines = cells(manifest(*chain(3).entries, *moments, of_layer, layers=chain(3).layers), 20)
    assert list(lines) == ["b0", "b1", "b2", "state/opt_state/0"]
    found = {"state/opt_state/0/nu/b1/w": ["nonfinite"]}
    rows = rows_of(made := manifest(*moments))
    assert len(dump_blocks(rows, made.layers, found).table(20).lines) > 1


def test_a_closed_block_counts_what_is_inside_once() -> None:
    inner = [
        entry("activation", f"b/{name}", index=at, stats=stats_of([1.0, math.nan])) for at, name in enumerate("uv")
    ]
    outer = entry("activation", "b", index=2, alias_of="activation/b/v", stats={})
    others = [entry("activation", name, index=3) for name in ("x", "y")]
    lines = cells(manifest(*inner, outer, *others), 3)
    assert (lines["b"]["activation nan"], lines["x"]["activation nan"]) == (2, 0)


def test_a_parameter_without_a_layer_and_an_input_have_lines_of_their_own() -> None:
    made = manifest(entry("input", "x"), entry("activation", "a", index=1), entry("param", "spare/w", index=2))
    assert list(cells(made, 10)) == ["input/x", "a", "param/spare/w"]


def test_state_belongs_to_the_layer_that_has_its_path() -> None:
    made = manifest(entry("activation", "bn"), entry("state", "batch_stats/bn/mean", stats=stats_of([3.0])))
    assert cells(made, 10)["bn"]["state and aux rms"] == 3.0


@pytest.mark.parametrize("room", [3, 5, 8, 20])
def test_lines_that_do_not_fit_are_one_line_and_those_with_findings_stay(room: int) -> None:
    names = [f"b[{at * at}]" for at in range(2, 42)]
    found = manifest(*(entry("activation", name, index=at) for at, name in enumerate(names)))
    notes = {f"activation/{names[23]}": ["dead"]}
    table = dump_blocks(rows_of(found), (), notes).table(room)
    shown = [str(line.cells[0]) for line in table.lines]
    assert len(shown) <= room
    assert names[23] in shown or room == 3
    gaps = [line for line in table.lines if str(line.cells[0]).startswith("... ")]
    assert sum(int(str(line.cells[0]).split()[1]) for line in gaps) + len(shown) - len(gaps) == 40
    assert sum(len(line.keys) for line in table.lines) == 40


def test_lines_with_findings_go_before_those_without() -> None:
    names = [f"b[{at * at}]" for at in range(2, 42)]
    found = manifest(*(entry("activation", name, index=at) for at, name in enumerate(names)))
    notes = {f"activation/{name}": ["dead"] for name in names[20:25]}
    shown = [str(line.cells[0]) for line in dump_blocks(rows_of(found), (), notes).table(8).lines]
    assert set(names[20:25]) <= set(shown)
    assert len(shown) <= 8


def test_numbers_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=8) for name in ("p/w", "p/b")}
    made = manifest(
        entry("activation", "p"),
        *(entry("param", name, stats=stats_of(value)) for name, value in weights.items()),
        *(entry("param_grad", name, stats=stats_of(3 * value)) for name, value in weights.items()),
        layers=[Layer(path="p", index=0, params=tuple(weights))],
    )
    line = cells(made, 5)["p"]
    assert line["parameters l2"] == pytest.approx(np.linalg.norm(np.concatenate(list(weights.values()))))
    assert line["parameters g/w"] == pytest.approx(3.0)


def test_a_parameter_is_that_of_the_layer_inside_a_root_and_of_the_root_where_that_is_hidden() -> None:
    layers = (Layer(path="Net", index=0, params=("fc/kernel",)),
              Layer(path="fc", index=0, parent="Net", params=("fc/kernel",)))  # fmt: skip
    kernel, net, fc = (entry(family, name) for family, name in
                       [("param", "fc/kernel"), ("activation", "Net"), ("activation", "fc")])  # fmt: skip
    for entries, owner in ((kernel, net, fc), "fc"), ((kernel, net), "Net"):
        shown = manifest(*entries, layers=layers)
        tree = block_tree(rows_of(shown), layers, {})
        owners = [block.component for block, contents in tree.contents.items() if contents.parameters]
        assert owners == [owner]


def test_a_tensor_without_a_finite_element_has_a_line() -> None:
    filled = (("activation", "fc", np.nan), ("activation_grad", "fc", np.nan), ("activation", "head", np.inf))
    entries = [entry(family, name, stats=stats_of(np.full(3, value))) for family, name, value in filled]
    found = cells(manifest(*entries), 5)
    assert math.isnan(float(str(found["fc"]["activation rms"])))
    assert (found["fc"]["activation nan"], found["fc"]["gradient nan"], found["head"]["activation inf"]) == (3, 3, 3)
