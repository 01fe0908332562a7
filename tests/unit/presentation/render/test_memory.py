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

TENSORS = 4_000
STATISTICS = numbers((4, 4), rms=1.5, l2=2.5, mean=0.5, std=0.25, amax=3.5)
MANIFEST = Manifest(entries=tuple(entry("param", f"layer{at}/w", stats={**STATISTICS}) for at in range(TENSORS)))


def _page(report: DumpReport) -> None:
    page_html(dump_page("a.npz", report.manifest, ()))


@pytest.mark.parametrize(
    ("write", "most_bytes"),
    [
        pytest.param(lambda report: deque(csv_parts(report), maxlen=0), 350, id="csv"),
        pytest.param(lambda report: deque(json_parts(report), maxlen=0), 1_100, id="json"),
        pytest.param(_page, 2_600, id="page"),
    ],
)
def test_a_report_takes_few_bytes_for_each_tensor(write: Callable[[DumpReport], object], most_bytes: int) -> None:
    report = report_of(MANIFEST)
    tracemalloc.start()
    try:
        write(report)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / TENSORS < most_bytes
