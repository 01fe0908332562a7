"""The sixth proof: in a user's own training step, observing is right, composes with JAX and changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import gradscope as gs
from gradscope.errors import UsageError
from models import linear_regression, mlp
from tests.oracle import engine
from tests.oracle.zoo import ZOO
from tests.support.sampled import sampled

STEPS = 20
#: Of a loop that runs operation by operation, which takes a second for each.
SLOW_STEPS = 2
RATE = 0.1

Pair: TypeAlias = "tuple[Any, Any]"


def towers(variables: Any, batch: Any) -> Any:
    """A loss with a `vmap` around a layer."""

    def tower(kernel: Any, x: Any) -> Any:
        with jax.named_scope("tower"):
            return jnp.tanh(x @ kernel)

    out = jax.vmap(tower, in_axes=(0, None))(variables["kernels"], batch["x"])
    with jax.named_scope("loss"):
        return jnp.square(out - batch["y"][None]).mean()


def stack(variables: Any, batch: Any) -> Any:
    """A loss with checkpointed layers in a `scan`."""

    @jax.checkpoint
    def layer(x: Any, kernel: Any) -> Any:
        with jax.named_scope("dense"):
            x = x @ kernel
        with jax.named_scope("tanh"):
            return jnp.tanh(x)

    with jax.named_scope("stack"):
        out, _ = jax.lax.scan(lambda x, kernel: (layer(x, kernel), None), batch["x"], variables["kernels"])
    with jax.named_scope("loss"):
        return jnp.square(out - batch["y"]).mean()


def arguments() -> Pair:
    """Of both, in the dtype that JAX is set to."""
    random = np.random.default_rng(0)
    kernels, x, y = (jnp.asarray(random.standard_normal(shape)) for shape in ((3, 4, 4), (6, 4), (6, 4)))
    return {"kernels": kernels}, {"x": x, "y": y}


#: A loss, and what makes its arguments.
LOSSES: dict[str, tuple[Callable[..., Any], Callable[[], Pair]]] = {
    "vmap": (towers, arguments),
    "scan of checkpoints": (stack, arguments),
}


def numpy_core(array: Any) -> dict[str, float]:
    """The core columns of a tensor that is finite everywhere."""
    values = np.asarray(array).astype(np.float64)
    return {
        "mean": values.mean(),
        "std": values.std(),
        "rms": np.sqrt((values**2).mean()),
        "l2": np.linalg.norm(values),
        "min": values.min(),
        "max": values.max(),
        "amax": np.abs(values).max(),
        "finite": values.size,
        "zeros": np.count_nonzero(values == 0),
        "nan": 0,
        "inf": 0,
    }


def assert_close(found: Any, expected: Any, *, rounding: float = 1e-5) -> None:
    """Asserts that leaves are equal up to the compiler's rounding, relative to the leaf's largest element."""
    leaves, others = jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for leaf, other in zip(leaves, others, strict=True):
        size = float(np.abs(np.asarray(other)).max())
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=rounding, atol=rounding * size)


@sampled("name", LOSSES)
def test_core_statistics_in_a_compiled_step_are_numpys_of_the_tensors(name: str, x64: None) -> None:
    loss, make = LOSSES[name]
    made = make()
    _, statistics = jax.jit(gs.value_and_grad(loss))(*made)
    _, tensors = jax.jit(gs.value_and_grad(loss, observe="tensors"))(*made)
    assert list(statistics) == list(tensors)
    assert {key.split("/")[0] for key in tensors} == {"param", "param_grad", "activation", "activation_grad"}
    for key, tensor in tensors.items():
        for column, value in numpy_core(tensor).items():
            allowed = float(np.abs(np.asarray(tensor)).max()) * 1e-6
            assert float(getattr(statistics[key], column)) == pytest.approx(value, rel=1e-6, abs=allowed), (key, column)


@pytest.mark.slow
def test_under_vmap_every_example_is_observed_by_itself() -> None:
    variables, batch = arguments()

    def of_one(variables: Any, example: Any) -> Any:
        return stack(variables, jax.tree.map(lambda leaf: leaf[None], example))

    observed, seen = jax.jit(jax.vmap(gs.value_and_grad(of_one), in_axes=(None, 0)))(variables, batch)
    assert_close(observed, jax.jit(jax.vmap(jax.value_and_grad(of_one), in_axes=(None, 0)))(variables, batch))
    single = jax.jit(gs.value_and_grad(of_one))
    singles = [single(variables, jax.tree.map(lambda leaf, at=at: leaf[at], batch))[1] for at in range(6)]
    for key in seen:
        assert_close(seen[key].l2, jnp.stack([single[key].l2 for single in singles]))


@pytest.mark.slow
def test_in_a_scan_over_steps_every_step_is_observed_by_itself() -> None:
    variables, batch = arguments()
    step = partial(sgd, gs.value_and_grad(stack), batch)
    _, (losses, seen) = jax.jit(lambda variables: jax.lax.scan(step, variables, length=4))(variables)
    one = jax.jit(step)
    for number in range(4):
        variables, (loss, seen_now) = one(variables, None)
        assert_close(losses[number], loss)
        for key in seen:
            assert seen[key].l2.shape == (4,)
            assert_close(seen[key].l2[number], seen_now[key].l2)


def sgd(value_and_grad: Callable[..., Any], batch: Any, variables: Any, _: None) -> tuple[Any, Any]:
    """One step of gradient descent; gives the loss and what was seen."""
    (loss, gradients), seen = value_and_grad(variables, batch)
    return jax.tree.map(lambda leaf, gradient: leaf - RATE * gradient, variables, gradients), (loss, seen)


@pytest.mark.slow
def test_variables_may_be_donated() -> None:
    variables, batch = jax.tree.map(jnp.asarray, ZOO["mlp"].arguments())
    step = partial(sgd, gs.value_and_grad(mlp.loss), batch)
    after, (loss, seen) = jax.jit(step)(variables, None)
    donated = jax.tree.map(jnp.copy, variables)
    in_place, (same_loss, same_seen) = jax.jit(step, donate_argnums=0)(donated, None)
    assert_close(in_place, after)
    assert_close((same_loss, same_seen["param/dense1/kernel"].l2), (loss, seen["param/dense1/kernel"].l2))
    assert all(leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(donated))


@pytest.mark.slow
def test_auxiliary_outputs_come_through() -> None:
    def loss(variables: Any, batch: Any) -> Any:
        value = stack(variables, batch)
        return value, {"twice": 2 * value, "count": jnp.int32(batch["x"].shape[0])}

    ours = jax.jit(gs.value_and_grad(loss, has_aux=True))(*arguments())[0]
    assert_close(ours, jax.jit(jax.value_and_grad(loss, has_aux=True))(*arguments()))


@pytest.mark.slow
def test_only_selected_names_are_observed() -> None:
    selecting = gs.value_and_grad(stack, select="stack[1]/*", families=("activation_grad",))
    observed, seen = jax.jit(selecting)(*arguments())
    assert set(seen) == {"activation_grad/stack[1]/dense", "activation_grad/stack[1]/tanh"}
    everything = jax.jit(gs.value_and_grad(stack))(*arguments())[1]
    assert_close({key: seen[key].l2 for key in seen}, {key: everything[key].l2 for key in seen})
    assert_close(observed, jax.jit(jax.value_and_grad(stack))(*arguments()))


@pytest.mark.slow
@pytest.mark.parametrize("argnums", [0, 1, (0,), (1, 0), (0, 1)])
def test_any_arguments_may_be_differentiated(argnums: Any) -> None:
    def loss(weight: Any, bias: Any, *, x: Any, y: Any) -> Any:
        return linear_regression.loss({"weight": weight, "bias": bias}, {"x": x, "y": y})

    variables, batch = ZOO["linear_regression"].arguments()
    arguments = (jnp.asarray(variables["weight"]), jnp.asarray(variables["bias"]))
    observed, seen = jax.jit(gs.value_and_grad(loss, argnums))(*arguments, **batch)
    assert_close(observed, jax.jit(jax.value_and_grad(loss, argnums))(*arguments, **batch))
    assert float(seen["activation/loss"].mean) == pytest.approx(float(observed[0]))


@pytest.mark.slow
def test_in_a_shard_map_every_shard_is_observed_by_itself() -> None:
    if jax.device_count() < 2:
        pytest.skip("there is only one device: a step in a shard_map was NOT observed")
    variables, batch = jax.tree.map(jnp.asarray, ZOO["mlp"].arguments())
    replicated, split = PartitionSpec(), PartitionSpec("data")

    def per_shard(variables: Any, batch: Any) -> Any:
        (loss, gradients), seen = gs.value_and_grad(mlp.loss)(jax.lax.pcast(variables, "data", to="varying"), batch)
        return jax.lax.pmean((loss, gradients), "data"), jax.tree.map(lambda leaf: leaf[None], seen)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    sharded = jax.shard_map(per_shard, mesh=mesh, in_specs=(replicated, split), out_specs=(replicated, split))
    means, seen = jax.jit(sharded)(variables, batch)
    assert_close(means, jax.jit(jax.value_and_grad(mlp.loss))(variables, batch))
    half = len(batch["spiral"]) // 2
    for shard in range(2):
        own = jax.tree.map(lambda leaf, shard=shard: leaf[shard * half : (shard + 1) * half], batch)
        single = jax.jit(gs.value_and_grad(mlp.loss))(variables, own)[1]
        for key in ("activation/relu2", "activation_grad/dense1", "param_grad/dense3/kernel"):
            assert_close(seen[key].l2[shard], single[key].l2)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_observations_are_saved_and_loaded_in_full(name: str, tmp_path: Path) -> None:
    loss, make = LOSSES[name]
    made = make()
    (value, _), seen = jax.jit(gs.value_and_grad(loss, observe="tensors"))(*made)
    gs.save(tmp_path / "run.npz", seen)
    captured = gs.capture(loss, *made, families=("activation", "activation_grad", "param", "param_grad"))
    with gs.load(tmp_path / "run.npz") as loaded:
        assert list(loaded) == list(captured)
        assert set(loaded) == set(seen)
        assert all(engine.bits(loaded[key]) == engine.bits(seen[key]) for key in seen)
        assert loaded.loss == float(value)
        assert gs.compare(loaded, captured, tol=1e-4), gs.compare(loaded, captured, tol=1e-4).sentence
        assert [structure(layer) for layer in loaded.layers] == [structure(layer) for layer in captured.layers]
        assert loaded.ledger == captured.ledger
        assert loaded.manifest.tier == "full"


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_statistics_are_saved_with_the_same_layers_names_gains_and_ledger(name: str, tmp_path: Path) -> None:
    loss, make = LOSSES[name]
    made = make()
    for observe in ("stats", "tensors"):
        _, seen = jax.jit(gs.value_and_grad(loss, observe=observe))(*made)
        gs.save(tmp_path / f"{observe}.npz", seen)
    with gs.load(tmp_path / "stats.npz") as core, gs.load(tmp_path / "tensors.npz") as full:
        assert core.manifest.tier == "core"
        assert core.source.keys() == full.source.keys()
        assert [structure(layer) for layer in core.layers] == [structure(layer) for layer in full.layers]
        assert core.ledger == full.ledger
        for one, other in zip(core.layers, full.layers, strict=True):
            assert dict(one.rms) == pytest.approx(dict(other.rms), rel=1e-5), one.path
        for key in full:
            assert core.stats(key).l2 == pytest.approx(full.stats(key).l2, rel=1e-5), key
            assert (core.stats(key).shape, core.stats(key).dtype) == (full.stats(key).shape, full.stats(key).dtype)


@pytest.mark.slow
def test_a_capture_is_saved_with_all_its_facts(tmp_path: Path) -> None:
    def loss(variables: Any, batch: Any) -> Any:
        with jax.named_scope("layer"):
            return (jnp.log(variables["w"] * batch) + jax.nn.relu(variables["dead"] - 2.0)).mean()

    arguments = {"w": jnp.ones(3), "dead": jnp.ones(3)}, jnp.arange(-1.0, 2.0)
    captured = gs.capture(loss, *arguments, self_check=True, per_example=True)
    gs.save(tmp_path / "run.npz", captured)
    said, saved = captured.manifest, gs.load(tmp_path / "run.npz").manifest
    assert said.origins
    assert said.causes
    assert said.self_check
    assert {name for name in vars_of(said) if repr(getattr(said, name)) != repr(getattr(saved, name))} == {"entries"}


def vars_of(manifest: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(manifest)]


def structure(layer: Any) -> tuple[Any, ...]:
    return (layer.path, layer.index, layer.parent, layer.source, layer.primitive, layer.params, layer.outputs)


def test_observations_of_several_steps_are_saved_one_at_a_time(tmp_path: Path) -> None:
    variables, batch = ZOO["linear_regression"].arguments()
    step = partial(sgd, gs.value_and_grad(linear_regression.loss), batch)
    _, (losses, seen) = jax.jit(lambda variables: jax.lax.scan(step, variables, length=3))(variables)
    for axes, index in ((0, r"-1"), (1, r"-1, -1")):
        several = jax.tree.map(lambda leaf, axes=axes: leaf[(None,) * axes], seen)
        with pytest.raises(UsageError, match="the observations of 3 steps or examples") as raised:
            gs.save(tmp_path / "run.npz", several)
        assert f"leaf[{index}], seen)) saves the last one" in (raised.value.hint or "")
    with pytest.raises(UsageError, match="writes observations or a dump, and this is a tuple"):
        gs.save(tmp_path / "run.npz", (losses, seen))  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []
    gs.save(tmp_path / "run.npz", jax.tree.map(lambda leaf: leaf[2], seen))
    with gs.load(tmp_path / "run.npz") as loaded:
        assert loaded.loss == float(losses[2])


def losses_of(step: Callable[..., Any], variables: Any) -> list[bytes]:
    """The losses of a training loop, to the bit."""
    losses: list[bytes] = []
    for _ in range(SLOW_STEPS):
        variables, (loss, _) = step(variables, None)
        losses.append(engine.bits(loss))
    return losses


def unobserved(loss: Callable[..., Any]) -> Callable[..., Any]:
    plain = jax.value_and_grad(loss)
    return lambda variables, batch: (plain(variables, batch), None)


@sampled(("name", "observe"), [("linear_regression", "stats"), ("mlp", "tensors")])
def test_operation_by_operation_training_takes_the_same_course_to_the_bit(name: str, observe: Any) -> None:
    case = ZOO[name]
    variables, batch = jax.tree.map(jnp.asarray, case.arguments())
    with jax.disable_jit():
        plain = losses_of(partial(sgd, unobserved(case.loss), batch), variables)
        observed = losses_of(partial(sgd, gs.value_and_grad(case.loss, observe=observe), batch), variables)
    assert len(set(plain)) == SLOW_STEPS
    assert observed == plain


@pytest.mark.slow
@pytest.mark.parametrize("observe", ["stats", "tensors"])
def test_compiled_training_takes_the_same_course(observe: Any) -> None:
    variables, batch = ZOO["mlp"].arguments()

    def losses(value_and_grad: Callable[..., Any]) -> Any:
        def step(variables: Any, _: None) -> Pair:
            after, (loss, _seen) = sgd(value_and_grad, batch, variables, None)
            return after, loss

        return jax.jit(lambda variables: jax.lax.scan(step, variables, length=STEPS))(variables)[1]

    plain = losses(unobserved(mlp.loss))
    assert plain[-1] < plain[0]
    assert_close(losses(gs.value_and_grad(mlp.loss, observe=observe)), plain)
