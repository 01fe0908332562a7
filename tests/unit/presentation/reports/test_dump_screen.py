"""What one screen says of a dump: the verdict, the repair, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gradscope.cli.options.checked_findings import checked_rules, failures
from gradscope.dump.manifest.manifest import Ledger, LedgerLine, Manifest
from gradscope.dump.manifest.operation_facts import Clip, Origin, SoftmaxUse
from gradscope.presentation.render.document import lay_out_document
from gradscope.presentation.render.screen import DIM, Screen
from gradscope.presentation.reports.dump_report import dump_report
from gradscope.stats import Finding, is_thrown_away
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


def test_an_origin_that_is_the_verdict_is_reported_once_with_its_repair() -> None:
    text = on_screen(finding("nonfinite", f"{WHY}, in early/log"), origin(WHY, "use log1p"))
    assert text.count(WHY) == 1
    assert "repair   use log1p\n" in text


def test_another_origin_than_the_verdict_is_reported() -> None:
    text = on_screen(finding("nonfinite", WHY), origin(WHY, "use log1p"), origin("sent back 0/0", ""))
    assert text.count("origin ") == 1
    assert "sent back 0/0" in text


def test_the_repair_of_a_finding_without_an_origin_is_that_of_its_rule() -> None:
    assert "repair   lower the learning rate or warm it up" in on_screen(finding("dead", "has 100.0% dead units"))


def test_what_is_thrown_away_is_a_note_without_a_repair() -> None:
    entries = (entry("activation_grad", "early"), entry("param_grad", "w"))
    spoilt = replace(entries[0], stats={**entries[0].stats, "nan": 1})
    manifest = Manifest(
        entries=(spoilt, entries[1]), origins=(origin("sent back the first NaN", "use log1p"),), loss=1.0
    )
    report = dump_report("show", "a.npz", manifest, (), overview=True)
    screen = Screen(width=200, height=24)
    text = lay_out_document(report.document(screen), screen)
    (origin_line,) = (line for line in text.split("\n") if "early/log" in line.plain)
    assert origin_line.plain.startswith(
        "note     early/log (net.py:7) sent back the first NaN; it reaches neither the loss nor"
    )
    assert [span.style for span in origin_line.spans] == [DIM]
    assert "use log1p" not in text.plain
    assert report.to_json()["origins"] == [
        {"direction": "forward", "name": "early/log", "source": "net.py:7", "why": "sent back the first NaN",
         "thrown_away": True}
    ]  # fmt: skip
    assert [each.level for each in report.annotations()] == ["notice", "notice"]


def test_what_may_reach_a_gradient_that_was_not_requested_is_an_origin() -> None:
    spoilt = replace(entry("activation_grad", "early"), stats={"nan": 1, "size": 2})
    known, filtered = entry("param_grad", "w"), LedgerLine(name="v", family="param_grad", reason="filtered")
    manifest = Manifest(entries=(spoilt, known), loss=1.0)
    assert is_thrown_away(manifest)
    assert not is_thrown_away(replace(manifest, ledger=Ledger(missing=(filtered,))))
    assert not is_thrown_away(replace(manifest, entries=(spoilt,)))
    assert not is_thrown_away(replace(manifest, loss=float("nan")))


def test_what_may_be_meant_is_named_by_the_verdict_and_explained() -> None:
    use = SoftmaxUse(shape=(6, 6), over=(0,), summed=(1,), source="net.py:3")
    manifest = Manifest(entries=(entry("activation", "early"),), softmax_uses=(use,))
    screen = Screen(width=200, height=24)
    text = lay_out_document(dump_report("show", "a.npz", manifest, (), overview=True).document(screen), screen).plain
    assert text.startswith("verdict  no finding; look at 'softmax', which may be meant\n")
    assert "\nsoftmax  the softmax at net.py:3 is over axis 0" in text
    assert text.rstrip().endswith("explain  gradscope explain softmax")


def test_what_may_be_meant_is_in_the_json_and_is_an_error_where_a_check_names_it() -> None:
    use = SoftmaxUse(shape=(6, 6), over=(0,), summed=(1,), source="net.py:3")
    clip = Clip(low=0.0, high=1.0, share=0.5, index=3)
    manifest = Manifest(entries=(entry("activation", "early"),), softmax_uses=(use,), clips=(clip,))
    report = dump_report("show", "a.npz", manifest, (), checked=frozenset({"softmax"}))
    assert report.to_json()["may_be_meant"] == [
        {"word": "clipped", "why": clip.sentence},
        {"word": "softmax", "why": use.sentence, "source": "net.py:3"},
    ]
    told = [(each.level, each.title, each.source) for each in report.annotations()]
    assert told == [("notice", "gradscope: clipped", None), ("error", "gradscope: softmax", "net.py:3")]
    assert (
        "may_be_meant" not in dump_report("show", "a.npz", replace(manifest, softmax_uses=(), clips=()), ()).to_json()
    )


def test_a_check_of_all_rules_passes_what_may_be_meant_and_one_that_names_it_fails() -> None:
    use = SoftmaxUse(shape=(6, 6), over=(0,), summed=(1,), source="net.py:3")
    manifest = Manifest(entries=(), softmax_uses=(use,))
    for check, fails in (("all", False), ("softmax", True), ("all, softmax", True), ("clipped,unscaled", False)):
        assert bool(failures(Path("a.npz"), manifest, (), checked_rules(check))) is fails
    dead = Finding(rule="dead", family="activation", name="b", why="is dead", source=None, iteration=())
    found = failures(Path("a.npz"), manifest, [dead], checked_rules("dead,softmax"))
    assert found == {"dead": ["at activation/b"], "softmax": ["at net.py:3"]}
    assert checked_rules("no effect") == {"no effect"}


def test_a_check_of_a_rule_counts_the_cause_of_what_it_would_have_found() -> None:
    cause = Finding(
        rule="init", family="param", name="w", why="is large", source="net.py:3", iteration=(), explains=("exploding",)
    )
    manifest = Manifest(entries=(entry("param", "w"),))
    for check, found in (
        ("exploding", {"exploding": ["a consequence of init at param/w (net.py:3)"]}),
        ("all", {"init": ["at param/w (net.py:3)"]}),
        ("vanishing", {}),
    ):
        assert failures(Path("a.npz"), manifest, [cause], checked_rules(check)) == found
        report = dump_report("show", "a.npz", manifest, [cause], checked=checked_rules(check))
        assert [each.level for each in report.annotations()] == ["error" if found else "warning"]


def test_what_is_missing_and_makes_a_command_fail_is_an_error_next_to_the_source() -> None:
    manifest = Manifest(entries=(entry("param", "w"),))
    report = dump_report("dump", "a.npz", manifest, (), missing=("--strict: 1 missing that you did not exclude",))
    assert [(each.level, each.message) for each in report.annotations()] == [
        ("error", "--strict: 1 missing that you did not exclude")
    ]
