"""Patterns and hints: what a spelling selects, and what was probably meant where it selects nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.errors import UsageError
from gradscope.naming import Selection
from gradscope.naming.selecting import bounded_regex
from gradscope.naming.selecting.bounded_regex import BoundedRegex, MatchingTime
from gradscope.naming.selecting.first_pattern import FirstPattern
from gradscope.naming.selecting.nearest_names import nearest_hint
from gradscope.naming.selecting.patterns import Pattern

NAMES = ["block[0]/attn", "block[0]/mlp", "block[1]/attn", "head", "a.b"]


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ([], NAMES),
        (["*"], NAMES),
        (["block[0]/*"], ["block[0]/attn", "block[0]/mlp"]),
        (["block[?]/attn"], ["block[0]/attn", "block[1]/attn"]),
        (["a?b", "head"], ["head", "a.b"]),
        (["a+b"], []),
        ([r"re:.*attn|he.d"], ["block[0]/attn", "block[1]/attn", "head"]),
        (["re:block"], []),
    ],
)
def test_globs_take_brackets_literally_and_expressions_match_the_full_name(
    patterns: list[str], selected: list[str]
) -> None:
    selection = Selection.parse(patterns)
    assert [name for name in NAMES if selection.selects(name)] == selected


def test_an_excluded_name_is_not_selected_under_any_of_its_spellings() -> None:
    selection = Selection.parse(["head"], ["param/*"])
    assert selection.selects("head", "activation/head")
    assert not selection.selects("head", "param/head")


def test_a_pattern_that_selects_nothing_is_refused_with_what_was_probably_meant() -> None:
    Selection.parse(["head"], ["nothing"]).require_matches(NAMES)
    with pytest.raises(UsageError, match="pattern 'heat' selects nothing") as refused:
        Selection.parse(["*", "heat"]).require_matches(NAMES)
    assert refused.value.hint == "did you mean head?"


def test_an_invalid_expression_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'\(' is not a regular expression"):
        Selection.parse(["re:("])


@pytest.mark.parametrize(
    ("requested", "known", "hint"),
    [
        ("dense1", ["dense1x", "other"], "did you mean dense1x?"),
        ("DENSE1", ["dense1", "dense2"], "did you mean dense1, dense2?"),
        ("nonfinte", ["softmax", "init", "nonfinite"], "did you mean nonfinite?"),
        ("dense1", ["Dense1", "Dense1"], "did you mean Dense1?"),
        ("zzz", ["a", "b", "a"], "there are a, b"),
        ("zzz", ["a", "a"], "there is only a"),
        ("zzz", [f"layer{n}" for n in range(1234)], "there are 1,234 names, such as layer0, layer1, layer2"),
        ("zzz", [], "there are no names to select from"),
        ("na\x1bme", ["na\x1bm"], "did you mean na\\x1bm?"),
    ],
)
def test_hints_list_similar_names_once_ignoring_case(requested: str, known: list[str], hint: str) -> None:
    assert nearest_hint(requested, known) == hint


@pytest.mark.slow
def test_hints_find_a_near_name_among_many_and_among_long_ones() -> None:
    many = [f"block[{number}]/{part}" for number in range(3000) for part in ("attention", "mlp")]
    assert "block[7]/mlp" in nearest_hint("block[7]/mpl", many)
    assert nearest_hint("l2", ["l2/w", "l2/b", "l2[0]", "l2[1]"]) == "did you mean l2[0], l2[1]?"
    files = [*(f"mod{number:05d}_layer.py" for number in range(30_000)), "model.py"]
    assert nearest_hint("modle.py", files) == "did you mean model.py?"
    assert nearest_hint("mod00012_layr.py", files).startswith("did you mean mod00012_layer.py, ")
    assert nearest_hint("x" * 100_000, ["y" * 100_000, "x" * 99_999]) == f"did you mean {'x' * 99_999}?"


@given(glob=st.text("ab*?", max_size=8), name=st.text("ab\n", max_size=10))
def test_a_glob_matches_what_its_stars_and_question_marks_can_be(glob: str, name: str) -> None:
    regex = "".join({"*": ".*", "?": "."}.get(char, char) for char in glob)
    assert Pattern.parse(glob).matches(name) == bool(re.fullmatch(regex, name, re.DOTALL))


@given(
    patterns=st.lists(
        st.one_of(st.text("ab.|\\", max_size=4), st.text("ab.[|", max_size=4).map(re.escape)), max_size=4
    ),
    names=st.lists(st.text("ab.[|", max_size=3), min_size=1, max_size=2),
)
def test_the_first_pattern_of_many_is_that_which_is_tried_first(patterns: list[str], names: list[str]) -> None:
    parsed = [Pattern.parse(f"re:{each}") for each in patterns if _is_regex(each)]
    tried = ((number, each.regex.fullmatch(name)) for number, each in enumerate(parsed) for name in names)
    expected = next(((number, found.group()) for number, found in tried if found), None)
    found = FirstPattern(parsed).match(*names)
    assert (found and (found[0], found[1].group())) == expected


def _is_regex(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def test_of_as_many_patterns_as_names_that_are_names_one_is_tried_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    names, tried = [f"layer[{number}].w|b" for number in range(100)], list[str]()
    first = FirstPattern([Pattern.parse(f"re:{re.escape(each)}|{re.escape(each)}/m") for each in names])
    fullmatch = BoundedRegex.fullmatch
    monkeypatch.setattr(BoundedRegex, "fullmatch", lambda self, text: (tried.append(text), fullmatch(self, text))[1])
    assert [first.match(each + part)[0] for part in ("", "/m") for each in names] == [*range(100)] * 2  # pyright: ignore[reportOptionalSubscript]
    assert len(tried) == 200


def test_dots_that_nobody_escaped_cost_no_further_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    names, tried = [f"layer.{number}.w" for number in range(100)], list[str]()
    first = FirstPattern([Pattern.parse(f"re:{each}") for each in [*names, "layer.1..w"]])
    fullmatch = BoundedRegex.fullmatch
    monkeypatch.setattr(BoundedRegex, "fullmatch", lambda self, text: (tried.append(text), fullmatch(self, text))[1])
    found = map(first.match, [*names, "layer/7/w", "layer.1xyw", "layer.1\nyw"])
    assert [each and each[0] for each in found] == [*range(100), 7, 100, None]
    assert len(tried) == 102


def test_a_long_name_and_many_stars_take_no_time() -> None:
    pattern = Pattern.parse(f"{'*a' * 12}*b")
    begin = time.process_time()
    assert not pattern.matches("a" * 20_000)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("regex", ["(" * 5_000 + ")" * 5_000, "a{4294967296}"])
def test_what_the_engine_cannot_compile_is_no_regular_expression(regex: str) -> None:
    with pytest.raises(UsageError, match=r"is not a regular expression: .*(nested|too large)"):
        Pattern.parse(f"re:{regex}")


@pytest.mark.parametrize(
    ("regex", "replacement", "text"),
    [
        ("(.*)", "\\1" * 3000, "ab"),
        ("(?=(.*))", "\\1", "a" * 100),
        ("(a*)", "\\1" * 10**6, "a" * 10**6),
        ("^", "x" * 4097, ""),
    ],
)
def test_a_replacement_that_makes_names_of_any_length_is_refused(regex: str, replacement: str, text: str) -> None:
    with pytest.raises(UsageError, match="makes more than"):
        BoundedRegex(regex).sub(replacement, text)


@pytest.mark.parametrize("text", ["a.b" * 1000, "b" * 5000, "ab." * 3000])
def test_long_names_are_replaced_as_python_does(text: str) -> None:
    for regex, replacement in ((r"(a)\.(b)", r"\2/\1"), ("b+", ""), ("(x)?a", r"\1")):
        assert BoundedRegex(regex).sub(replacement, text) == re.sub(regex, replacement, text)
    with pytest.raises(re.error):
        BoundedRegex("x").sub("\\1", text)


@pytest.mark.parametrize(
    ("regex", "replacement", "renamed"),
    [(".*", "x", "x"), ("a*", "-", "-.-b-"), ("(.*)", r"\1/w", "aa.b/w"), ("$", "/w", "aa.b/w"), ("b?$", "c", "aa.c")],
)
def test_the_end_of_a_match_is_not_another_one(regex: str, replacement: str, renamed: str) -> None:
    assert BoundedRegex(regex).sub(replacement, "aa.b") == renamed


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_regular_expression_that_takes_for_ever_ends_with_a_message(
    in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_regex, "_SECONDS", 0.1)
    before = signal.getsignal(signal.SIGALRM)
    pattern = Pattern.parse("re:(p+)+(p+)+x")
    started = time.process_time()

    def match() -> None:
        with pytest.raises(UsageError, match=r"the regular expression '\(p\+\)\+\(p\+\)\+x' takes more than 0\.1 s"):
            pattern.matches("p" * 60)
        with pytest.raises(UsageError, match="takes more than"):
            BoundedRegex("(p+)+(p+)+x").sub("", "p" * 60)
        with pytest.raises(UsageError, match="takes more than"):
            pattern.matches("ppppx")  # its time is over
        assert BoundedRegex("(p+)+x").sub("\\1", "a ppx") == "a pp"

    if in_thread:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(match).result(timeout=30)
    else:
        match()
    assert time.process_time() - started < 2
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("(a|aa)+", "a" * 100 + "b"),
        ("a?" * 40 + "a" * 40, "a" * 40 + "b"),
        ("(?:a|a)" * 40, "a" * 39 + "b"),
        (r"\(?" * 40 + r"\(" * 40, "(" * 40 + "b"),
        (r"(a*)\1b", "a" * 400_000),
    ],
)
def test_an_expression_without_two_repetitions_may_take_for_ever_as_well(
    regex: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_regex, "_SECONDS", 0.1)
    with pytest.raises(UsageError, match=r"takes more than 0\.1 s"):
        BoundedRegex(regex).fullmatch(text)


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("expressions", [1, 1000])
def test_what_takes_long_for_each_name_or_for_each_of_a_files_expressions_ends_with_a_message(
    expressions: int, *, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_regex, "_SECONDS", 0.2)
    together = MatchingTime()
    patterns = [Pattern.parse("re:(p+)+x", together) for _ in range(expressions)]

    def match() -> None:
        for _ in range(10**6):
            for pattern in patterns:
                pattern.matches("p" * 16)  # 5 ms

    begin = time.process_time()
    with ThreadPoolExecutor(1) as threads, pytest.raises(UsageError, match=r"more than 0\.2 s, at 'pppp"):
        threads.submit(match).result(timeout=30) if in_thread else match()
    assert time.process_time() - begin < 2


@pytest.mark.slow
def test_very_many_matches_of_the_usual_kind_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_regex, "_SECONDS", 0.05)
    pattern = Pattern.parse(r"re:(?:encoder|decoder)/(\d+)/.*kernel|.*bias")
    begin = time.thread_time()
    while time.thread_time() - begin < 0.3:
        assert not pattern.matches("decoder/layer/attention/kernel_of_query")


def test_a_process_that_was_forked_tries_expressions_of_its_own_and_holds_up_no_ending() -> None:
    """It is forked while another thread tries one, and lives on when the program ends; SIGALRM is ignored besides."""
    program = """
import os, signal, sys, threading, time
from gradscope.naming.selecting import bounded_regex
signal.signal(signal.SIGALRM, signal.SIG_IGN)
bounded_regex._SECONDS = 0.5
def match(text):
    try:
        print(bool(bounded_regex.BoundedRegex("(p+)+x").fullmatch(text)), file=sys.stderr, flush=True)
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
def start(text):
    thread = threading.Thread(target=match, args=[text])
    thread.start()
    return thread
start("px").join()
slow = start("p" * 60)
time.sleep(0.1)
child = os.fork()
if child == 0:
    start("px").join()
    os.closerange(1, 3)
    time.sleep(20)
    os._exit(0)
slow.join()
start("px").join()
print(child)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15, check=True)
    os.kill(int(done.stdout), signal.SIGKILL)
    assert sorted(done.stderr.splitlines())[:3] == ["True"] * 3
    assert "takes more than 0.5 s" in done.stderr


def test_a_timer_that_a_program_uses_itself_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_regex, "_SECONDS", 60.0)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        assert Pattern.parse("re:(p+)+(p+)+x").matches("p" * 12 + "x")
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
