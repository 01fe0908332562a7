"""Pages for tests, of dumps and histories made by hand, and what is inside the file of a page."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.comparison import CompareOptions
from gradscope.comparison.diagnosis.runs.run_divergence import compare_runs
from gradscope.comparison.result import Series, SeriesMember
from gradscope.dump.manifest.manifest import Entry, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.history.history_reader import History
from gradscope.history.history_rows import Alarm, StepRecord, TensorRow
from gradscope.history.history_writer import HistoryWriter
from gradscope.history.value_histograms import ValueHistogram, counted
from gradscope.presentation import Compared, ComparedRun, PageMaker, comparison_page, dump_page, page_html, run_page
from gradscope.stats import find
from tests.support.report_samples import HOSTILE_NAMES, different_runs, entry, same_runs, small_network, stats_of

#: What tries to leave the element that it is in, and the attribute.
MARKUP = {
    "script": "</script><script>document.title='owned'</script>",
    "comment": "<!--<script>",
    "attribute": "\" onmouseover='document.title=1' x=\"",
    "entity": "&lt;b&gt;",
    "a megabyte": "x" * 1_000_000,
    "slashes": "/" * 5_000,
}
HOSTILE = {**HOSTILE_NAMES, **MARKUP}


def dump_maker(manifest: Manifest | None = None, path: str = "run.npz") -> PageMaker:
    """The page of a dump, by default of the small network."""
    manifest = small_network() if manifest is None else manifest
    return dump_page(path, manifest, find(manifest))


def comparison_maker() -> PageMaker:
    """The page of two candidates, of which the first differs."""
    compared = [
        Compared(name=name, comparison=comparison, ref=small_network(), cand=small_network())
        for name, comparison in (("a.npz", different_runs()), ("b.npz", same_runs()))
    ]
    members = tuple(SeriesMember(name=each.name, comparison=each.comparison) for each in compared)
    return comparison_page("ref.npz", Series(members=members), compared)


def hostile_manifest() -> Manifest:
    """A dump in which every name, and every source, tries something."""
    entries = (
        each
        for number, name in enumerate(HOSTILE.values())
        for each in (
            entry("activation", name, index=number, source=f"{name}:3"),
            entry("param_grad", name, index=number, stats=stats_of([1.0, float("nan")])),
        )
    )
    return Manifest(entries=tuple(entries), note=MARKUP["script"], loss=1.0)


def gap_manifest() -> Manifest:
    """Seven layers, of which the fourth and the sixth have no gradient."""
    entries = (
        entry(family, f"layer{at}", index=at, absent="disconnected" if at in {3, 5} and "grad" in family else None)
        for at in range(7)
        for family in ("activation", "activation_grad")
    )
    return Manifest(entries=tuple(entries))


def deep_manifest(tensors: int) -> Manifest:
    """A dump of many operations, whose activations and gradients differ."""
    shared = [stats_of([scale * 1.25, -scale, 0.0]) for scale in (1.0, 2.0, 4.0, 8.0)]
    entries = (
        Entry(
            family=family, name=f"block{at // 64}/layer{at // 8 % 8}/op{at % 8}", shape=(3,), dtype="float32",
            stats=shared[(at + order) % 4], site=SiteFacts(index=at, source=f"net.py:{at % 97}"),
        )
        for at in range(tensors // 2)
        for order, family in enumerate(("activation", "activation_grad"))
    )  # fmt: skip
    return Manifest(entries=tuple(entries))


def run_folder(
    folder: Path, steps: int = 8, layers: int = 3, noise_every: int = 3, loss: float = 4.0, *, layer: str = "layer{}",
    lost_from: int | None = None,
) -> Path:  # fmt: skip
    """A run whose gradients grow tenfold a step, and become NaN in the end; all is NaN from a step on, if stated."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = [f"{family}/{layer.format(at)}" for at in range(layers) for family in ("activation", "activation_grad")]
    keys.append("param_grad/weight0")
    named = (key.split("/") for key in keys)
    tensors = [TensorRow(family=family, name=name, shape=(2, 3), dtype="float32") for family, name in named]
    with HistoryWriter(folder, from_step=0, facts={"model": "net"}) as history:
        history.describe({}, iter(tensors))
        for step in range(steps):
            stats = {key: _at(step, key, last=step == steps - 1) for key in keys}
            if lost_from is not None and step >= lost_from:
                stats = {key: {**each, "rms": math.nan, "l2": math.nan, "nan": 6} for key, each in stats.items()}
            numbers = {"step": step, "loss": loss / (step + 1), "grad_norm": 1.0 + step}
            values = counted(np.array([0.0, *[2.0**step] * 3, -(2.0**step)], np.float32))
            found = {key: ValueHistogram.of(values) for key in keys if step % 2 == 0}
            noise = {key: _noise(step) for key in (None, keys[-1])} if step % noise_every == 0 else {}
            made = StepRecord(numbers=numbers, stats=stats, histograms=found, noise=noise)
            history.write(lambda made=made: made)
        history.alarm(Alarm(step=steps - 1, rule="nonfinite", why="has 2 NaN", key=keys[1]))
    return folder


def _noise(step: int) -> dict[str, float | int]:
    return {"noise_scale": 10.0 + step, "gsnr": -0.5, "groups": 8, "group_size": 2}


def run_maker(folder: Path) -> PageMaker:
    """The page of a run."""
    with History(folder) as history:
        return run_page("run", history)


def runs_maker(folder: Path) -> PageMaker:
    """The page of a run, and of one with fewer layers, as iterations of a loop, and fewer steps."""
    ref, cand = run_folder(folder / "a"), run_folder(folder / "b", steps=6, layers=2, layer="layer[{}]")
    with History(ref) as one, History(cand) as other:
        found = compare_runs(one, other, CompareOptions())
        return run_page("a", one, [ComparedRun(path="b", history=other, divergence=found)])


def _at(step: int, key: str, *, last: bool) -> dict[str, float | int]:
    rms = 10.0**step if key.startswith("activation_grad") else 0.5 + int(key.strip("]")[-1])
    return {"rms": rms, "l2": rms * 2, "mean": -rms / 4, "zeros": step % 3, "nan": 2 * last, "inf": 0}


def content_of(page: str) -> tuple[dict[str, Any], bytes]:
    """The JSON and the packed numbers in the file of a page."""
    (encoded,) = re.findall(r'id="content">([A-Za-z0-9+/=]*)</script>', page)
    content = gzip.decompress(base64.b64decode(encoded))
    (size,) = struct.unpack("<I", content[-4:])
    return json.loads(content[:size]), content[size:-4]


def write_pages(folder: Path) -> dict[str, Path]:
    """Writes a page of each kind, and returns their paths by kind."""
    makers = {
        "dump": dump_maker(),
        "comparison": comparison_maker(),
        "run": run_maker(run_folder(folder / "run")),
        "runs": runs_maker(folder / "runs"),
        "hostile": dump_maker(hostile_manifest(), path=MARKUP["script"]),
        "gap": dump_maker(gap_manifest()),
        "long": dump_maker(deep_manifest(5_000)),
    }
    for kind, maker in makers.items():
        (folder / f"{kind}.html").write_text(page_html(maker), encoding="utf-8")
    return {kind: folder / f"{kind}.html" for kind in makers}
