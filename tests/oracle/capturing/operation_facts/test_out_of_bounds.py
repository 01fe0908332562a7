"""Indices beyond a table of parameters are told as NumPy counts them; indices that are meant to be there are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import gradscope as gs
from gradscope.capturing.explain.row_lookups import out_of_bounds
from gradscope.capturing.explain.zeros.neighbourhood import MOST_BYTES
from gradscope.tracing.tracer import trace_loss
from tests.support.data import drawn

ROWS = 5
IDS = np.array([[0, 4, 5, 2], [3, 8, 1, 0]], np.int32)
P = {"embed": drawn(0, ROWS, 3), "flat": drawn(1, 3 * ROWS), "key": jnp.arange(3.0)[None]}
X = drawn(2, ROWS, 3)

#: By name: what is looked up by ids, the ids as the gather has them, and the table.
BEYOND: Mapping[str, tuple[Callable[[Any, Any], Any], np.ndarray, str | None]] = {
    "an index": (lambda p, ids: p["embed"][ids], IDS, "embed"),
    "part of the ids": (lambda p, ids: p["embed"][ids[:, 1:3]], IDS[:, 1:3], "embed"),
    "every other": (lambda p, ids: p["embed"][ids[:, 1::2]], IDS[:, 1::2], "embed"),
    "ids from 1 on": (lambda p, ids: p["embed"][ids + 1], IDS + 1, "embed"),
    "before the first": (lambda p, ids: p["embed"][ids - 7], np.where(IDS < 7, IDS - 7 + ROWS, IDS - 7), "embed"),
    "other axes": (lambda p, ids: p["embed"][ids.T.reshape(-1)], IDS, "embed"),
    "joined": (lambda p, ids: p["embed"][jnp.concatenate([ids, ids], 1)], np.tile(IDS, 2), "embed"),
    "a table in another type": (lambda p, ids: p["embed"].astype(jnp.float16)[ids], IDS, "embed"),
    "a table in another shape": (lambda p, ids: p["flat"].reshape(ROWS, 3)[ids], IDS, "flat"),
    "a table of two": (lambda p, ids: (p["embed"] * p["key"])[ids], IDS, None),
    "each id by itself": (lambda p, ids: jax.vmap(jax.vmap(lambda one: p["embed"][one]))(ids), IDS, "embed"),
    "in a jitted function": (lambda p, ids: jax.jit(lambda t, i: t[i])(p["embed"], ids), IDS, "embed"),
    "the second axis": (lambda p, ids: p["embed"].T[:, ids], IDS, "embed"),
}

#: Likewise: what is looked up, which is meant so, or is no look-up of parameters.
MEANT: Mapping[str, Callable[[Any, Any], Any]] = {
    "in bounds": lambda p, ids: p["embed"][ids % ROWS],
    "from the end": lambda p, ids: p["embed"][jnp.minimum(ids, ROWS) - ROWS],
    "clipped before": lambda p, ids: p["embed"][jnp.clip(ids, 0, ROWS - 1)],
    "clipped as asked": lambda p, ids: jnp.take(p["embed"], ids, axis=0, mode="clip"),
    "filled with zeros": lambda p, ids: jnp.take(p["embed"], ids, axis=0, mode="fill", fill_value=0),
    "rows of data": lambda p, ids: X[ids] * p["key"][None],
    "rows of activations": lambda p, ids: jnp.tanh(ids.astype(jnp.float32).reshape(8, 1) * p["key"])[ids],
    "positions in bounds": lambda p, ids: p["embed"][jnp.arange(ids.shape[1])] + ids.max().astype(jnp.float32),
    "positions beyond a table without a name": lambda p, ids: (p["embed"] * p["key"])[jnp.arange(9)],
}

#: Likewise: what is picked for each example of values that the model makes, the indices, and how many values there are.
PICKED: Mapping[str, tuple[Callable[[Any, Any], Any], np.ndarray, int]] = {
    "a logit by its label": (lambda z, ids: z[jnp.arange(2), ids[:, 1]], IDS[:, 1], 6),
    "each by itself": (lambda z, ids: jax.vmap(lambda z, label: z[label])(z, ids[:, 1]), IDS[:, 1], 6),
    "in a matrix": (
        lambda z, ids: z.reshape(2, 3, 2)[jnp.arange(2)[:, None], jnp.arange(3)[None], ids[:, :3]], IDS[:, :3], 2,
    ),
    "on the first axis": (lambda z, ids: z.T[ids[:, 1], jnp.arange(2)], IDS[:, 1], 6),
    "before the first": (lambda z, ids: z[jnp.arange(2), ids[:, 1] - 20], IDS[:, 1] - 14, 6),
    "a whole row": (lambda z, ids: z.reshape(2, 3, 2)[jnp.arange(2), ids[:, 2]], IDS[:, 2], 3),
    "beside another index": (
        lambda z, ids: z.reshape(2, 3, 2)[jnp.arange(2), jnp.argmax(z, 1) % 3, ids[:, 1]], IDS[:, 1], 2,
    ),
}  # fmt: skip

#: Likewise, of values that the model makes: what is meant so, is masked, or is no pick of one for each example.
NOT_PICKED: Mapping[str, Callable[[Any, Any], Any]] = {
    "in bounds": lambda z, ids: z[jnp.arange(2), ids[:, 0]],
    "clipped as asked": lambda z, ids: jnp.take_along_axis(z, ids[:, 1:2], 1, mode="clip"),
    "masked": lambda z, ids: jnp.where(ids[:, 1] < 6, z[jnp.arange(2), ids[:, 1]], 0.0),
    "weighted": lambda z, ids: z[jnp.arange(2), ids[:, 1]] * (ids[:, 1] < 6).astype(jnp.float32),
    "neighbours": lambda z, ids: z.T[ids],
    "of a single example": lambda z, ids: z[0][ids],
}


#: Labels of which some stand for none.
LABELS = np.array([[0, -1, 5, -1], [3, 2, 1, -3]], np.int32)

#: Likewise, of values that the model makes and labels below 0: the labels, and how many values there are.
BELOW: Mapping[str, tuple[Callable[[Any, Any], Any], np.ndarray, int]] = {
    "an index": (lambda z, ids: z[jnp.arange(2), ids[:, 3]], LABELS[:, 3], 6),
    "along an axis": (lambda z, ids: jnp.take_along_axis(z, ids[:, 3:], 1), LABELS[:, 3], 6),
    "each by itself": (lambda z, ids: jax.vmap(lambda z, label: z[label])(z, ids[:, 3]), LABELS[:, 3], 6),
    "of each position": (
        lambda z, ids: jnp.take_along_axis(z.reshape(2, 2, 3), jnp.minimum(ids, 2)[:, 2:, None], 2),
        np.minimum(LABELS, 2)[:, 2:], 3,
    ),
}  # fmt: skip

#: Likewise, where nothing is to be told.
NOT_BELOW: Mapping[str, Callable[[Any, Any], Any]] = {
    "masked": lambda z, ids: jnp.where(ids[:, 3] >= 0, z[jnp.arange(2), ids[:, 3]], 0.0),
    "one for none": lambda z, ids: z[jnp.arange(2), jnp.where(ids[:, 3] < 0, 0, ids[:, 3])],
    "the last position": lambda z, ids: z[jnp.arange(2), jnp.maximum(ids[:, 0], 0) - 4],
}


def loss_of(look_up: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda p, batch: jnp.square(look_up(p, batch["ids"]).astype(jnp.float32)).mean() + batch["x"].sum()


def softmax_mask(p: Any, ids: Any) -> Any:
    rows = p["embed"][ids]
    weights = jax.nn.softmax(jnp.where(ids < ROWS, rows.sum(2), -jnp.inf), axis=1)
    return jnp.einsum("bt,btd->bd", weights, rows)


#: Likewise: look-ups whose rows beyond the table are masked.
MASKED: Mapping[str, Callable[[Any, Any], Any]] = {
    "by a choice": lambda p, ids: jnp.where((ids < ROWS)[..., None], p["embed"][ids], 0.0),
    "by a product": lambda p, ids: p["embed"][ids] * (ids < ROWS).astype(jnp.float32)[..., None],
    "by attention": softmax_mask,
    "on another axis": lambda p, ids: p["embed"].T[:, ids] * (ids < ROWS).astype(jnp.float32)[None],
}


def found(look_up: Callable[[Any, Any], Any], ids: Any = IDS, *, most_bytes: int = 0) -> list[Any]:
    batch = {"ids": jnp.asarray(ids), "x": X}
    leaves = jax.tree_util.tree_leaves((P, batch))
    return list(out_of_bounds(trace_loss(loss_of(look_up), P, batch), leaves, most_bytes=most_bytes))


@pytest.mark.parametrize("case", BEYOND.values(), ids=BEYOND)
def test_indices_beyond_a_table_are_counted(case: tuple[Callable[..., Any], np.ndarray, str | None]) -> None:
    look_up, ids, table = case
    (one,) = found(look_up)
    beyond = ids[(ids < 0) | (ids >= ROWS)]
    assert (one.input, one.table, one.rows, one.indices) == ("ids", table, ROWS, ids.size)
    assert (one.beyond, one.index) == (beyond.size, beyond.min() if beyond.min() < 0 else beyond.max())


def predictions(p: Any, ids: Any) -> Any:
    return jnp.tanh(p["embed"][ids % ROWS].sum(1)) @ p["embed"].reshape(3, 5)[:, :3].repeat(2, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", PICKED.values(), ids=PICKED)
def test_labels_beyond_the_predictions_are_counted(case: tuple[Callable[..., Any], np.ndarray, int]) -> None:
    pick, ids, values = case
    (one,) = found(lambda p, ids: pick(predictions(p, ids), ids), most_bytes=MOST_BYTES)
    beyond = ids[(ids < 0) | (ids >= values)]
    assert (one.looked_up, one.input, one.table, one.rows, one.indices) == ("values", "ids", None, values, ids.size)
    assert (one.beyond, one.index) == (beyond.size, beyond.min() if beyond.min() < 0 else beyond.max())


def test_labels_are_not_reported_where_the_loss_may_not_run_again_to_say_whether_they_are_masked() -> None:
    assert found(lambda p, ids: PICKED["a logit by its label"][0](predictions(p, ids), ids)) == []


@pytest.mark.slow
@pytest.mark.parametrize("pick", NOT_PICKED.values(), ids=NOT_PICKED)
def test_other_indices_of_predictions_are_not_reported(pick: Callable[..., Any]) -> None:
    assert found(lambda p, ids: pick(predictions(p, ids), ids), most_bytes=MOST_BYTES) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", BELOW.values(), ids=BELOW)
def test_labels_below_zero_that_are_counted_from_the_end_are_told(case: tuple[Callable[..., Any], Any, int]) -> None:
    pick, labels, count = case
    (of,) = found(lambda p, ids: pick(predictions(p, ids), ids), LABELS, most_bytes=MOST_BYTES)
    assert (of.looked_up, of.input, of.rows, of.index, of.beyond, of.indices) == (
        "last values", "ids", count, labels.min(), (labels < 0).sum(), labels.size,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pick", NOT_BELOW.values(), ids=NOT_BELOW)
def test_labels_below_zero_that_are_masked_or_meant_are_not(pick: Callable[..., Any]) -> None:
    assert found(lambda p, ids: pick(predictions(p, ids), ids), LABELS, most_bytes=MOST_BYTES) == []


def test_data_that_are_all_below_zero_are_meant_from_the_end() -> None:
    ids = -1 - np.abs(LABELS)
    assert found(lambda p, ids: predictions(p, ids)[jnp.arange(2), ids[:, 0]], ids, most_bytes=MOST_BYTES) == []


def test_rows_of_a_table_may_be_counted_from_the_end() -> None:
    assert found(lambda p, ids: p["embed"][ids - 1], LABELS, most_bytes=MOST_BYTES) == []


@pytest.mark.slow
@pytest.mark.parametrize("positions", [lambda: jnp.arange(9), lambda: np.arange(9), lambda: jnp.arange(9)[None] * 1])
def test_positions_beyond_a_table_are_counted(positions: Callable[[], Any]) -> None:
    (one,) = found(lambda p, ids: p["embed"][positions()] + ids.max().astype(jnp.float32), most_bytes=MOST_BYTES)
    assert (one.input, one.table, one.rows, one.indices, one.beyond, one.index) == ("", "embed", ROWS, 9, 4, 8)


@pytest.mark.parametrize("look_up", MEANT.values(), ids=MEANT)
def test_what_is_meant_so_is_not_reported(look_up: Callable[..., Any]) -> None:
    assert found(look_up) == []


@pytest.mark.slow
@pytest.mark.parametrize("look_up", MASKED.values(), ids=MASKED)
def test_rows_that_are_masked_are_not_reported(look_up: Callable[..., Any]) -> None:
    assert found(look_up, most_bytes=MOST_BYTES) == []
    assert [each.beyond for each in found(look_up)] == [2]  # where the loss may not run again, they might be read


def test_rows_that_are_masked_in_part_or_stopped_are_reported() -> None:
    def masked(p: Any, ids: Any) -> Any:
        return p["embed"][ids] * (ids < IDS.max()).astype(jnp.float32)[..., None]

    assert [each.beyond for each in found(masked, most_bytes=MOST_BYTES)] == [2]
    assert [
        each.beyond for each in found(lambda p, ids: jax.lax.stop_gradient(p["embed"])[ids], most_bytes=MOST_BYTES)
    ] == [2]


def test_look_ups_are_reported_where_the_run_that_asks_whether_they_are_masked_is_too_large_or_fails() -> None:
    look_up = MASKED["by a product"]
    assert [each.beyond for each in found(look_up, most_bytes=8)] == [2]

    def failing(p: Any, ids: Any) -> Any:
        return jax.pure_callback(_fail, jax.typeof(X), X) + look_up(p, ids).mean()

    assert [each.beyond for each in found(failing, most_bytes=MOST_BYTES)] == [2]


def _fail(_: Any) -> Any:
    raise OSError


def test_an_operation_may_keep_a_program_whose_constants_only_it_has() -> None:
    kept = jax.make_jaxpr(lambda x: x + X)(X).jaxpr  # open, as lineax keeps that of an operator
    keeping = Primitive("keeping")
    keeping.def_abstract_eval(lambda x, **_: x)
    assert [each.beyond for each in found(lambda p, ids: keeping.bind(p["embed"][ids], program=kept))] == [2]


def test_the_finding_takes_no_further_run() -> None:
    batch = {"ids": jnp.asarray(IDS), "x": X}
    findings = gs.capture(loss_of(BEYOND["an index"][0]), P, batch, origins=False).findings()
    assert "out-of-bounds" in {each.rule for each in findings}


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_ids_have_any_integer_type(dtype: Any) -> None:
    assert [each.beyond for each in found(lambda p, ids: p["embed"][ids], IDS.astype(dtype))] == [2]


def test_the_finding_has_table_and_line() -> None:
    batch = {"ids": jnp.asarray(IDS), "x": X}
    findings = gs.capture(loss_of(BEYOND["an index"][0]), P, batch).findings()
    (finding,) = [each for each in findings if each.rule == "out-of-bounds"]
    assert (finding.family, finding.name) == ("input", "ids")
    assert finding.why.startswith("has 2 of 8 indices beyond the 5 rows of param/embed, up to 8")
    assert finding.source is not None
    assert finding.source.startswith("test_out_of_bounds.py")


def test_the_finding_of_labels_below_zero_says_which_class_they_train() -> None:
    pick = BELOW["along an axis"][0]
    loss = loss_of(lambda p, ids: pick(predictions(p, ids), ids))
    findings = gs.capture(loss, P, {"ids": jnp.asarray(LABELS), "x": X}).findings()
    ((why, repair),) = [(each.why, each.repair) for each in findings if each.rule == "out-of-bounds"]
    assert repair.startswith("mask the loss")
    assert why.startswith("has 2 of 2 labels below 0, down to -3, that are not masked")
    assert why.endswith("-1 picks the last of the 6 values")


def test_the_finding_of_positions_is_at_the_table() -> None:
    batch = {"ids": jnp.asarray(IDS), "x": X}
    findings = gs.capture(loss_of(lambda p, ids: p["embed"][jnp.arange(9)] + ids.mean()), P, batch).findings()
    (finding,) = [each for each in findings if each.rule == "out-of-bounds"]
    assert (finding.family, finding.name) == ("param", "embed")
    assert finding.why.startswith("has 5 rows, and 4 of 9 indices that the program makes are beyond them, up to 8")
    assert finding.source is not None
