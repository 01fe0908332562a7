"""Updates that hardly move the parameters are told, and what makes them small as far as a history shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pytest

from gradscope.history.history_reader import History
from gradscope.history.history_rows import StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.views.learning import Learning, learning
from gradscope.presentation.reports.runs.run_facts import learning_notes

#: What a run of `train` states that clips.
CLIP: Final = {"option --optimizer": "sgd(1e-3)", "option --clip": "global_norm(1e-3)"}
LEAVES: Final = "the clip global_norm(1e-3) leaves 0.00062 of the norm of the gradients, so "
RATE: Final = "as by a learning rate that is too small"


def read(
    folder: Path,
    *,
    update: float = 1e-5,
    varied: bool = True,
    nu: float = 1e-6,
    slope: float = 0.0,
    gradients: float = 1.0,
    infinite: int = 0,
    frozen: int = 0,
    of_frozen: float = 0.5,
    steps: int = 20,
    clipped: float | None = None,
    rate: float = 1e-3,
    moments: bool = True,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> Learning:
    """What a run says whose loss is level but for a slope, whose updates have a size, and Adam's `nu` a mean."""
    noise = np.random.default_rng(0)
    with HistoryWriter(folder, from_step=0, facts=facts) as history:
        kept = [f"frozen{at}" for at in range(frozen)]
        rows = [TensorRow(family="slot/nu", name=name) for name in [*"ab", *kept] if moments]
        rows += [TensorRow(family="param_grad", name=name) for name in "ab"]
        families = ("param", "update")
        history.describe(
            {}, [*rows, *(TensorRow(family=each, name=name) for each in families for name in [*"ab", *kept])]
        )
        for step in range(steps):
            gradient, size = float(noise.uniform(1, 2)), float(noise.uniform(0.5, 1)) if varied else 1.0
            numbers: dict[str, Any] = {
                "step": step, "loss": 1 - slope * step + 0.01 * float(noise.normal()), "param_norm": 1.0,
                "grad_norm": gradients * gradient, "update_norm": update * size,
            }  # fmt: skip
            numbers |= {"learning_rate": rate} | ({} if clipped is None else {"grad_norm_clipped": clipped})
            stats: dict[str, dict[str, float | int | None]] = {
                f"slot/nu/{name}": {"mean": nu, "inf": infinite} for name in "ab" if moments
            }
            stats |= {f"slot/nu/{name}": {"mean": 0.0, "inf": 0} for name in kept if moments}
            stats |= {f"param_grad/{name}": {"l2": gradients * gradient} for name in "ab"}
            own = (1 - of_frozen**2) ** 0.5 if kept else 1.0
            stats |= {f"param/{name}": {"l2": own / 2**0.5} for name in "ab"}
            stats |= {f"param/{name}": {"l2": of_frozen / len(kept) ** 0.5} for name in kept}
            stats |= {f"update/{name}": {"l2": update * size / 2**0.5} for name in "ab"}
            stats |= {f"update/{name}": {"l2": 0.0} for name in kept}
            record = StepRecord(numbers=numbers, stats=stats)
            history.write(lambda record=record: record)
    with History(folder) as history:
        return learning(history, history.steps(), history.losses())


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({}, "as by a learning rate that is too small"),
        ({"nu": 1e-20}, "`nu` is 1e-10, below the epsilon of 1e-08"),
        ({"nu": 4e-17}, "as by a learning rate that is too small"),  # of gradients of 4.5e-8, as it begins at zero
        ({"frozen": 5}, "as by a learning rate that is too small"),
        ({"nu": 1e-20, "frozen": 5}, "`nu` is 1e-10, below the epsilon of 1e-08"),
        ({"update": 1e-3, "frozen": 5}, "as by a learning rate that is too small"),
        (
            {"update": 1e-3, "frozen": 5, "of_frozen": 0.999},
            "",
        ),  # of the parameters that are trained, half by all steps
        ({"nu": 0.0}, "`nu` is 0, below the epsilon of 1e-08"),
        ({"nu": 0.0, "gradients": 0.0}, "every gradient is exactly zero"),
        (
            {"nu": 0.0, "gradients": 0.0, "update": 0.0},
            "the updates are 0 of the parameters: every gradient is exactly",
        ),
        ({"nu": np.nan, "infinite": 4}, "`nu` is infinite"),
        ({"nu": np.nan, "infinite": 4, "update": 0.0}, "`nu` is infinite"),
        ({"nu": np.nan, "infinite": 4, "update": 0.01}, ""),
        ({"varied": False}, "one norm at every recorded step"),
        ({"update": 0.01}, ""),
        ({"update": 0.01, "varied": False}, ""),
        ({"update": 0.0}, ""),
        ({"slope": 0.03}, None),
        ({"slope": 0.03, "nu": 1e-20}, None),
    ],
)
def test_a_loss_that_hardly_falls_has_the_cause_of_small_updates(
    options: dict[str, Any], cause: str | None, tmp_path: Path
) -> None:
    found = read(tmp_path, **options)
    notes = [note.text for note in learning_notes(found)]
    assert len(notes) == int(cause is not None)
    for text in notes:
        assert cause is not None
        assert cause in text
        assert ("all steps together move them by some" in text) == (bool(cause) and options.get("update") != 0.0)
        assert ("moved" in str(found.to_json())) == bool(cause)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"moments": False}, f"{LEAVES}clip less, or raise the learning rate as much"),
        ({"moments": False, "varied": False}, "so clip less, or raise the learning rate as much"),
        ({"moments": False, "update": 1e-7}, RATE),  # it would be as small without the clip
        ({"moments": False, "rate": 1e-6}, RATE),  # not as small as the gradient is, as of signs
        ({"moments": False, "rate": np.nan}, RATE),
        ({"moments": False, "clipped": 1.4}, RATE),  # it is hardly active
        ({"moments": False, "facts": {**CLIP, "option --multiply": "a=0.1"}}, RATE),
        ({}, RATE),  # Adam divides by the root of a second moment that is clipped, too
        ({"nu": 1e-20}, f"{LEAVES}that the root of the second moment `nu` is 1e-10"),
        ({"nu": 1e-26}, "`nu` is 1e-13, below the epsilon of 1e-08 that Adam adds to it by default, so scale the loss"),
    ],
)
def test_a_clip_that_leaves_little_of_the_gradients_is_the_cause(
    options: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    (note,) = learning_notes(read(tmp_path, **{"clipped": 1e-3, "facts": CLIP, "update": 1e-4, **options}))
    assert cause in note.text
    assert "a clip in the optimizer" not in note.text


@pytest.mark.parametrize("moments", [False, True])
def test_the_optimizer_of_a_loop_of_the_users_own_may_clip(moments: bool, tmp_path: Path) -> None:
    (note,) = learning_notes(read(tmp_path, moments=moments))
    assert (", or a clip in the optimizer that leaves little of the gradients" in note.text) == (not moments)
