"""`report` writes pages for a browser and a notebook, of dumps, comparisons and runs. Never imports JAX."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, TypeVar, cast

from gradscope.api.reading import Dump
from gradscope.api.training_run import Run
from gradscope.comparison import CompareOptions, Comparison, compare
from gradscope.comparison.diagnosis.runs.run_divergence import compare_runs
from gradscope.comparison.result import Series, SeriesMember
from gradscope.dump.manifest.manifest import Manifest
from gradscope.dump.storage.writing.atomic_file import write_atomically
from gradscope.dump.storage.writing.target_path import PAGE, checked_target
from gradscope.errors import UsageError
from gradscope.presentation import Compared, ComparedRun, PageMaker, comparison_page, dump_page, page_html, run_page
from gradscope.stats import find, measured
from gradscope.typed_arguments import typed

Reported: TypeAlias = Dump | Run | Comparison
_T = TypeVar("_T", Dump, Run)

#: The height of the page in a notebook, in pixels.
_FRAME_PIXELS: Final = 900


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A `ReportPage` is a page for a browser: one file of HTML that requests nothing. A notebook shows it in a frame.

    Attributes:
        html: The file.

    Example:
        >>> import numpy as np
        >>> import gradscope as gs
        >>> np.savez("weights.npz", kernel=np.eye(2), bias=np.zeros(2))
        >>> gs.report(gs.load("weights.npz")).html[:15]
        '<!doctype html>'
    """

    html: str = field(repr=False)

    @typed()
    def save(self, path: str | os.PathLike[str], *, force: bool = True) -> None:
        """Writes the file.

        Args:
            path: Where to, NAME.html.
            force: Whether a file that exists is replaced.

        Raises:
            UsageError: It exists and is not to be replaced, or is no regular file.
            MachineError: It cannot be written.
        """
        target = checked_target(Path(path), force=force, kind=PAGE)
        write_atomically(target, self.html.encode(), replace=force)

    def _repr_html_(self) -> str:
        # The frame has no origin: nothing in it reaches the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: {_FRAME_PIXELS}px; border: 0"></iframe>'
        )


def report(what: Reported, *candidates: Dump | Run) -> ReportPage:
    """Returns the page that `gradscope report` writes.

    Args:
        what: A dump, a run, a comparison, or the reference where candidates follow.
        candidates: Dumps that are compared with a dump, or runs with a run.

    Returns:
        The page: `save` writes it, and a notebook shows it. A comparison by itself has no statistics of its dumps;
            pass the dumps to see them side by side.

    Raises:
        UsageError: Candidates follow a comparison, runs and dumps are mixed, or it is none of these.
        DumpError: A dump or a history is damaged.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> dump = gs.capture(lambda w, x: ((w * x) ** 2).sum(), jnp.ones(3), jnp.ones(3))
        >>> gs.report(dump).save("report.html")
    """
    return ReportPage(page_html(_page(what, candidates)))


def _page(what: Reported, candidates: tuple[Dump | Run, ...]) -> PageMaker:
    if isinstance(what, Dump):
        return _of_dumps(what, _all_of(Dump, candidates)) if candidates else _of_dump(what)
    if isinstance(what, Run):
        return _of_runs(what, _all_of(Run, candidates))
    if candidates:
        raise UsageError("a Comparison has no candidates", hint="name the reference first")
    if not isinstance(cast("object", what), Comparison):
        raise UsageError(
            f"report takes a dump, a run or a comparison, not a {type(what).__name__}",
            hint="gs.load(path) opens a file or the folder of a run, gs.capture(...) makes a dump",
        )
    nothing = Manifest(entries=())
    compared = Compared(name="candidate", comparison=what, ref=nothing, cand=nothing)
    return comparison_page("reference", _series([compared]), [compared])


def _all_of(kind: type[_T], candidates: tuple[Dump | Run, ...]) -> list[_T]:
    found = [each for each in candidates if isinstance(each, kind)]
    if len(found) < len(candidates):
        raise UsageError("dumps are compared with dumps, and runs with runs", hint="name candidates of one kind")
    return found


def _of_runs(ref: Run, candidates: list[Run]) -> PageMaker:
    compared = [
        ComparedRun(
            path=each.path, history=each.history, divergence=compare_runs(ref.history, each.history, CompareOptions())
        )
        for each in candidates
    ]
    return run_page(ref.path, ref.history, compared)


def _of_dump(dump: Dump) -> PageMaker:
    manifest = measured(dump.source)
    return dump_page(dump.path or "dump", manifest, find(manifest))


def _of_dumps(ref: Dump, candidates: list[Dump]) -> PageMaker:
    manifest = measured(ref.source)
    compared = [
        Compared(
            name=each.path or f"candidate {number}",
            comparison=compare(ref.source, each.source, options=CompareOptions()),
            ref=manifest,
            cand=measured(each.source),
        )
        for number, each in enumerate(candidates, 1)
    ]
    return comparison_page(ref.path or "reference", _series(compared), compared)


def _series(compared: list[Compared]) -> Series:
    return Series(members=tuple(SeriesMember(name=each.name, comparison=each.comparison) for each in compared))
