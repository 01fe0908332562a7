"""First divergence: the order in which two runs part."""

from __future__ import annotations

from gradscope.comparison import ComparisonRow, Status
from gradscope.comparison.diagnosis.divergence import first_divergence


def row(family: str, name: str, index: int, status: Status = "different") -> ComparisonRow:
    return ComparisonRow(name=name, family=family, status=status, index=index)


def test_forward_is_the_first_in_execution_order_whatever_the_order_of_rows() -> None:
    found = first_divergence(
        [row("activation", "late", 7), row("activation", "early", 3), row("activation", "ok", 1, "same")]
    )
    assert found.forward is not None
    assert found.forward.name == "early"


def test_backward_is_the_last_in_execution_order() -> None:
    rows = [
        row("activation_grad", "early", 3),
        row("activation_grad", "late", 7),
        row("activation_grad", "ok", 9, "same"),
    ]
    found = first_divergence(rows)
    assert found.backward is not None
    assert found.backward.name == "late"
    assert found.backward_only


def test_rows_of_one_index_diverge_in_the_order_of_the_dump() -> None:
    rows = [row("activation", "own", 3), row("activation", "alias", 3)]
    rows += [row("activation_grad", "own", 3), row("activation_grad", "alias", 3)]
    found = first_divergence(rows)
    assert found.forward is not None
    assert found.backward is not None
    assert (found.forward.name, found.backward.name) == ("own", "own")


def test_parameters_and_missing_rows_are_no_divergence() -> None:
    rows = [row("param", "w", 0), row("param_grad", "w", 0), row("activation", "gone", 0, "missing")]
    found = first_divergence(rows)
    assert (found.forward, found.backward, found.backward_only) == (None, None, False)
