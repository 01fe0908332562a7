"""Terms: what flows back from each use of a value, compared with something added there alone, and to their sum.

A loss under test takes a probe as third argument and puts it around every use of the values whose terms it tells, by
the name that the term is to have: `jax.grad` with respect to what is added at one use is that use's term.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope
from gradscope.api.reading import Dump
from gradscope.errors import UsageError
from gradscope.instrument.query.capture_spec import CaptureSpec
from tests.oracle import engine
from tests.oracle.engine import Loss, Probe, assert_close, bits, expected, layer, unprobed
from tests.oracle.terms import assert_sums, terms_of
from tests.support.sampled import sampled

WEIGHTS = np.linspace(-1.0, 1.0, 9).reshape(3, 3)
INPUTS = np.linspace(-1.0, 2.0, 6).reshape(2, 3)


@pytest.fixture(autouse=True)
def _in_float64(x64: None) -> None:
    """Where nothing but mistakes makes a difference to be seen."""


def dense(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight)


def assert_unperturbed(loss: Loss, variables: Any, batch: Any) -> None:
    """Operation by operation loss and gradients are bit for bit those of JAX, with every term observed."""
    with jax.disable_jit():
        value, gradient = jax.value_and_grad(loss)(variables, batch)
    everything = CaptureSpec(operations=True, operands=True, terms=True)
    observation = engine.observe(loss, variables, batch, spec=everything, jit=False)
    assert observation.plan.terms
    assert bits(observation.loss) == bits(value)
    leaves = jax.tree_util.tree_leaves(gradient)
    found = [observation.observed.gradients[number] for number in range(len(leaves))]
    assert list(map(bits, found)) == list(map(bits, leaves))


def check(
    loss: Loss, variables: Any, batch: Any, uses: dict[str, list[str]], *, twin: Loss | None = None, ops: bool = False
) -> Dump:
    """Hold the terms of a loss to all that JAX alone can say.

    Args:
        loss: The loss.
        variables: Its variables.
        batch: Its batch.
        uses: The names of the terms that there are, by the key of the value.
        twin: The same function with probes, where the loss itself cannot carry them.
        ops: Whether the values of operations are shown beside those of layers.
    """
    dump = gradscope.capture(loss, variables, batch, terms=True, ops=ops)
    found = terms_of(dump)
    assert {key: sorted(parts) for key, parts in found.items()} == {key: sorted(names) for key, names in uses.items()}
    reference = expected(loss if twin is None else twin, variables, batch)
    for name, term in ((name, term) for parts in found.values() for name, term in parts.items()):
        assert_close(term, reference[name].gradient, what=name)
    assert_sums(dump)
    assert_unperturbed(loss, variables, batch)
    return dump


@pytest.mark.slow
def test_the_skip_and_the_residual_branch_apart() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        h = layer("first", dense, weight, x)
        with jax.named_scope("block"):
            branch = jnp.sin(probe("block/sin.0", h))
            with jax.named_scope("skip"):
                return (probe("block/skip/mul.0", h) * branch).sum()

    dump = check(loss, WEIGHTS, INPUTS, {"activation/first": ["block/sin.0", "block/skip/mul.0"]})
    (entry,) = (entry for entry in dump.manifest.entries if entry.name == "block/skip/mul.0")
    assert (entry.site.primitive, entry.site.layer, entry.site.of) == ("mul", "block/skip", "activation/first")
    assert entry.site.source is not None
    assert entry.site.source.startswith("test_terms.py:")


@pytest.mark.slow
def test_an_operation_that_reads_a_value_twice_uses_it_twice() -> None:
    factors = np.arange(18.0).reshape(6, 3)

    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        h = layer("first", dense, weight, x)
        with jax.named_scope("square"):
            squared = probe("square/mul.0", h) * probe("square/mul.1", h)
        with jax.named_scope("join"):
            parts = [probe("join/concatenate.0", h), squared, probe("join/concatenate.2", h)]
            return (jnp.concatenate(parts) * factors).sum()

    check(
        loss,
        WEIGHTS,
        INPUTS,
        {"activation/first": ["square/mul.0", "square/mul.1", "join/concatenate.0", "join/concatenate.2"]},
    )


@pytest.mark.slow
def test_where_has_a_term_for_each_side() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        h = layer("first", dense, weight, x)
        with jax.named_scope("choice"):
            chosen = jnp.where(x > 0, probe("choice/select_n.2", h), 3.0 * probe("choice/mul.1", h))
        return (chosen**2).sum()

    dump = check(loss, WEIGHTS, INPUTS, {"activation/first": ["choice/select_n.2", "choice/mul.1"]})
    np.testing.assert_array_equal(dump["term/choice/select_n.2"] != 0, INPUTS > 0)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_a_call_uses_nothing_itself_but_what_it_runs_does(wrap: Callable[[Any], Any]) -> None:
    def inner(h: Any, probe: Probe) -> Any:
        with jax.named_scope("inner"):
            return jnp.sin(probe("inner/sin.0", h)) + jnp.cos(probe("inner/cos.0", h))

    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        h = layer("first", dense, weight, x)
        return (wrap(partial(inner, probe=probe))(h) * probe("mul.1", h)).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        h = layer("first", dense, weight, x)
        return (inner(h, probe) * probe("mul.1", h)).sum()

    check(loss, WEIGHTS, INPUTS, {"activation/first": ["inner/sin.0", "inner/cos.0", "mul.1"]}, twin=twin)


def test_what_a_scan_carries_is_used_by_its_iterations_as_if_unrolled() -> None:
    def iteration(h: Any, weight: Any, probe: Probe, at: str) -> Any:
        with jax.named_scope("branch"):
            branch = jnp.sin(probe(f"{at}/branch/sin.0", h)) @ weight
        with jax.named_scope("add"):
            return probe(f"{at}/add/add.0", h) + branch

    def loss(weights: Any, x: Any) -> Any:
        h = layer("embed", jnp.multiply, x, 2.0)
        with jax.named_scope("block"):
            h, _ = jax.lax.scan(lambda h, weight: (iteration(h, weight, unprobed, ""), None), h, weights)
        with jax.named_scope("head"):
            return (h * jnp.cos(h)).sum()

    def twin(weights: Any, x: Any, probe: Probe) -> Any:
        h = 2.0 * x
        for number, weight in enumerate(weights):
            h = iteration(h, weight, probe, f"block[{number}]")
        return (probe("head/mul.0", h) * jnp.cos(probe("head/cos.0", h))).sum()

    weights = np.stack([WEIGHTS, 0.5 * WEIGHTS, WEIGHTS.T])
    inside = ("branch/sin.0", "add/add.0")
    uses = {
        "activation/embed": [f"block[0]/{name}" for name in inside],
        "activation/block[0]/add": [f"block[1]/{name}" for name in inside],
        "activation/block[1]/add": [f"block[2]/{name}" for name in inside],
        "activation/block[2]/add": ["head/mul.0", "head/cos.0"],
    }
    check(loss, weights, INPUTS, uses, twin=twin)


@pytest.mark.slow
def test_what_iterations_hand_out_to_be_stacked_is_used_by_that() -> None:
    def loss(weight: Any, x: Any) -> Any:
        def iteration(h: Any, row: Any) -> Any:
            h = layer("made", jnp.tanh, h * row)
            return h, h

        with jax.named_scope("rows"):
            last, stacked = jax.lax.scan(iteration, weight, x, reverse=True)
        return (last * weight).sum() + (stacked**2).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        h, stacked = weight, []
        for number in reversed(range(len(x))):
            h = jnp.tanh(probe(f"rows[{number}]/mul.0", h) * x[number])
            stacked.append(probe(f"rows/scan/turn[{number}].1", h))
        return (probe("mul.0", h) * probe("mul.1", weight)).sum() + (jnp.stack(stacked) ** 2).sum()

    uses = {
        "param/value": ["rows[1]/mul.0", "mul.1"],
        "activation/rows[1]/made": ["rows/scan/turn[1].1", "rows[0]/mul.0"],
        "activation/rows[0]/made": ["rows/scan/turn[0].1", "mul.0"],
    }
    check(loss, WEIGHTS[0], INPUTS, uses, twin=twin)


@pytest.mark.slow
@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_uses_what_it_is_handed_as_one_and_what_it_makes_by_itself(taken: bool) -> None:
    def curved(h: Any, probe: Probe) -> Any:
        made = layer("made", jnp.tanh, h)
        return probe("cond/branch1.0", made), jnp.sin(probe("sin.0", made))

    def loss(weight: Any, batch: Any) -> Any:
        x, flag = batch
        h = layer("first", dense, weight, x)
        one, other = jax.lax.cond(flag, partial(curved, probe=unprobed), lambda h: (h, 2 * h), h)
        return (one * jnp.cos(h) * other).sum()

    def twin(weight: Any, batch: Any, probe: Probe) -> Any:
        x, flag = batch
        h = dense(weight, x)
        into = probe("cond.1", h)
        one, other = curved(into, probe) if flag else (into, 2 * into)
        return (one * jnp.cos(probe("cos.0", h)) * other).sum()

    uses = {"activation/first": ["cond.1", "cos.0"]}
    if taken:
        uses["activation/made"] = ["cond/branch1.0", "sin.0"]
    dump = check(loss, WEIGHTS, (INPUTS, np.bool_(taken)), uses, twin=twin)
    not_executed = [line.name for line in dump.ledger.missing if (line.family, line.reason) == ("term", "not-executed")]
    assert sorted(not_executed) == ([] if taken else ["cond/branch1.0", "sin.0"])


@pytest.mark.slow
@sampled(
    ("name", "positions", "operation"),
    [
        ("mul", (0, 1), lambda one, other: one * other),
        ("concatenate", (0, 1), lambda one, other: jnp.concatenate([one, other])),
        ("select_n", (2, 1), lambda one, other: jnp.where(INPUTS > 0, one, other)),
        ("dot_general", (0, 1), lambda one, other: jax.lax.dot_general(one, other, (((1,), (1,)), ((), ())))),
        ("scatter", (0, 2), lambda one, other: one.at[np.array([0, 0])].set(other)),
        ("sort", (0, 1), lambda one, other: jax.lax.sort((one, other), num_keys=1)[1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operands_term_is_the_operations_own_vjp_of_what_arrives(
    name: str, positions: tuple[int, int], operation: Callable[[Any, Any], Any]
) -> None:
    def loss(weight: Any, x: Any) -> Any:
        h = layer("first", dense, weight, x)
        return (jnp.sin(layer("read", operation, h, h)) ** 2).sum()

    dump = gradscope.capture(loss, WEIGHTS, INPUTS, ops="inputs")
    h, arrived = dump["activation/first"], dump["activation_grad/read"]
    _, pull_back = jax.vjp(operation, h, h)
    for position, pulled_back in zip(positions, pull_back(arrived), strict=True):
        assert_close(dump[f"term/read/{name}.{position}"], pulled_back)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: jax.scipy.special.betainc(2.0, 3.0, jax.nn.sigmoid(x)),
        lambda x: jax.scipy.special.polygamma(1, jnp.abs(x) + 2),
        lambda x: jax.custom_derivatives.linear_call(lambda by, x: by * x, lambda by, x: by * x, 2.0, x),
    ],
)
def test_an_operation_that_jax_differentiates_by_one_operand_alone_has_its_term(
    operation: Callable[[Any], Any],
) -> None:
    dump = gradscope.capture(lambda x: layer("read", operation, x).sum(), INPUTS, ops="inputs")
    assert_close(dump["param_grad/value"], jax.grad(lambda x: operation(x).sum())(INPUTS))
    assert any(key.startswith("term/read/") for key in dump)


@pytest.mark.slow
def test_parameters_and_inputs_have_terms_too() -> None:
    """A shared weight's gradient is a sum of two, and can be told apart."""

    def loss(variables: Any, batch: Any, probe: Probe = unprobed) -> Any:
        table, x = variables["table"], batch["x"]
        with jax.named_scope("embed"):
            h = probe("embed/dot_general.0", x) @ probe("embed/dot_general.1", table)
        with jax.named_scope("head"):
            return (h @ probe("head/transpose.0", table).T * probe("head/mul.1", x)).sum()

    uses = {
        "param/table": ["embed/dot_general.1", "head/transpose.0"],
        "input/x": ["embed/dot_general.0", "head/mul.1"],
    }
    check(loss, {"table": WEIGHTS}, {"x": INPUTS}, uses)


@pytest.mark.slow
def test_beside_operations_their_values_have_terms() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        with jax.named_scope("all"):
            h = x @ weight
            return (jnp.sin(probe("all/sin.0", h)) * jnp.exp(probe("all/exp.0", h))).sum()

    check(loss, WEIGHTS, INPUTS, {"activation/all/dot_general": ["all/sin.0", "all/exp.0"]}, ops=True)
    with pytest.raises(UsageError, match="selects nothing"):
        gradscope.capture(loss, WEIGHTS, INPUTS, terms=True, select=["term/*"])


@pytest.mark.slow
def test_a_custom_rule_is_one_use_and_what_it_does_is_not_looked_into() -> None:
    @jax.custom_vjp
    def doubled(h: Any) -> Any:
        return h + h

    doubled.defvjp(lambda h: (h + h, None), lambda _, g: (3 * g,))

    def loss(weight: Any, x: Any, probe: Probe = unprobed) -> Any:
        h = layer("first", dense, weight, x)
        with jax.named_scope("rule"):
            return (doubled(probe("rule/custom_vjp_call.0", h)) * jnp.sin(probe("rule/sin.0", h))).sum()

    check(loss, WEIGHTS, INPUTS, {"activation/first": ["rule/custom_vjp_call.0", "rule/sin.0"]})


def test_an_array_that_is_no_argument_and_what_comes_to_nothing_are_no_terms() -> None:
    constant = jnp.asarray(INPUTS)

    def loss(weight: Any, x: Any) -> Any:
        h = layer("first", dense, weight, x)
        nothing = jax.lax.stop_gradient(h) + jnp.sign(h)
        return (h * constant).sum() + (nothing * constant).sum()

    dump = gradscope.capture(loss, WEIGHTS, INPUTS, terms=True)
    assert terms_of(dump) == {}


def test_where_a_while_loop_bars_one_way_the_other_terms_are_there() -> None:
    def loss(weight: Any, x: Any) -> Any:
        h = layer("first", dense, weight, x)
        looped = jax.lax.fori_loop(0, jnp.int32(x[0, 0] > 0) + 2, lambda _, y: jnp.sin(y), h)
        return (jnp.cos(h) * jnp.exp(h)).sum(), looped

    dump = gradscope.capture(loss, WEIGHTS, INPUTS, terms=True)
    assert terms_of(dump).keys() == {"activation/first"}
    assert_sums(dump)


@pytest.mark.slow
def test_nested_frames_and_shared_weights_still_sum_to_the_whole() -> None:
    """Nested scans in a branch in a jit, checkpointed, with a weight that all of them share."""

    def inner(weight: Any, h: Any) -> Any:
        def iteration(carry: Any, factor: Any) -> Any:
            h, other = carry
            made = layer("made", dense, weight, h)
            h = made * jnp.cos(made) + h * factor
            return (h, jnp.sin(other) * h), h * other

        (h, other), stacked = jax.lax.scan(jax.checkpoint(iteration), (h, h), jnp.arange(2.0))
        return h * other + stacked.sum(axis=0)

    def loss(variables: Any, batch: Any) -> Any:
        weight, (x, flag) = variables["w"], batch

        def outer(h: Any, _: Any) -> Any:
            h = jax.lax.cond(flag, jax.jit(partial(inner, weight)), lambda h: h * h, h)
            return layer("out", jnp.tanh, h + h @ weight), h

        h, stacked = jax.lax.scan(outer, layer("in", jnp.multiply, x, 2.0), length=2)
        return (h @ weight * stacked[0] + h).sum()

    arguments = {"w": 0.3 * WEIGHTS}, (INPUTS, np.bool_(True))
    dump = gradscope.capture(loss, *arguments, terms=True)
    inside = {f"activation/made[{outer}][{inner}]" for outer in range(2) for inner in range(2)}
    assert terms_of(dump).keys() == {"param/w", "activation/out[1]", *inside}
    assert_sums(dump)
    assert_unperturbed(loss, *arguments)


@pytest.mark.parametrize("construct", ["branch", "loop"])
def test_the_terms_of_a_value_handed_out_thrice_are_added_in_the_order_of_jax(construct: str) -> None:
    weights = np.random.default_rng(0).normal(size=(3, 64))

    def loss(scale: Any, x: Any) -> Any:
        if construct == "branch":
            outputs = jax.lax.cond(x[0] > 0, lambda h: (jnp.sin(h),) * 3, lambda h: (h,) * 3, scale * x)
        else:
            _, outputs = jax.lax.scan(lambda h, _: (h, (jnp.sin(h),) * 3), scale * x, length=1)
        return sum(jnp.sum(weight * output.ravel()) for weight, output in zip(weights, outputs, strict=True))

    arguments = np.linspace(0.3, 1.7, 64), np.linspace(0.1, 2.0, 64)
    everything = CaptureSpec(operations=True, operands=True, terms=True)
    observation = engine.observe(loss, *arguments, spec=everything)
    assert bits(observation.observed.gradients[0]) == bits(jax.jit(jax.grad(loss))(*arguments))


def test_where_the_way_is_stopped_nothing_comes_back_and_the_rest_is_the_whole() -> None:
    def loss(weight: Any, x: Any, probe: Probe = unprobed, *, stopped: bool = False) -> Any:
        h = layer("first", dense, weight, x)
        cosine = layer("cosine", jnp.cos, probe("cosine/cos.0", h))
        cosine = jax.lax.stop_gradient(cosine) if stopped else cosine
        return (cosine * jnp.exp(probe("exp.0", h)) * probe("mul#2.1", h)).sum()

    dump = gradscope.capture(loss, WEIGHTS, INPUTS, terms=True, stop_gradients=["cosine"])
    reference = expected(partial(loss, stopped=True), WEIGHTS, INPUTS)
    terms = terms_of(dump)["activation/first"]
    assert sorted(terms) == ["exp.0", "mul#2.1"]
    for name, term in terms.items():
        assert_close(term, reference[name].gradient, what=name)
    assert_sums(dump)
    missing = {(line.name, line.reason) for line in dump.ledger.missing if line.family == "term"}
    assert missing == {("cosine/cos.0", "disconnected")}


def test_a_fetch_does_not_go_with_terms() -> None:
    def loss(weight: Any, x: Any) -> Any:
        return layer("first", dense, weight, x).sum()

    with pytest.raises(UsageError, match="a fetch names all that is shown"):
        gradscope.capture(loss, WEIGHTS, INPUTS, terms=True, fetch="first")


READ = ("read/sin.0", "read/cos.0", "read/tanh.0", "read/mul.0")


@pytest.mark.parametrize(
    ("chosen", "terms"),
    [
        ({}, READ),
        ({"select": ["first"]}, READ[:2]),
        ({"select": ["activation/first"]}, READ[:2]),
        ({"select": ["term/read/*.0"], "exclude": ["second"]}, READ[:2]),
        ({"select": ["read/sin.0"]}, READ[:1]),
        ({"families": ["term"], "exclude": ["second"]}, READ[:2]),
        ({"families": ["activation_grad"]}, ()),
    ],
    ids=str,
)  # fmt: skip
def test_terms_are_chosen_by_their_own_name_or_that_of_their_value(
    chosen: dict[str, Any], terms: tuple[str, ...]
) -> None:
    def loss(weight: Any, x: Any) -> Any:
        h, other = layer("first", dense, weight, x), layer("second", jnp.exp, x)
        with jax.named_scope("read"):
            return (jnp.sin(h) + jnp.cos(h) + jnp.tanh(other) + other * 2.0).sum()

    dump = gradscope.capture(loss, WEIGHTS, INPUTS, terms=True, **chosen)
    assert {key.removeprefix("term/") for key in dump if key.startswith("term/read")} == set(terms)
    filtered = {line.name for line in dump.ledger.missing if (line.family, line.reason) == ("term", "filtered")}
    assert {name for name in filtered if name.startswith("read")} == set(READ) - set(terms)
