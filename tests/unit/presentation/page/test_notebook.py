"""A run in a notebook."""

from __future__ import annotations

import re

import numpy as np

from gradscope.history.history_rows import TensorRow
from gradscope.history.tensor_trends import Trend
from gradscope.presentation.page.notebook import run_html
from gradscope.presentation.reports.runs.run_report import RunReport
from gradscope.presentation.tables.over_time.run_tables import TrendRow


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


def test_trends_of_the_model_come_before_those_of_an_optimizer_that_changed_more() -> None:
    at = np.arange(5)
    families = {"slot/nu": 90.0, "activation": 0.9, "input": 3.0, "param_grad": 0.5}
    trends = [
        TrendRow(
            tensor=TensorRow(family=family, name="w"), column="l2", trend=Trend.of(at, factor**at, np.zeros(len(at)))
        )
        for family, factor in families.items()
    ]
    steps, losses = dict.fromkeys(("step", "grad_norm", "update_norm"), at), {"step": at, "loss": 0.9**at}
    report = RunReport(command="show", path="run", steps=steps, losses=losses, taken=5, alarms=(), trends=tuple(trends))
    shown = re.findall(r"(\w+(?:/nu)?)/w\b", run_html("run", report))
    assert shown == ["param_grad", "activation", "slot/nu", "input"]
