"""A name that is too long for its column keeps what tells it from others: what it is, its block, and its last part."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from gradscope.presentation.render.screen import Screen

NAME = "update/encoder_transformer_block_1/multi_head_self_attention/query/bias"


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        (NAME, 80, NAME),
        (NAME, 47, "update/encoder_transformer_block_1/…/query/bias"),
        (NAME, 39, "update/…_1/…/query/bias"),
        (NAME, 20, "update/…_1/…/bias"),
        (NAME, 15, "update/…/bias"),
        ("param/blocks[0..11]/multi_head_attention/query/kernel", 40, "param/blocks[0..11]/…/query/kernel"),
        ("param_grad/blocks/[0..1]/attention/query/bias", 40, "param_grad/…/[0..1]/attention/query/bias"),
        ("param_grad/blocks/[0..1]/attention/query/bias", 30, "param_grad/blocks/…/query/bias"),
        ("param_grad/blocks/[3]/attention/query/bias", 30, "param_grad/…/[3]/…/query/bias"),
        ("activation_grad/token_embedding_table", 30, "activation_gra…embedding_table"),
        ("a_name_without_any_scope_at_all", 20, "a_name_wi…ope_at_all"),
    ],
)
def test_a_long_name(name: str, width: int, expected: str) -> None:
    shown = Screen(unicode=True).elide(name, width)
    assert cell_len(shown) <= width
    assert shown == expected


@pytest.mark.parametrize("width", range(25))
def test_a_narrow_column_is_never_exceeded(width: int) -> None:
    for name in (NAME, "一二三/四五六/七八九十", "a/b", "a/[0]/[1]/[2]", "/"):
        for unicode in (True, False):
            assert cell_len(Screen(unicode=unicode).elide(name, width)) <= width
