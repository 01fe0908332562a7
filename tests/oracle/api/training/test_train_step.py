"""`gradscope.train_step` against the loop that people write by hand with `jax.value_and_grad` and optax."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import UsageError
from tests.support.data import drawn, filled
from tests.support.sampled import sampled

optax = pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")


def variables() -> dict[str, Any]:
    params = {
        "hidden": {"kernel": drawn(0, 3, 4, scale=0.5), "bias": filled(0.0, 4)},
        "head": {"kernel": drawn(1, 4, 2, scale=0.5)},
    }
    return {"params": params, "batch_stats": {"mean": filled(0.0, 4)}}


def batch(number: int) -> dict[str, Any]:
    return {"x": drawn(100 + number, 8, 3), "y": drawn(200 + number, 8, 2)}


def loss(variables: Any, batch: Any) -> tuple[Any, Any]:
    params = variables["params"]
    with jax.named_scope("hidden"):
        hidden = jnp.tanh(batch["x"] @ params["hidden"]["kernel"] + params["hidden"]["bias"][None, :])
    mean = 0.9 * variables["batch_stats"]["mean"] + 0.1 * hidden.mean(axis=0)
    with jax.named_scope("head"):
        out = (hidden - variables["batch_stats"]["mean"][None, :]) @ params["head"]["kernel"]
    return ((out - batch["y"]) ** 2).mean(), {"batch_stats": {"mean": mean}}


def by_hand(optimizer: Any, steps: int) -> tuple[Any, Any]:
    now = variables()
    state = optimizer.init(now["params"])
    for number in range(steps):
        of_params = lambda params, now=now, number=number: loss({**now, "params": params}, batch(number))  # noqa: E731
        (_, aux), gradients = jax.value_and_grad(of_params, has_aux=True)(now["params"])
        updates, state = optimizer.update(gradients, state, now["params"])
        now = {"params": optax.apply_updates(now["params"], updates), "batch_stats": aux["batch_stats"]}
    return now, state


def taken(step: Any, steps: int) -> tuple[Any, list[Any]]:
    state, seen = step.init(variables()), []
    for number in range(steps):
        state, each = step(state, batch(number))
        seen.append(each)
    return state, seen


def same_bits(one: Any, other: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@sampled(
    ("text", "optimizer", "clip", "transformation"),
    [
        ("sgd(0.1, momentum=0.9)", optax.sgd(0.1, momentum=0.9), (), ()),
        ("adamw(exponential_decay(0.1, 2, 0.5))", optax.adamw(optax.exponential_decay(0.1, 2, 0.5)), (), ()),
        ("lion(0.01)", optax.lion(0.01), "global_norm(0.1)", (optax.clip_by_global_norm(0.1),)),
        ("sgd(1)", optax.sgd(1), ["value(0.01)", "global_norm(1)"], (optax.clip(0.01), optax.clip_by_global_norm(1))),
    ],
)  # fmt: skip
def test_steps_are_bit_for_bit_those_of_a_loop_by_hand(
    text: str, optimizer: Any, clip: Any, transformation: Any
) -> None:
    with jax.numpy_dtype_promotion("standard"):
        expected, _ = by_hand(optax.chain(*transformation, optimizer), 3)
        step = gs.train_step(loss, text, clip=clip)
        state, seen = taken(step, 3)
    same_bits(state.variables, expected)
    assert int(state.step) == 3
    assert ("clipped_grad/head/kernel" in seen[-1]) is bool(clip)


@sampled(
    ("text", "optimizer", "extra"),
    [
        ("contrib.sophia(0.01)", lambda: optax.contrib.sophia(0.01), ("obj_fn",)),
        ("contrib.sam(sgd(0.1), sgd(0.2))", lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.2)), ()),
        (
            "chain(lbfgs(), polyak_sgd())",
            lambda: optax.chain(optax.lbfgs(), optax.polyak_sgd()),
            ("value", "grad", "value_fn"),
        ),
    ],
)
def test_an_optimizer_gets_what_it_takes_beside_the_gradients(
    text: str, optimizer: Callable[[], Any], extra: tuple[str, ...]
) -> None:
    only, made = batch(0), optimizer()

    def of_params(params: Any) -> Any:
        return loss({**variables(), "params": params}, only)[0]

    with jax.numpy_dtype_promotion("standard"):
        params = variables()["params"]
        state, step = made.init(params), gs.train_step(loss, text, state_updates=False)
        ours = step.init(variables())
        for _ in range(2):
            value, gradients = jax.value_and_grad(of_params)(params)
            extras = {"value": value, "grad": gradients, "value_fn": of_params, "obj_fn": of_params}
            updates, state = made.update(gradients, state, params, **{name: extras[name] for name in extra})
            params = optax.apply_updates(params, updates)
            ours, _ = step(ours, only)
    for one, other in zip(jax.tree.leaves(ours.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_an_optimizer_that_takes_no_such_step_is_one_message() -> None:
    step = gs.train_step(loss, "lookahead(sgd(0.1), 5, 0.5)")
    with pytest.raises(UsageError, match=r"lookahead\(sgd\(0.1\), 5, 0.5\) cannot update these parameters"):
        step(step.init(variables()), batch(0))


@pytest.mark.slow
def test_its_parts_are_its_whole() -> None:
    step = gs.train_step(
        loss, optax.adam(0.1), clip="norm(0.01)", multiply={"head/*": 0.5}, ema=0.9, state_updates=False
    )
    with jax.numpy_dtype_promotion("standard"):
        state = step.init(variables())
        computed = step.compute_gradients(state, batch(0))
        after, updates = step.apply_gradients(state, step.process_gradients(state, computed.gradients))
        expected, seen = step(state, batch(0))
    same_bits(after, expected)
    np.testing.assert_allclose(seen["update/head/kernel"].l2, np.linalg.norm(updates["head"]["kernel"]), rtol=1e-6)


@pytest.mark.slow
def test_statistics_are_those_of_every_stage() -> None:
    step = gs.train_step(
        loss, optax.sgd(0.1, momentum=0.9), clip=gs.clip.norm(0.01), multiply={"head/kernel": 2.0}, ema=0.5
    )
    first = step.init(variables())
    after, seen = jax.jit(step)(first, batch(0))
    gradients = jax.grad(lambda params: loss({**variables(), "params": params}, batch(0))[0])(first.params)
    head = np.asarray(gradients["head"]["kernel"], np.float64)
    clipped = 2 * head * min(1, 0.01 / np.linalg.norm(2 * head))
    expected = {
        "param_grad": head, "clipped_grad": clipped, "update": -0.1 * clipped, "slot/trace": clipped,
        "average": 0.5 * first.params["head"]["kernel"] + 0.5 * after.params["head"]["kernel"],
    }  # fmt: skip
    for family, tensor in expected.items():
        np.testing.assert_allclose(seen[f"{family}/head/kernel"].l2, np.linalg.norm(tensor), rtol=1e-5, err_msg=family)
    everything = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(gradients)]
    np.testing.assert_allclose(seen.grad_norm, np.linalg.norm(np.concatenate(everything)), rtol=1e-6)
    assert "activation_grad/hidden" in seen
    assert set(seen.numbers) == {"loss", "grad_norm", "grad_norm_clipped", "update_norm", "param_norm"}


def test_a_state_and_what_a_step_saw_are_one_line() -> None:
    state, seen = taken(gs.train_step(loss, "sgd(0.1)", clip="norm(1)"), 1)
    assert repr(state).startswith("<gradscope.TrainState after 1 steps: 4 arrays, ")
    assert repr(seen[0]).startswith(f"<gradscope.StepSeen loss {float(seen[0].loss):.6g}, ")
    assert "clipped_grad" in str(seen[0])
    with_tracers: list[str] = []
    jax.jit(lambda each: with_tracers.append(repr(each)) or each.loss)(seen[0])
    assert with_tracers == [f"<gradscope.StepSeen {len(seen[0])} tensors>"]


@pytest.mark.slow
def test_the_learning_rate_is_that_of_the_step() -> None:
    step = gs.train_step(loss, "sgd(exponential_decay(0.1, 1, 0.5))", families=())
    rates = [float(seen.numbers["learning_rate"]) for seen in taken(step, 3)[1]]
    np.testing.assert_allclose(rates, [0.1, 0.05, 0.025], rtol=1e-6)
    for rate, expected in ((0.3, [0.3] * 3), (optax.exponential_decay(0.1, 1, 0.5), [0.1, 0.05, 0.025])):
        injected = gs.train_step(loss, optax.inject_hyperparams(optax.sgd)(learning_rate=rate), families=())
        rates = [float(seen.numbers["learning_rate"]) for seen in taken(injected, 3)[1]]
        np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("selection", [{"only": "head/*"}, {"freeze": ["hidden/*"]}])
def test_a_parameter_that_is_not_trained_keeps_its_bits_and_has_no_slot(selection: dict[str, Any]) -> None:
    step = gs.train_step(loss, "momentum(0.1, 0.9)", ema=0.9, **selection)
    state, (_, seen) = taken(step, 2)
    same_bits(state.params["hidden"], variables()["params"]["hidden"])
    assert not np.array_equal(state.params["head"]["kernel"], variables()["params"]["head"]["kernel"])
    assert sorted(state.slots() | state.averages()) == ["average/head/kernel", "slot/trace/head/kernel"]
    assert "update/head/kernel" in seen
    assert "update/hidden/kernel" not in seen
    np.testing.assert_allclose(seen.grad_norm, seen["param_grad/head/kernel"].l2, rtol=1e-6)


def test_collections_are_carried_on_unless_refused() -> None:
    for state_updates in (True, False):
        step = gs.train_step(loss, "sgd(0.1)", state_updates=state_updates, families=())
        state, seen = step(step.init(variables()), batch(0))
        kept = variables()["batch_stats"] if not state_updates else seen.aux["batch_stats"]
        same_bits(state.variables["batch_stats"], kept)


@pytest.mark.slow
def test_it_compiles_scans_and_donates_with_the_same_numbers() -> None:
    step = gs.train_step(loss, "sgd(0.1, momentum=0.9)", clip="global_norm(0.1)")
    one_by_one = step.init(variables())
    compiled = jax.jit(step, donate_argnums=0)
    losses = []
    for number in range(3):
        one_by_one, seen = compiled(one_by_one, batch(number))
        losses.append(float(seen.loss))
    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(batch, range(3)))
    scanned, stacked = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))(
        step.init(variables()), batches
    )
    np.testing.assert_allclose(stacked.loss, losses, rtol=1e-6)
    assert stacked["update/head/kernel"].l2.shape == (3,)
    for ours, theirs in zip(jax.tree.leaves(scanned), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@sampled(
    ("optimizer", "slots"),
    [
        ("sgd(0.1)", []),
        ("adamw(0.1)", ["slot/mu/w", "slot/nu/w"]),
        ("adagrad(0.1)", ["slot/sum_of_squares/w"]),
        ("adadelta(0.1)", ["slot/e_g/w", "slot/e_x/w"]),
        ("ftrl(0.1)", ["slot/accum/w", "slot/linear/w"]),
        ("tf1_rmsprop(0.1)", ["slot/mom/w", "slot/mu/w", "slot/nu/w"]),
        ("contrib.muon(0.1)", None),
    ],
)
def test_slots_have_the_names_of_the_optimizers_fields(optimizer: str, slots: list[str] | None) -> None:
    step = gs.train_step(lambda params, x: ((params["w"] @ x) ** 2).mean(), optimizer)
    state = step.init({"w": jnp.ones((2, 2))})
    assert slots is None or sorted(state.slots()) == slots
    with jax.numpy_dtype_promotion("standard"):
        after, seen = step(state, jnp.eye(2))
    assert sorted(key for key in seen if key.startswith("slot/")) == sorted(after.slots())


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        ("adm(0.1)", {}, "there is no optimizer called 'adm'"),
        ("adam()", {}, "'adam()' has no learning rate"),
        ("adam(0.1, beta=3)", {}, "got an unexpected keyword argument 'beta'"),
        ("adam(exponential_decy(0.1, 10, 0.5))", {}, "there is no schedule or optimizer called 'exponential_decy'"),
        ("adam(__import__('os').getcwd())", {}, "is not a name with literal arguments"),
        ("adam(lambda: 1)", {}, "is not a name with literal arguments"),
        ("0.1", {}, "'0.1' is not an optimizer"),
        ("chain(1)", {}, "'chain(1)' cannot be used"),
        (3, {}, "3 is not a gradient transformation of optax"),
        ("sgd(0.1)", {"clip": "norm(0)"}, "clipping by norm needs a limit above 0, not 0"),
        ("sgd(0.1)", {"clip": "value(2, 1)"}, "clipping to values from 2 to 1 leaves no gradient"),
        ("sgd(0.1)", {"clip": "norm(constant_schedule(1))"}, "'constant_schedule(1)' is no limit of a clip"),
        ("sgd(0.1)", {"clip": "nrom(1)"}, "there is no way to clip called 'nrom'"),
        ("sgd(0.1)", {"ema": 1.0}, "the decay of a moving average is between 0 and 1, not 1"),
        ("sgd(0.1)", {"ema": "0.9,warm"}, "'warm' is not known of a moving average"),
        ("ftrl(0.1, l1=-1)", {}, "l1 and l2 at least 0"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_step_is_made(
    optimizer: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        gs.train_step(loss, optimizer, **options)
    assert message in str(error.value)


@pytest.mark.parametrize("options", [{"only": "haed/*"}, {"freeze": "haed/*"}, {"multiply": {"haed/*": 2.0}}])
def test_a_pattern_that_matches_no_parameter_is_refused(options: dict[str, Any]) -> None:
    step = gs.train_step(loss, "sgd(0.1)", **options)
    with pytest.raises(UsageError, match="selects nothing"):
        step.init(variables())


def test_without_optax_training_says_how_to_install_it() -> None:
    program = (
        "import sys, importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'optax' else find(name, *rest)\n"
        "import gradscope as gs\n"
        "try: gs.train_step(lambda w, x: w, 'sgd(1)')\n"
        "except gs.UsageError as error: print(error, error.hint)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "training needs the package optax install it: pip install 'gradscope-jax[train]'\n", run.stderr


def test_the_first_state_can_be_donated() -> None:
    step = gs.train_step(loss, "sgd(0.1)", ema=0.9, families=())
    state = step.init(variables())
    average, kernel = state.average["head"]["kernel"], state.params["head"]["kernel"]
    assert average.unsafe_buffer_pointer() != kernel.unsafe_buffer_pointer()


@pytest.mark.parametrize("optimizer", ["tf1_rmsprop(0.1, momentum=0.9)", "lbfgs()"])
def test_the_first_state_has_no_array_of_the_optimizer_twice(optimizer: str) -> None:
    state = gs.train_step(loss, optimizer, families=()).init(variables())
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state.optimizer)]
    assert len(pointers) == len(set(pointers))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["ftrl", "tf1_rmsprop", "tf1_adam"])
def test_slots_keep_their_dtype_under_a_schedule(optimizer: str) -> None:
    step = gs.train_step(
        lambda params, batch: (params["w"] * batch).sum(), f"{optimizer}(exponential_decay(0.1, 2, 0.5))"
    )
    before = step.init({"w": filled(1.0, 3).astype(jnp.bfloat16)})
    with jax.numpy_dtype_promotion("standard"):
        after, _ = step(before, filled(1.0, 3).astype(jnp.bfloat16))
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, before)


def test_an_optimizer_that_takes_no_such_parameters_is_one_message() -> None:
    step = gs.train_step(loss, "rprop(cosine_decay_schedule(0.1, 10))")
    with pytest.raises(UsageError, match=r"rprop\(cosine_decay_schedule\(0.1, 10\)\) cannot update these parameters"):
        step.init(variables())


def test_parameters_of_whole_numbers_are_not_said_to_be_left_out_by_patterns() -> None:
    step = gs.train_step(lambda params, batch: (params["w"] * batch).sum(), "sgd(0.1)")
    with pytest.raises(gs.UsageError, match="no parameter is trained") as caught:
        step.init({"w": jnp.ones(3, jnp.int32)})
    assert caught.value.hint == "none is of floating-point numbers"


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter is trained"):
        gs.train_step(loss, "sgd(0.1)", freeze="*").init(variables())


@pytest.mark.parametrize("families", [None, ()], ids=["observed", "plain"])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda out: out, r"must be a scalar, and has shape \(3,\)"),
        (lambda out: None, "must return a scalar or .*, and returned NoneType"),
        (lambda out: out.astype(jnp.int32).sum(), "must be a real floating-point number .* and is int32"),
    ],
)
def test_a_loss_that_is_none_is_the_models_failure(wrong: Any, says: str, families: Any) -> None:
    step = gs.train_step(lambda params, batch: wrong(params["w"] * batch), "sgd(0.1)", families=families)
    x = filled(1.0, 3)
    with pytest.raises(gs.ModelError, match=rf"the loss at test_train_step.py:\d+ {says}"):
        jax.eval_shape(step, step.init({"w": x}), x)
