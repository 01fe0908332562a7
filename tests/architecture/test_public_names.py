"""What `import gradscope` offers."""

from __future__ import annotations

from types import FunctionType

import pytest

import gradscope


@pytest.mark.parametrize("name", ["capture", "compare", "load", "save", "tensor_stats", "value_and_grad"])
def test_a_public_name_is_a_function(name: str) -> None:
    assert isinstance(getattr(gradscope, name), FunctionType)


def test_every_public_name_is_there_and_listed() -> None:
    assert set(dir(gradscope)) == set(gradscope.__all__)
    assert all(getattr(gradscope, name) is not None for name in gradscope.__all__)


def test_any_other_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gradscope.nothing
