"""How inputs find a module's parameters, and which of them say that it trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.errors import UsageError
from gradscope.frameworks.modules.calling import call_shape, method_signature, parameters_to_build
from gradscope.frameworks.modules.input_spec import parse_input
from gradscope.frameworks.modules.module_scopes import module_scope


def one(x: Any, mask: Any = None, *, train: bool = False) -> Any: ...
def many(*args: Any, **kwargs: Any) -> Any: ...
def quiet(x: Any, deterministic: bool, key: Any) -> Any: ...


def arguments(function: Callable[..., Any], *texts: str, train: bool = True, supplied: tuple[str, ...] = ()) -> Any:
    """What `function` is called with, inputs standing for themselves by name."""
    specs = [parse_input(text) for text in texts]
    shape, inputs = call_shape("net", inspect.signature(function), specs, train=train, supplied=supplied)
    return shape.arguments({name: name for name in inputs})


@pytest.mark.parametrize(
    ("function", "texts", "train", "expected"),
    [
        (one, ("int8[1]",), True, (("x",), {"train": True})),
        (one, ("int8[1]",), False, (("x",), {"train": False})),
        (one, ("int8[1]", "mask=int8[1]"), True, (("x",), {"train": True, "mask": "mask"})),
        (one, ("int8[1]", "int8[1]"), True, (("x", "mask"), {"train": True})),
        (one, ("x=int8[1]",), True, ((), {"train": True, "x": "x"})),
        (one, ("int8[1]", "train=bool[]"), True, (("x",), {"train": "train"})),
        (many, ("int8[1]", "int8[1]", "z=int8[1]"), True, (("0", "1"), {"z": "z"})),
        (many, ("g/a=int8[1]", "g/b=int8[1]"), True, ((), {"g": {"a": "g/a", "b": "g/b"}})),
    ],
)
def test_inputs_go_by_position_or_by_name_and_flags_follow_the_mode(
    function: Callable[..., Any], texts: tuple[str, ...], train: bool, expected: Any
) -> None:
    assert arguments(function, *texts, train=train) == expected


def test_a_parameter_that_an_adapter_supplies_is_no_input() -> None:
    assert arguments(quiet, "int8[1]", supplied=("key",)) == (("x",), {"deterministic": False})
    with pytest.raises(UsageError, match=r"^net takes \(x, deterministic, key\), and received int8\[1\]"):
        arguments(quiet, "int8[1]")


@pytest.mark.parametrize(
    "texts", [(), ("mask=int8[1]",), ("int8[1]",) * 3, ("int8[1]", "x=int8[1]"), ("int8[1]", "y=int8[1]")]
)
def test_inputs_that_do_not_fit_are_refused_with_the_signature(texts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"^net takes \(x, mask=None, \*, train=False\), and received "):
        arguments(one, *texts)


def test_a_class_is_inspected_by_its_init_and_a_method_without_self() -> None:
    class Hidden(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any: ...

    class Net(metaclass=Hidden):
        def __init__(self, width: int, *, rngs: Any) -> None: ...
        def __call__(self, x: Any) -> Any: ...

    assert "rngs" in parameters_to_build(Net)
    assert "train" in parameters_to_build(one)
    assert parameters_to_build("one") == ()
    assert str(method_signature(vars(Net)["__call__"])) == "(x: 'Any') -> 'Any'"


def scopes_of(*paths: str) -> list[str]:
    """The name stack inside module scopes that are opened one in the other, after each."""

    def function(x: Any) -> Any:
        return opened(x, paths)

    def opened(x: Any, rest: tuple[str, ...]) -> Any:
        if not rest:
            return x
        with module_scope(rest[0]):
            return opened(jnp.sin(x), rest[1:])

    return [str(equation.source_info.name_stack) for equation in jax.make_jaxpr(function)(1.0).eqns]


def test_a_module_is_named_relative_to_the_one_that_calls_it() -> None:
    assert scopes_of("Net", "Net/blocks/0", "Net/blocks/0/fc") == ["Net", "Net/blocks/0", "Net/blocks/0/fc"]
    assert scopes_of("Net", "Net", "Net/fc") == ["Net", "Net", "Net/fc"]


def test_a_module_called_from_elsewhere_is_named_by_its_full_path() -> None:
    assert scopes_of("Net", "Net/decoder", "Net/encoder/embed") == [
        "Net", "Net/decoder", "Net/decoder///gradscope/1/Net/encoder/embed"
    ]  # fmt: skip


def test_scopes_are_closed_when_a_module_raises() -> None:
    with pytest.raises(KeyError), module_scope("Net"), module_scope("Net/fc"):
        raise KeyError
    assert scopes_of("Net/fc") == ["Net/fc"]
