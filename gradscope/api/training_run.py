"""`Run` reads a training run: its steps, and what was recorded of each tensor. Never imports JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from gradscope.api.reading import Dump
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.errors import DumpError
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm
from gradscope.history.value_histograms import ValueHistogram
from gradscope.history.views.at_step import manifest_at
from gradscope.presentation import trends_report
from gradscope.presentation.page.notebook import run_html
from gradscope.typed_arguments import typed


class Run:
    """A `Run` is a training run that `gradscope train` recorded; `load` returns one for the folder of a run.

    Args:
        path: The folder.

    Attributes:
        path: The same, as it was named.

    Raises:
        DumpError: Its history is damaged or refused.
        MachineError: It cannot be read.

    Example:
        >>> import gradscope as gs
        >>> try:
        ...     gs.Run("today")
        ... except gs.DumpError as error:
        ...     print(error)
        today is no run: it has no history
    """

    @typed()
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if not self.path:  # `Path` would make the current folder of it
            raise DumpError("the path is empty", hint="name the folder of a run")
        self._history = History(Path(path))

    @property
    def history(self) -> History:
        """The history that is read."""
        return self._history

    @property
    def steps(self) -> dict[str, np.ndarray]:
        """The recorded steps: by column, `step`, `loss`, `grad_norm`, ..., an array; NaN where a value is missing.

        Raises:
            DumpError: The history is damaged.
        """
        return self._history.steps()

    @property
    def losses(self) -> dict[str, np.ndarray]:
        """The losses of all steps, recorded or not, as far as they are known: `step` and `loss`, each an array.

        Raises:
            DumpError: The history is damaged.
        """
        return self._history.losses()

    @property
    def facts(self) -> Mapping[str, str]:
        """What the run states about itself: the model, versions, options."""
        return self._history.facts

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What was wrong, in the order of the steps."""
        return self._history.alarms()

    def keys(self) -> tuple[str, ...]:
        """Returns the keys of the tensors that the run observed, in the order of a step."""
        return tuple(tensor.key for tensor in self._history.tensors.values())

    @typed()
    def series(self, key: str, column: str) -> np.ndarray:
        """Returns a statistic of a tensor at each recorded step.

        Args:
            key: The tensor's key, `param_grad/head/kernel`.
            column: The statistic: `l2`, `rms`, `mean`, `std`, `amax`, `zeros`, `nan`, `inf`, and `ratio` of an update,
                `cosine` and `share` of a parameter's gradient.

        Returns:
            An array as long as those of `steps`; NaN where the value is missing.

        Raises:
            UsageError: There is no such tensor or statistic.
            DumpError: The history is damaged.
        """
        steps, values = self._history.series(self._history.number_of(key), column)
        recorded = self.steps["step"]
        known = dict(zip(steps.tolist(), values.tolist(), strict=True))
        return np.array([known.get(step, np.nan) for step in recorded.tolist()])

    @typed()
    def histograms(self, key: str) -> dict[int, ValueHistogram]:
        """Returns the histograms of a tensor that were recorded with `--histograms-every`.

        Args:
            key: The tensor's key.

        Returns:
            By step, in order, an object with `counts` and `lower` and `upper` edges, each [bins]; empty where there
                are none.

        Raises:
            UsageError: There is no such tensor.
            DumpError: The history is damaged.
        """
        return self._history.histograms_of(self._history.number_of(key))

    @typed()
    def noise(self, key: str | None = None) -> dict[str, np.ndarray]:
        """Returns the noise of gradients that was recorded with `--per-example-every`.

        Args:
            key: The key of a parameter's gradient, `param_grad/head/kernel`; None for all trained parameters together.

        Returns:
            By column an array over the steps at which it was measured, `step` among them, empty where none was:
            `noise_scale`, in examples, `gsnr`, `variance`, `signal` and others; NaN where a value is missing.

        Raises:
            UsageError: There is no such tensor.
            DumpError: The history is damaged.

        References:
            https://arxiv.org/abs/1812.06162 (noise scale), https://arxiv.org/abs/2001.07384 (GSNR)
        """
        return self._history.noise(None if key is None else self._history.number_of(key))

    @typed()
    def at(self, step: int) -> Dump:
        """Returns what was recorded of a step, as a dump with statistics and no tensors.

        Args:
            step: The number of the step.

        Raises:
            UsageError: It was not recorded.
            DumpError: The history is damaged.
        """
        return Dump(MemoryDump(manifest_at(self._history, step), {}))

    def close(self) -> None:
        """Closes the history."""
        self._history.close()

    def __repr__(self) -> str:
        return f"<gradscope.Run {self._line()}>"

    def _repr_html_(self) -> str:
        return run_html(self._line(), trends_report(self.path, self._history))

    def _line(self) -> str:
        return f"{self.path}: {len(self.steps['step'])} recorded steps"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
