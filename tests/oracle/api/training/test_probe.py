"""`gradscope.Probe` against the loop without it: the same program, the same numbers, and statistics of NumPy."""

from __future__ import annotations

import json
import re
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradscope as gs
from gradscope.errors import MachineError
from gradscope.history.history_reader import History
from gradscope.history.views.learning import stated_faults
from gradscope.presentation import trends_report
from gradscope.training.optimizers.tree_norm import tree_norm
from gradscope.training.probing.probe_history import ProbeHistory, close_open_probes
from tests.support.data import drawn
from tests.support.sampled import sampled

optax = pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

P = PartitionSpec
TX = optax.adam(0.01)


@pytest.fixture(autouse=True)
def _as_users_have_it() -> Any:
    with jax.numpy_dtype_promotion("standard"):
        yield


def initial() -> Any:
    params = {"hidden": {"w": drawn(0, 4, 8)}, "head": {"w": drawn(1, 8, 1)}}
    return params, TX.init(params)


def batch(number: int) -> Any:
    x = drawn(100 + number, 16, 4)
    return {"x": x, "y": x[:, :1]}


def loss(params: Any, batch: Any) -> Any:
    with jax.named_scope("hidden"):
        hidden = jnp.tanh(batch["x"] @ params["hidden"]["w"])
    with jax.named_scope("head"):
        return ((hidden @ params["head"]["w"] - batch["y"]) ** 2).mean()


def loop_step(value_and_grad: Any, record: Any, loss: Any = loss) -> Any:
    def train_step(state: Any, batch: Any) -> Any:
        params, optimizer = state
        value, grads = value_and_grad(loss)(params, batch)
        updates, optimizer = TX.update(grads, optimizer, params)
        record(updates=updates, opt_state=optimizer)
        return (optax.apply_updates(params, updates), optimizer), value

    return train_step


def nothing(**_: Any) -> None: ...


PLAIN = loop_step(jax.value_and_grad, nothing)


def statistics(array: Any) -> dict[str, float]:
    wide = np.asarray(array, np.float64)
    return {"l2": float(np.linalg.norm(wide)), "mean": float(wide.mean()), "std": float(wide.std()),
            "amax": float(np.abs(wide).max()), "zeros": int((wide == 0).sum())}  # fmt: skip


def assert_recorded(run: Any, step: int, key: str, array: Any) -> None:
    at = run.steps["step"].tolist().index(step)
    for name, expected in statistics(array).items():
        np.testing.assert_allclose(run.series(key, name)[at], expected, rtol=2e-5, atol=1e-7, err_msg=f"{key} {name}")


def test_the_step_is_the_program_without_a_probe_and_what_is_recorded_is_what_it_computes(tmp_path: Path) -> None:
    plain = jax.jit(PLAIN)
    with gs.Probe(tmp_path, every=2) as probe:
        step = probe.jit(loop_step(probe.value_and_grad, probe.record))
        ours, theirs = step.lower(initial(), batch(0)), plain.lower(initial(), batch(0))
        assert ours.as_text() == theirs.as_text()
        assert without_lines(ours.compile().as_text()) == without_lines(theirs.compile().as_text())
        state, expected, before, values = initial(), initial(), [], []
        for number in range(5):
            before.append(expected)
            state, value = step(state, batch(number))
            expected, other = plain(expected, batch(number))
            np.testing.assert_allclose(value, other, rtol=1e-6)
            values.append(float(value))
    with gs.load(tmp_path) as run:
        assert run.steps["step"].tolist() == [0, 2, 4]
        np.testing.assert_array_equal(run.losses["step"], range(5))
        np.testing.assert_allclose(run.losses["loss"], values, rtol=1e-6)
        for number in (0, 2, 4):
            params, optimizer = before[number]
            value, grads = jax.value_and_grad(loss)(params, batch(number))
            updates, optimizer = TX.update(grads, optimizer, params)
            arrays = {"param": params, "param_grad": grads, "update": updates, "slot/mu": optimizer[0].mu}
            for family, tree in arrays.items():
                assert_recorded(run, number, f"{family}/hidden/w", tree["hidden"]["w"])
            hidden = np.tanh(np.asarray(batch(number)["x"]) @ np.asarray(params["hidden"]["w"]))
            assert_recorded(run, number, "activation/hidden", hidden)
            at = number // 2
            assert run.steps["loss"][at] == pytest.approx(float(value), rel=1e-5)
            assert run.steps["grad_norm"][at] == pytest.approx(float(optax.tree.norm(grads)), rel=1e-5)
            assert run.steps["update_norm"][at] == pytest.approx(float(optax.tree.norm(updates)), rel=1e-5)
        first, last = (jax.grad(loss)(before[number][0], batch(number))["hidden"]["w"] for number in (2, 4))
        cosine = float(jnp.vdot(first, last) / jnp.linalg.norm(first) / jnp.linalg.norm(last))
        assert run.series("param_grad/hidden/w", "cosine")[2] == pytest.approx(cosine, rel=1e-4)
        assert run.at(4).stats("activation_grad/head").nan == 0


def test_a_step_that_is_not_due_reads_nothing_from_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, read = type(jnp.ones(1)), list[str]()

    def noted(name: str, method: Any) -> Any:
        def call(array: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():  # another one may wait
                read.append(name)
            return method(array, *args, **kwargs)

        return call

    with gs.Probe(tmp_path, every=10) as probe:
        step, state = probe.jit(loop_step(probe.value_and_grad, probe.record), donate_argnums=0), initial()
        batches = [batch(number) for number in range(10)]
        state, _ = step(state, batches[0])
        state, _ = step(state, batches[1])  # compiles, for which constants are read
        for name in ("__array__", "block_until_ready", "__float__", "__bool__", "item", "tolist"):
            monkeypatch.setattr(kind, name, noted(name, getattr(kind, name)))
        monkeypatch.setattr(kind, "_value", property(noted("_value", kind._value.fget)))
        for each in batches[2:]:
            state, value = step(state, each)
        assert read == []
        assert float(value) > 0
        assert read
        monkeypatch.undo()
    with gs.load(tmp_path) as run:
        assert run.steps["step"].tolist() == [0]


def without_lines(text: str | None) -> str:
    """A compiled program without the lines of the sources that it came from."""
    body = re.sub(r", metadata=\{[^}]*\}", "", text or "")
    return re.split(r"\n\n?(?:FileNames|StackFrames|FunctionNames|FileLocations)", body)[0]


def test_donation_has_aux_and_argnums(tmp_path: Path) -> None:
    def with_aux(scale: Any, params: Any, batch: Any) -> Any:
        value = scale * loss(params, batch)
        return value, {"twice": 2 * value}

    with gs.Probe(tmp_path, every=1, families=["param_grad", "update"]) as probe:

        def train_step(params: Any, scale: Any, batch: Any) -> Any:
            (value, aux), grads = probe.value_and_grad(with_aux, argnums=(1, 0), has_aux=True)(scale, params, batch)
            after = jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, params, grads[0])
            probe.record(updates=(jax.tree.map(lambda grad: -0.1 * grad, grads[0]), jnp.zeros_like(scale)))
            return after, value, aux

        step = probe.jit(train_step, donate_argnums=0)
        params = initial()[0]
        kept = jax.tree.map(jnp.copy, params)
        after, value, aux = step(params, jnp.float32(2.0), batch(0))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    grads = jax.grad(lambda params: 2 * loss(params, batch(0)))(kept)
    np.testing.assert_allclose(after["head"]["w"], kept["head"]["w"] - 0.1 * grads["head"]["w"], rtol=1e-5)
    np.testing.assert_allclose(aux["twice"], 2 * value)
    with gs.load(tmp_path) as run:
        assert_recorded(run, 0, "param_grad/params/hidden/w", grads["hidden"]["w"])
        assert_recorded(run, 0, "update/params/hidden/w", -0.1 * grads["hidden"]["w"])
        assert all(key.split("/")[0] in {"param_grad", "update"} for key in run.keys())  # noqa: SIM118


def test_accumulated_gradients_count_as_one_step_on_all_batches(tmp_path: Path) -> None:
    with gs.Probe(tmp_path, every=1) as probe:

        def train_step(params: Any, batches: Any) -> Any:
            total = jax.tree.map(jnp.zeros_like, params)
            for each in batches:
                _, grads = probe.value_and_grad(loss)(params, each)
                total = jax.tree.map(jnp.add, total, grads)
            return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad / 2, params, total)

        probe.jit(train_step)(initial()[0], [batch(0), batch(1)])
    both = {name: jnp.concatenate([batch(0)[name], batch(1)[name]]) for name in ("x", "y")}
    params = initial()[0]
    value, grads = jax.value_and_grad(loss)(params, both)
    with gs.load(tmp_path) as run:
        assert run.steps["loss"].tolist() == [pytest.approx(float(value), rel=1e-5)]
        assert run.steps["grad_norm"].tolist() == [pytest.approx(float(optax.tree.norm(grads)), rel=1e-5)]
        assert_recorded(run, 0, "param_grad/hidden/w", grads["hidden"]["w"])
        assert_recorded(run, 0, "activation/hidden", np.tanh(both["x"] @ params["hidden"]["w"]))


def test_a_step_of_two_losses_is_refused_and_one_of_closures_of_a_loss_is_not(tmp_path: Path) -> None:
    def step(first: Any, second: Any, state: Any, batch: Any) -> Any:
        for fun in (first, second):
            value, _ = probe.value_and_grad(fun)(state[0], batch)
        return state, value

    def other(params: Any, batch: Any) -> Any:
        return loss(params, batch) * 2

    def closure(scale: float) -> Any:
        return lambda params, batch: scale * loss(params, batch)

    says = "several losses, loss and other, and a probe records one"
    with gs.Probe(tmp_path / "two") as probe, pytest.raises(gs.UsageError, match=says):
        probe.jit(partial(step, loss, partial(other)))(initial(), batch(0))
    with gs.Probe(tmp_path / "one") as probe:
        assert probe.jit(partial(step, closure(1.0), partial(closure(2.0))))(initial(), batch(0))[1] > 0
    with gs.load(tmp_path / "one") as run:
        assert run.steps["loss"][0] == pytest.approx(1.5 * float(loss(initial()[0], batch(0))), rel=1e-6)


def test_a_scan_over_steps_is_written_as_so_many_steps(tmp_path: Path) -> None:
    def body(state: Any, batch: Any) -> Any:
        params, optimizer = state
        (value, grads), seen = gs.value_and_grad(loss)(params, batch)
        updates, optimizer = TX.update(grads, optimizer, params)
        return (optax.apply_updates(params, updates), optimizer), (seen, updates, value)

    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(batch, range(3)))
    _, (seen, updates, values) = jax.jit(lambda state: jax.lax.scan(body, state, batches))(initial())
    with gs.Probe(tmp_path) as probe:
        probe.write(10, seen, updates=updates)
        with pytest.raises(gs.UsageError, match="step 12 was to be written after step 12"):
            probe.write(12, seen)
        with pytest.raises(gs.UsageError, match=r"the loss has shape \[\], expected \[3\]"):
            probe.write(13, seen, loss=values[0])
        with pytest.raises(gs.UsageError, match=r"the update of .*head/w has shape \[8, 1\], .* of 3 steps"):
            probe.write(13, seen, updates=jax.tree.map(lambda leaf: leaf[0], updates))
        with pytest.raises(gs.UsageError, match=r"probe\.write takes what was observed, not dict"):
            probe.write(13, {})
    state, plain = initial(), jax.jit(PLAIN)
    with gs.load(tmp_path) as run:
        assert run.steps["step"].tolist() == [10, 11, 12]
        np.testing.assert_allclose(run.steps["loss"], values, rtol=1e-6)
        for number in range(3):
            grads = jax.grad(loss)(state[0], batch(number))
            assert_recorded(run, 10 + number, "param_grad/head/w", grads["head"]["w"])
            assert run.steps["grad_norm"][number] == pytest.approx(float(optax.tree.norm(grads)), rel=1e-4)
            after, _ = plain(state, batch(number))
            step = after[0]["head"]["w"] - state[0]["head"]["w"]
            assert run.series("update/head/w", "l2")[number] == pytest.approx(float(jnp.linalg.norm(step)), rel=1e-4)
            state = after


def test_a_schedule_in_the_state_and_a_loss_without_parameters_are_recorded(tmp_path: Path) -> None:
    injected = optax.inject_hyperparams(optax.adam)(learning_rate=optax.exponential_decay(0.1, 1, 0.5))
    with gs.Probe(tmp_path, every=1) as probe:

        def train_step(params: Any, optimizer: Any) -> Any:
            value, grads = probe.value_and_grad(lambda params: sum(map(jnp.sum, params), jnp.ones(())))(params)
            updates, optimizer = injected.update(grads, optimizer, params)
            probe.record(updates=updates, opt_state=optimizer)
            return optax.apply_updates(params, updates), optimizer, value

        step = probe.jit(train_step)
        for first in ((jnp.ones(2),), ()):
            params, optimizer = first, injected.init(first)
            for _ in range(2):
                params, optimizer, _ = step(params, optimizer)
    with gs.load(tmp_path) as run:
        np.testing.assert_allclose(run.steps["learning_rate"], [0.1, 0.05, 0.1, 0.05], rtol=1e-6)
        np.testing.assert_allclose(run.steps["loss"], [3, 2.8, 1, 1], rtol=1e-5)


def test_a_spike_in_a_scan_is_an_alarm_with_its_tensor(tmp_path: Path) -> None:
    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(batch, range(80)))
    spiked = {**batches, "x": batches["x"].at[SPIKE].mul(100)}
    first = initial()[0]
    params = {"hidden": {"w": 0.01 * first["hidden"]["w"]}, "head": {"w": 5 * first["head"]["w"]}}
    of_each = lambda carry, each: (carry, gs.value_and_grad(loss)(params, each)[1])  # noqa: E731
    _, seen = jax.jit(lambda batches: jax.lax.scan(of_each, 0, batches))(spiked)
    with gs.Probe(tmp_path) as probe:
        probe.write(0, seen)
    with gs.load(tmp_path) as run:
        found = {each.rule: each for each in run.alarms}
        assert {each.step for each in run.alarms} == {SPIKE}
        assert (found["loss-spike"].key, found["loss-spike"].folder) == ("activation/hidden", None)


def test_a_step_of_train_step_is_written(tmp_path: Path) -> None:
    step = gs.train_step(loss, "sgd(0.1)", clip="global_norm(0.01)")
    _, seen = jax.jit(step)(step.init(initial()[0]), batch(0))
    with gs.Probe(tmp_path) as probe:
        probe.write(0, seen)
    with gs.load(tmp_path) as run:
        assert run.steps["grad_norm_clipped"].tolist() == [pytest.approx(0.01, rel=1e-4)]
        assert run.series("clipped_grad/head/w", "l2")[0] == pytest.approx(float(seen["clipped_grad/head/w"].l2))


def in_scan(probe: Any) -> Any:
    return lambda params, batch: jax.lax.scan(
        lambda carry, _: (carry, probe.value_and_grad(loss)(carry, batch)[0]), params, length=2
    )


def in_vmap(probe: Any) -> Any:
    def of_each(params: Any, batch: Any) -> Any:
        return jax.vmap(lambda x: probe.value_and_grad(loss)(params, {"x": x[None], "y": x[None, :1]})[0])(batch["x"])

    return of_each


def in_jit(probe: Any) -> Any:
    return jax.jit(probe.value_and_grad(loss))


@pytest.mark.parametrize("wrong", [in_scan, in_vmap, in_jit])
def test_inside_a_transformation_the_functional_form_is_named(wrong: Any, tmp_path: Path) -> None:
    with gs.Probe(tmp_path) as probe:
        step = probe.jit(wrong(probe))
        with pytest.raises(gs.UsageError, match=r"probe\.value_and_grad is called inside a transformation") as caught:
            step(initial()[0], batch(0))
        assert "(value, grads), seen = gs.value_and_grad(loss)(...)" in (caught.value.hint or "")
        assert "jax.lax.map(jax.checkpoint(lambda part: loss(params, part)), parts).mean()" in (caught.value.hint or "")
        assert "probe.write(step, seen)" in (caught.value.hint or "")
    with gs.Probe(tmp_path, force=True) as probe:
        step = probe.jit(loop_step(probe.value_and_grad, probe.record))
        with pytest.raises(gs.UsageError, match="step of a probe is called inside a transformation") as caught:
            jax.jit(step)(initial(), batch(0))
        assert "probe.write(step, seen)" in (caught.value.hint or "")


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(gs.UsageError, match="every is 0"):
        gs.Probe(tmp_path, every=0)
    with pytest.raises(gs.UsageError, match="start is 9007199254740993"):  # which no reader would take
        gs.Probe(tmp_path, start=2**53 + 1)
    with pytest.raises(gs.UsageError, match=r"start is 1\.5, which is no whole number"):
        gs.Probe(tmp_path, start=1.5)  # type: ignore[arg-type]
    with pytest.raises(gs.UsageError, match="no family 'updat'"):
        gs.Probe(tmp_path, families="updat")
    (tmp_path / "file").write_text("")
    with pytest.raises(gs.UsageError, match="is not a folder"):
        gs.Probe(tmp_path / "file")
    with gs.Probe(tmp_path / "run", every=1) as probe:
        with pytest.raises(gs.UsageError, match="is being written, by another process or a probe that is not closed"):
            gs.Probe(tmp_path / "run")
        with pytest.raises(gs.UsageError, match=r"outside of a step that probe\.jit compiled"):
            probe.value_and_grad(loss)(initial()[0], batch(0))
        step = probe.jit(loss)
        with pytest.raises(gs.UsageError, match=r"calls probe\.value_and_grad nowhere"):
            step(initial()[0], batch(0))
        with pytest.raises(gs.UsageError, match="step is 9223372036854775808"):
            probe.write(2**63, None)  # type: ignore[arg-type]
        with pytest.raises(gs.UsageError, match="has a step already"):
            probe.jit(step)
    with pytest.raises(gs.UsageError, match="the probe is closed"):
        step(initial()[0], batch(0))
    with gs.Probe(tmp_path / "run") as probe:  # nothing was recorded in it
        step = probe.jit(lambda params, batch: (probe.value_and_grad(loss)(params, batch), probe.record(updates=[1.0])))
        with pytest.raises(gs.UsageError, match=r"probe.record\(updates=...\) has another structure"):
            step(initial()[0], batch(0))


def test_a_first_step_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    def loss(params: Any, x: Any) -> Any:
        raise ValueError

    for name in ("new/run", "old"):
        (tmp_path / "old").mkdir(exist_ok=True)
        probe = gs.Probe(tmp_path / name)
        step = probe.jit(lambda params, x, probe=probe: probe.value_and_grad(loss)(params, x))
        with probe, pytest.raises(ValueError):  # noqa: PT011 - the user's own error
            step({"w": jnp.zeros(3)}, jnp.eye(3))
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "old"]


def test_a_run_is_continued_from_a_step_on_and_not_lost(tmp_path: Path) -> None:
    def steps(numbers: range, state: Any, **options: Any) -> Any:
        with gs.Probe(tmp_path, every=2, **options) as probe:
            step = probe.jit(loop_step(probe.value_and_grad, probe.record))
            for number in numbers:
                state, _ = step(state, batch(number))
        return state

    def taken() -> int:
        with History(tmp_path) as history:
            return trends_report(str(tmp_path), history).taken

    state = steps(range(6), initial())
    with pytest.raises(gs.UsageError, match="holds a run that was recorded up to step 4"):
        gs.Probe(tmp_path)
    assert taken() == 6
    probe = gs.Probe(tmp_path, start=np.int64(3))  # as a state of NumPy has it
    assert taken() == 3, "what the loop has not taken again would count if it were killed"
    probe.close()
    steps(range(3, 8), state, start=3)
    with gs.load(tmp_path) as run:
        assert run.steps["step"].tolist() == [0, 2, 4, 6]
        assert taken() == 8
        assert json.loads(run.facts["versions"])["jax"] == jax.__version__  # as train writes them
        assert json.loads(run.facts["x64"]) is bool(jax.config.jax_enable_x64)
    steps(range(1), state, force=True)
    with gs.load(tmp_path) as run:
        assert run.steps["step"].tolist() == [0]


def test_folders_that_alarms_of_a_replaced_run_saved_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gs.Probe(tmp_path).close()
    (tmp_path / "alarm-000001").mkdir()
    gs.Probe(tmp_path, force=True).close()
    left = "alarm-000001 is of steps that the run no longer has: it stays, and is not counted"
    assert [record.getMessage() for record in caplog.records if "alarm-" in record.getMessage()] == [
        f"gradscope: {left}"
    ]
    for number in range(2, 7):
        (tmp_path / f"alarm-00000{number}").mkdir()
    gs.Probe(tmp_path, force=True).close()
    said = [record.getMessage() for record in caplog.records if "alarm-" in record.getMessage()]
    assert len(said) == 2, "a line for each run, and not for each folder"
    assert said[1].startswith("gradscope: alarm-000001, alarm-000002, ")
    assert said[1].endswith(" more are of steps that the run no longer has: they stay, and are not counted")


@sampled("mapped", [False, True], ids=["shardings", "shard_map"])
def test_data_parallel_steps_record_what_one_device_computes(mapped: bool, tmp_path: Path) -> None:
    if jax.device_count() < 2:
        pytest.skip("there is only one device: data parallelism was NOT probed")
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def of_shards(params: Any, batch: Any) -> Any:
        return jax.lax.pmean(loss(params, batch), "data")

    over_shards = jax.shard_map(of_shards, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    with gs.Probe(tmp_path, every=2, families=["param", "param_grad", "update", "slot"]) as probe:
        step = probe.jit(
            loop_step(probe.value_and_grad, probe.record, over_shards if mapped else loss),
            donate_argnums=0, in_shardings=(replicated, split), out_shardings=(replicated, replicated),
        )  # fmt: skip
        state, alone, before = initial(), initial(), []
        for number in range(3):
            before.append(alone)
            state, value = step(state, batch(number))
            alone, expected = jax.jit(PLAIN)(alone, batch(number))
            np.testing.assert_allclose(value, expected, rtol=1e-5)
    with gs.load(tmp_path) as run:
        for number in (0, 2):
            grads = jax.grad(loss)(before[number][0], batch(number))
            assert_recorded(run, number, "param_grad/hidden/w", grads["hidden"]["w"])


SPIKE = 70


def noisy_loop(folder: Path, factor: float, steps: int = 80, **options: Any) -> list[Any]:
    """A donated loop whose targets are multiplied at one step; returns copies of the state before each."""
    with gs.Probe(folder, every=8, keep_every=10, **options) as probe:
        step = probe.jit(loop_step(probe.value_and_grad, probe.record), donate_argnums=0)
        state, before = initial(), []
        for number in range(steps):
            each = batch(number)
            before.append(jax.tree.map(jnp.copy, state))
            state, _ = step(state, {**each, "y": each["y"] * (factor if number == SPIKE else 1)})
    return before


@sampled("observed", [True, False])
def test_wrong_targets_are_blamed_on_themselves_and_on_no_parameter_that_drifts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, observed: bool
) -> None:
    def residuals(params: Any, batch: Any) -> Any:
        with jax.named_scope("hidden"):
            hidden = jnp.tanh(batch["x"] @ params["hidden"]["w"])
        with jax.named_scope("head"):
            predicted = (hidden @ params["head"]["w"])[:, 0]
        return jnp.mean((predicted - batch["y"].reshape(-1)) ** 2)

    with gs.Probe(tmp_path, exclude=() if observed else ("input/y",)) as probe:
        step, state = probe.jit(loop_step(probe.value_and_grad, probe.record, residuals)), initial()
        for number in range(80):
            each = batch(number)
            state, _ = step(state, {**each, "y": each["y"] * (100.0 if number == SPIKE else 1)})
    with gs.load(tmp_path) as run:
        named = "input/y" if observed else None
        assert [alarm.key for alarm in run.alarms if alarm.rule == "loss-spike"] == [named]
    if observed:
        assert "loss-spike: input/y deviates most" in caplog.text
        return
    _, look = caplog.text.split("; no observed tensor deviates, so look at the batch: gradscope show ")
    folder, *families = look.splitlines()[0].split()
    assert families == ["--families", "input"]
    with gs.load(folder) as dump:
        assert dump.stats("input/y").rms > 10


def test_an_alarm_between_records_saves_the_state_before_its_step_and_its_batch(tmp_path: Path) -> None:
    before = noisy_loop(tmp_path, 1000.0)
    with gs.load(tmp_path) as run:
        (alarm,) = run.alarms
        assert (alarm.step, alarm.rule, alarm.folder) == (SPIKE, "loss-spike", f"alarm-{SPIKE:06}")
    params, optimizer = before[SPIKE]
    folder = tmp_path / f"alarm-{SPIKE:06}"
    with (
        gs.load(folder / "state.npz") as state,
        gs.load(folder / "batch.npz") as data,
        gs.load(folder / "dump.npz") as dump,
    ):
        np.testing.assert_array_equal(state["param/hidden/w"], params["hidden"]["w"])
        np.testing.assert_array_equal(state["param/head/w"], params["head"]["w"])
        saved = [state[key] for key in state if key.startswith("aux/arguments/")]
        assert len(saved) == len(jax.tree.leaves(optimizer))
        np.testing.assert_array_equal(data["input/x"], batch(SPIKE)["x"])
        np.testing.assert_array_equal(data["input/y"], batch(SPIKE)["y"] * 1000)
        params = {"hidden": {"w": state["param/hidden/w"]}, "head": {"w": state["param/head/w"]}}
        again = loss(params, {"x": data["input/x"], "y": data["input/y"]})
        assert dump.loss == pytest.approx(float(again), rel=1e-6)
        assert alarm.value == pytest.approx(float(again), rel=1e-6)


def test_a_nan_is_found_with_its_origin_and_stops_where_that_is_requested(tmp_path: Path) -> None:
    with pytest.raises(gs.ModelError, match=f"step {SPIKE}: nonfinite: [^ ].* is nan; .* alarm-{SPIKE:06}"):
        noisy_loop(tmp_path, float("nan"), steps=100, on_alarm="stop")
    with gs.load(tmp_path) as run:
        assert [(each.step, each.rule) for each in run.alarms] == [(SPIKE, "nonfinite")]
    with gs.load(tmp_path / f"alarm-{SPIKE:06}" / "dump.npz") as dump:
        assert np.isnan(dump.loss)
        assert dump.origins


def no_gradient(params: Any, batch: Any) -> Any:
    """The loss, and the root of something that is 0 at one step, whose derivative is not finite there."""
    return loss(params, batch) + jnp.sqrt(batch["trap"] * (params["head"]["w"] ** 2).sum())


# In the middle of two copies, and right before one.
@sampled(("trapped", "trap"), [("gradient", SPIKE), ("update", SPIKE + 9)])
def test_a_nan_of_a_step_that_is_not_recorded_is_blamed_on_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trapped: str, trap: int
) -> None:
    with gs.Probe(tmp_path, every=8, keep_every=10) as probe:
        plain = loop_step(probe.value_and_grad, nothing, no_gradient if trapped == "gradient" else loss)

        def train_step(state: Any, batch: Any) -> Any:
            (params, optimizer), value = plain(state, batch)
            scale = jnp.where(batch["trap"] == 0, jnp.nan, 1) if trapped == "update" else 1
            return (jax.tree.map(lambda leaf: leaf * scale, params), optimizer), value

        step = probe.jit(train_step, donate_argnums=0)
        state, before = initial(), None
        for number in range(trap + 10):
            before = jax.tree.map(np.asarray, state[0]) if number == trap else before
            state, value = step(state, {**batch(number), "trap": np.float32(number != trap)})
    assert not np.isfinite(value)
    folder = tmp_path / f"alarm-{trap:06}"
    with gs.load(tmp_path) as run:
        assert [(each.step, each.rule, each.folder) for each in run.alarms] == [(trap, "nonfinite", folder.name)]
    with gs.load(folder / "state.npz") as saved, gs.load(folder / "dump.npz") as dump:
        np.testing.assert_array_equal(saved["param/head/w"], before["head"]["w"])
        assert np.isfinite(dump.loss)
        assert bool(dump.origins) == (trapped == "gradient")
    again = {**batch(0), "trap": np.float32(1)}
    (params, optimizer), data = gs.Probe.arguments_before(folder, initial(), again)
    assert jax.tree.structure(optimizer) == jax.tree.structure(initial()[1])
    np.testing.assert_array_equal(params["head"]["w"], before["head"]["w"])
    assert data["trap"] == 0
    np.testing.assert_array_equal(data["x"], batch(trap)["x"])
    (params, *_), _ = gs.Probe.arguments_before(folder, initial(), {**again, "trap": 1.0})  # a number, as before a step
    np.testing.assert_array_equal(params["head"]["w"], before["head"]["w"])
    with pytest.raises(gs.DumpError, match=r"has not the arguments of this step: .* is float32\["):
        gs.Probe.arguments_before(folder, initial())
    with pytest.raises(gs.DumpError, match="has not the arguments of this step: it has"):
        gs.Probe.arguments_before(folder, initial(), again, jnp.ones(1))
    assert f"gradscope: {tmp_path}: step {trap}: nonfinite: " in caplog.text
    assert f"its state and batch are in {folder.name}; look at it: gradscope show {folder}\n" in caplog.text
    assert ("its update is not finite" in caplog.text) == (trapped == "update")


def test_what_alarms_may_not_do_and_where_a_loop_makes_its_own_state(tmp_path: Path) -> None:
    with pytest.raises(gs.UsageError, match="A probe cannot skip an update"):
        gs.Probe(tmp_path, on_alarm="skip")  # type: ignore[arg-type]
    noisy_loop(tmp_path / "noted", 1000.0, on_alarm="note")
    with gs.load(tmp_path / "noted") as run:
        assert [(each.step, each.folder) for each in run.alarms] == [(SPIKE, None)]
    with gs.Probe(tmp_path / "own", every=1) as probe:
        step = probe.jit(loop_step(probe.value_and_grad, probe.record))
        state = initial()
        for number in range(SPIKE + 1):
            each = batch(number)
            state, _ = step(state, {**each, "y": each["y"] * (1000 if number == SPIKE else 1)})
            state = jax.tree.map(lambda leaf: leaf * 1, state)  # other arrays than the step returned
    with gs.load(tmp_path / "own") as run:
        assert {each.folder for each in run.alarms} == {None}


def test_probes_that_are_open_at_the_end_are_closed_also_where_one_of_them_fails(tmp_path: Path) -> None:
    probes = [gs.Probe(tmp_path / name) for name in ("first", "lost", "last")]
    shutil.rmtree(tmp_path / "lost")
    with pytest.raises(MachineError, match="has been removed"):
        close_open_probes()
    assert [repr(each).rpartition(", ")[2] for each in probes] == ["closed>"] * 3


def test_an_interrupt_while_a_step_waits_to_be_written_loses_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def loop() -> None:
        state = initial()
        with gs.Probe(tmp_path, every=4) as probe:
            step = probe.jit(loop_step(probe.value_and_grad, probe.record))
            for number in range(5):
                if number == 4:
                    monkeypatch.setattr(ProbeHistory, "write", interrupted)
                state, _ = step(state, batch(number))

    with pytest.raises(KeyboardInterrupt):
        loop()
    with History(tmp_path) as history:
        assert history.losses()["step"].tolist() == [0, 1, 2, 3]


def test_scalars_are_a_flat_dictionary_of_floats(tmp_path: Path) -> None:
    (value, grads), seen = jax.jit(gs.value_and_grad(loss))(initial()[0], batch(0))
    found = seen.scalars()
    assert found["loss"] == float(value)
    norm = np.linalg.norm(np.asarray(grads["head"]["w"], np.float64))
    assert found["param_grad/head/w/l2"] == pytest.approx(norm, rel=1e-5)
    assert {type(each) for each in found.values()} == {float}
    assert set(seen.scalars(["nan"])) == {"loss", *(f"{key}/nan" for key in seen)}
    step = gs.train_step(loss, "sgd(0.1)")
    _, plain_seen = jax.jit(step)(step.init(initial()[0]), batch(0))
    assert plain_seen.scalars()["update/head/w/l2"] == pytest.approx(0.1 * norm, rel=1e-5)
    assert plain_seen.scalars()["grad_norm"] == pytest.approx(float(optax.tree.norm(grads)), rel=1e-5)
    with pytest.raises(gs.UsageError, match="no statistic 'l3'"):
        seen.scalars(["l3"])
    several = jax.vmap(gs.value_and_grad(loss), in_axes=(None, 0))(
        initial()[0], jax.tree.map(lambda x: x[None], batch(0))
    )
    with pytest.raises(gs.UsageError, match="several steps or examples"):
        several[1].scalars()


def test_what_a_loop_hands_on_is_state_of_a_checkpoint_and_the_rest_a_batch(tmp_path: Path) -> None:
    """Batch norm's statistics, which a loss takes as an argument of their own."""

    def with_statistics(params: Any, stats: Any, batch: Any) -> Any:
        centred = {**batch, "x": batch["x"] - stats["mean"][None]}
        return loss(params, centred) * batch["trap"], {"mean": batch["x"].mean(0)}

    with gs.Probe(tmp_path) as probe:

        def train_step(params: Any, stats: Any, batch: Any) -> Any:
            (value, stats), _ = probe.value_and_grad(with_statistics, has_aux=True)(params, stats, batch)
            return params, stats, value

        step, params, stats = probe.jit(train_step), initial()[0], {"mean": jnp.zeros(4)}
        for number in range(2):
            data = {**batch(number), "trap": np.float32("nan" if number else 1)}
            params, stats, _ = step(params, stats, data)
    with gs.load(tmp_path / "alarm-000001/state.npz") as state, gs.load(tmp_path / "alarm-000001/batch.npz") as given:
        assert list(state) == ["param/head/w", "param/hidden/w", "state/stats/mean"]
        assert list(given) == ["input/batch/trap", "input/batch/x", "input/batch/y"]
    again = gs.Probe.arguments_before(tmp_path / "alarm-000001", params, stats, data)
    np.testing.assert_allclose(again[1]["mean"], np.asarray(batch(0)["x"]).mean(0), rtol=1e-5)


def test_steps_of_several_threads_are_taken_one_after_the_other(tmp_path: Path) -> None:
    probe, failed = gs.Probe(tmp_path / "run", every=2), []
    step, state = probe.jit(loop_step(probe.value_and_grad, probe.record)), initial()

    def take() -> None:
        try:
            with jax.numpy_dtype_promotion("standard"):  # of this thread
                for number in range(8):
                    step(state, batch(number))
        except gs.GradscopeError as error:
            failed.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    with probe:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    with gs.load(tmp_path / "run") as run:
        assert run.losses["step"].tolist() == [*range(24)]
        assert run.steps["step"].tolist() == [*range(0, 24, 2)]


@pytest.mark.parametrize("nested", [False, True])
def test_the_variables_of_an_optimizer_are_found_in_dictionaries_of_any_depth(nested: bool, tmp_path: Path) -> None:
    """As `nnx.state(optimizer)` is one, of which no entry is a field."""
    params, _ = initial()
    moments = jax.tree.map(jnp.ones_like, params)
    state = {"opt_state": {"0": {"mu": moments}}} if nested else {"mu": moments}
    probe = gs.Probe(tmp_path / "run", every=2)

    def step(params: Any, batch: Any) -> Any:
        value, grads = probe.value_and_grad(loss)(params, batch)
        probe.record(opt_state=state)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value

    with probe:
        probe.jit(step)(params, batch(0))
    with gs.load(tmp_path / "run") as run:
        assert run.series("slot/mu/hidden/w", "mean").tolist() == [1.0]


KEY = jax.random.key(7)


@sampled(
    ("fault", "said"),
    [
        ("none", []), ("key", ["repeated"]), ("constant", ["repeated"]), ("number of steps", []),
        ("averages", ["stale"]), ("two steps", []), ("ends", []), ("sizes", ["repeated"]),
    ],
)  # fmt: skip
def test_what_should_be_another_value_at_each_step_and_is_not(fault: str, said: list[str], tmp_path: Path) -> None:
    params, optimizer = initial()
    probe = gs.Probe(tmp_path / "run", every=2)

    def step(state: Any, mean: Any, key: Any, batch: Any) -> Any:
        key = {"constant": KEY, "number of steps": jax.random.fold_in(KEY, state[1][0].count)}.get(fault, key)
        keys = jax.random.split(key, len(batch["x"]))

        def of(params: Any, mean: Any) -> Any:
            hidden = batch["x"] @ params["hidden"]["w"]
            new = hidden.mean(0)
            drawn = jax.random.bernoulli(key, 0.5, hidden.shape)
            if fault == "sizes":
                drawn = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (8,)))(keys)
            dropped = jnp.where(drawn, hidden - new[None], 0)
            return ((dropped @ params["head"]["w"] - batch["y"]) ** 2).mean(), 0.9 * mean + 0.1 * new

        (value, new), grads = probe.value_and_grad(of, has_aux=True)(state[0], mean)
        updates, optimizer = TX.update(grads, state[1], state[0])
        return (optax.apply_updates(state[0], updates), optimizer), mean if fault == "averages" else new, value

    compiled, state, mean = probe.jit(step), (params, optimizer), jnp.zeros(8)
    same = {"key": 9, "number of steps": 9, "two steps": 2, "ends": 5, "sizes": 9}.get(fault, 0)
    with probe:
        for number in range(9):
            key = jax.random.key(0 if number <= same else number)
            data = batch(number)
            data = {name: each[:8] for name, each in data.items()} if fault == "sizes" and number == 4 else data
            state, mean, _ = compiled(state, mean, key, data)
    with History(tmp_path / "run") as history:
        assert [each.rule for each in stated_faults(history)] == said


@sampled("states", ["updates", "params"])
@pytest.mark.parametrize("rate", [1e-3, -1e-3], ids=["a schedule without its minus", "as it is to be"])
def test_an_update_has_its_cosine_with_the_gradient(rate: float, states: str, tmp_path: Path) -> None:
    tx = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(optax.constant_schedule(rate)))
    probe = gs.Probe(tmp_path / "run", every=2)

    def train(params: Any, state: Any, x: Any) -> tuple[Any, Any, Any]:
        value, gradient = probe.value_and_grad(lambda w, x: ((x @ w["w"] - 1.0) ** 2).mean())(params, x)
        updates, state = tx.update(gradient, state, params)
        after = optax.apply_updates(params, updates)
        probe.record(**{states: updates if states == "updates" else after})
        return after, state, (value, gradient, updates)

    step, params = probe.jit(train), {"w": jnp.linspace(0.0, 1.0, 4)}
    state, expected = tx.init(params), list[float]()
    with probe:
        for number in range(9):
            params, state, (_, gradient, update) = step(params, state, drawn(number, 8, 4))
            one, other = gradient["w"], update["w"]
            expected.append(float(one @ other / jnp.linalg.norm(one) / jnp.linalg.norm(other)))
    with gs.load(tmp_path / "run") as run:
        np.testing.assert_allclose(run.series("update/w", "cosine"), expected[::2], rtol=1e-3, atol=1e-4)


@sampled("masked", [False, True], ids=["no margin is kept", "is masked"])
def test_the_bias_of_a_critic_no_margin_of_whose_scores_is_kept_is_not_stuck(masked: bool, tmp_path: Path) -> None:
    """Also where the layers that read it have another name than its parameters, as those of two modules of one class.

    In the first steps half of the margins are kept, so that the bias of the score has a gradient.
    """

    def score(params: Any, x: Any) -> Any:
        with jax.named_scope("critic/score"):
            return x @ params["score"]["w"] + params["score"]["b"] * (0 if masked else 1)

    def hinge(params: Any, batch: Any) -> Any:
        real, fake = score(params, batch["real"]), score(params, batch["fake"])
        return jax.nn.relu(1 - real).mean() + jax.nn.relu(1 + fake).mean()

    probe = gs.Probe(tmp_path / "run", every=1)

    def take(params: Any, batch: Any) -> Any:
        _, grads = probe.value_and_grad(hinge)(params, batch)
        return jax.tree.map(lambda param, grad: param - 1e-3 * grad, params, grads)

    params = {"score": {"w": 0.1 * drawn(1, 4, 1), "b": jnp.zeros((1, 1))}}
    step = probe.jit(take)
    with probe:
        for number in range(30):
            kept = jnp.where(jnp.arange(8) < 4 * (number < 5), 50.0, 1.0)[:, None]
            real = jnp.abs(drawn(number, 8, 4)) * jnp.sign(params["score"]["w"]).T * kept
            params = step(params, {"real": real, "fake": drawn(100 + number, 8, 4)})
    with History(tmp_path / "run") as history:
        found = [(alarm.rule, alarm.key) for alarm in history.alarms() if alarm.rule in ("stuck", "dying")]
    assert found == ([("stuck", "param/score/b")] if masked else [])


def test_the_mean_over_the_parts_of_a_batch_is_one_step_whose_loss_is_known(tmp_path: Path) -> None:
    probe = gs.Probe(tmp_path / "run", every=4)

    def of_parts(params: Any, parts: Any) -> Any:
        return jax.lax.map(jax.checkpoint(lambda part: loss(params, part)), parts).mean()

    def take(params: Any, batch: Any) -> Any:
        parts = jax.tree.map(lambda leaf: leaf.reshape(4, -1, *leaf.shape[1:]), batch)
        value, grads = probe.value_and_grad(of_parts)(params, parts)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value

    params, expected = initial()[0], []
    step = probe.jit(take)
    with probe:
        for number in range(9):
            value, grads = jax.value_and_grad(loss)(params, batch(number))
            expected.append((value, tree_norm(grads)))
            params, _ = step(params, batch(number))
    with History(tmp_path / "run") as history:
        np.testing.assert_allclose(history.losses()["loss"], [each for each, _ in expected], rtol=1e-5)
        np.testing.assert_allclose(history.steps()["grad_norm"], [each for _, each in expected[::4]], rtol=1e-5)
        assert len(history.losses()["loss"]) == 9
