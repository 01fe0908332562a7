"""What a type checker makes of a program that uses gradscope: `scripts/check` has pyright read it; nothing runs it."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import jax
import numpy as np

import gradscope as gs


def loss(params: dict[str, Any], x: np.ndarray, train: bool = True) -> float:
    return float(params["w"] @ x) if train else 0.0


def read(path: Path) -> str:
    with gs.load(path) as dump:
        assert_type(dump, gs.Dump)
        assert_type(dump["param/w"], np.ndarray[Any, np.dtype[Any]])
        assert_type(dump.get("param/w"), np.ndarray[Any, np.dtype[Any]] | None)
        assert_type(dump.stats("param/w"), gs.TensorStats)
        assert_type(dump.stats("param/w").l2, float | None)
        assert_type(dump.findings(gs.Thresholds(dead=0.9)), tuple[gs.Finding, ...])
        assert_type([*dump], list[str])
        return dump.table(width=80, query=gs.Query(select="encoder/*", families=["param_grad"], sort="-l2"))


def judge(one: gs.Dump, other: gs.Dump) -> bool:
    result = gs.compare(one, other, select="param/*", exclude=["*/bias"], allow_missing="aux/.*", tol=1e-3)
    assert_type(result, gs.Comparison)
    assert_type(result.sentence, str)
    return bool(gs.compare(one, other, tol=[".*=rel_l2 < 1e-3"])) and bool(result)


def judge_runs(one: gs.Run, other: gs.Run) -> int | None:
    found = gs.compare(one, other, tol=1e-3, select="param/*")
    assert_type(found, gs.RunDivergence)
    gs.compare(one, other, map_file="map.json")  # pyright: ignore[reportArgumentType] - of dumps
    return found.first_step


def observe(params: dict[str, Any], x: np.ndarray) -> jax.Array:
    _, seen = gs.value_and_grad(loss)(params, x)
    assert_type(seen, gs.Seen[gs.CoreStatistics])
    assert_type(seen["param_grad/w"], gs.CoreStatistics)
    assert_type(seen.get("param_grad/w"), gs.CoreStatistics | None)
    _, tensors = gs.value_and_grad(loss, observe="tensors")(params, x)
    assert_type(tensors["param_grad/w"], jax.Array)
    return seen["param_grad/w"].rms


def train(params: dict[str, Any], x: np.ndarray) -> gs.Seen:
    step = gs.value_and_grad(loss, argnums=(0, -1), has_aux=False, select="dense", observe="tensors")
    (value, gradients), seen = step(params, x, train=False)
    assert_type((value, gradients), tuple[Any, Any])
    assert_type([*seen], list[str])
    step(params)  # pyright: ignore[reportCallIssue] - the parameters are those of the function
    return seen


def dump(params: dict[str, Any], x: np.ndarray) -> float | None:
    full = gs.capture(loss, params, x, True, argnums=0, ops="inputs", stop_gradients="dense", fetch=["out"])
    assert_type(full, gs.Dump)
    gs.capture(loss, params, x, ops="everything")  # pyright: ignore[reportArgumentType] - there is no such choice
    assert_type(gs.gradients(loss, [params, x], ys="0", xs=["params/w"]), list[Any])
    try:
        gs.save("run.npz", full, force=True)
    except (gs.UsageError, gs.DumpError, gs.ModelError, gs.MachineError) as error:
        assert_type(error.hint, str | None)
    except gs.GradscopeError as error:
        assert_type(error.exit_code, int)
    return gs.tensor_stats(x).mean
