"""`gradscope` inspects gradients in JAX: what every layer computes, and what flows back through it.

    import gradscope as gs

    step = jax.jit(gs.value_and_grad(loss))        # jax.value_and_grad that also observes
    (value, grads), seen = step(params, batch)
    gs.save("run.npz", seen)

    gs.compare(gs.load("a.npz"), gs.load("b.npz")).sentence

Names are imported on first use: reading and comparing dumps never imports JAX.
"""

from __future__ import annotations

from importlib import import_module

#: As of `typing`, which `python -m gradscope` would take from the current folder here, where that has a `typing.py`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gradscope.api.capture_function import capture
    from gradscope.api.comparing import compare
    from gradscope.api.observing import gradients, save, value_and_grad
    from gradscope.api.reading import Dump, load
    from gradscope.api.reporting import ReportPage, report
    from gradscope.api.training import train_step
    from gradscope.api.training_run import Run
    from gradscope.capturing.in_steps.seen import Seen
    from gradscope.comparison import Comparison
    from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence
    from gradscope.errors import DumpError, GradscopeError, MachineError, MissingKeyError, ModelError, UsageError
    from gradscope.instrument.statistics.core_columns import CoreStatistics
    from gradscope.presentation import Query
    from gradscope.stats import Finding, TensorStats, Thresholds, tensor_stats
    from gradscope.training.optimizers import clip
    from gradscope.training.probing.probe import Probe

_HOMES = {
    "Comparison": "gradscope.comparison",
    "CoreStatistics": "gradscope.instrument.statistics.core_columns",
    "Dump": "gradscope.api.reading",
    "DumpError": "gradscope.errors",
    "Finding": "gradscope.stats",
    "GradscopeError": "gradscope.errors",
    "MachineError": "gradscope.errors",
    "MissingKeyError": "gradscope.errors",
    "ModelError": "gradscope.errors",
    "Probe": "gradscope.training.probing.probe",
    "Query": "gradscope.presentation",
    "ReportPage": "gradscope.api.reporting",
    "Run": "gradscope.api.training_run",
    "RunDivergence": "gradscope.comparison.diagnosis.runs.run_divergence",
    "Seen": "gradscope.capturing.in_steps.seen",
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
    "RunDivergence",
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
