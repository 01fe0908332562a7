"""Content is the JSON of what it is made of, and is in memory once."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradscope.presentation import html_parts
from gradscope.presentation.page.content import streamed_json
from gradscope.presentation.page.content.streamed_json import encoded
from gradscope.presentation.page.page_parts import Page

_SIZE_BYTES = 4


def decoded(items: dict[str, Any], packed: bytes = b"") -> tuple[Any, bytes]:
    """The JSON, and the packed numbers."""
    content = gzip.decompress(base64.b64decode("".join(encoded(items.items(), packed))))
    size = int.from_bytes(content[-_SIZE_BYTES:], "little")
    return json.loads(content[:size]), content[size:-_SIZE_BYTES]


def complete(value: Any) -> Any:
    """A value with lists in place of iterators."""
    if isinstance(value, dict):
        return {name: complete(each) for name, each in value.items()}
    return [*map(complete, value)] if isinstance(value, Iterator | list) else value


def mixed(count: int) -> Iterator[Any]:
    """Items that are complete, and some that have yet to be made, one by one and next to each other."""
    for at in range(count):
        yield at
        yield [at, None, "é\u2028</script>"]
        if at % 300 == 0:
            yield {"name": str(at), "parts": iter([1.5, iter([]), True])}
            yield iter([iter([at]), {}])


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1_000])
def test_the_json_is_that_of_the_items(count: int) -> None:
    found = decoded({"items": mixed(count), "empty": iter(()), "number": 0.1}, b"packed")
    assert found == (complete({"items": mixed(count), "empty": [], "number": 0.1}), b"packed")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        decoded({"items": iter([0.0, float("nan")])})


def test_a_page_is_once_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_json, "_PART", 1 << 14)

    def page(texts: int) -> Page:
        random = np.random.default_rng(0)
        noise = (random.bytes(50).hex() for _ in range(texts))
        return Page(kind="dump", title="a.npz", summary=[], content=[("noise", noise)])

    html_parts(lambda _: page(1))  # what is loaded once
    tracemalloc.start()
    try:
        made = sum(map(len, html_parts(lambda _: page(60_000))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * made
