"""A public function names the argument that is of a wrong type or cannot be used, in one sentence of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import gradscope as gs
from gradscope.errors import ArgumentTypeError
from gradscope.history.history_writer import HistoryWriter

Function = Callable[..., Any]

PUBLIC: dict[str, Function] = {
    **{name: getattr(gs, name) for name in gs.__all__ if inspect.isfunction(getattr(gs, name))},
    **{f"clip.{name}": getattr(gs.clip, name) for name in ("value", "norm", "average_norm", "global_norm")},
    **{f"Probe.{name}": getattr(gs.Probe, name) for name in ("value_and_grad", "jit", "arguments_before")},
    **{f"Run.{name}": getattr(gs.Run, name) for name in ("series", "histograms", "noise", "at")},
    **{f"Dump.{name}": getattr(gs.Dump, name) for name in ("findings", "table")},
    **{each.__name__: each for each in (gs.Probe, gs.Run, gs.Query, gs.Thresholds)},
    "ReportPage.save": gs.ReportPage.save,
}

#: What may be of any type, or is one of several words, about which the function says more.
OF_ANY_TYPE = frozenset(
    [f"capture {name}" for name in ("fun", "argnums", "ops")]
    + [f"value_and_grad {name}" for name in ("fun", "argnums", "reduce_axes", "observe", "tier")]
    + [f"train_step {name}" for name in ("optimizer", "clip", "ema")]
    + [f"Probe {name}" for name in ("every", "start", "keep_every", "keep_alarms", "on_alarm")]
    + ["gradients grad_ys", "report what", "save what", "compare ref", "compare cand", "Probe.value_and_grad argnums"]
    + ["tensor_stats array", "tensor_stats tier"]
)


def parameters() -> Iterator[tuple[str, str]]:
    for name, function in PUBLIC.items():
        for each in inspect.signature(function).parameters.values():
            if each.name != "self" and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
                yield name, each.name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameter"), [each for each in parameters() if " ".join(each) not in OF_ANY_TYPE])
def test_an_argument_of_a_wrong_type_is_named(name: str, parameter: str) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"^{parameter} is .*, expected \w"):
        called_with(PUBLIC[name], **{parameter: object()})


def called_with(function: Function, **wrong: Any) -> Any:
    """Calls a function with an argument, and for each other one that it needs something that is refused later."""
    needed = {
        each.name: "" if each.kind is not each.VAR_POSITIONAL else ()
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and each.name not in wrong
    }
    return function(**_of_their_types(needed), **wrong)


def _of_their_types(needed: dict[str, Any]) -> dict[str, Any]:
    known = {"fun": len, "loss": len, "step": len, "limit": 1.0, "low": 1.0, "args": [], "array": np.ones(1)}
    return {name: known.get(name, value) for name, value in needed.items()}


def test_the_error_is_both_ours_and_pythons() -> None:
    for kind in (gs.UsageError, TypeError):
        with pytest.raises(kind, match=r"^path is 3, expected a string or a path$"):
            gs.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "a/" * 3000], ids=["long", "NUL", "deep"])
def test_a_path_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(gs.UsageError, match=r"^cannot write to "):
        gs.Probe(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("key", [3, None, ("a", "b")])
def test_a_dump_has_no_key_that_is_no_text(key: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", kernel=np.eye(2))
    with gs.load(tmp_path / "weights.npz") as dump:
        for look_up in (dump.__getitem__, dump.stats):
            with pytest.raises(KeyError, match="keys are strings"):
                look_up(key)


@pytest.mark.parametrize("key", [3, None, ("a", "b")])
def test_nor_has_what_a_step_observed(key: Any) -> None:
    _, seen = gs.value_and_grad(lambda w: (w**2).sum(), families="param")(np.ones(2, np.float32))
    with pytest.raises(KeyError, match="keys are strings"):
        seen[key]


@pytest.mark.parametrize("array", [3.0, [1.0], "abc", np.ma.array([1.0, 2.0], mask=[0, 1]), np.array([object()])])
def test_statistics_are_of_arrays_of_numpy_whose_elements_count(array: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="expected an array of NumPy"):
        gs.tensor_stats(array)


def test_a_tolerance_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    for name, value in (("a.npz", 1.0), ("b.npz", 1.25)):
        np.savez(tmp_path / name, kernel=np.array([value]))
    ref, cand = gs.load(tmp_path / "a.npz"), gs.load(tmp_path / "b.npz")
    assert [bool(gs.compare(ref, cand, tol=np.float32(tol))) for tol in (0.5, 0.1)] == [True, False]


@pytest.mark.parametrize("limit", [float("nan"), -1.0])
def test_a_threshold_that_nothing_can_be_above_is_refused(limit: float) -> None:
    with pytest.raises(gs.UsageError, match=r"dead is (nan|-1), expected a number of at least 0"):
        gs.Thresholds(dead=limit)


@pytest.mark.parametrize("opened", [gs.load, gs.Run])
def test_an_empty_path_is_not_the_current_folder(
    opened: Function, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    HistoryWriter(tmp_path, from_step=0, facts={}).close()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gs.DumpError, match="the path is empty"):
        opened("")


def test_what_is_no_source_is_no_dump() -> None:
    with pytest.raises(ArgumentTypeError, match="source is of type int, expected a DumpSource"):
        gs.Dump(3)  # type: ignore[arg-type]


def test_a_step_names_parameters_and_states_that_are_none() -> None:
    step = gs.train_step(lambda variables, batch: (variables["w"] * batch).sum(), optax.sgd(0.1))
    for variables, name in (("x", "value"), ({"a": {"w": 3}}, "a/w")):
        with pytest.raises(ArgumentTypeError, match=f"the parameter {name} is of type .*, expected an array"):
            step.init(variables)
    with pytest.raises(ArgumentTypeError, match=r"state is 'x', expected \w"):
        step("x", np.ones(3))
