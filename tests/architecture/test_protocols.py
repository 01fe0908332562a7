"""The mark of methods that a protocol documents."""

from __future__ import annotations

from typing import Protocol

import pytest

from gradscope.protocols import implements


class Speaker(Protocol):
    def speak(self) -> str: ...


def test_a_marked_method_is_as_it_was() -> None:
    def speak(_: object) -> str:
        return "yes"

    assert implements(Speaker)(speak) is speak


def test_a_method_that_the_protocol_lacks_is_refused() -> None:
    def shout(_: object) -> None: ...

    with pytest.raises(TypeError, match="Speaker has no shout"):
        implements(Speaker)(shout)
