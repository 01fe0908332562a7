"""The schema of a history states its tables, their columns, and what each number in them is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

#: In the file's header: that it is a history, and of which version its tables are.
APPLICATION_ID: Final = 0x47535348
VERSION: Final = 2
#: The first version with a table of the losses of all steps.
LOSSES_SINCE: Final = 2

#: Per step: unit and meaning by column. The types are those of `CREATE TABLE` below.
STEPS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "step": ("count", "number of the step, from 0"),
        "time": ("seconds", "when its numbers were written, since 1970"),
        "loss": ("", "the loss before the update"),
        "learning_rate": ("", "the learning rate of the update, where the optimizer states it"),
        "grad_norm": ("", "l2 norm of the gradients of all trained parameters together, as differentiated"),
        "grad_norm_clipped": ("", "l2 norm of the gradients as the optimizer got them"),
        "update_norm": ("", "l2 norm of what was added to the trained parameters"),
        "param_norm": ("", "l2 norm of the trained parameters before the update"),
        "examples": ("count", "examples that the run has trained on, this step's included"),
        "skipped": ("count", "updates that the run has skipped"),
    }
)

#: Per step, recorded or not, whose loss is known: its number and its loss, whose units those of `STEPS` are.
LOSSES: Final = ("step", "loss")

#: Per tensor and step: unit and meaning by column.
STATS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "l2": ("", "square root of the sum of squares of the finite elements"),
        "rms": ("", "root mean square of the finite elements"),
        "mean": ("", "mean of the finite elements"),
        "std": ("", "population standard deviation of the finite elements"),
        "amax": ("", "largest magnitude of the finite elements"),
        "zeros": ("count", "elements that are zero"),
        "nan": ("count", "elements that are NaN"),
        "inf": ("count", "elements that are infinite"),
        "ratio": ("", "of an update: its l2 over that of the parameter"),
        "cosine": (
            "-1..1",
            "of a gradient: cosine with that of the last recorded step; of an update: with its gradient",
        ),
        "share": ("0..1", "of a parameter's gradient: its part of the square of the global norm"),
    }
)

#: Of the noise of gradients, per parameter and step: unit and meaning by column; `gradient_noise.py` has the formulas.
NOISE: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "groups": ("count", "gradients that the noise was computed from"),
        "group_size": ("count", "examples in each of them"),
        "variance": ("", "trace of the covariance of the gradient of one example"),
        "signal": ("", "square of the l2 norm of the expected gradient; unbiased, negative where noise hides it"),
        "variance_smoothed": ("", "exponential moving average of the variance"),
        "signal_smoothed": ("", "exponential moving average of the signal"),
        "noise_scale": ("examples", "variance_smoothed / signal_smoothed, where that is positive"),
        "gsnr": ("", "mean over the elements of the signal-to-noise ratio of the gradient of one example"),
        "coupling": ("", "distance of the groups' mean gradient from the batch's, as a share of the latter's norm"),
    }
)
#: The columns that are whole numbers, also where a table of floats has them.
COUNTS: Final = frozenset(
    name for table in (STEPS, STATS, NOISE) for name, (unit, _) in table.items() if unit == "count"
)
#: The largest whole number in a table: beyond it, float64 does not tell one from the next.
LARGEST: Final = 1 << 53
#: What stands for all trained parameters together in place of the number of a tensor.
ALL_PARAMETERS: Final = -1
#: How the names of facts begin that state the options of a run; one that was not given has no fact.
RUN_OPTION: Final = "option "
#: The fact that states how many steps a loop of the user's own had taken when it last said so.
TAKEN: Final = "steps taken"
#: The fact that states what is wrong with the program of the loss: a list of pairs of a rule and a sentence, as JSON.
FAULTS: Final = "faults of the loss"
#: The fact that lists the parameters in which the loss is affine, such as dual variables, over which it is maximised.
AFFINE: Final = "affine parameters"
#: The fact that states what the integers of a batch look up, and how many of it there are: a list of rows, as JSON.
BOUNDS: Final = "index bounds"
#: The fact that has the floating-point dtype of the fewest digits in which a run computes.
NARROWEST: Final = "narrowest"

#: The statement of each table, letter by letter as a history has it.
TABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "run": "CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
        "steps": "CREATE TABLE steps (step INTEGER PRIMARY KEY, time REAL, loss REAL, learning_rate REAL, "
        "grad_norm REAL, grad_norm_clipped REAL, update_norm REAL, param_norm REAL, examples INTEGER, skipped INTEGER)",
        "losses": "CREATE TABLE losses (step INTEGER PRIMARY KEY, loss REAL)",
        "tensors": "CREATE TABLE tensors (id INTEGER PRIMARY KEY, family TEXT, name TEXT, shape TEXT, dtype TEXT, "
        "layer TEXT, source TEXT)",
        "stats": "CREATE TABLE stats (step INTEGER, tensor INTEGER, l2 REAL, rms REAL, mean REAL, std REAL, amax REAL, "
        "zeros INTEGER, nan INTEGER, inf INTEGER, ratio REAL, cosine REAL, share REAL, PRIMARY KEY (step, tensor)) "
        "WITHOUT ROWID",
        "histograms": "CREATE TABLE histograms (step INTEGER, tensor INTEGER, counts BLOB, "
        "PRIMARY KEY (step, tensor)) WITHOUT ROWID",
        "noise": "CREATE TABLE noise (step INTEGER, tensor INTEGER, groups INTEGER, group_size INTEGER, variance REAL, "
        "signal REAL, variance_smoothed REAL, signal_smoothed REAL, noise_scale REAL, gsnr REAL, coupling REAL, "
        "PRIMARY KEY (step, tensor)) WITHOUT ROWID",
        "alarms": 'CREATE TABLE alarms (step INTEGER, rule TEXT, tensor INTEGER, value REAL, "limit" REAL, why TEXT, '
        "folder TEXT)",
        "units": 'CREATE TABLE units ("column" TEXT PRIMARY KEY, unit TEXT, meaning TEXT) WITHOUT ROWID',
    }
)


def tables_of(version: int) -> Mapping[str, str]:
    """Returns the statement of each table that a history of a version has."""
    return {name: statement for name, statement in TABLES.items() if name != "losses" or version >= LOSSES_SINCE}
