"""Sentences name a line once."""

from __future__ import annotations

import pytest

from gradscope.naming.wording import place_behind


@pytest.mark.parametrize(
    ("text", "behind"),
    [
        ("is absent", " (ae.py:20)"),
        ("passes stop_gradient at ae.py:20", ""),
        ("passes stop_gradient (ae.py:20)", ""),
        ("passes stop_gradient at ae.py:201, round at vae.py:20 and at lib/ae.py:20", " (ae.py:20)"),
    ],
)
def test_a_line_is_written_behind_a_text_that_does_not_name_it(text: str, behind: str) -> None:
    assert place_behind(text, "ae.py:20") == behind
    assert place_behind(text, None) == ""
