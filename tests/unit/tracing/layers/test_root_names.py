"""A root's name is left out of the names of the layers inside it where those of its parameters are without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.frameworks.functions_of_modules import FunctionsOfModules
from gradscope.tracing.layers import root_names
from gradscope.tracing.tracer import Trace, trace_loss
from tests.support.data import evenly

X = evenly(-1.0, 1.0, 3, 3)
W = evenly(-1.0, 1.0, 3, 3)
NET = {"fc1": {"kernel": W}, "fc2": {"kernel": W}}


@pytest.fixture(autouse=True)
def _frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scopes here stand for those that a framework opens."""
    monkeypatch.setattr(root_names, "is_in_module", lambda _: True)


def called(root: str, params: Any, x: Any, parts: Sequence[str] = ("fc1", "fc2")) -> Any:
    """A network of dense layers, with something of its own, as a framework would run it: in scopes of the modules."""
    with jax.named_scope(root):
        for part in parts:
            with jax.named_scope(part):
                x = x @ params[part]["kernel"]
        return jnp.sin(x)


def traced(function: Callable[[Any, Any], Any], params: Any, *, operations: bool = False) -> Trace:
    return trace_loss(lambda params, x: function(params, x).sum(), params, X, operations=operations)


def names(function: Callable[[Any, Any], Any], params: Any) -> list[str]:
    """The names of the layers, which are the same where operations are looked at, too."""
    found, every = (
        [layer.path.template for layer in traced(function, params, operations=operations).layers if not layer.operation]
        for operations in (False, True)
    )
    assert found == every
    assert len(set(found)) == len(found)
    return found


def test_layers_are_named_as_their_parameters_and_the_root_keeps_its_name() -> None:
    assert names(lambda p, x: called("Net", p, x), NET) == ["Net", "fc1", "fc2"]


def test_a_scope_that_no_framework_has_opened_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    expected = ["Net", "Net/fc1", "Net/fc2"]
    assert names(lambda p, x: called("Net", p, x), NET) == expected
    # As where the user has imported a framework whose modules the loss may take.
    own = FunctionsOfModules(lambda _: NET, lambda p, x: called("Net", p, x))
    assert names(own.loss, own.init(None)) == expected


def test_operations_in_no_layer_inside_keep_the_roots_name() -> None:
    trace = traced(lambda p, x: called("Net", p, x), NET, operations=True)
    operations = {layer.path.template: layer.parent and layer.parent.path.template for layer in trace.layers}
    assert operations.items() >= {"Net/sin": "Net", "fc1/dot_general": "fc1", "fc1": "Net"}.items()
    assert "Net/dot_general" not in operations


def test_a_layer_with_the_name_of_an_operation_outside_keeps_it() -> None:
    def function(params: Any, x: Any) -> Any:
        return called("Net", params, jnp.tanh(x), ("tanh",))

    params = {"tanh": {"kernel": W}}
    assert names(function, params) == ["Net", "tanh"]
    operations = {layer.path.template for layer in traced(function, params, operations=True).layers if layer.operation}
    assert "tanh#2" in operations


@pytest.mark.parametrize("wrapped", [jax.jit, jax.checkpoint, lambda f: jax.vmap(f, in_axes=(None, 0))])
def test_it_is_left_out_inside_transformations(wrapped: Callable[..., Any]) -> None:
    assert names(wrapped(lambda p, x: called("Net", p, x)), NET) == ["Net", "fc1", "fc2"]


def test_parameters_may_be_converted_first() -> None:
    def half(params: Any, x: Any) -> Any:
        params, x = jax.tree.map(lambda each: each.astype(jnp.bfloat16), (params, x))
        return called("Net", params, x).astype(jnp.float32)

    assert names(half, NET) == ["Net", "fc1", "fc2"]


def test_iterations_of_the_root_are_those_of_the_layers_inside() -> None:
    def scanned(params: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (called("Net", params, x), None), x, length=2)[0]

    def scanning(params: Any, x: Any) -> Any:
        with jax.named_scope("Net"):
            return jax.lax.scan(lambda x, _: (called("block", params["block"], x), None), x, length=2)[0]

    assert names(scanned, NET) == ["Net[*]", "fc1[*]", "fc2[*]"]
    assert names(scanning, {"block": NET}) == ["Net", "Net[*]", "block[*]", "block[*]/fc1", "block[*]/fc2"]


def test_a_root_that_is_called_again_has_numbered_calls() -> None:
    again = names(lambda p, x: called("Net", p, called("Net", p, x)), NET)
    assert again == ["Net", "fc1", "fc2", "Net#2", "fc1#2", "fc2#2"]


def test_methods_are_scopes_of_their_root() -> None:
    def in_a_call(params: Any, x: Any) -> Any:
        with jax.named_scope("Net"):
            return called("Net.decode", params, called("Net.encode", params, x, ["fc1"]), ["fc2"])

    def one_by_one(params: Any, x: Any) -> Any:
        return called("Net.decode", params, called("Net.encode", params, x, ["fc1"]), ["fc2"])

    assert names(in_a_call, NET) == ["Net", "Net/Net.encode", "fc1", "Net/Net.decode", "fc2"]
    assert names(one_by_one, NET) == ["Net.encode", "fc1", "Net.decode", "fc2"]


def test_it_stays_where_the_parameters_have_it_or_have_other_names() -> None:
    assert names(lambda p, x: called("net", p["net"], x), {"net": NET}) == ["net", "net/fc1", "net/fc2"]
    assert names(lambda p, x: called("Net", p["a"], x), {"a": NET}) == ["Net", "Net/fc1", "Net/fc2"]


def test_a_scope_of_the_users_around_layers_of_other_names_stays() -> None:
    def scoped(params: Any, x: Any) -> Any:
        with jax.named_scope("Net"), jax.named_scope("part"):
            return x @ params["fc1"]["kernel"]

    assert names(scoped, NET) == ["Net", "Net/part"]


def test_each_of_two_roots_is_held_to_its_own_parameters() -> None:
    def both(params: Any, x: Any) -> Any:
        return called("Generator", params, x) + called("Critic", params["critic"], x)

    assert names(both, {**NET, "critic": NET}) == [
        "Generator", "fc1", "fc2", "Critic", "Critic/fc1", "Critic/fc2"
    ]  # fmt: skip


@pytest.mark.parametrize("teacher", ["constant", "state", "parameters"])
def test_it_stays_on_a_student_and_a_teacher_of_one_class(teacher: str) -> None:
    def distilled(variables: Any, x: Any) -> Any:
        taught = (
            NET if teacher == "constant" else variables["params"]["t"] if teacher == "parameters" else variables["t"]
        )
        return called("Net", variables["params"], x) - called("Net", taught, x)

    variables = {"params": {**NET, "t": NET} if teacher == "parameters" else NET, "t": NET}
    assert names(distilled, variables) == ["Net", "Net/fc1", "Net/fc2", "Net#2", "Net/fc1#2", "Net/fc2#2"]


def test_it_stays_where_a_layer_inside_has_the_name_of_another_root() -> None:
    def nested(params: Any, x: Any) -> Any:
        with jax.named_scope("Net"):
            x = called("critic", params["critic"], x)
        return called("critic", params["other"], x)

    assert names(nested, {"critic": NET, "other": NET}) == [
        "Net", "Net/critic", "Net/critic/fc1", "Net/critic/fc2", "critic", "critic/fc1", "critic/fc2"
    ]  # fmt: skip
    assert names(lambda p, x: called("fc1", p, x), NET) == ["fc1", "fc1/fc1", "fc1/fc2"]


def test_it_stays_on_two_roots_with_layers_of_one_name() -> None:
    def both(first: str, second: str) -> Callable[[Any, Any], Any]:
        return lambda params, x: called(second, params, called(first, params, x))

    assert names(both("block1", "block2"), NET) == [
        "block1", "block1/fc1", "block1/fc2", "block2", "block2/fc1", "block2/fc2"
    ]  # fmt: skip
    assert names(both("Net.encode", "Net.decode"), NET) == [
        "Net.encode", "fc1", "fc2", "Net.decode", "fc1#2", "fc2#2"
    ]  # fmt: skip


def test_it_stays_where_other_outermost_scopes_are_those_of_the_tree() -> None:
    def grouped(params: Any, x: Any) -> Any:
        with jax.named_scope("embed"):
            x = x @ params["embed"]["table"]
        return called("blocks", params, x)

    assert names(grouped, {**NET, "embed": {"table": W}}) == ["embed", "blocks", "blocks/fc1", "blocks/fc2"]
