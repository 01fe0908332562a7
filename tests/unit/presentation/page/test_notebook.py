"""A run in a notebook."""

from __future__ import annotations

import re

import numpy as np

from gradscope.presentation.page.notebook import run_html
from gradscope.presentation.reports.runs.run_report import RunReport


def test_the_loss_has_its_spike_at_a_step_that_was_not_recorded() -> None:
    at, recorded = np.arange(21), np.array([0, 10, 20])
    numbers = {name: np.ones(3) for name in ("loss", "grad_norm", "update_norm")}
    report = RunReport(
        command="show",
        path="run",
        steps={"step": recorded, **numbers},
        losses={"step": at, "loss": np.where(at == 17, 1000.0, 1.0)},
        taken=21,
        alarms=(),
    )
    shown = run_html("run: 3 recorded steps", report)
    loss, gradient, _ = re.findall(r'points="([^"]*)"', shown)
    assert len(loss.split()) == 21
    assert [loss.split()[number].partition(",")[0] for number in recorded] == [
        each.partition(",")[0] for each in gradient.split()
    ]
    assert min(float(each.partition(",")[2]) for each in loss.split()) < 20
    assert "run: 3 recorded steps" in shown
