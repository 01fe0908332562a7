"""JSON in a dump is standard, unambiguous, and bounded."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import tracemalloc

import pytest

from gradscope.dump.manifest import json_scan
from gradscope.dump.manifest.json_scan import CONTAINERS_LIMIT, DEPTH_LIMIT, VALUES_LIMIT
from gradscope.dump.manifest.json_text import as_float, dumps, from_float, loads
from gradscope.errors import DumpError


def test_numbers_that_json_lacks_are_strings() -> None:
    text = dumps({"a": [math.nan, {"b": math.inf}], "c": -math.inf, "d": 0.1})
    assert json.loads(text) == {"a": ["NaN", {"b": "Infinity"}], "c": "-Infinity", "d": 0.1}


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-320, 0.1, math.inf, -math.inf, math.nan])
def test_a_float_survives(value: float) -> None:
    found = as_float(loads(dumps(from_float(value))))
    assert found == value or (math.isnan(found) and math.isnan(value))
    assert math.copysign(1, found) == math.copysign(1, value)


def test_a_string_stays_a_string() -> None:
    assert loads('"NaN"') == "NaN"


@pytest.mark.parametrize("name", ["plain", "ünï", "\x00\x1b[2J", "\ud800", "𝄞", '"\\'])
def test_text_is_ascii_and_comes_back(name: str) -> None:
    assert dumps(name).isascii()
    assert loads(dumps(name).encode()) == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "NaN"),
        ("[-Infinity]", "Infinity"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a":1,"a":2}', "twice"),
        ('{"a" :1,"a":":"}', "twice"),
        ('[{"a":1,"a":":"}, ["b\\":"]]', "twice"),
        ('{"a": 1', "malformed"),
        ("1 2", "malformed"),
        ("", "malformed"),
        (b"\xff", "malformed"),
        ("1" * 5000, "malformed"),
        ("[" * (DEPTH_LIMIT + 1) + "]" * (DEPTH_LIMIT + 1), "deep"),
        ("[" * 1_000_000, "deep|malformed"),
        ("[" + "[]," * CONTAINERS_LIMIT + "[]]", "more than"),
        ('[{"block[1]":{}}' + ', {"":"[["}' * (CONTAINERS_LIMIT // 2 + 1) + ",{" * CONTAINERS_LIMIT, "more than"),
        ("[" + "0," * (VALUES_LIMIT + 1) + "0]", "more than"),
        ("[" + "]" * (3 * CONTAINERS_LIMIT), "malformed"),
        ('["\\\\","\\"",' + "[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT + "]", "deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "deep"),
    ],
)
def test_what_is_not_strict_json_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(DumpError, match=problem):
        loads(text)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["}", ', "a": 1}', ""])
def test_nothing_that_was_parsed_stays_until_a_search_for_cycles(end: str) -> None:
    text = '{"a": [{"b": [' + "1.5, " * 100_000 + "1.5]}]" + end
    gc.disable()
    tracemalloc.start()
    try:
        with contextlib.suppress(DumpError):
            loads(text)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
        gc.enable()


def test_the_depth_limit_itself_is_allowed() -> None:
    assert loads("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT)


@pytest.mark.parametrize("value", [None, True, "nan", [], {}, 10**400])
def test_only_numbers_are_numbers(value: object) -> None:
    with pytest.raises(DumpError, match="number"):
        as_float(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["[[{[", ']]"[[', '"', "\\", '\\"[', "]", 'a\\\\"{"', "\n[é[☃"])
def test_brackets_and_quotes_in_texts_are_not_deep(text: str) -> None:
    value = {text * DEPTH_LIMIT: [text * DEPTH_LIMIT, {"a": text, text: text}]}
    for ascii_only in (True, False):
        assert loads(json.dumps(value, ensure_ascii=ascii_only)) == value


@pytest.mark.parametrize("part", range(1, 6))
def test_brackets_in_texts_are_not_deep_wherever_the_text_is_cut(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scan, "_PART", part)
    for backslashes in range(5):
        text = "\\" * backslashes + '"['
        assert loads(json.dumps([text * DEPTH_LIMIT, text])) == [text * DEPTH_LIMIT, text]
        assert json_scan.open_brackets(json.dumps([[text, {"a": text}]]).encode()[:-1]) == 1


@pytest.mark.slow
def test_brackets_in_names_are_no_containers() -> None:
    names = ["block[3]/attn[0]/{q}"] * (CONTAINERS_LIMIT // 2)
    assert loads(json.dumps(names)) == names
