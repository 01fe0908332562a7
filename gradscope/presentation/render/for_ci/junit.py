"""JUnit's XML has what a comparison judged as cases of tests, as systems of continuous integration read it.

A tensor is a case, a comparison a suite. A case that fails says why in its message.

References:
    https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable
from xml.sax.saxutils import escape, quoteattr

from gradscope.naming import printable

#: How a case of a test ended.
Ending = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A `Case` is one case of a test.

    Attributes:
        group: What it belongs to, such as a family of tensors.
        name: Its name.
        ending: How it ended.
        why: Why it did not pass.
        kind: A word for that, such as the status of a tensor.
    """

    group: str
    name: str
    ending: Ending = "passed"
    why: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A `Suite` is the cases of one comparison.

    Attributes:
        name: What was compared.
        sentence: Its verdict as a sentence.
        verdict: `same`, `different` or `nothing compared`.
        cases: Its cases.
    """

    name: str
    sentence: str
    verdict: str
    cases: Sequence[Case]


@runtime_checkable
class JudgedReport(Protocol):
    """A `JudgedReport` is a report that can be shown as tests."""

    def suites(self) -> Sequence[Suite]:
        """Returns a suite for each comparison."""
        ...


def junit_text(suites: Iterable[Suite]) -> str:
    """Returns suites as JUnit's XML.

    Args:
        suites: The suites. One that did not pass, though each of its cases did, has its verdict as one more case.
    """
    written = [(each, _all_cases(each)) for each in suites]
    counts = _counts([case for _, cases in written for case in cases])
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="gradscope" {counts}>']
    for suite, cases in written:
        lines.append(f"  <testsuite name={_quoted(suite.name)} {_counts(cases)} skipped={_number(cases, 'skipped')}>")
        lines.extend(_case(each) for each in cases)
        lines += [f"    <system-out>{escape(_characters(suite.sentence))}</system-out>", "  </testsuite>"]
    return "\n".join([*lines, "</testsuites>", ""])


def _all_cases(suite: Suite) -> list[Case]:
    return [*suite.cases, *_verdict_case(suite)]


def _verdict_case(suite: Suite) -> Iterator[Case]:
    """Yields the verdict of a suite that did not pass, where no case says so: a job would take it for a success."""
    if suite.verdict == "same" or any(each.ending in ("failure", "error") for each in suite.cases):
        return
    ending: Ending = "failure" if suite.verdict == "different" else "error"
    yield Case(group="comparison", name="verdict", ending=ending, why=suite.sentence, kind=suite.verdict)


def _case(case: Case) -> str:
    begin = f"    <testcase classname={_quoted(case.group)} name={_quoted(case.name)}"
    if case.ending == "passed":
        return f"{begin}/>"
    type_of = f" type={_quoted(case.kind)}" if case.ending != "skipped" else ""
    text = "" if case.ending == "skipped" else escape(_characters(case.why))
    return f"{begin}><{case.ending}{type_of} message={_quoted(case.why)}>{text}</{case.ending}></testcase>"


def _counts(cases: Sequence[Case]) -> str:
    failures, errors = _number(cases, "failure"), _number(cases, "error")
    return f'tests="{len(cases)}" failures={failures} errors={errors}'


def _number(cases: Sequence[Case], ending: Ending) -> str:
    return f'"{sum(each.ending == ending for each in cases)}"'


def _quoted(text: str) -> str:
    return quoteattr(_characters(text))


def _characters(text: str) -> str:
    # A name comes from a file, and control characters cannot be written in XML, not even escaped; nor can these two.
    return printable(text).replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")
