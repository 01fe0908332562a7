"""The graph of layers: what is computed from what, what follows from a divergence, and who made it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.comparison.diagnosis.divergence import blame_of
from gradscope.comparison.diagnosis.unpaired_sources import Program
from gradscope.dump.manifest import layer_graph
from gradscope.dump.manifest.layer_graph import NearestKeys, consequences, readers_of, sources_first, sources_of
from gradscope.dump.manifest.manifest import Layer
from gradscope.naming import key_of
from tests.support.work import steps

#: x -> dense(w) -> [left(l) | right(r)] -> add -> head(h), the branches in a composite.
LAYERS = (
    Layer(path="dense", index=0, inputs=("x",), params=("w",), outputs=("dense",)),
    Layer(path="block", index=1, inputs=("dense",), params=("l", "r"), outputs=("block/add",)),
    Layer(path="block/left", index=1, parent="block", inputs=("dense",), params=("l",), outputs=("block/left",)),
    Layer(path="block/right", index=2, parent="block", inputs=("dense",), params=("r",), outputs=("block/right",)),
    Layer(path="block/add", index=3, parent="block", inputs=("block/left", "block/right"), outputs=("block/add",)),
    Layer(path="head", index=4, inputs=("block/add",), params=("h",), outputs=("head",)),
)
SOURCES = sources_of(LAYERS)
INDEX = {
    "x": 0,
    "dense": 0,
    "block/left": 1,
    "block/right": 2,
    "block/add": 3,
    "head": 4,
    "w": 0,
    "l": 1,
    "r": 2,
    "h": 4,
}


def row(
    family: str, name: str, *, growth: float = 1.0, agrees: bool = False, noise: float | None = None
) -> ComparisonRow:
    metrics = {"rel_l2": 0.021, "growth": growth, "nonfinite_mismatch": 0} | ({} if noise is None else {"noise": noise})
    return ComparisonRow(
        name=name, family=family, status="same" if agrees else "different", index=INDEX[name], matched_by="name",
        metrics=metrics, needed=0.021,
    )  # fmt: skip


def sentence(*rows: ComparisonRow) -> str:
    program = Program(layers=LAYERS, owner=lambda each: key_of(each.family, each.name))
    blame = blame_of(rows, program, program)
    return Comparison(rows=rows, blame=blame).sentence


def test_a_value_is_computed_from_what_its_innermost_layer_reads() -> None:
    assert set(SOURCES["activation/block/left"]) >= {"activation/dense", "param/l"}
    assert "param/r" not in SOURCES["activation/block/left"]
    assert set(SOURCES["activation/block/add"]) >= {"activation/block/left", "activation/block/right"}


def test_a_gradient_is_computed_by_the_layers_that_read_its_value() -> None:
    assert set(SOURCES["activation_grad/dense"]) >= {"activation_grad/block/left", "activation_grad/block/right"}
    assert set(SOURCES["param_grad/l"]) >= {"activation_grad/block/left", "activation/dense"}
    assert "activation_grad/block/right" not in SOURCES["param_grad/l"]


def test_consequences_of_one_branch_are_not_in_the_other() -> None:
    assert consequences(SOURCES, "activation/block/left") >= {"activation/block/add", "activation/head"}
    assert "activation/block/right" not in consequences(SOURCES, "activation/block/left")
    backward = consequences(SOURCES, "activation_grad/block/left")
    assert {"activation_grad/dense", "param_grad/w", "param_grad/l", "input_grad/x"} <= backward
    assert not {"param_grad/r", "param_grad/h", "activation_grad/head"} & backward


def test_a_graph_with_a_circle_has_an_end() -> None:
    circle = (
        Layer(path="a", index=0, parent="b", inputs=("b",), outputs=("a",)),
        Layer(path="b", index=1, parent="a", inputs=("a",), outputs=("b",)),
    )
    assert "activation/b" in consequences(sources_of(circle), "activation/a")


def test_the_output_of_a_loop_is_made_of_what_its_last_layer_makes() -> None:
    loop = (
        Layer(path="loop", index=0, primitive="scan", inputs=("x",), outputs=("loop",)),
        Layer(path="loop[0]/dense", index=1, parent="loop", inputs=("x",), outputs=("loop[0]/dense",)),
        Layer(path="loop[1]/dense", index=2, parent="loop", inputs=("loop[0]/dense",), outputs=("loop[1]/dense",)),
        Layer(path="head", index=3, inputs=("loop",), outputs=("head",)),
    )
    assert "activation/head" in consequences(sources_of(loop), "activation/loop[0]/dense")
    assert "activation_grad/loop[0]/dense" in consequences(sources_of(loop), "activation_grad/head")


def test_the_readers_of_a_value_are_the_innermost() -> None:
    assert readers_of(LAYERS, "dense") == ("block/left", "block/right")
    assert readers_of(LAYERS, "head") == ()


@pytest.mark.parametrize("has_sum", [False, True])
def test_a_block_that_adds_what_it_reads_is_a_reader_too(has_sum: bool) -> None:
    added = ("activation/block/dense", "activation/x")
    block = Layer(path="block", index=0, inputs=("x",), outputs=("block",), sources=() if has_sum else added)
    dense = Layer(path="block/dense", index=0, parent="block", inputs=("x",), outputs=("block/dense",))
    sum_of_both = Layer(path="block/sum", index=1, parent="block", outputs=("block",), sources=added)
    layers = (block, dense, sum_of_both) if has_sum else (block, dense)
    assert readers_of(layers, "x") == (("block/dense", "block/sum") if has_sum else ("block", "block/dense"))
    named = Layer(path="named", index=2, inputs=("block",), outputs=("named/dense",), sources=("activation/block",))
    inside = Layer(path="named/dense", index=2, parent="named", inputs=("block",), outputs=("named/dense",))
    assert readers_of((*layers, named, inside), "block") == ("named/dense",)


def test_a_value_comes_behind_what_it_is_computed_from_however_long_the_chain_is() -> None:
    count = 5 * sys.getrecursionlimit()
    chain = {f"activation/{number}": [f"activation/{number - 1}"] for number in reversed(range(1, count))}
    assert sources_first(chain, {*chain, "activation/0"}) == tuple(f"activation/{number}" for number in range(count))
    assert sources_first(SOURCES, {"activation/head", "activation/block/left", "activation/dense"}) == (
        "activation/dense", "activation/block/left", "activation/head",
    )  # fmt: skip


def test_values_that_are_computed_from_one_another_are_ordered_too() -> None:
    cycle = {"activation/a": ["activation/b"], "activation/b": ["activation/a"], "activation/c": ["activation/b"]}
    assert sorted(sources_first(cycle, cycle)) == sorted(cycle)
    assert sources_first(cycle, cycle)[-1] == "activation/c"


def test_the_sentence_counts_consequences_and_names_the_layers_that_made_them() -> None:
    found = sentence(
        row("activation", "dense", agrees=True), row("activation", "head", agrees=True),
        row("activation_grad", "head", agrees=True), row("activation_grad", "block/left", growth=50.0),
        row("activation_grad", "dense"), row("param_grad", "w"), row("param_grad", "l"), row("param_grad", "h"),
        row("input_grad", "x"), row("example_grad", "w"), row("example_grad", "h"),
    )  # fmt: skip
    assert found == (
        "Backward only: forward agrees, backward first differs at `block/left` (rel_l2 2.1e-2, 50x that of its inputs, "
        "made in `block/add`); 2 parameter gradients, 1 input gradient and 1 per-example gradient above it follow from "
        "that; 1 parameter gradient and 1 per-example gradient differ in addition, of `h`."
    )


def test_an_error_that_is_made_anew_is_named() -> None:
    found = sentence(row("activation", "dense", growth=200.0), row("activation", "block/left"),
                     row("activation", "head", growth=30.0))  # fmt: skip
    assert found == (
        "Forward first differs at `dense` (rel_l2 2.1e-2, 200x that of its inputs); error is made anew at `head`."
    )


def test_a_second_name_of_the_first_and_gradients_behind_a_wrong_value_are_no_new_errors() -> None:
    found = sentence(
        row("activation", "dense", growth=200.0), row("activation", "block/left", growth=200.0),
        row("activation_grad", "head"), row("activation_grad", "block/left", growth=50.0),
    )  # fmt: skip
    assert "made anew" not in found


def test_gradients_of_parameters_alone_are_backward_only_too() -> None:
    rows = (row("activation", "head", agrees=True), row("activation_grad", "head", agrees=True), row("param_grad", "w"))
    assert sentence(*rows) == (
        "Backward only: forward agrees, and so do the gradients of activations; 1 parameter gradient differs, of `w`."
    )


def test_what_agrees_only_within_its_noise_is_said_to() -> None:
    gradient = row("activation_grad", "head")
    within = row("activation", "head", agrees=True, noise=3.25), row("activation", "dense", agrees=True, noise=0.5)
    assert sentence(*within, gradient).startswith(
        "Backward only: forward is within noise (at most 3.2x at `head`), backward first differs at `head`"
    )
    assert sentence(within[1], gradient).startswith("Backward only: forward agrees, backward first differs at `head`")


def all_to_all(count: int) -> tuple[Layer, ...]:
    ins, outs = (tuple(f"{letter}{n}" for n in range(count)) for letter in "io")
    return (Layer(path="all", index=0, inputs=ins, outputs=outs),)


def stated_all_to_all(count: int) -> tuple[Layer, ...]:
    ins, outs = (tuple(f"{letter}{n}" for n in range(count)) for letter in "io")
    return (Layer(path="all", index=0, outputs=outs, sources=tuple(f"activation/{each}" for each in ins)),)


def many_into_one(count: int) -> tuple[Layer, ...]:
    return (Layer(path="all", index=0, inputs=tuple(f"i{n}" for n in range(count)), outputs=("o",)),)


def one_inside_the_other(count: int) -> tuple[Layer, ...]:
    return tuple(Layer(path=f"l{n}", index=n, parent=f"l{n - 1}", outputs=(f"o{n}",)) for n in range(count))


def loops_of_one_output(count: int) -> tuple[Layer, ...]:
    loops = (Layer(path=f"l{n}", index=n, primitive="scan", inputs=("x",), outputs=("o",)) for n in range(count))
    return tuple(loops)


CASES = (all_to_all, stated_all_to_all, many_into_one, one_inside_the_other, loops_of_one_output)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_work_grows_with_the_layers(case: Callable[[int], tuple[Layer, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graph, "_MOST_SOURCES", 0)
    monkeypatch.setattr(layer_graph, "_SOURCES_PER_NAME", 2)
    monkeypatch.setattr(layer_graph, "_DEEPEST", 8)
    small, large = case(60), case(240)
    assert steps(lambda: sources_of(large)) < 5 * steps(lambda: sources_of(small))
    assert sum(map(len, sources_of(large).values())) <= 5 * sum(map(len, sources_of(small).values()))


@pytest.mark.parametrize("case", [all_to_all, stated_all_to_all])
def test_layers_of_some_hundred_values_are_complete(case: Callable[[int], tuple[Layer, ...]]) -> None:
    sources = sources_of(case(150))
    assert {f"activation/i{n}" for n in range(150)} <= {*sources["activation/o149"], *sources["activation_grad/i149"]}
    assert {f"activation_grad/o{n}" for n in range(150)} <= {*sources["activation_grad/i149"]}


def test_searches_for_known_keys_pass_over_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_graph, "_MOST_PASSED", 1000)

    def searching(count: int) -> None:
        chain = {f"u{n}": [f"u{n + 1}"] for n in range(count)}
        known = [f"k{n}" for n in range(count)]
        nearest = NearestKeys({**chain, **{each: ["u0"] for each in known}, f"u{count}": ["end"]}, {*known, "end"})
        assert nearest.behind("k0") == ["end"]
        for each in known:
            nearest.behind(each)

    assert steps(lambda: searching(240)) < 5 * steps(lambda: searching(60))
