"""`Dump` reads a dump: its tensors as a mapping, its statistics and facts, and its tables. Never imports JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Self, cast

from gradscope.arrays.blocks import Array
from gradscope.dump.interfaces import DumpSource, required_source
from gradscope.dump.manifest.manifest import Cause, Layer, Ledger, Manifest
from gradscope.dump.manifest.operation_facts import Origin, Saturation
from gradscope.dump.reader import open_dump
from gradscope.errors import UsageError
from gradscope.history.folder.run_files import is_run
from gradscope.naming import printable
from gradscope.naming.summary import Summary
from gradscope.presentation import Query, Screen, dump_report, to_text
from gradscope.presentation.page.notebook import dump_html
from gradscope.stats import Finding, TensorStats, Thresholds, find
from gradscope.typed_arguments import typed


class Dump(Mapping[str, Array]):
    """A `Dump` is a read-only mapping from keys, `param_grad/head/kernel`, to NumPy arrays, with facts about them.

    `load` and `capture` return one. A dump from a file reads an array again every time it is looked up. Used as a
    context manager, it closes the file at the end. The keys are those of all captured tensors, under each of their
    names; in a dump with statistics only, they have `stats` and no array.

    Args:
        source: The source of its tensors.
        path: The file it came from.
        close: Closes the files that the source has open.

    Attributes:
        path: The file or folder it came from, as it was named; "" for a dump in memory.

    Example:
        >>> import numpy as np
        >>> import gradscope as gs
        >>> np.savez("weights.npz", kernel=np.eye(2), bias=np.zeros(2))
        >>> with gs.load("weights.npz") as dump:
        ...     print(sorted(dump), dump["tensor/bias"].shape, dump.get("tensor/biases"))
        ['tensor/bias', 'tensor/kernel'] (2,) None
        >>> try:
        ...     gs.load("weights.npz")["tensor/biases"]
        ... except KeyError as error:
        ...     print(error)
        the dump has no entry tensor/biases (did you mean tensor/bias?)
    """

    def __init__(self, source: DumpSource, path: str = "", close: Callable[[], object] = lambda: None) -> None:
        self.path = path
        self._source = required_source(source)
        self._close, self._closed = close, False

    @property
    def source(self) -> DumpSource:
        """The dump as `gradscope.dump` reads it, for functions that a mapping does not have.

        These are the entries of the manifest by key, and tensors in chunks, without memory for a complete one.

        Raises:
            UsageError: The dump is closed.
        """
        # The next file that the process opens may reuse the file's descriptor.
        if self._closed:
            raise UsageError(
                f"the dump {printable(self.path)} is closed", hint="read it before close, or inside its with block"
            )
        return self._source

    def __getitem__(self, key: str) -> Array:
        return self.source.array(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._captured)

    def __len__(self) -> int:
        return len(self._captured)

    def __contains__(self, key: object) -> bool:
        return key in self._captured

    @cached_property
    def _captured(self) -> dict[str, None]:
        """Returns the keys of all captured tensors, in the order of the manifest: an index, and an ordered set."""
        keys, entry, resolve = self._source.keys(), self._source.entry, self._source.resolve
        return dict.fromkeys(key for key in keys if entry(resolve(key)).absent is None)

    @property
    def manifest(self) -> Manifest:
        """The manifest, which describes the dump and each of its tensors."""
        return self._source.manifest

    @property
    def loss(self) -> float | None:
        """The loss; None in a file that gradscope did not write."""
        return self.manifest.loss

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer tree in execution order."""
        return self.manifest.layers

    @property
    def ledger(self) -> Ledger:
        """The account of every site: how many were captured, and why each of the others was not."""
        return self.manifest.ledger

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The operations where NaNs and infinities began.

        Empty where all gradients are finite, and for a step that `save` wrote: only `capture` and `gradscope dump`
        search for an origin.

        Example:
            >>> import jax.numpy as jnp
            >>> import gradscope as gs
            >>> dump = gs.capture(lambda w, x: jnp.log(w * x).sum(), jnp.ones(2), jnp.array([1.0, 0.0]))
            >>> for origin in dump.origins:
            ...     print(origin.primitive, origin.index, origin.why)
            log (1,) made the first Inf: log of 0 (element [1])
        """
        return self.manifest.origins

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The reasons why gradients are zero, exactly or but for rounding, as far as they were found.

        Empty where no gradient is, and for a step that `save` wrote: only `capture` and `gradscope dump` look for them.

        Example:
            >>> import jax.numpy as jnp
            >>> import gradscope as gs
            >>> dump = gs.capture(lambda w, x: (w * x).sum(), jnp.ones(2), jnp.zeros(2), families=["param_grad"])
            >>> [(cause.name, cause.why.split(" at ")[0]) for cause in dump.causes]
            [('value', 'masked: multiplied by exact zeros in mul')]
        """
        return self.manifest.causes

    @property
    def saturations(self) -> tuple[Saturation, ...]:
        """How far the bounded functions inside layers are at their limits, where more than a tenth is.

        No layer returns the result, so that the dump has no tensor of it. Empty for a step that `save` wrote.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> import gradscope as gs
            >>> def loss(w, x):
            ...     with jax.named_scope("gated"):
            ...         return ((x * jax.nn.sigmoid(50 * (x @ w))) @ w).sum()
            >>> dump = gs.capture(loss, jnp.eye(2), jnp.ones((4, 2)))
            >>> [(each.function, each.layer, each.saturated) for each in dump.saturations]
            [('sigmoid', 'gated', 1.0)]
        """
        return self.manifest.saturations

    def stats(self, key: str) -> TensorStats:
        """Returns the statistics of a tensor, as computed by the run that made the dump.

        Args:
            key: The tensor's key.

        Returns:
            The statistics; `TensorStats` states the unit of each: a count, a share or bits.

        Raises:
            UsageError: There is no such key.
            DumpError: The dump has no statistics for it.

        Example:
            >>> import jax.numpy as jnp
            >>> import gradscope as gs
            >>> dump = gs.capture(lambda w, x: (w * x).sum(), jnp.ones(4), jnp.array([3.0, 0.0, -4.0, 0.0]))
            >>> stats = dump.stats("param_grad/value")
            >>> stats.l2, stats.zeros, stats.amax
            (5.0, 2, 4.0)
        """
        return TensorStats.from_json(self._source.entry(self._source.resolve(key)).stats)

    @typed()
    def findings(self, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
        """Returns the findings of the rules in the dump.

        Args:
            thresholds: The limits of the rules; None for the defaults.

        Returns:
            One finding for each cause, worst first.

        Raises:
            DumpError: A statistic in the dump is not a number.

        Example:
            >>> import jax.numpy as jnp
            >>> import gradscope as gs
            >>> dump = gs.capture(lambda w, x: jnp.sqrt(w * x).sum(), jnp.zeros(3), jnp.ones(3))
            >>> [(finding.rule, finding.tensors) for finding in dump.findings()]
            [('nonfinite', 3)]
        """
        return find(self.manifest, thresholds)

    @typed()
    def table(self, *, width: int | None = None, query: Query | None = None) -> str:
        """Returns the tables that `gradscope show` prints.

        Args:
            width: The number of characters to fit them in; None leaves nothing out.
            query: Which rows, in which order; None for all of them, in execution order.

        Returns:
            The tables as text.

        Raises:
            UsageError: The query cannot be resolved.

        Example:
            >>> import numpy as np
            >>> import gradscope as gs
            >>> np.savez("weights.npz", kernel=np.eye(2), bias=np.zeros(2))
            >>> with gs.load("weights.npz") as dump:
            ...     print(dump.table(width=60, query=gs.Query(select="ker*")).splitlines()[0])
            Tensors (1)
        """
        report = dump_report("show", self.path, self.manifest, self.findings(), query=query)
        return to_text(report, Screen(width=width)).plain

    def close(self) -> None:
        """Closes the file. Arrays that were read and the manifest remain; no other array can be read."""
        self._closed = True
        self._close()

    def summary(self) -> Summary:
        """Returns the number of tensors and the loss, and a table of the families."""
        summary = self.manifest.summary()
        return replace(summary, line=f"{self.path or 'in memory'}: {summary.line}")

    def __repr__(self) -> str:
        return self.summary().one_line("Dump")

    def __str__(self) -> str:
        return self.summary().text()

    def _repr_html_(self) -> str:
        return dump_html(self.summary().line, self.manifest, self.findings())

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    # A mapping is equal by its values, and arrays have no truth value; a dump is compared by `gs.compare`.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@typed()
def load(path: str | os.PathLike[str]) -> Dump:
    """Opens a dump, any .npz, .npy or .safetensors file or folder of such, or a run, without running any code in it.

    Args:
        path: The file or folder.

    Returns:
        The dump, or for the folder of a training run the `Run`; a typed program makes that one itself, `gs.Run(path)`.
            A dump's structure is checked now; an array is read,
            and its checksum compared, when it is looked up.

    Raises:
        DumpError: It is missing, damaged or refused.
        MachineError: It cannot be read.

    Example:
        >>> import numpy as np
        >>> import gradscope as gs
        >>> np.save("kernel.npy", np.eye(2, dtype=np.float32))
        >>> gs.load("kernel.npy")["tensor/kernel"]  # families are for tensors of a model, these have none
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    if is_run(path):
        from gradscope.api.training_run import Run  # noqa: PLC0415 - it needs this module, and sqlite3

        # The type is a dump's: it is what nearly every caller has, and a union would make each of them test for it.
        return cast("Dump", Run(path))
    source = open_dump(path)
    return Dump(source, os.fspath(path), source.close)
