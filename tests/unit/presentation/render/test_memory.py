"""What a report takes besides its dump: next to nothing for each tensor, because rows are made as they are written."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable

import pytest

from gradscope.dump.manifest.manifest import Manifest
from gradscope.presentation import dump_page, page_html
from gradscope.presentation.render.formats import csv_parts, json_parts
from gradscope.presentation.reports.dump_report import DumpReport
from tests.support.report_samples import entry, numbers, report_of
from tests.support.sampled import sampled

STATISTICS = numbers((4, 4), rms=1.5, l2=2.5, mean=0.5, std=0.25, amax=3.5)


def _page(report: DumpReport) -> None:
    page_html(dump_page("a.npz", report.manifest, ()))


def _peak_bytes(write: Callable[[DumpReport], object], tensors: int) -> int:
    entries = tuple(entry("param", f"layer{at}/w", stats={**STATISTICS}) for at in range(tensors))
    report = report_of(Manifest(entries=entries))
    tracemalloc.start()
    try:
        write(report)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@sampled(
    ("write", "tensors", "most_bytes"),
    [
        pytest.param(lambda report: deque(csv_parts(report), maxlen=0), 4_000, 350, id="csv"),
        pytest.param(lambda report: deque(json_parts(report), maxlen=0), 4_000, 1_100, id="json"),
        pytest.param(_page, 500, 2_600, id="page"),
    ],
)
def test_a_report_takes_few_bytes_for_each_tensor(
    write: Callable[[DumpReport], object], tensors: int, most_bytes: int
) -> None:
    few, many = _peak_bytes(write, 100), _peak_bytes(write, tensors)
    assert many - few < (tensors - 100) * most_bytes
