"""Local errors are assigned to the layer that is known to be wrong, and stated in a sentence."""

from __future__ import annotations

import math

import pytest

from gradscope.comparison.follow_ups.isolation import Isolation, LocalFinding, Place, local_rows
from gradscope.comparison.judging.rows import ComparisonRow

LINES = {"dense": ("model.py:1",), "left": ("model.py:2",), "right": (), "sum": ("model.py:4",)}
PLACES = {name: Place(lines=lines) for name, lines in LINES.items()}


def finding(key: str, error: float, *places: str) -> LocalFinding:
    """A tensor with an error, judged by a tolerance of 1e-3."""
    family, _, name = key.partition("/")
    row = ComparisonRow(
        name=name, family=family, status="different" if error > 1e-3 else "same", index=0,
        metrics={"rel_l2": error}, tolerance=1e-3, needed=error,
    )  # fmt: skip
    return LocalFinding(row=row, places=places)


RIGHT = (
    finding("activation/dense", 0.0, "dense"),
    finding("activation/left", 1e-6, "left"),
    finding("activation/right", 0.0, "right"),
    finding("activation_grad/left", 0.0, "sum"),
    finding("param_grad/w", 1e-7, "dense"),
)


def of(*findings: LocalFinding) -> Isolation:
    return Isolation(rows=local_rows((*RIGHT, *findings), PLACES))


def test_layers_are_in_execution_order_without_those_that_were_not_compared() -> None:
    assert [row.name for row in of().rows] == ["dense", "left", "right", "sum"]
    assert [row.name for row in local_rows(RIGHT[1:3], PLACES)] == ["left", "right"]


def test_right_layers_are_the_same() -> None:
    found = of(finding("activation_grad/dense", 1e-5, "left", "right"))
    assert (found.verdict, found.exit_code, found.different) == ("same", 0, ())
    assert found.sentence() == "None of 4 layers makes error by itself, given what the reference gave it."
    shared = {row.name: row.vjp for row in found.rows}
    assert shared["left"] is shared["right"] is not None


def test_an_error_in_a_sum_is_assigned_to_the_layer_that_is_wrong_elsewhere() -> None:
    found = of(finding("activation_grad/dense", 0.5, "left", "right"), finding("param_grad/scale", 0.25, "right"))
    (row,) = found.different
    assert (row.name, row.shared_with) == ("right", ())
    assert row.vjp is not None
    assert row.vjp.name == "dense"  # the worse of the two
    assert found.sentence() == "Of 4 layers, `right` makes error by itself (forward agrees, VJP rel_l2 0.50)."


def test_an_error_of_unknown_origin_is_one_row_with_all_names() -> None:
    found = of(finding("activation_grad/dense", 0.5, "left", "right"))
    (row,) = found.different
    assert row.to_json() == {
        "name": "left", "status": "different",
        "forward": 1e-6, "forward_tensor": "activation/left", "forward_tolerance": 1e-3,
        "vjp": 0.5, "vjp_tensor": "activation_grad/dense", "vjp_tolerance": 1e-3,
        "shared_with": ["right"], "source": "model.py:2",
    }  # fmt: skip


def test_the_worst_layer_is_named_and_the_others_counted() -> None:
    found = of(finding("activation/sum", math.inf, "sum"), finding("activation/aside", 0.1, "left"))
    assert found.sentence().startswith("Of 4 layers, `sum` makes error by itself (forward ")
    assert found.sentence().endswith(", and so does 1 more.")
    assert (found.verdict, found.exit_code) == ("different", 1)


def test_the_layer_that_makes_what_first_differs_is_told_before_a_worse_one() -> None:
    first = finding("activation_grad/dense", 0.1, "left")
    found = of(finding("activation_grad/left", 0.3, "left"), first, finding("activation/sum", 0.5, "sum"))
    assert found.sentence(first.row) == (
        "Of 4 layers, `left` makes error by itself (forward agrees, VJP rel_l2 0.30), and so does 1 more; that is what "
        "first differs at `dense`."
    )
    assert found.sentence(RIGHT[0].row).startswith("Of 4 layers, `sum` makes error by itself (forward rel_l2 0.50")


def test_nothing_run_is_nothing_compared() -> None:
    found = Isolation(rows=())
    assert (found.verdict, found.exit_code) == ("nothing compared", 2)


def test_a_tensor_that_no_layer_of_the_candidate_reads_has_a_row_of_its_own() -> None:
    assert [row.name for row in of(finding("param_grad/b", math.inf, "param_grad/b")).different] == ["param_grad/b"]


@pytest.mark.parametrize(("error", "text"), [(1e-4, "agrees"), (0.02, "rel_l2 2.0e-2")])
def test_both_directions_are_in_the_sentence(error: float, text: str) -> None:
    found = of(finding("activation/sum", error, "sum"), finding("activation_grad/right", 0.5, "sum"))
    assert f"(forward {text}, VJP rel_l2 0.50)" in found.sentence()


BEFORE = Place(lines=("net.py:7", "net.py:9", "block.py:3"), reads=("dense", "input/x"), inside="block")


def test_the_code_before_a_layer_is_no_layer_and_has_its_lines() -> None:
    places = {"dense": PLACES["dense"], "before left": BEFORE, "left": PLACES["left"]}
    wrong = finding("activation/left", 0.5, "before left")
    found = Isolation(rows=local_rows((RIGHT[0], wrong, finding("param_grad/v", 0.0, "left")), places))
    assert [row.name for row in found.rows] == ["dense", "before left", "left"]
    (row,) = found.different
    assert row.to_json() == {
        "name": "before left", "status": "different",
        "forward": 0.5, "forward_tensor": "activation/left", "forward_tolerance": 1e-3, "source": "net.py:7",
        "lines": ["net.py:7", "net.py:9", "block.py:3"], "reads": ["dense", "input/x"], "inside": "block",
    }  # fmt: skip
    assert found.sentence() == (
        "The code between `dense`, `input/x` and `left` (in `block`, net.py:7, 9, block.py:3) makes error by itself "
        "(forward rel_l2 0.50)."
    )


def test_code_that_reads_parameters_alone_is_before_its_layer() -> None:
    found = Isolation(rows=local_rows([finding("activation/left", 0.5, "before left")], {"before left": Place()}))
    assert found.sentence() == "The code before `left` makes error by itself (forward rel_l2 0.50)."


def test_an_error_of_a_value_is_assigned_before_those_of_gradients() -> None:
    gradient, value = finding("param_grad/w", 0.5, "right", "left"), finding("activation/left", 0.5, "left", "right")
    assert [row.name for row in of(gradient, value).different] == ["left"]
