"""Why a gradient is zero: small losses with one fault each, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.capturing.execution.preparation import Arguments, prepare
from gradscope.capturing.explain.zeros.zero_gradients import Zero, causes_of
from gradscope.capturing.explain.zeros.zero_uses import EquationUse
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.zero_reasons import kind_of
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.instrument.query.trace_query import TraceQuery
from gradscope.presentation.tables.facts import facts
from gradscope.tracing.jaxpr.frames import OPERAND, ValueKey
from gradscope.tracing.loading.model import Model
from tests.support.data import drawn, filled
from tests.support.sampled import sampled

ONES = filled(1.0, 4)
ZEROS = filled(0.0, 4)
ROW = jax.device_put(np.array([0.5, -1.0, 2.0, 3.0], np.float32))


@jax.custom_vjp
def silent(x: Any) -> Any:
    return x * 2.0


silent.defvjp(lambda x: (silent(x), None), lambda _, g: (jnp.zeros_like(g),))


@jax.custom_jvp
def deaf(x: Any) -> Any:
    return jnp.sin(x)


deaf.defjvp(lambda primals, _: (deaf(*primals), jnp.zeros_like(primals[0])))


def branches(w: Any, x: Any) -> Any:
    return lax.cond(x[0] > 100.0, lambda a: jnp.sin(a).sum(), lambda a: 0.0, w)


def scanned(w: Any, x: Any) -> Any:
    return lax.scan(lambda carry, row: (carry + (row * ZEROS).sum(), None), 0.0, w)[0]


def carried(w: Any, x: Any) -> Any:
    return (lax.scan(lambda carry, _: (jnp.tanh(carry), None), w, None, length=3)[0] * ZEROS).sum()


def last_of_a_scan(w: Any, x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return carry, jnp.where(row > 100.0, row, carry)

    return lax.scan(step, x, w)[1][-1].sum()


HALF = jnp.float16(1e-4)

#: The loss's part that depends on the parameter, the parameter, what is said.
FAULTS: dict[str, tuple[Callable[[Any, Any], Any], Any, str]] = {
    "nothing uses it": (lambda w, x: x.sum(), ONES, "has no gradient: disconnected: .* nothing uses it"),
    "it is used in vain": (
        lambda w, x: (jnp.sin(w), x.sum())[1],
        ONES,
        r"disconnected: .* its last use is sin at test_zero_gradients.py:\d+",
    ),
    "stop_gradient": (
        lambda w, x: lax.stop_gradient(w).sum(),
        ONES,
        r"has no gradient: stop_gradient at test_zero_gradients.py:\d+, applied to the argument itself$",
    ),
    "stop_gradient behind a library's own": (
        lambda w, x: (
            lax.stop_gradient(
                jax.nn.log_softmax(w),
            )
            * x
        ).sum(),
        ONES,
        r"has no gradient: stop_gradient at test_zero_gradients.py:\d+$",
    ),
    "stop_gradient before a library's comparison": (
        lambda w, x: (
            x
            * jax.scipy.special.logsumexp(
                lax.stop_gradient(w) + x,
            )
        ).sum(),
        ONES,
        r"has no gradient: stop_gradient at test_zero_gradients.py:\d+, applied to the argument itself$",
    ),
    "a conversion": (
        lambda w, x: (x * w.astype(jnp.int32).astype(jnp.float32)).sum(),
        ONES,
        r"convert_element_type at .*, an integer path: a conversion",
    ),
    "a comparison": (lambda w, x: jnp.where(w > 0.0, x, -x).sum(), ONES, "gt at .*, an integer path: a comparison"),
    "an index": (lambda w, x: x[jnp.argmax(w)], ONES, "argmax at .*, an integer path: an index"),
    "a floor": (lambda w, x: jnp.floor(w).sum(), ONES, "floor at .*, constant wherever it has a derivative"),
    "a round inside a jit": (lambda w, x: jnp.round(w).sum(), ONES, "round at .*, constant"),
    "a sign inside a scan": (
        lambda w, x: lax.scan(lambda c, row: (c + jnp.sign(row).sum(), None), 0.0, w)[0],
        filled(1.0, 3, 4),
        "sign at .*, constant",
    ),
    "a mask": (lambda w, x: (w * ZEROS).sum(), ONES, r"is exactly zero: masked: multiplied by exact zeros in mul at"),
    "a matrix of zeros": (
        lambda w, x: (w[None, :] @ jnp.zeros((4, 2))).sum(),
        ONES,
        "masked: multiplied by exact zeros in dot_general at",
    ),
    "where": (lambda w, x: jnp.where(x > 100.0, w, x).sum(), ONES, "masked: where never takes it, select_n at"),
    "dead units": (
        lambda w, x: jnp.exp(jax.nn.relu(w * -1.0)).sum(),
        ONES,
        "dead units: the output of relu at .* is constant wherever the loss depends on it",
    ),
    "dead units by maximum": (
        lambda w, x: jnp.exp(jnp.maximum(w - 5.0, 0.0)).sum(),
        ONES,
        "dead units: the output of max at",
    ),
    "a squared error of dead units": (
        lambda w, x: jnp.square(jax.nn.relu(w - 5.0) - x).sum(),
        ONES,
        "dead units: the output of relu at",
    ),
    "a margin that is kept": (
        lambda w, x: jnp.where(x > 0, jnp.square(jax.nn.relu(w - 5.0)), 0.0).mean(),
        ONES,
        "satisfied: the output of relu at .* is 0, and a term of the loss$",
    ),
    "free bits": (
        lambda w, x: jnp.maximum(w * x, 500.0).mean() + 1.0,
        ONES,
        "satisfied: the output of max at .* is 500, and a term of the loss$",
    ),
    "units that receive zeros": (
        lambda w, x: jnp.square(jax.nn.relu((w - w) * x) @ jnp.ones((x.shape[-1], 3)) - 1.0).mean(),
        ONES,
        "dead units: the output of relu at .*, and what it receives is 0 in every element",
    ),
    "one example's margin that is kept": (
        lambda w, x: jnp.maximum(0.0, w.sum() - 50.0) / 2 + 1.0,
        ONES,
        "satisfied: the output of max at .* is 0, and a term of the loss$",
    ),
    "saturation": (
        lambda w, x: jnp.tanh(w * 100.0).sum(),
        ONES,
        "underflow: the derivative of tanh at .* rounds to zero for every element",
    ),
    "underflow": (
        lambda w, x: (w * 1e-30 * 1e-30).sum(),
        ONES,
        "underflow in float32: a gradient of at most 1e-30 comes back from mul at .* as zero",
    ),
    "underflow in half precision": (
        lambda w, x: (w.astype(jnp.float16) * HALF * HALF).sum().astype(jnp.float32),
        ONES,
        "underflow in float16: a gradient of at most 0.0001 comes back from mul at .* as zero",
    ),
    "cancellation of uses": (
        lambda w, x: (jnp.sin(w) * x).sum() - (jnp.sin(w) * x).sum(),
        ONES,
        "zero by construction: the loss does not change with it; sub at .* takes out what it adds",
    ),
    "the smaller of two": (
        lambda w, x: jnp.maximum(w, x + 10.0).sum(),
        ONES,
        "masked: the other operand of max at .* is larger wherever the loss depends on it",
    ),
    "an initial guess": (
        lambda w, x: (jax.scipy.sparse.linalg.cg(lambda v: 3.0 * v, x, x0=w)[0] ** 2).sum(),
        ONES,
        "custom_linear_solve at .*, which takes no gradient of its initial guess",
    ),
    "an update that is dropped": (
        lambda w, x: x.at[jnp.array([7, 8, 9, 10])].add(w).sum(),
        ONES,
        "masked: not taken by scatter-add at",
    ),
    "a factor that the program states": (
        lambda w, x: (w * jnp.zeros(4)).sum(),
        ONES,
        "masked: multiplied by exact zeros in mul at .*: a constant is 0",
    ),
    "cancellation with itself": (lambda w, x: (w - w).sum(), ONES, "cancellation: the gradient's terms sum to .* sub"),
    "cancellation in a product": (
        lambda w, x: w @ jnp.array([[1.0, -1.0]] * 4) @ jnp.ones(2),
        ONES,
        "(cancellation: the gradient's terms sum to exactly zero in|zero by construction: .*;) dot_general",
    ),
    "a mask that leaves one entry in each row": (
        lambda w, x: (jax.nn.softmax(jnp.where(jnp.eye(4, dtype=bool), w[:, None] * x[None], -1e9)) * x[None]).sum(),
        ONES,
        r"masked: in each row the mask leaves one entry, whose weight is 1 whatever its score, in exp at",
    ),
    "an infinite mask that leaves one entry in each row": (
        lambda w, x: (
            jax.nn.softmax(jnp.where(jnp.eye(4, dtype=bool), w[:, None] * x[None], -jnp.inf)) * x[None]
        ).sum(),
        ONES,
        r"masked: in each row the mask leaves one entry, whose weight is 1 whatever its score, in exp at",
    ),
    "a softmax far apart": (
        lambda w, x: (jax.nn.softmax(w[:, None] * 1e4 * x[None]) * x[None]).sum(),
        ONES,
        r"underflow: in each row all entries but one are so low that their weight rounds to zero, in exp at",
    ),
    "a branch": (branches, ONES, r"branch not taken: cond at test_zero_gradients.py:\d+$"),
    "a loop of no iterations": (
        lambda w, x: lax.fori_loop(0, 0, lambda _, carry: carry * w.sum(), x.sum()),
        ONES,
        "is exactly zero: disconnected: scan at .*, a loop of no iterations",
    ),
    "a scan of no rows": (
        lambda w, x: lax.scan(lambda c, row: (c, jnp.tanh(row * w)), x, jnp.ones((0, 4)))[1].sum(),
        ONES,
        "is exactly zero: disconnected: scan at .*, a loop of no iterations",
    ),
    "a mask behind a loop of no iterations": (
        lambda w, x: (lax.fori_loop(0, 0, lambda _, carry: carry * x, w) * ZEROS).sum(),
        ONES,
        "is exactly zero: masked: multiplied by exact zeros in mul at",
    ),
    "the loser of a maximum over a stack": (
        lambda w, x: jnp.max(jnp.stack([w.sum(), 99.0])),
        ONES,
        "masked: not taken by reduce_max at",
    ),
    "a slice of a concatenation": (
        lambda w, x: jnp.concatenate([w, x])[4:].sum(),
        ONES,
        "masked: not taken by slice at",
    ),
    "a slice of a padded value": (lambda w, x: jnp.pad(w, 4)[:4].sum(), ONES, "masked: not taken by slice at"),
    "a mask behind a concatenation": (
        lambda w, x: (jnp.tanh(jnp.concatenate([w, x])) * jnp.repeat(jnp.array([0.0, 1.0]), 4)).sum(),
        ONES,
        "masked: multiplied by exact zeros in mul at",
    ),
    "the largest of a concatenation": (
        lambda w, x: lax.top_k(jnp.concatenate([w, jnp.full(4, 9.0)]), 2)[0].sum(),
        ONES,
        "masked: not taken by top_k at",
    ),
    "the median of a concatenation": (
        lambda w, x: jnp.median(jnp.concatenate([w * 1e3, jnp.zeros(9)])),
        ONES,
        "masked: not taken by (gather|sort) at",
    ),
    "the loser of a minimum": (
        lambda w, x: jnp.minimum(jnp.min(w), -5.0),
        ONES,
        "masked: the other operand of min at .* is smaller",
    ),
    "clipped": (lambda w, x: jnp.clip(w * 50.0, 0, 1).sum(), ONES, "outside the clip range: the output of min at"),
    "the imaginary part of a real number": (
        lambda w, x: jnp.imag((w * x).astype(jnp.complex64)).sum(),
        ONES,
        "zero by construction: .* the imaginary part of a real number",
    ),
    "a mask in every iteration": (scanned, jnp.ones((3, 4)), "masked: multiplied by exact zeros in mul at"),
    "a mask behind a scan": (carried, ONES, "masked: multiplied by exact zeros in mul at"),
    "where in a scan of which only the end is used": (
        last_of_a_scan,
        jnp.ones((3, 4)),
        "masked: where never takes it, select_n at .*; masked: iteration 0 of scan at .* is not taken",
    ),
    "a rule that hands nothing on": (
        lambda w, x: deaf(w).sum(),
        ONES,
        r"has no gradient: deaf at test_zero_gradients.py:\d+, whose own rule may pass no gradient on",
    ),
    "a rule of the user's own": (
        lambda w, x: silent(w).sum(),
        ONES,
        "the derivative of silent at .* is exactly zero for every element",
    ),
}


def whys(losses: Mapping[str, Callable[[Any, Any], Any]], parameters: Mapping[str, Any]) -> dict[str, str]:
    """What is said of each parameter, in a model that is the sum of losses of one parameter each."""

    def loss(parameters: Mapping[str, Any], x: Any) -> Any:
        return sum((losses[name](parameters[name], x) for name in losses), x.sum())

    return said_of(gs.capture(loss, dict(parameters), ROW), "param_grad")


def said_of(dump: gs.Dump, *families: str) -> dict[str, str]:
    """What a dump says of each gradient of some families that is zero or absent."""
    absent = {line.name: f"has no gradient: {line.detail}" for line in dump.ledger.missing if line.family in families}
    zero = {cause.name: f"is exactly zero: {cause.why}" for cause in dump.manifest.causes if cause.family in families}
    return {**absent, **zero}


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What is said of each fault, all of them in one model, together with a parameter that has none."""
    losses = {fault: loss for fault, (loss, _, _) in FAULTS.items()}
    parameters = {fault: w for fault, (_, w, _) in FAULTS.items()}
    return whys({**losses, "healthy": lambda w, x: (w * x).sum()}, {**parameters, "healthy": ONES})


@sampled("fault", FAULTS)
def test_a_fault_is_named_with_its_place(said: dict[str, str], fault: str) -> None:
    assert re.search(FAULTS[fault][2], said[fault]), said[fault]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reason_is_of_a_kind_that_explain_knows(said: dict[str, str], fault: str) -> None:
    for reason in re.sub("^(is exactly zero|has no gradient): ", "", said[fault]).split("; "):
        assert kind_of(reason) is not None or "takes out what it adds" in reason, reason


@pytest.mark.slow
def test_what_an_optimizer_only_looks_at_for_being_finite_is_cut_off_there() -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed: pip install 'gradscope-jax[train]'")
    optimizer = optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=5)

    def loss(w: Any, x: Any) -> Any:
        gradients = {"w": w["w"] * x, "watched": w["watched"]}
        updates, _ = optimizer.update(gradients, optimizer.init(w), w)
        return (optax.apply_updates(w, updates)["w"] * x).sum()

    with jax.numpy_dtype_promotion("standard"):
        dump = gs.capture(loss, {"w": ONES, "watched": ONES}, ROW)
        assert jnp.array_equal(dump["param_grad/w"], jax.grad(loss)({"w": ONES, "watched": ONES}, ROW)["w"])
    said = said_of(dump, "param_grad")
    assert re.search(r"is_finite at test_zero_gradients.py:\d+, an integer path: a comparison", said["watched"])
    assert [(each.rule, each.name) for each in dump.findings()] == [("zero-grad", "watched")]


def test_a_parameter_without_a_fault_is_not_named(said: dict[str, str]) -> None:
    assert set(said) == set(FAULTS)


def normal(seed: int, *shape: int) -> jax.Array:
    return drawn(seed, *shape, scale=shape[0] ** -0.5)


def dense(p: Any, name: str, x: Any) -> Any:
    with jax.named_scope(name):
        return x @ p[name]["kernel"] + p[name]["bias"][None]


@pytest.mark.slow
@sampled(("silent", "other"), [("keys", "queries"), ("queries", "keys")])
def test_a_kernel_of_zeros_is_named_where_its_product_multiplies_a_signal(silent: str, other: str) -> None:
    def loss(p: Any, x: Any) -> Any:
        queries, keys = dense(p, "queries", x), dense(p, "keys", x)
        turned = jnp.concatenate([keys[:, 2:], -keys[:, :2]], axis=-1)
        return (jnp.square(dense(p, "head", jax.nn.softmax(0.5 * queries @ (keys + turned).T) @ x))).sum()

    p = {name: {"kernel": normal(n, 4, 4), "bias": ZEROS} for n, name in enumerate(("queries", "keys", "head"))}
    p[silent]["kernel"] = jnp.zeros((4, 4))
    gradients = jax.grad(loss)(p, normal(7, 5, 4))
    assert not gradients[other]["kernel"].any()
    assert gradients[silent]["kernel"].any()
    dump = gs.capture(loss, p, normal(7, 5, 4))
    assert f": the product of param/{silent}/kernel is 0" in said_of(dump, "param_grad")[f"{other}/kernel"]
    assert [(each.rule, each.name) for each in dump.findings()] == [("init", f"{silent}/kernel")]


def test_a_kernel_of_zeros_is_named_in_a_scan_as_in_the_unrolled_blocks() -> None:
    def block(p: Any, x: Any) -> Any:
        return x + dense(p, "value", dense(p, "query", x) * dense(p, "key", x))

    def scanned(p: Any, x: Any) -> Any:
        def step(x: Any, each: Any) -> Any:
            with jax.named_scope("block"):
                return block(each, x), None

        return jnp.square(jax.lax.scan(step, x, p["blocks"])[0]).sum()

    def unrolled(p: Any, x: Any) -> Any:
        for n, each in enumerate(p["blocks"]):
            with jax.named_scope(f"block{n}"):
                x = block(each, x)
        return jnp.square(x).sum()

    def params(n: int) -> Any:
        kernels = {"query": jnp.zeros((4, 4)), "key": normal(n, 4, 4), "value": normal(n + 5, 4, 4)}
        return {name: {"kernel": kernel, "bias": ZEROS} for name, kernel in kernels.items()}

    blocks = [params(n) for n in range(3)]
    stacked = {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}
    dumps = gs.capture(unrolled, {"blocks": blocks}, normal(7, 5, 4)), gs.capture(scanned, stacked, normal(7, 5, 4))
    one, other = ([(each.rule, each.name) for each in dump.findings()] for dump in dumps)
    assert (one, other) == ([("init", "blocks/0/query/kernel")], [("init", "blocks/query/kernel")])
    reason = said_of(dumps[1], "param_grad")["blocks/key/kernel"]
    assert reason.endswith(": the product of param/blocks/query/kernel is 0")


@pytest.mark.slow
def test_branches_that_start_at_zero_are_no_findings_however_they_are_switched_off() -> None:
    def loss(p: Any, x: Any) -> Any:
        low_rank = p["low_rank"]
        x = x + x @ (low_rank["a"] @ (2.0 * low_rank["b"]))
        x = x + dense(p, "gate", x) * jnp.tanh(dense(p, "gated", x))
        x = x * jnp.exp(jnp.tanh(dense(p, "scale", x)) * jnp.exp(p["bound"])[None])  # as in a flow
        return jnp.square(dense(p, "head", x + dense(p, "down", jax.nn.relu(dense(p, "up", x))))).sum()

    names = ("gate", "gated", "up", "down", "head", "scale")
    p: Any = {name: {"kernel": normal(n, 4, 4), "bias": ZEROS} for n, name in enumerate(names)}
    p["gate"]["kernel"] = p["down"]["kernel"] = p["scale"]["kernel"] = jnp.zeros((4, 4))
    p["bound"] = ZEROS
    p["low_rank"] = {"a": normal(8, 4, 2), "b": jnp.zeros((2, 4))}
    dump = gs.capture(loss, p, normal(7, 16, 4))
    said = said_of(dump, "param_grad")
    assert {"low_rank/a", "gated/kernel", "gated/bias", "up/kernel", "up/bias", "bound"} == set(said)
    assert dump.findings() == ()


@pytest.mark.slow
def test_a_log_softmax_over_the_examples_leaves_the_bias_of_the_classes_without_effect() -> None:
    def loss(axis: int) -> Callable[[Any, Any], Any]:
        def of(p: Any, x: Any) -> Any:
            return -jax.nn.log_softmax(dense(p, "head", jnp.tanh(x)), axis)[jnp.arange(16), jnp.arange(16) % 4].mean()

        return of

    p, x = {"head": {"kernel": normal(1, 4, 4), "bias": ZEROS}}, normal(7, 16, 4)
    said = [dict(facts("", gs.capture(loss(axis), p, x).manifest)).get("no effect") for axis in (0, 1)]
    assert said[1] is None
    assert re.fullmatch(
        r"head/bias: log_softmax at test_zero_gradients.py:\d+ takes out what it adds, "
        r"over axis 0 of \[16, 4\], that of the examples",
        str(said[0]),
    )


@pytest.mark.slow
def test_two_faults_are_both_named_whether_on_one_way_or_on_two() -> None:
    said = whys(
        {
            "one way": lambda w, x: (lax.stop_gradient(jnp.floor(w)) * x).sum(),
            "two ways": lambda w, x: (w * ZEROS).sum() + jnp.where(x > 100.0, w, x).sum(),
        },
        {"one way": ONES, "two ways": ONES},
    )
    assert "floor at" in said["one way"]
    assert "stop_gradient at" in said["one way"]
    assert "multiplied by exact zeros" in said["two ways"]
    assert "where never takes it" in said["two ways"]


def test_a_comparison_beside_an_open_path_behind_a_stop_is_no_reason() -> None:
    def huber(w: Any, x: Any) -> Any:
        error = x - lax.stop_gradient(jnp.sin(w))
        return jnp.where(jnp.abs(error) < 1.0, jnp.square(error), jnp.abs(error)).sum()

    said = whys({"huber": huber}, {"huber": ONES})
    assert re.search(r"has no gradient: stop_gradient at test_zero_gradients.py:\d+$", said["huber"])


def test_a_stop_behind_a_while_loop_is_not_applied_to_what_the_loop_reads() -> None:
    def settled(w: Any, x: Any) -> Any:
        fixed = lax.while_loop(lambda z: z[1] < 3, lambda z: (jnp.tanh(w * z[0] + x), z[1] + 1), (x, 0))[0]
        return (lax.stop_gradient(fixed) * x).sum()

    said = whys({"settled": settled}, {"settled": ONES})
    assert "while at" in said["settled"]
    assert "stop_gradient at" in said["settled"]
    assert "applied to the argument itself" not in said["settled"]


def test_a_healthy_loss_is_not_run_twice() -> None:
    runs: list[int] = []

    def loss(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return (w * x).sum()

    assert gs.capture(loss, ONES, ROW).manifest.causes == ()
    jax.effects_barrier()
    assert len(runs) == 1


@pytest.mark.slow
def test_what_several_searches_need_is_observed_in_one_run() -> None:
    runs: list[int] = []

    def counted(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return (w * x).sum()

    names = ("a slice of a concatenation", "a slice of a padded value", "the median of a concatenation")
    losses = {name: FAULTS[name][0] for name in names}
    said = whys({**losses, "counted": counted}, dict.fromkeys((*losses, "counted"), ONES))
    assert set(said) == set(names)
    jax.effects_barrier()
    assert len(runs) == 3  # the step, what is around the gradients, and what is beyond


@pytest.mark.slow
def test_what_is_behind_a_loop_is_looked_at_once_for_all_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    goes_on = EquationUse.goes_on

    def counted(use: EquationUse) -> Any:
        looks.append(use.frame.jaxpr.eqns[use.number].primitive.name)
        return goes_on(use)

    def loss(w: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            with jax.named_scope("step"):
                carry = jnp.tanh(carry + row)
            return carry, None

        return (lax.scan(step, ROW, w)[0] * ZEROS).sum()

    monkeypatch.setattr(EquationUse, "goes_on", counted)
    dump = gs.capture(loss, filled(1.0, 5, 4))
    assert len(dump.manifest.causes) > 5
    assert looks == ["mul"]


@pytest.mark.slow
def test_an_unused_carry_of_the_last_iteration_is_disconnected_in_that_iteration() -> None:
    def loss(w: Any, x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            with jax.named_scope("carry"):
                carry = carry * 0.5 + row.sum()
            return carry, carry * 0.0

        return lax.scan(step, 0.0, w)[1].sum() + (w * x).sum()

    dump = gs.capture(loss, jnp.ones((3, 4)), ROW[None, :])
    said = said_of(dump, "param_grad", "activation_grad")
    assert "masked: multiplied by exact zeros in mul" in said["carry[0]"]
    assert "masked: multiplied by exact zeros in mul" in said["carry[2]"]


def test_an_unused_value_of_the_last_iteration_is_disconnected_in_that_iteration() -> None:
    def loss(w: Any, x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            with jax.named_scope("carry"):
                after = carry * 0.5 + row.sum()
            return after, carry

        return lax.scan(step, 0.0, w)[1].sum() + (w * x).sum()

    dump = gs.capture(loss, jnp.ones((3, 4)), ROW[None, :])
    said = said_of(dump, "param_grad", "activation_grad")
    assert said == {
        "carry[2]": "is exactly zero: disconnected: nothing that the loss depends on is made from it in its iteration"
    }


@pytest.mark.slow
def test_a_dead_layer_is_named_for_everything_before_it() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = jnp.tanh(x * w["first"])
        with jax.named_scope("second"):
            x = x * w["second"] - 100.0
        with jax.named_scope("rectifier"):
            return jnp.exp(jax.nn.relu(x)).sum()

    dump = gs.capture(loss, {"first": ONES, "second": ONES}, ROW)
    said = said_of(dump, "param_grad", "activation_grad")
    assert {"first", "second", "x"} & set(said) == {"first", "second"}
    assert all("dead units: the output of relu" in words and "in rectifier" in words for words in said.values())


def test_values_before_a_loop_without_reverse_mode_are_in_the_ledger() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("before"):
            made = jnp.sin(x)
        return (lax.while_loop(lambda c: c[0] < 9.0, lambda c: c + 1.0, made) * w).sum()

    lines = gs.capture(loss, ONES, ROW).ledger.missing
    detail = {line.name: line.detail for line in lines if line.family == "activation_grad"}["before"]
    assert "while at test_zero_gradients.py" in detail
    assert "a loop that reverse mode cannot run backwards" in detail


def test_a_layer_in_a_branch_that_was_not_taken_is_in_the_ledger() -> None:
    def loss(w: Any, x: Any) -> Any:
        def taken(a: Any) -> Any:
            with jax.named_scope("inside"):
                return jnp.sin(a)

        return lax.cond(x[0] > 100.0, taken, lambda a: a, w).sum()

    lines = [line for line in gs.capture(loss, ONES, ROW).ledger.missing if line.name == "inside"]
    assert lines
    assert all("a branch not taken" in line.detail for line in lines if line.family == "activation_grad")


def test_what_does_not_fit_in_memory_is_not_looked_into() -> None:
    model = Model.of_values("m", lambda w, x: (w * ZEROS * x).sum(), ONES, ROW)
    prepared = prepare(model, Arguments.of(ONES, ROW), CaptureSpec(), TraceQuery(), Timings())
    zero = Zero(family="param_grad", name="value", value=ValueKey((), OPERAND, 0), iteration=())
    (small,) = causes_of(prepared.start(), [zero], [], most_bytes=16)
    (large,) = causes_of(prepared.start(), [zero], [])
    assert small.why == "not looked into, because its path to the loss does not fit in memory"
    assert "multiplied by exact zeros" in large.why
