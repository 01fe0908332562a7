"""A module of Flax NNX has the same names in the user's own step as in a capture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install 'gradscope-jax[flax]'")

X = jnp.linspace(0.0, 1.0, 8).reshape(2, 4)


class Block(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.linear(x))


class Net(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.blocks = nnx.List([Block(rngs), Block(rngs)])
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def of_net(net: Any, x: Any) -> Any:
    return (net(x) ** 2).mean()


def test_an_nnx_module_has_the_same_names_in_a_step_as_in_a_capture() -> None:
    net = Net(nnx.Rngs(0))
    graph, params = nnx.split(net)

    def merged(params: Any, x: Any) -> Any:
        return of_net(nnx.merge(graph, params), x)

    captured = {key for key in gs.capture(of_net, net, X) if not key.startswith("input")}
    assert {"param_grad/blocks/0/linear/kernel", "activation/blocks/1"} <= captured
    assert set(jax.jit(gs.value_and_grad(merged))(params, X)[1]) == captured
    assert set(gs.value_and_grad(of_net)(net, X)[1]) == captured
    assert set(nnx.jit(lambda net, x: gs.value_and_grad(of_net)(net, x)[1])(net, X)) == captured
    assert vars(net).keys() == vars(Net(nnx.Rngs(0))).keys()  # nothing is left on the module


def test_what_an_alarm_of_an_nnx_loop_saves_has_the_names_of_the_module(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")
    net = Net(nnx.Rngs(0))
    graph, state = nnx.split((net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)))
    probe = gs.Probe(tmp_path / "run", every=1)

    def train_step(state: Any, x: Any) -> Any:
        net, optimizer = nnx.merge(graph, state)
        value, grads = probe.value_and_grad(of_net)(net, x)
        optimizer.update(net, grads)
        return nnx.state((net, optimizer)), value

    step = probe.jit(train_step)
    with probe:
        for x in (X, X * jnp.nan):
            state, _ = step(state, x)
    with gs.load(tmp_path / "run/alarm-000001/state.npz") as saved:
        keys = set(saved)
    assert {key for key in gs.capture(of_net, net, X) if key.startswith("param/")} <= keys
    assert all(key.startswith("param/") or "/1/" in key for key in keys)  # the rest is the optimizer's


def test_a_module_that_is_merged_outside_of_the_step_is_refused_with_what_to_do(tmp_path: Path) -> None:
    graph, state = nnx.split(Net(nnx.Rngs(0)))
    net = nnx.merge(graph, state)
    with gs.Probe(tmp_path) as probe:

        def step(state: Any, x: Any) -> Any:
            nnx.update(net, state)
            value, grads = probe.value_and_grad(of_net)(net, x)
            return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, nnx.state(net), grads), value

        with pytest.raises(gs.UsageError, match="step changes a module of NNX that was made outside of it") as raised:
            probe.jit(step)(state, X)
    assert "in the step, model, optimizer = nnx.merge(graph, state)" in str(raised.value.hint)


def test_a_step_that_changes_a_module_in_place_for_nobody_is_refused(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")
    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)

    def step_of(probe: Any, *, returns: bool) -> Any:
        def train_step(net: Any, optimizer: Any, x: Any) -> Any:
            value, grads = probe.value_and_grad(of_net)(net, x)
            optimizer.update(net, grads)
            return (net, optimizer, value) if returns else value

        return probe.jit(train_step)

    with gs.Probe(tmp_path / "lost") as probe, pytest.raises(gs.UsageError, match="train_step changes param/") as error:
        step_of(probe, returns=False)(net, optimizer, X)
    assert "nnx.split" in str(error.value.__notes__)
    with gs.Probe(tmp_path / "kept") as probe:
        step = step_of(probe, returns=True)
        values = []
        for _ in range(2):
            net, optimizer, value = step(net, optimizer, X)
            values.append(float(value))
    assert values[1] < values[0]


class Noisy(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.again = self.norm  # shared

    def __call__(self, x: Any) -> Any:
        return self.again(self.drop(self.norm(self.linear(x))))


class _Loop(NamedTuple):
    value_and_grad: Callable[..., Any]
    jit: Callable[..., Any]

    def run(self, steps: int, loss: Callable[..., Any], made: Callable[[], Any], *args: Any) -> tuple[Any, list[float]]:
        """The state after some steps of gradient descent, and their losses."""
        optax = pytest.importorskip("optax")
        net = made()
        graph, state = nnx.split((net, nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)))

        def train_step(state: Any, x: Any) -> Any:
            net, optimizer = nnx.merge(graph, state)
            value, grads = self.value_and_grad(loss)(net, x, *args)
            optimizer.update(net, grads)
            return nnx.state((net, optimizer)), value

        step, losses = self.jit(train_step), list[float]()
        for number in range(steps):
            state, value = step(state, X + number)
            losses.append(float(value))
        return nnx.merge(graph, state)[0], losses


def assert_same(ours: Any, theirs: Any) -> None:
    flat = [nnx.to_flat_state(nnx.state(each)) for each in (ours, theirs)]
    for (path, one), (other_path, other) in zip(*flat, strict=True):
        values = [each.get_value() for each in (one, other)]
        if jnp.issubdtype(values[0].dtype, jax.dtypes.prng_key):
            values = [jax.random.key_data(each) for each in values]
        assert path == other_path
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-7, err_msg=str(path))


PAIR = {"one": Noisy, "two": Block}


def of_pair(pair: Any, x: Any) -> Any:
    return (pair["two"](pair["one"](x)) ** 2).mean()


def of_two(net: Any, x: Any, teacher: Any) -> Any:
    return ((net(x) - teacher(x)) ** 2).mean()


@pytest.mark.parametrize(
    ("loss", "made"),
    [
        (of_net, lambda: Noisy(nnx.Rngs(0))),
        (of_pair, lambda: nnx.Dict({name: each(nnx.Rngs(0)) for name, each in PAIR.items()})),
    ],
)
def test_running_averages_and_random_streams_go_on_as_with_nnx(loss: Any, made: Any, tmp_path: Path) -> None:
    """Against `nnx.value_and_grad`, with steps that are observed and others."""
    theirs, expected = _Loop(nnx.value_and_grad, jax.jit).run(5, loss, made)
    with gs.Probe(tmp_path / "run", every=2) as probe:
        ours, losses = _Loop(probe.value_and_grad, probe.jit).run(5, loss, made)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_same(ours, theirs)
    with gs.load(tmp_path / "run") as run:
        keys = run.keys()
    recorded = {key.rpartition("/")[2] for key in keys if key.startswith(("param/", "param_grad/"))}
    assert recorded == {"kernel", "bias", "scale"}


@pytest.mark.parametrize("by_name", [False, True])
def test_a_module_that_is_not_differentiated_keeps_its_changes(by_name: bool, tmp_path: Path) -> None:
    def loop(value_and_grad: Any, jit: Any) -> Any:
        net, teacher = Block(nnx.Rngs(0)), Noisy(nnx.Rngs(1))
        graph, state = nnx.split((net, teacher))

        def step(state: Any, x: Any) -> Any:
            net, teacher = nnx.merge(graph, state)
            more = (
                ((), {"teacher": teacher}) if by_name and value_and_grad is not nnx.value_and_grad else ((teacher,), {})
            )
            value, _ = value_and_grad(of_two)(net, x, *more[0], **more[1])
            return nnx.state((net, teacher)), value

        jitted = jit(step)
        for number in range(4):
            state, _ = jitted(state, X + number)
        return nnx.merge(graph, state)

    with gs.Probe(tmp_path / "run", every=2) as probe:
        ours = loop(probe.value_and_grad, probe.jit)
    assert_same(ours, loop(nnx.value_and_grad, jax.jit))


def test_random_streams_beside_the_module_go_on_as_with_nnx(tmp_path: Path) -> None:
    def of_noise(net: Any, x: Any, rngs: Any) -> Any:
        return of_net(net, x + jax.random.normal(rngs.noise(), x.shape))

    def loop(value_and_grad: Any, jit: Any) -> Any:
        graph, state = nnx.split((Noisy(nnx.Rngs(0)), nnx.Rngs(noise=1)))

        def step(state: Any, x: Any) -> Any:
            net, rngs = nnx.merge(graph, state)
            value, grads = value_and_grad(of_noise)(net, x, rngs)
            nnx.update(net, jax.tree.map(lambda param, grad: param - 0.1 * grad, nnx.state(net, nnx.Param), grads))
            return nnx.state((net, rngs)), value

        jitted = jit(step)
        for number in range(3):
            state, _ = jitted(state, X + number)
        return nnx.merge(graph, state)

    with gs.Probe(tmp_path / "run", every=2) as probe:
        ours = loop(probe.value_and_grad, probe.jit)
    assert_same(ours, loop(nnx.value_and_grad, jax.jit))


@pytest.mark.parametrize("how", ["eager", "nnx.jit"])
def test_value_and_grad_changes_the_module_and_returns_the_state_of_the_gradients(how: str) -> None:
    ours, theirs = Noisy(nnx.Rngs(0)), Noisy(nnx.Rngs(0))
    (value, grads), seen = (nnx.jit if how == "nnx.jit" else lambda f: f)(gs.value_and_grad(of_net))(ours, X)
    expected, expected_grads = nnx.value_and_grad(of_net)(theirs, X)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert_same(ours, theirs)
    assert isinstance(grads, nnx.State)
    assert_same(grads, expected_grads)
    assert {key for key in seen if key.startswith("param_grad/")} == {
        f"param_grad/{name}" for name in ("linear/kernel", "linear/bias", "again/scale", "again/bias")
    }


def test_several_arguments_with_state_are_refused() -> None:
    with pytest.raises(gs.GradscopeError, match="several arguments that are differentiated"):
        gs.value_and_grad(of_two, argnums=(0, 2))(Block(nnx.Rngs(0)), X, Noisy(nnx.Rngs(1)))
