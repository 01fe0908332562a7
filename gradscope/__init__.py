"""Gradient inspection for JAX: what every layer computes and what flows back through it.

    import gradscope as gs

    step = jax.jit(gs.value_and_grad(loss))        # jax.value_and_grad that also observes
    (value, grads), seen = step(params, batch)
    gs.save("run.npz", seen)

    gs.compare(gs.load("a.npz"), gs.load("b.npz")).sentence

Names are imported on first use: reading and comparing dumps never imports JAX.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.api.capture_function import capture
    from gradscope.api.comparing import compare
    from gradscope.api.observing import gradients, save, value_and_grad
    from gradscope.api.reading import Dump, load
    from gradscope.api.reporting import ReportPage, report
    from gradscope.api.training import train_step
    from gradscope.api.training_run import Run
    from gradscope.capturing.seen import Seen
    from gradscope.comparison import Comparison
    from gradscope.errors import DumpError, GradscopeError, MachineError, MissingKeyError, ModelError, UsageError
    from gradscope.instrument.rewriting.core_columns import CoreStatistics
    from gradscope.report import Query
    from gradscope.stats import Finding, TensorStats, Thresholds, tensor_stats
    from gradscope.training.optimizers import clip
    from gradscope.training.probing.probe import Probe

_HOMES = {
    "Comparison": "gradscope.comparison",
    "CoreStatistics": "gradscope.instrument.rewriting.core_columns",
    "Dump": "gradscope.api.reading",
    "DumpError": "gradscope.errors",
    "Finding": "gradscope.stats",
    "GradscopeError": "gradscope.errors",
    "MachineError": "gradscope.errors",
    "MissingKeyError": "gradscope.errors",
    "ModelError": "gradscope.errors",
    "Probe": "gradscope.training.probing.probe",
    "Query": "gradscope.report",
    "ReportPage": "gradscope.api.reporting",
    "Run": "gradscope.api.training_run",
    "Seen": "gradscope.capturing.seen",
    "TensorStats": "gradscope.stats",
    "Thresholds": "gradscope.stats",
    "UsageError": "gradscope.errors",
    "capture": "gradscope.api.capture_function",
    "compare": "gradscope.api.comparing",
    "gradients": "gradscope.api.observing",
    "load": "gradscope.api.reading",
    "report": "gradscope.api.reporting",
    "save": "gradscope.api.observing",
    "tensor_stats": "gradscope.stats",
    "train_step": "gradscope.api.training",
    "value_and_grad": "gradscope.api.observing",
}

__all__ = [
    "Comparison",
    "CoreStatistics",
    "Dump",
    "DumpError",
    "Finding",
    "GradscopeError",
    "MachineError",
    "MissingKeyError",
    "ModelError",
    "Probe",
    "Query",
    "ReportPage",
    "Run",
    "Seen",
    "TensorStats",
    "Thresholds",
    "UsageError",
    "capture",
    "clip",
    "compare",
    "gradients",
    "load",
    "report",
    "save",
    "tensor_stats",
    "train_step",
    "value_and_grad",
]


#: Names that are modules: functions of theirs are called as `gs.clip.norm(1)`.
_MODULES = {"clip": "gradscope.training.optimizers.clip"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Root(ModuleType):
    """The module itself, in which `report` is the function and stays it when the package of that name is imported.

    Why (2026-11): the import system sets an attribute of a package for each sub-package. The function has the name of
    the command, which users know; the package is imported by its full name only.
    """

    @property
    def report(self) -> Any:
        """The function `gradscope.api.reporting.report`."""
        return getattr(import_module(_HOMES["report"]), "report")  # noqa: B009 - typed as any other public name

    @report.setter
    def report(self, package: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Root
