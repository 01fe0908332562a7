"""Signatures in messages have what their reader can type, and no addresses of objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.naming.signature_text import parameter_text, signature_text


def _of_literals(width: int, depth: int = 2, *, name: str | None = None, sizes: tuple[int, ...] = (3, 3)) -> None: ...


def _of_objects(
    dtype: Any = jnp.float32, *, act: Any = jax.nn.relu, marker: Any = object(), rule: Any = lambda x: x,  # noqa: B008
    scale: Any = np.zeros((200, 200)), inner: Any = (object(),),  # noqa: B008
) -> None: ...  # fmt: skip


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_of_literals, "(width, depth=2, *, name=None, sizes=(3, 3))"),
        (_of_objects, "(dtype=float32, *, act=relu, marker=..., rule=..., scale=..., inner=...)"),
    ],
)
def test_defaults_are_literals_names_or_dots(function: Callable[..., None], text: str) -> None:
    assert signature_text(inspect.signature(function)) == text


def test_a_parameter_is_written_as_in_its_signature() -> None:
    parameters = inspect.signature(_of_objects).parameters
    assert [parameter_text(parameters[name]) for name in ("act", "marker")] == ["act=relu", "marker=..."]
