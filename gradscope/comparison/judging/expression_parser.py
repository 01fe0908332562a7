"""`parse_expression` parses a tolerance by recursive descent: one method per line of the grammar in `expressions`."""

from __future__ import annotations

import math
import re
from typing import Final

from gradscope.comparison.judging.expressions import (
    NAMES,
    OPERATORS,
    Conjunction,
    Disjunction,
    Expression,
    Limit,
    Negation,
)
from gradscope.errors import UsageError
from gradscope.naming import printable
from gradscope.naming.selecting.nearest_names import nearest_hint

_WORDS: Final = ("and", "or", "not")
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}

#: How deep parentheses and negations may be nested; deeper nesting would exhaust the stack.
_DEEPEST: Final = 50

# Metrics come first, because `1-cos` begins like a number.
_TOKEN: Final = re.compile(
    rf"\s*({'|'.join(map(re.escape, sorted(NAMES, key=len, reverse=True)))})(?!\w)"
    r"|\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
    rf"|\s*({'|'.join(OPERATORS)}|[()]|[^\W\d][\w-]*)"
)


def parse_expression(text: str) -> Expression:
    """Returns the expression of a text; a number by itself means `rel_l2 <= number`.

    Raises:
        UsageError: The text is not an expression; the message names what was found and what was expected.
    """
    tokens = _tokens(text)
    if len(tokens) == 1 and _is_number(tokens[0]):
        return Limit("rel_l2", "<=", _number(tokens[0]))
    parser = _Parser(text, tokens)
    expression = parser.expression()
    parser.expect_end()
    return expression


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise _wrong(text, f"found {printable(text[position:].strip())!r}")
        tokens.append(found.group().strip())
        position = found.end()
    return tokens


class _Parser:
    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text = text
        self._tokens = [*tokens, ""]
        self._position = 0
        self._depth = 0

    def expression(self) -> Expression:
        found = [self._term()]
        while self._accept("or"):
            found.append(self._term())
        return found[0] if len(found) == 1 else Disjunction(found)

    def expect_end(self) -> None:
        if self._next:
            raise self._unexpected("'and', 'or' or the end")

    def _term(self) -> Expression:
        found = [self._factor()]
        while self._accept("and"):
            found.append(self._factor())
        return found[0] if len(found) == 1 else Conjunction(found)

    def _factor(self) -> Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _wrong(self._text, f"it is nested more than {_DEEPEST} deep")
        found = self._nested()
        self._depth -= 1
        return found

    def _nested(self) -> Expression:
        if self._accept("not"):
            return Negation(self._factor())
        if not self._accept("("):
            return self._comparison()
        found = self.expression()
        if not self._accept(")"):
            raise self._unexpected("')'")
        return found

    def _comparison(self) -> Expression:
        if _is_number(self._next):
            number, operator = _number(self._take()), self._operator()
            return Limit(self._metric(), _MIRRORED[operator], number)
        metric = self._metric()
        if metric == "bit_equal":
            return Limit(metric, "==", 1)
        operator = self._operator()
        if not _is_number(self._next):
            raise self._unexpected("a number")
        return Limit(metric, operator, _number(self._take()))

    def _metric(self) -> str:
        name = self._next
        if name not in NAMES:
            if name and name not in _WORDS and name[0].isalpha():
                raise UsageError(
                    f"there is no metric {name!r} in {printable(self._text)!r}", hint=nearest_hint(name, NAMES)
                )
            raise self._unexpected("a metric")
        return self._take()

    def _operator(self) -> str:
        if self._next not in OPERATORS:
            raise self._unexpected(f"one of {' '.join(OPERATORS)}")
        return self._take()

    @property
    def _next(self) -> str:
        return self._tokens[self._position]

    def _take(self) -> str:
        self._position += 1
        return self._tokens[self._position - 1]

    def _accept(self, token: str) -> bool:
        if self._next != token:
            return False
        self._position += 1
        return True

    def _unexpected(self, expected: str) -> UsageError:
        return _wrong(
            self._text, f"expected {expected}, found {self._next!r}" if self._next else f"expected {expected}"
        )


def _wrong(text: str, problem: str) -> UsageError:
    return UsageError(
        f"{printable(text)!r} is not a tolerance: {problem}",
        hint="write a number, or metrics with limits: 'rel_l2 < 1e-4 and max_abs < 1'",
    )


def _is_number(token: str) -> bool:
    return token not in NAMES and (token[:1].isdigit() or token[:1] == ".")


def _number(token: str) -> float:
    number = float(token)
    if math.isinf(number):
        raise UsageError(f"{token} is too large a tolerance", hint="leave the tensors out with --exclude instead")
    return number
