"""The law of names: wherever several names or patterns are taken, a string is a list of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import UsageError
from gradscope.naming import FAMILIES
from gradscope.presentation import Query
from tests.support.data import evenly, filled
from tests.support.sampled import sampled

W = {"first": filled(0.5, 3, 3), "second": filled(1.0, 3)}
X = evenly(0.0, 1.0, 2, 3)


def loss(variables: Any, x: Any) -> Any:
    with jax.named_scope("hidden"):
        x = jnp.tanh(x @ variables["first"])
    with jax.named_scope("out"):
        return (x @ variables["second"]).mean()


@cache
def captured() -> gs.Dump:
    return gs.capture(loss, W, X)


@cache
def changed() -> gs.Dump:
    return gs.capture(loss, {**W, "second": W["second"] * 2}, X, exclude=["param/first"])


def capture(**options: Any) -> Any:
    dump = gs.capture(loss, W, X, **options)
    return {key: dump[key].tobytes() for key in dump}


def value_and_grad(**options: Any) -> Any:
    _, seen = gs.value_and_grad(loss, observe="tensors", **options)(W, X)
    return {key: np.asarray(seen[key]).tobytes() for key in seen}


def gradients(**options: Any) -> Any:
    found = gs.gradients(loss, [W, X], **{"ys": ["out"], "xs": ["variables/first"], **options})
    return [each if each is None else np.asarray(each).tobytes() for each in found]


def compare(**options: Any) -> Any:
    return gs.compare(captured(), changed(), **options).to_json()


def table(**options: Any) -> Any:
    return captured().table(query=Query(**options))


#: Entry points, a parameter of each that takes several names, and one name for it.
CASES: list[tuple[Callable[..., Any], str, str]] = [
    *((entry, "select", "hidden") for entry in (capture, value_and_grad, compare, table)),
    *((entry, "exclude", "hidden*") for entry in (capture, value_and_grad, compare, table)),
    *((entry, "families", "param_grad") for entry in (capture, value_and_grad, table)),
    (capture, "stop_gradients", "hidden"),
    (capture, "fetch", "hidden"),
    (gradients, "ys", "hidden"),
    (gradients, "xs", "hidden"),
    (gradients, "stop_gradients", "hidden"),
    (compare, "allow_missing", "param/first"),
    (compare, "tol", ".*=rel_l2 < 10"),
]


@pytest.mark.slow
@sampled(("entry", "parameter", "name"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_a_string_is_a_list_of_one(entry: Callable[..., Any], parameter: str, name: str) -> None:
    found = entry(**{parameter: name})
    assert found == entry(**{parameter: [name]})
    assert found != entry()


@pytest.mark.parametrize("entry", [capture, value_and_grad, table], ids=lambda each: each.__name__)
def test_a_family_that_there_is_not_is_refused_with_the_nearest(entry: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="there is no family 'parm_grad'") as refused:
        entry(families=["param", "parm_grad"])
    assert "param_grad" in (refused.value.hint or "")


def test_every_family_is_known() -> None:
    assert table(families=[*FAMILIES, "slot/momentum"]) == table()
