"""What one screen says of a dump: the verdict, the repair, and nothing twice."""

from __future__ import annotations

from gradscope.dump.manifest.manifest import Manifest, Origin
from gradscope.presentation.render.document import lay_out_document
from gradscope.presentation.render.screen import Screen
from gradscope.presentation.reports.dump_report import dump_report
from gradscope.stats import Finding
from tests.support.report_samples import entry

WHY = "made the first Inf: log of 0"


def on_screen(finding: Finding, *origins: Origin) -> str:
    manifest = Manifest(entries=(entry("activation", "early"),), origins=origins)
    report = dump_report("show", "a.npz", manifest, [finding], overview=True)
    screen = Screen(width=200, height=24)
    return lay_out_document(report.document(screen), screen).plain


def finding(rule: str, why: str) -> Finding:
    return Finding(rule=rule, name="early", family="activation", why=why, source="net.py:7", iteration=())


def origin(why: str, repair: str) -> Origin:
    return Origin(direction="forward", name="early/log", why=why, source="net.py:7", repair=repair)


def test_an_origin_that_is_the_verdict_is_told_once_with_its_repair() -> None:
    text = on_screen(finding("nonfinite", f"{WHY}, in early/log"), origin(WHY, "use log1p"))
    assert text.count(WHY) == 1
    assert "repair   use log1p\n" in text


def test_another_origin_than_the_verdict_is_told() -> None:
    text = on_screen(finding("nonfinite", WHY), origin(WHY, "use log1p"), origin("sent back 0/0", ""))
    assert text.count("origin ") == 1
    assert "sent back 0/0" in text


def test_the_repair_of_a_finding_without_an_origin_is_that_of_its_rule() -> None:
    assert "repair   lower the learning rate or warm it up" in on_screen(finding("dead", "has 100.0% dead units"))
