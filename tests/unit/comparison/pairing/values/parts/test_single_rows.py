"""A single row, as a class token, may be joined with a table in one program, and have an axis less in the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.comparison.pairing.map_file import write_map
from tests.support.sampled import sampled

_draw = np.random.default_rng(7).normal
TABLE, OUT = _draw(size=(6, 8)).astype(np.float32), _draw(size=(8, 3)).astype(np.float32)
X = _draw(size=(4, 5)).astype(np.float32)


def _tokens(table: Any, x: Any) -> Any:
    ones = jnp.ones_like(x[:, :1])
    return jnp.concatenate([ones, x], 1)[..., None] * table[None]


def _dump(stored: str, *, joined: bool, wrong: bool = False, rest: str = "rest") -> Any:
    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("tokens"):
            table = weights["table" if joined else rest]
            if not joined:
                row = jnp.reshape(weights["cls"], (1, 8))
                table = jnp.concatenate([row, table.T if stored == "turned" else table], 0)
            tokens = _tokens(table, batch["x"])
        with jax.named_scope("out"):
            return jnp.square(jnp.tanh(tokens).sum(1) @ weights["out"]).mean()

    row, rows = (TABLE[1], TABLE[[0, *range(2, 6)]]) if wrong else (TABLE[0], TABLE[1:])
    shape = {"with two more axes": (1, 1, 8), "with an axis": (1, 8)}.get(stored, (8,))
    apart = {"cls": row.reshape(shape), rest: np.ascontiguousarray(rows.T) if stored == "turned" else rows}
    weights = {"out": OUT, **({"table": TABLE} if joined else apart)}
    return gs.capture(loss, weights, {"x": X}, origins=False)


@sampled("joined_in", ["reference", "candidate"])
@pytest.mark.parametrize(
    ("stored", "rest"),
    [
        ("a vector", "rest"),
        ("a vector", "table"),
        ("turned", "table"),
        ("with an axis", "rest"),
        ("with two more axes", "rest"),
    ],
)
def test_a_row_may_be_joined_with_a_table(joined_in: str, stored: str, rest: str) -> None:
    pair = _dump("", joined=True), _dump(stored, joined=False, rest=rest)
    found = gs.compare(*(pair if joined_in == "reference" else pair[::-1]))
    assert found.verdict == "same", found.sentence
    rows = [row for row in found.rows if row.family in ("param", "param_gradient")]
    assert {row.status for row in rows} == {"same"}, [(row.name, row.status) for row in rows]


@pytest.mark.parametrize("joined_in", ["reference", "candidate"])
def test_a_map_file_says_the_same(joined_in: str, tmp_path: Path) -> None:
    pair = _dump("", joined=True), _dump("with two more axes", joined=False)
    ref, cand = pair if joined_in == "reference" else pair[::-1]
    found = gs.compare(ref, cand)
    write_map(tmp_path / "map.toml", found.matches)
    again = gs.compare(ref, cand, map_file=tmp_path / "map.toml")
    assert again.verdict == "same", again.sentence
    made_by = {row.made_by for row in again.rows if row.family == "param" and row.made_by}
    assert made_by == {row.made_by for row in found.rows if row.family == "param" and row.made_by} != set()


@pytest.mark.slow
def test_another_row_is_a_difference() -> None:
    found = gs.compare(_dump("", joined=True), _dump("a vector", joined=False, wrong=True))
    assert found.verdict == "different"


def _layers(*, joined: bool, scanned: bool) -> Any:
    """Three layers, each with a table of its own, under a scan or one after the other."""
    draw = np.random.default_rng(3).normal
    tables, kernels = draw(size=(3, 6, 8)).astype(np.float32), draw(size=(3, 8, 8)).astype(np.float32) / 3

    def block(x: Any, weights: Any) -> Any:
        with jax.named_scope("prompt"):
            table = weights["table"] if joined else jnp.concatenate([weights["cls"][None], weights["rest"]], 0)
            x = x + jnp.tanh(x @ table.T) @ table
        with jax.named_scope("mix"):
            return jnp.tanh(x @ weights["kernel"])

    def loss(weights: Any, x: Any) -> Any:
        if scanned:
            x, _ = jax.lax.scan(lambda x, each: (block(x, each), None), x, weights["blocks"])
        else:
            for name, each in weights.items():
                with jax.named_scope(name):
                    x = block(x, each)
        return jnp.square(x).mean()

    stacked = {"table": tables} if joined else {"cls": tables[:, 0], "rest": tables[:, 1:]}
    stacked["kernel"] = kernels
    apart = {f"block{at}": {name: each[at] for name, each in stacked.items()} for at in range(3)}
    return gs.capture(loss, {"blocks": stacked} if scanned else apart, X[:2, :1] * OUT.T[:1], origins=False)


@pytest.mark.parametrize("joined", [False, True])
@sampled(("ref_scanned", "cand_scanned"), [(False, True), (True, False), (True, True)])
def test_so_may_the_rows_of_layers_under_a_scan(ref_scanned: bool, cand_scanned: bool, joined: bool) -> None:
    reference = _layers(joined=joined, scanned=ref_scanned)
    found = gs.compare(reference, _layers(joined=not joined, scanned=cand_scanned))
    assert found.verdict == "same", found.sentence
