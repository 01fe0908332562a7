"""Layers and their names, found in a trace without help from any framework."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gradscope.tracing.jaxpr.frames import iterations
from gradscope.tracing.tracer import Trace, trace_loss
from tests.support.data import evenly

X = evenly(-1.0, 1.0, 2, 3)
W = evenly(-1.0, 1.0, 3, 3)


def under(name: str, function: Callable[..., Any], *values: Any) -> Any:
    with jax.named_scope(name):
        return function(*values)


def traced(function: Callable[[Any, Any], Any]) -> Trace:
    """The trace of a loss that sums what `function(weight, x)` gives."""

    def loss(weight: Any, x: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree_util.tree_leaves(function(weight, x)))

    return trace_loss(loss, W, X)


def names(trace: Trace) -> list[str]:
    """Every name of every site in every iteration, in program order, aliases after their own."""
    return [
        str(name.at(iteration)) for site in trace.sites for iteration in iterations(site.loops) for name in site.names
    ]


def aliases(trace: Trace) -> list[list[str]]:
    """For each named site, its names."""
    return [[name.template for name in site.names] for site in trace.sites if site.names]


# --- names -------------------------------------------------------------------------------------------------------


def test_a_scope_is_a_layer() -> None:
    assert names(traced(lambda w, x: under("dense", jnp.matmul, x, w))) == ["dense"]


def test_what_lies_outside_every_scope_has_no_name() -> None:
    trace = traced(lambda w, x: jnp.sin(under("dense", jnp.matmul, jnp.cos(x), w)))
    assert names(trace) == ["dense"]


def test_scopes_nest_and_a_value_that_both_hand_on_has_both_names() -> None:
    def block(w: Any, x: Any) -> Any:
        return under("second", jnp.sin, under("first", jnp.matmul, x, w))

    assert aliases(traced(lambda w, x: under("block", block, w, x))) == [["block/first"], ["block/second", "block"]]


def test_a_layer_called_twice_in_a_row_is_two_calls() -> None:
    trace = traced(lambda w, x: under("dense", jnp.matmul, under("dense", jnp.matmul, x, w), w))
    assert names(trace) == ["dense", "dense#2"]


def test_a_layer_called_twice_with_something_between_is_two_calls() -> None:
    trace = traced(lambda w, x: under("dense", jnp.matmul, jnp.sin(under("dense", jnp.matmul, x, w)), w))
    assert names(trace) == ["dense", "dense#2"]


def test_parts_of_a_repeated_layer_are_counted_by_their_own_paths() -> None:
    def block(w: Any, x: Any) -> Any:
        return under("act", jnp.sin, under("dense", jnp.matmul, x, w)) + 1

    trace = traced(lambda w, x: under("block", block, w, under("block", block, w, x)))
    assert names(trace) == [
        "block/dense", "block/act", "block", "block/dense#2", "block/act#2", "block#2",
    ]  # fmt: skip


def test_a_layer_repeated_inside_another_is_counted_across_the_outer_calls() -> None:
    twice = lambda w, x: under("dense", jnp.matmul, under("dense", jnp.matmul, x, w), w)  # noqa: E731
    trace = traced(lambda w, x: under("block", twice, w, under("block", twice, w, x)))
    assert [name for name in names(trace) if "dense" in name] == [
        "block/dense", "block/dense#2", "block/dense#3", "block/dense#4",
    ]  # fmt: skip


def test_a_scope_that_is_reentered_after_its_part_is_one_layer() -> None:
    def block(w: Any, x: Any) -> Any:
        inner = under("inner", jnp.matmul, jnp.sin(x), w)
        return jnp.cos(inner)

    assert names(traced(lambda w, x: under("block", block, w, x))) == ["block/inner", "block"]


def test_equal_names_at_different_depths_are_different_layers() -> None:
    def outer(w: Any, x: Any) -> Any:
        return jnp.sin(under("dense", jnp.matmul, x, w))

    trace = traced(lambda w, x: under("dense", outer, w, under("other", lambda: under("dense", jnp.cos, x))))
    assert names(trace) == ["other/dense", "other", "dense/dense", "dense"]


def test_a_scope_whose_name_has_slashes_is_as_many_components() -> None:
    trace = traced(lambda w, x: under("encoder/block/dense", jnp.matmul, x, w))
    assert names(trace) == ["encoder/block/dense"]
    assert [len(layer.path.components) for layer in trace.layers] == [3]


def test_slashes_and_nesting_name_one_path_and_count_as_calls_of_it() -> None:
    once = under
    trace = traced(lambda w, x: once("a/b", jnp.matmul, once("a", once, "b", jnp.matmul, x, w), w))
    assert names(trace) == ["a/b", "a", "a/b#2"]


def test_the_scopes_that_einsum_opens_are_dropped() -> None:
    trace = traced(lambda w, x: under("attention", lambda: jnp.einsum("ni,ij->nj", x, w)))
    assert names(trace) == ["attention"]


def test_several_values_handed_on_are_numbered_in_order_of_making() -> None:
    trace = traced(lambda w, x: under("split", lambda: (jnp.sin(x), jnp.cos(x), x @ w)))
    assert names(trace) == ["split.0", "split.1", "split.2"]


def test_a_value_handed_on_to_two_places_is_one_output() -> None:
    def function(w: Any, x: Any) -> Any:
        made = under("made", jnp.matmul, x, w)
        return jnp.sin(made), jnp.cos(made), made

    assert names(traced(function)) == ["made"]


def test_a_value_that_stays_inside_is_no_output() -> None:
    trace = traced(lambda w, x: under("dense", lambda: jnp.sin(x @ w)))
    assert names(trace) == ["dense"]
    assert [site.primitive for site in trace.sites if site.names] == ["sin"]


# --- which values are outputs ------------------------------------------------------------------------------------


def test_state_on_its_way_out_is_no_output_of_a_layer_that_has_another() -> None:
    def loss(variables: Any, x: Any) -> Any:
        def norm() -> Any:
            mean = x.mean(axis=0)
            updated = 0.9 * variables["stats"]["mean"] + 0.1 * mean
            return x - mean[None], updated

        normed, updated = under("norm", norm)
        return (normed @ variables["params"]["w"]).sum(), {"mean": updated}

    trace = trace_loss(loss, {"params": {"w": W}, "stats": {"mean": jnp.zeros(3)}}, X)
    assert names(trace) == ["norm"]
    assert [leaf.name for leaf in trace.auxiliary] == ["mean"]


def test_state_on_its_way_out_is_the_output_of_a_layer_that_has_no_other() -> None:
    def loss(w: Any, x: Any) -> Any:
        metric = under("metric", lambda: jnp.abs(x).max())
        return (x @ w).sum(), metric

    assert names(trace_loss(loss, W, X)) == ["metric"]


def test_values_that_nobody_uses_are_outputs_only_of_a_layer_that_has_no_other() -> None:
    def function(w: Any, x: Any) -> Any:
        under("unused", jnp.sin, x)
        return under("used", lambda: (jnp.sin(x), x @ w)[1])

    trace = traced(function)
    assert names(trace) == ["unused", "used"]
    assert [site.eliminated for site in trace.sites] == [True, False]


def test_a_layer_without_operations_is_no_layer() -> None:
    trace = traced(lambda w, x: under("dense", jnp.matmul, under("nothing", lambda: x), w))
    assert [layer.path.template for layer in trace.layers] == ["dense"]


def test_every_output_of_every_layer_is_a_site() -> None:
    def block(w: Any, x: Any) -> Any:
        return under("inner", lambda: (x @ w, jnp.sin(x))), under("act", jnp.tanh, x)

    trace = traced(lambda w, x: under("outer", jax.jit(block), w, x))
    known = {site.value for site in trace.sites}
    assert all(set(layer.outputs) <= known for layer in trace.layers)


# --- frames ------------------------------------------------------------------------------------------------------


def test_a_jit_is_no_layer_and_hides_none() -> None:
    inner = jax.jit(lambda w, x: under("inner", jnp.matmul, x, w))
    assert aliases(traced(lambda w, x: under("outer", inner, w, x))) == [["outer/inner", "outer"]]


def test_iterations_of_a_scan_under_a_scope_are_layers() -> None:
    step = lambda carry, _: (under("step", jnp.matmul, carry, W), None)  # noqa: E731
    trace = traced(lambda w, x: under("blocks", lambda: jax.lax.scan(step, x @ w, None, length=2)[0]))
    assert aliases(trace) == [["blocks[*]/step", "blocks[*]"], ["blocks"]]
    assert names(trace) == ["blocks[0]/step", "blocks[0]", "blocks[1]/step", "blocks[1]", "blocks"]


def test_iterations_of_a_scan_that_no_scope_encloses_mark_the_first_scope_inside() -> None:
    step = lambda carry, _: (under("step", lambda: under("dense", jnp.matmul, carry, W)), None)  # noqa: E731
    trace = traced(lambda w, x: jax.lax.scan(step, x @ w, None, length=2)[0])
    assert names(trace) == ["step[0]/dense", "step[0]", "step[1]/dense", "step[1]"]


def lifted(body: Callable[[Any], Any], x: Any, length: int = 2) -> Any:
    """A scan over a carry alone that Flax's own code runs."""
    text = (
        "def lift(scan, body, x, length):\n    return scan(lambda carry, _: (body(carry), None), x, None, length)[0]\n"
    )
    defined: dict[str, Any] = {}
    exec(compile(text, f"{sysconfig.get_path('purelib')}/flax/core/lift.py", "exec"), defined)
    return defined["lift"](jax.lax.scan, body, x, length)


def block(x: Any) -> Any:
    return under("block", lambda: jnp.tanh(under("dense", jnp.matmul, x, W)))


def test_iterations_of_a_lifted_module_are_the_modules_as_if_it_were_unrolled() -> None:
    trace = traced(lambda w, x: under("net", lambda: lifted(block, x @ w)))
    assert aliases(trace) == [["net/block[*]/dense"], ["net/block[*]"], ["net"]]
    assert names(trace)[:2] == ["net/block[0]/dense", "net/block[1]/dense"]


@pytest.mark.parametrize("around", [jax.checkpoint, jax.jit, lambda body: lambda x: lifted(body, x, 1)])
def test_a_lifted_module_may_be_lifted_again(around: Callable[[Any], Any]) -> None:
    trace = traced(lambda w, x: under("net", lambda: lifted(around(block), x @ w)))
    iterations = "[*][*]" if around not in (jax.checkpoint, jax.jit) else "[*]"
    assert [name for site in aliases(trace) for name in site] == [
        f"net/block{iterations}/dense",
        f"net/block{iterations}",
        "net",
    ]


@pytest.mark.parametrize(
    "body",
    [lambda x: block(x) + x, lambda x: block(block(x)), lambda x: jax.checkpoint(block)(x) + x],
    ids=["more than the module", "two modules", "more than what is checkpointed"],
)
def test_iterations_of_a_lift_that_does_more_than_call_one_module_are_those_of_the_scope_around_it(body: Any) -> None:
    trace = traced(lambda w, x: under("net", lambda: lifted(body, x @ w)))
    assert {layer.path.template for layer in trace.layers} >= {"net[*]", "net[*]/block", "net[*]/block/dense"}


def test_a_loop_of_the_users_own_in_a_lifted_module_marks_the_scope_it_runs_under() -> None:
    def scanning(x: Any) -> Any:
        return under("block", lambda: jax.lax.scan(lambda c, _: (under("step", jnp.sin, c), None), x, None, length=3))[
            0
        ]

    trace = traced(lambda w, x: under("net", lambda: lifted(scanning, x @ w)))
    assert aliases(trace) == [["net/block[*][*]/step", "net/block[*][*]"], ["net/block[*]"], ["net"]]


def test_two_scans_under_one_scope_are_two_calls_of_its_iterations() -> None:
    step = lambda carry, _: (under("step", jnp.matmul, carry, W), None)  # noqa: E731

    def twice(w: Any, x: Any) -> Any:
        once = jax.lax.scan(step, x @ w, None, length=1)[0]
        return jax.lax.scan(step, once, None, length=1)[0]

    trace = traced(lambda w, x: under("blocks", twice, w, x))
    assert names(trace) == ["blocks[0]/step", "blocks[0]", "blocks[0]/step#2", "blocks[0]#2", "blocks"]


def test_a_scope_around_a_branch_and_scopes_in_it() -> None:
    branches = [lambda x: under("sine", jnp.sin, x), lambda x: under("cosine", jnp.cos, x)]
    trace = traced(lambda w, x: under("choice", lambda: jax.lax.switch(jnp.int32(x[0, 0] > 0), branches, x @ w)))
    assert names(trace) == ["choice/sine", "choice/cosine", "choice"]


def test_scopes_inside_a_vmapped_function_keep_their_names() -> None:
    trace = traced(lambda w, x: jax.vmap(lambda row: under("row", jnp.matmul, row, w))(x))
    assert names(trace) == ["row"]
    assert [site.shape for site in trace.sites if site.names] == [(2, 3)]


def test_the_backward_pass_of_a_gradient_inside_the_loss_is_a_call_of_its_own() -> None:
    def energy(x: Any, w: Any) -> Any:
        return under("second", jnp.matmul, under("first", lambda: jnp.sin(x @ w)), w).sum()

    trace = traced(lambda w, x: jax.grad(energy)(x, w))
    assert [layer.path.at([]).occurrence for layer in trace.layers] == [1, 1, 2, 2]
    assert [layer.path.components[0].name for layer in trace.layers] == ["first", "second", "second", "first"]


def test_names_are_unique_across_branches_loops_and_calls() -> None:
    step = lambda carry, _: (under("a", jnp.sin, under("a", jnp.cos, carry)), under("b", jnp.tan, carry))  # noqa: E731

    def function(w: Any, x: Any) -> Any:
        x = jax.lax.cond(x[0, 0] > 0, partial(under, "a", jnp.sin), partial(under, "a", jnp.cos), x)
        x, made = under("a", lambda: jax.lax.scan(step, x, None, length=2))
        return under("a", jax.jit(partial(under, "b", jnp.matmul)), x, w), made

    found = names(traced(function))
    assert len(found) == len(set(found)), found


@pytest.mark.parametrize(
    "colliding", [["a#2", "a", "a"], ["a", "a", "a#2"], ["a.0", "both"], ["both", "a.0", "a.1"], ["iterations", "a[0]"]]
)
def test_names_are_unique_even_where_scopes_are_named_like_calls_outputs_and_iterations(colliding: list[str]) -> None:
    def iterations(x: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (jnp.sin(carry), None), x, None, length=2)[0]

    def both(x: Any) -> Any:
        return jnp.sin(x), jnp.cos(x)

    def function(w: Any, x: Any) -> Any:
        for name in colliding:
            if name == "both":
                x = sum(under("a", both, x))
            elif name == "iterations":
                x = under("a", iterations, x)
            else:
                x = under(name, jnp.matmul, x, w)
        return x

    found = names(traced(function))
    assert len(found) == len(set(found)), found


def test_a_scope_named_like_an_output_keeps_its_name_where_there_is_no_such_output() -> None:
    trace = traced(lambda w, x: under("layers.0", jnp.matmul, under("layers", jnp.matmul, x, w), w))
    assert names(trace) == ["layers", "layers.0"]


# --- what a layer knows ------------------------------------------------------------------------------------------


def test_a_layer_knows_the_parameters_it_uses_however_they_are_dressed() -> None:
    def loss(variables: Any, x: Any) -> Any:
        dense, norm = variables["dense"], variables["norm"]
        made = under("dense", lambda: x.astype(jnp.bfloat16) @ dense["kernel"].T.astype(jnp.bfloat16))
        made = under("bias", lambda: made.astype(jnp.float32) + dense["bias"][None, :])
        return under("norm", jax.jit(lambda: made * jnp.broadcast_to(norm["scale"], made.shape))).sum()

    variables = {"dense": {"kernel": W, "bias": jnp.zeros(3)}, "norm": {"scale": jnp.ones(3)}}
    trace = trace_loss(loss, variables, X)
    used = {layer.path.template: list(layer.params) for layer in trace.layers}
    assert used == {"dense": ["dense/kernel"], "bias": ["dense/bias"], "norm": ["norm/scale"]}


def test_a_parameter_converted_by_a_jitted_function_is_still_that_parameter() -> None:
    half = jax.jit(lambda tree: jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.bfloat16), tree))

    def loss(variables: Any, x: Any) -> Any:
        converted = half(variables)
        return under("dense", jnp.matmul, x.astype(jnp.bfloat16), converted["w"]).astype(jnp.float32).sum()

    trace = trace_loss(loss, {"w": W}, X)
    assert [list(layer.params) for layer in trace.layers] == [["w"]]


def test_a_layer_in_a_scan_uses_the_stacked_parameter_by_its_name() -> None:
    def loss(variables: Any, x: Any) -> Any:
        step = lambda carry, w: (under("dense", jnp.matmul, carry, w), None)  # noqa: E731
        return under("blocks", lambda: jax.lax.scan(step, x, variables["kernel"])[0]).sum()

    trace = trace_loss(loss, {"kernel": jnp.stack([W, W])}, X)
    used = {layer.path.template: list(layer.params) for layer in trace.layers}
    assert used == {"blocks": ["kernel"], "blocks[*]": ["kernel"], "blocks[*]/dense": ["kernel"]}


def test_a_carry_that_starts_as_a_parameter_is_none() -> None:
    def loss(variables: Any, x: Any) -> Any:
        step = lambda carry, row: (under("step", jnp.multiply, carry, row), None)  # noqa: E731
        return jax.lax.scan(step, variables["start"], x)[0].sum()

    trace = trace_loss(loss, {"start": jnp.ones(3)}, X)
    assert [list(layer.params) for layer in trace.layers] == [[]]


def test_inputs_are_what_a_layer_reads_and_parameters_are_not_among_them() -> None:
    trace = traced(lambda w, x: under("second", jnp.matmul, under("first", jnp.sin, x), w))
    first, second = trace.layers
    assert list(second.inputs) == list(first.outputs)
    assert [value.equation for value in first.inputs] == [-1]


def test_layers_come_composites_first_and_otherwise_as_they_run() -> None:
    def block(w: Any, x: Any) -> Any:
        return under("act", jnp.sin, under("dense", jnp.matmul, x, w))

    trace = traced(lambda w, x: under("head", jnp.cos, under("block", block, w, x)))
    assert [layer.path.template for layer in trace.layers] == ["block", "block/dense", "block/act", "head"]
    assert [layer.parent.path.template if layer.parent else None for layer in trace.layers] == [
        None, "block", "block", None,
    ]  # fmt: skip


def test_a_layer_knows_the_line_of_the_user_that_made_it() -> None:
    trace = traced(lambda w, x: under("dense", jnp.matmul, x, w))
    source = trace.layers[0].source
    assert source is not None
    assert source.startswith("test_layers.py:")


# --- models without scopes ---------------------------------------------------------------------------------------


def test_without_any_scope_layers_are_named_by_what_their_parameters_belong_to() -> None:
    def loss(variables: Any, x: Any) -> Any:
        x = x @ variables["dense1"]["kernel"] + variables["dense1"]["bias"][None]
        return (x @ variables["dense2"]["kernel"]).sum()

    variables = {"dense1": {"kernel": W, "bias": jnp.zeros(3)}, "dense2": {"kernel": W}}
    found = names(trace_loss(loss, variables, X))
    assert [name for name in found if ":" not in name] == ["dense1", "dense2"]


def test_what_uses_no_parameter_is_then_named_by_its_line() -> None:
    def loss(variables: Any, x: Any) -> Any:
        return jnp.sin(x @ variables["dense"]["kernel"]).sum()

    found = names(trace_loss(loss, {"dense": {"kernel": W}}, X))
    assert found[0] == "dense"
    assert all(name.startswith("loss:") for name in found[1:])


@pytest.mark.parametrize("read", [lambda x: x.astype(jnp.bfloat16), lambda _: jnp.ones((2, 3), jnp.bfloat16)])
def test_parameters_that_are_converted_before_all_else_make_no_layers(read: Callable[[Any], Any]) -> None:
    def loss(parameters: Any, x: Any) -> Any:
        hidden = read(x)
        narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), parameters)
        hidden = jnp.tanh(hidden @ narrow["first"]["kernel"])
        made = hidden @ narrow["second"]["kernel"].T + parameters["second"]["bias"].astype(jnp.bfloat16)[None]
        return made.astype(jnp.float32).sum()

    parameters = {"first": {"kernel": W}, "second": {"kernel": W, "bias": W[0]}}
    trace = trace_loss(loss, parameters, X)
    assert [sorted(each.params) for each in trace.layers if each.params] == [
        ["first/kernel"],
        ["second/bias", "second/kernel"],
    ]
    assert [name for name in names(trace) if ":" not in name] == ["first", "second"]


@pytest.mark.parametrize("name", ["", "/", "//"])
def test_a_scope_without_a_name_is_none(name: str) -> None:
    trace = traced(lambda w, x: under("outer", lambda: under(name, lambda: under("inner", jnp.matmul, x, w))))
    assert aliases(trace) == [["outer/inner", "outer"]]


def test_a_sum_of_a_number_that_the_program_states_is_traced() -> None:
    trace = traced(lambda w, x: under("dense", jnp.matmul, x, w) * jnp.sum(2.0))
    assert names(trace) == ["dense"]
