"""Arguments are refused that are of another type than their annotations state, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
import pytest

from gradscope.errors import ArgumentTypeError
from gradscope.typed_arguments import typed


@typed("unchecked")
def of(
    *varied: int,
    text: str = "",
    path: str | os.PathLike[str] | None = None,
    whole: int = 0,
    index: SupportsIndex | Sequence[SupportsIndex] = 0,
    real: float = 0.0,
    truth: bool = False,
    names: str | Collection[str] = (),
    called: Callable[..., Any] = len,
    factors: Mapping[str, float] | None = None,
    values: Sequence[Any] | Mapping[str, Any] = (),
    word: Literal["a", "b"] = "a",
    anything: Any = None,
    unchecked: str = "",
    **others: int,
) -> int:
    """Returns the number of positional arguments."""
    return len(varied)


ACCEPTED: list[tuple[str, Any]] = [
    *[
        ("text", "x"),
        ("text", np.str_("x")),
        ("path", Path("x")),
        ("path", None),
        ("whole", np.int8(3)),
        ("whole", True),
    ],
    *[("index", (1, np.int64(2))), ("index", [0]), ("real", 1), ("real", np.float16(1)), ("real", Fraction(1, 2))],
    *[("real", np.ones(())), ("truth", np.bool_(True)), ("truth", 0), ("names", {"a"}), ("names", None), ("names", ())],
    *[("names", (each for each in "ab")), ("names", np.array(["a"])), ("called", str.upper), ("factors", {"a": 1})],
    *[("values", np.ones(2)), ("values", {"a": object()}), ("word", "c"), ("anything", object()), ("unchecked", 3)],
]

REFUSED: list[tuple[str, Any, str]] = [
    ("text", b"x", "a string"),
    ("path", b"x", "a string, a path or None"),
    ("whole", 1.0, "a whole number"),
    ("whole", "1", "a whole number"),
    ("index", "ab", "a whole number or a sequence of whole numbers"),
    ("real", "1", "a number"),
    ("real", 1j, "a number"),
    ("real", np.complex64(1), "a number"),
    ("real", Decimal(1), "a number"),
    ("real", np.ones(2), "a number"),
    ("truth", "no", "True or False"),
    ("truth", None, "True or False"),
    ("names", [1], "a string or a sequence of strings"),
    ("names", b"ab", "a string or a sequence of strings"),
    ("called", 3, "a function"),
    ("factors", {"a": "b"}, "a mapping of strings to numbers or None"),
    ("factors", {1: 1.0}, "a mapping of strings to numbers or None"),
    ("values", "ab", "a sequence or a mapping of strings"),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_what_the_annotation_states_is_accepted(name: str, value: Any) -> None:
    assert of(1, 2, **{name: value}) == 2


@pytest.mark.parametrize(("name", "value", "expected"), REFUSED)
def test_anything_else_is_refused_by_name(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        of(1, 2, **{name: value})
    assert str(refused.value).startswith(f"{name} is ")
    assert str(refused.value).endswith(f", expected {expected}")


def test_a_generator_is_left_to_the_function() -> None:
    @typed()
    def joined(names: Collection[str]) -> str:
        return "".join(names)

    assert joined(each for each in "ab") == "ab"  # type: ignore[arg-type]


def test_a_value_of_many_characters_is_named_by_its_type() -> None:
    with pytest.raises(ArgumentTypeError, match=r"^text is of type bytes, expected a string$"):
        of(text=b"x" * 1000)  # type: ignore[arg-type]


def test_a_value_controls_no_terminal() -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        of(whole="\x1b[2J\u202e")  # type: ignore[arg-type]
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


def test_a_call_that_python_refuses_is_refused_by_python() -> None:
    with pytest.raises(TypeError, match="positional"):
        typed()(lambda one: one)(1, 2)
