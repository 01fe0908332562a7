"""Opening dumps, asking them things, comparing two. Never imports JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gradscope.arrays.blocks import Array
from gradscope.comparison import CompareOptions, Comparison, ToleranceRule
from gradscope.comparison import compare as compare_sources
from gradscope.comparison.pairing.map_file import read_map
from gradscope.dump.interfaces import DumpSource
from gradscope.dump.manifest.manifest import Layer, Ledger, Manifest
from gradscope.dump.reader import open_dump
from gradscope.naming import Selection, several
from gradscope.report import Query, Screen, dump_report, to_text
from gradscope.stats import Finding, TensorStats, Thresholds, find


class Dump(Mapping[str, Array]):
    """A dump: arrays by key, `param_grad/head/kernel`, and what is known about them.

    A dump from a file reads an array when it is asked for, and every time anew. Iterating gives the keys that have an
    array or are an alias of one that has.

    Args:
        source: Where its tensors are.
        path: The file it came from; "" for one in memory.
        close: Gives back what the source holds open.
    """

    def __init__(self, source: DumpSource, path: str = "", close: Callable[[], object] = lambda: None) -> None:
        self.source = source
        self.path = path
        self.close = close

    def __getitem__(self, key: str) -> Array:
        return self.source.array(key)

    def __iter__(self) -> Iterator[str]:
        keys = self.source.keys()
        return (key for key in keys if self.source.entry(self.source.resolve(key)).absent is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in tuple(self)

    @property
    def manifest(self) -> Manifest:
        """All that the dump says about itself."""
        return self.source.manifest

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

    def stats(self, key: str) -> TensorStats:
        """The statistics of a tensor, as the run that made the dump computed them.

        Raises:
            UsageError: There is no such key.
            DumpError: The dump has no statistics for it.
        """
        return TensorStats.from_json(self.source.entry(self.source.resolve(key)).stats)

    def findings(self, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
        """What the rules find in it: about values in execution order, then about gradients."""
        return find(self.manifest, thresholds)

    def table(self, *, width: int | None = None, query: Query | None = None) -> str:
        """The tables that `gradscope show` prints.

        Args:
            width: Columns to fit them in; None cuts nothing.
            query: Which rows; all where None.
        """
        report = dump_report("show", self.path, self.manifest, self.findings(), query=query)
        return to_text(report, Screen(width=width)).plain

    def __repr__(self) -> str:
        return f"<gradscope.Dump {self.path or 'in memory'}: {len(self)} tensors, loss {self.loss}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def load(path: str | os.PathLike[str]) -> Dump:
    """Open a dump, or any .npz, .npy or .safetensors file, without running anything in it.

    Raises:
        DumpError: It is missing, damaged or refused.
    """
    source = open_dump(path)
    return Dump(source, os.fspath(path), source.close)


def compare(
    ref: Dump,
    cand: Dump,
    *,
    tol: float | str | Sequence[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    bitwise: bool = False,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    allow_missing: str | Sequence[str] = (),
    map_file: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Match two dumps tensor by tensor and judge them; the result's truth value is the verdict.

    Args:
        ref: The reference.
        cand: The candidate.
        tol: One tolerance on `rel_l2` for every tensor; or rules, `"param_grad/.*=rel_l2 < 1e-3 and max_abs < 1"`, of
            which the first that matches a tensor counts; None for the defaults by dtype and family.
        rtol: Relative part of numpy's rule. Where it or `atol` is given, tensors without a `tol` are judged by it.
        atol: Its absolute part.
        bitwise: Whether only equal bytes are the same.
        select: Patterns of names that take part; all where empty.
        exclude: Patterns of names that do not.
        allow_missing: Regular expressions of names that may be on one side only.
        map_file: Rules that say what the candidate's tensors are in the reference, in the language of
            `gradscope.comparison.pairing.map_file`; None to go by names, order and values alone.

    Raises:
        UsageError: A pattern selects nothing or is not one, or a tolerance is negative or not one.
        DumpError: One of the dumps is damaged.
    """
    options = CompareOptions(
        selection=Selection.parse(select, exclude),
        map_rules=() if map_file is None else read_map(Path(map_file)),
        allow_missing=several(allow_missing),
        rules=_rules(tol),
        rel_l2=tol if isinstance(tol, int | float) else None,
        bitwise=bitwise,
        rtol=rtol,
        atol=atol,
    )
    return compare_sources(ref.source, cand.source, options=options)


def _rules(tol: float | str | Sequence[str] | None) -> tuple[ToleranceRule, ...]:
    if tol is None or isinstance(tol, int | float):
        return ()
    return tuple(map(ToleranceRule.parse, several(tol)))
