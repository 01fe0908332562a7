"""Reproductions: the layers of networks as scripts of `jax.lax` that give what the dumps have."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.capturing.isolate.reproducing.reproduction import Reproduction, reproduce
from gradscope.capturing.isolate.reproducing.reproduction_script import arrays, script
from gradscope.dump.interfaces import DumpSource
from gradscope.errors import UsageError
from gradscope.tracing.loading.model import Model
from models.transformer import Transformer
from tests.oracle.isolation import test_blame as blame
from tests.oracle.isolation.isolating import of_losses, wrong
from tests.oracle.isolation.test_places import BATCH, PARAMS, network
from tests.oracle.zoo import ShortResNet
from tests.support.data import evenly
from tests.support.reproduction import Ran, run_here
from tests.support.sampled import sampled

pytestmark = pytest.mark.usefixtures("compiled_in_a_hurry")


def reproduction(loss: Any, variables: Any, batch: Any, layer: str) -> Reproduction:
    dump = gs.capture(loss, variables, batch)
    model = Model.of_values("model", loss, variables, batch)
    return reproduce(model, layer, dump.source)


def ran(folder: Path, found: Reproduction) -> Ran:
    np.savez(folder / "isolated.npz", **arrays(found))
    path = folder / "isolated.py"
    path.write_text(script(found, file="isolated", dump="dump.npz"))
    return run_here(path)


@pytest.mark.slow
def test_an_attention_layer_in_a_scanned_and_checkpointed_network(tmp_path: Path) -> None:
    model = Transformer(layers=2, width=16, heads=2, vocabulary=8, length=4)
    found = reproduction(model.loss, model.init(jax.random.key(0)), model.batch(jax.random.key(1), 2), "block[1]/attn")
    assert list(found.inputs) == ["norm1", "query_kernel", "key_kernel", "value_kernel", "out_kernel"]
    assert {each.origin for each in (*found.outputs, *found.gradients)} == {"dump"}
    done = ran(tmp_path, found)
    assert done.status == 0
    assert max(done.errors.values()) < 1e-5


@pytest.mark.slow
def test_a_block_of_convolutions_and_batch_normalisations(tmp_path: Path) -> None:
    model = ShortResNet(depth=18, image_size=16, classes=4)
    variables = jax.jit(model.init)(jax.random.key(0))
    found = reproduction(model.loss, variables, model.batch(jax.random.key(1), 2), "stage2_block1")
    of_dump = {each.name for each in (*found.outputs, *found.gradients) if each.origin == "dump"}
    assert {"relu2", "conv1_kernel", "bn1_scale", "bn2_bias", "proj_conv_kernel"} <= of_dump
    done = ran(tmp_path, found)
    assert done.status == 0
    assert max(done.errors.values()) < 1e-4


@cache
def reference_of_network() -> DumpSource:
    return gs.capture(network, PARAMS, BATCH, origins=False).source


@pytest.mark.slow
@sampled(
    ("fault", "name", "wrong"),
    [
        ("rule", "before block/down", {("vjp", "up")}),
        ("sum", "block", {("forward", "block"), ("vjp", "up"), ("vjp", "down")}),
        ("loop rule", "before loop[1]/out", {("vjp", "x_in")}),
    ],
)
def test_the_code_before_a_layer_shows_its_fault(
    tmp_path: Path, fault: str, name: str, wrong: set[tuple[str, str]]
) -> None:
    reference = reference_of_network()
    found = reproduce(Model.of_values("model", partial(network, fault=fault), PARAMS, BATCH), name, reference)
    done = ran(tmp_path, found)
    assert done.status == 1
    assert {key for key, error in done.errors.items() if error > 1e-3} == wrong
    assert found.computed == (() if name.startswith("before") else ("x",))
    again = reproduce(Model.of_values("model", network, PARAMS, BATCH), name, reference)
    assert ran(tmp_path, again).status == 0


def branching(params: Any, batch: Any, *, fault: str = "") -> Any:
    """Each example takes a branch of its own, so that both run on masked copies of what was passed."""

    def made(name: str, y: Any) -> Any:
        return blame.wrong_backward(y) if name == fault else y

    def one(x: Any) -> Any:
        with jax.named_scope("dense"):
            x = jnp.tanh(x @ params["dense"])

        def first(x: Any) -> Any:
            with jax.named_scope("first"):
                with jax.named_scope("inner"):
                    x = x @ params["first"]
                return made("first", jnp.sin(x))

        def second(x: Any) -> Any:
            with jax.named_scope("second"):
                return made("second", jnp.tanh(x @ params["second"]))

        x = jax.lax.cond(x.sum() < 0, first, second, x)
        with jax.named_scope("head"):
            return made("head", x @ params["head"])

    return (jax.vmap(one)(batch["x"]) ** 2).mean()


@sampled(("fault", "name"), [("first", "before first"), ("second", "before second"), ("head", "head"), ("", "first")])
def test_a_branch_of_each_example_shows_its_fault(tmp_path: Path, fault: str, name: str) -> None:
    names = ("dense", "first", "second", "head")
    keys = jax.random.split(jax.random.key(0), 5)
    params = {each: 0.4 * jax.random.normal(key, (6, 6)) for each, key in zip(names, keys, strict=False)}
    batch = {"x": jax.random.normal(keys[4], (8, 6))}
    reference = gs.capture(branching, params, batch, origins=False).source
    loss = partial(branching, fault=fault)
    isolation = of_losses(branching, loss, params, batch, origins=False)
    assert wrong(isolation) == ([fault] if fault else [])
    found = reproduce(Model.of_values("model", loss, params, batch), name.removeprefix("before "), reference)
    assert found.name == name
    assert ran(tmp_path, found).status == (1 if fault else 0)


@sampled("transform", [lambda loss: loss, jax.jit])
def test_the_loss_behind_the_last_layer_is_a_script_too(tmp_path: Path, transform: Any) -> None:
    reference = gs.capture(transform(network), PARAMS, BATCH, origins=False).source

    def errors(fault: str) -> dict[tuple[str, str], float]:
        model = Model.of_values("model", transform(partial(network, fault=fault)), PARAMS, BATCH)
        found = reproduce(model, "(loss)", reference)
        assert {each.origin for each in (*found.outputs, *found.gradients)} == {"dump"}
        return ran(tmp_path, found).errors

    right = errors("")
    assert right.keys() == {("forward", "loss"), ("vjp", "head")}
    assert max(right.values()) < 1e-6
    assert min(errors("loss").values()) > 1e-3


def test_a_loss_that_a_layer_returns_is_said_to_be_that_layers() -> None:
    with pytest.raises(UsageError, match="behind odd, which returns it"):
        reproduction(in_scope, {"w": jnp.ones(2)}, {"x": jnp.ones(2)}, "(loss)")


def in_scope(params: Any, batch: Any) -> Any:
    with jax.named_scope("odd"):
        return jnp.sin(batch["x"] * params["w"]).sum()


def odd(params: Any, batch: Any) -> Any:
    """Loops, branches, sorting, narrow types, constants and what is not finite, in one layer."""
    with jax.named_scope("odd"):
        x = batch["x"] * params["w"]
        x = jax.lax.fori_loop(0, 3, lambda iteration, x: jnp.sin(x) + iteration, x)
        x = jax.lax.cond(batch["n"] > 1, lambda x: x * x, lambda x: x, x)
        y = (x.astype(jnp.bfloat16) * jnp.asarray([[1.5, -2.0]], jnp.bfloat16)).astype(jnp.float32)
        order = jnp.argsort(batch["x"][:, 0])
        safe = jnp.where(jnp.isfinite(batch["x"]), y, jnp.inf)
        out = jnp.stack([safe[order], jnp.cumsum(y, axis=0)], axis=-1).sum(axis=-1)
        out = out + jnp.asarray(np.linspace(0, 1, 6, dtype=np.float32)).reshape(3, 2)
    return jnp.tanh(out).sum()


def test_a_layer_of_everything(tmp_path: Path) -> None:
    batch = {"x": jnp.asarray([[3.0, 1.0], [jnp.inf, 2.0], [-1.0, 0.5]]), "n": jnp.int32(2)}
    found = reproduction(odd, {"w": jnp.asarray([[0.5, -0.25]])}, batch, "odd")
    done = ran(tmp_path, found)
    assert done.status == 0
    assert done.errors["forward", "odd"] < 1e-6


def dropped(params: Any, batch: Any) -> Any:
    first, second = jax.random.split(batch["key"])
    with jax.named_scope("drop"):
        key = jax.random.fold_in(first, 7)
        x = jnp.where(jax.random.bernoulli(key, 0.5, batch["x"].shape), 2.0 * batch["x"], 0.0)
    with jax.named_scope("dense"):
        return (x @ params["w"] + jax.random.normal(second, (2,))[None]).sum()


@sampled("layer", ["drop", "dense"])
def test_random_numbers_come_from_the_same_key(tmp_path: Path, layer: str) -> None:
    batch = {"x": jnp.linspace(0.1, 1.0, 60).reshape(20, 3), "key": jax.random.key(5)}
    done = ran(tmp_path, reproduction(dropped, {"w": jnp.ones((3, 2))}, batch, layer))
    assert done.status == 0
    assert max(done.errors.values()) < 1e-6


def narrow(params: Any, batch: Any) -> Any:
    with jax.named_scope("narrow"):
        x = batch["x"].astype(jnp.bfloat16) @ params["w"]
    with jax.named_scope("wide"):
        return (x.astype(jnp.float32) ** 2).sum()


@pytest.mark.slow
def test_narrow_types_lie_in_the_file_as_they_are(tmp_path: Path) -> None:
    variables, batch = {"w": jnp.ones((3, 2), jnp.bfloat16) / 3}, {"x": jnp.linspace(0.0, 1.0, 6).reshape(2, 3)}
    found = reproduction(narrow, variables, batch, "narrow")
    assert {found.inputs["w"].dtype, found.outputs[0].array.dtype} == {np.dtype(jnp.bfloat16)}
    assert ran(tmp_path, found).status == 0


def shared(params: Any, batch: Any) -> Any:
    with jax.named_scope("dense"):
        x = batch["x"] @ params["w"]
    with jax.named_scope("branch"):
        y = jnp.sin(x)
    with jax.named_scope("sum"):
        return (x * y).sum()


@pytest.mark.slow
def test_a_gradient_that_others_add_to_is_no_expectation_of_the_dumps() -> None:
    batch = {"x": jnp.linspace(0.0, 1.0, 6).reshape(2, 3)}
    found = reproduction(shared, {"w": jnp.ones((3, 2))}, batch, "branch")
    (gradient,) = found.gradients
    assert gradient.origin == "run"
    np.testing.assert_allclose(gradient.array, found.cotangents["d_branch"] * np.cos(found.inputs["dense"]), rtol=1e-5)


@pytest.mark.slow
@sampled(
    ("fault", "wrong", "beside"),
    [
        ("shared1", {"dense", "shared"}, ("shared2", "bilinear")),
        ("shared2", {"shared1", "shared"}, ("shared1", "bilinear")),
        ("branch", {"loop"}, ("head",)),
    ],
)
def test_a_term_of_a_wrong_sum_is_what_the_sum_leaves_for_the_layer_that_is_blamed(
    tmp_path: Path, fault: str, wrong: set[str], beside: tuple[str, ...]
) -> None:
    loss = partial(blame.network, fault=fault, backward=True)
    model = Model.of_values("model", loss, blame.PARAMS, blame.BATCH)
    found = reproduce(model, fault, blame.reference().source)
    assert {each.name for each in found.gradients if each.origin == "rest"} == wrong
    done = ran(tmp_path, found)
    assert done.status == 1
    assert {name for (_, name), error in done.errors.items() if error > 1e-3} == wrong
    assert all(ran(tmp_path, reproduce(model, each, blame.reference().source)).status == 0 for each in beside)


def chosen(params: Any, batch: Any, *, slope: float = 1.0) -> Any:
    def taken(x: Any) -> Any:
        with jax.named_scope("taken"):
            return jnp.tanh(x @ params["w"])

    with jax.named_scope("first"):
        x = jnp.sin(batch["x"])
    y = jax.lax.cond(batch["x"].sum() > 0, taken, lambda x: x, x)
    with jax.named_scope("head"):
        return jnp.sin(jax.lax.stop_gradient((1 - slope) * y) + slope * y).sum()


def test_the_gradient_of_what_a_branch_returned_is_the_dumps(tmp_path: Path) -> None:
    params, batch = {"w": evenly(-1.0, 1.5, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}
    reference = gs.capture(chosen, params, batch).source
    models = [Model.of_values("model", partial(chosen, slope=slope), params, batch) for slope in (1.0, 1.5)]
    right, wrong = (reproduce(model, "head", reference) for model in models)
    assert [(each.name, each.origin) for each in wrong.gradients] == [("taken", "dump")]
    assert [ran(tmp_path, each).status for each in (right, wrong)] == [0, 1]


def callback(params: Any, batch: Any) -> Any:
    with jax.named_scope("host"):
        x = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((2, 3), np.float32), jax.lax.stop_gradient(batch["x"]))
    with jax.named_scope("dense"):
        return (x @ params["w"]).sum()


def test_what_cannot_be_written_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="pure_callback cannot be written as a script"):
        reproduction(callback, {"w": jnp.ones((3, 2))}, {"x": jnp.ones((2, 3))}, "host")


def twice_read(params: Any, batch: Any) -> Any:
    """A loop that takes the rows of a matrix, and reads all of it."""

    def step(carry: Any, row: Any) -> Any:
        with jax.named_scope("cell"):
            return jnp.tanh(carry @ params["w"] + row), None

    return jax.lax.scan(step, batch["x"], params["w"][:, None, :])[0].sum()


def rows(params: Any, batch: Any) -> Any:
    return twice_read({"w": params["w"][:, 0]}, batch) + params["w"].mean()


@pytest.mark.slow
@sampled(("loss", "shape"), [(twice_read, (3, 3)), (rows, (3, 1, 3))])
def test_a_slice_of_an_argument_that_something_else_reads_has_no_gradient_in_the_dump(
    tmp_path: Path, loss: Any, shape: tuple[int, ...]
) -> None:
    found = reproduction(loss, {"w": evenly(-1.0, 1.0, *shape)}, {"x": evenly(0.0, 1.0, 2, 3)}, "cell[1]")
    assert [each.origin for each in found.gradients] == ["dump", "run", "run"]
    assert ran(tmp_path, found).status == 0


def narrow_inside(params: Any, batch: Any) -> Any:
    with jax.named_scope("narrow"):
        return (batch["x"].astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16)).astype(jnp.float32).sum()


@pytest.mark.slow
def test_what_is_computed_in_a_narrow_type_has_its_tolerance() -> None:
    found = reproduction(narrow_inside, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, "narrow")
    assert {str(each.array.dtype) for each in found.gradients} == {"float32"}
    assert min(each.tolerance for each in found.gradients) >= 0.05


def noisy(params: Any, batch: Any) -> Any:
    with jax.named_scope("noise"):
        key = jax.random.fold_in(jax.random.key(3), 1)
        scale = jax.random.gamma(key, jnp.abs(params["w"]) + 1) * jax.random.uniform(key, params["w"].shape)
    return (batch["x"] @ scale).sum()


def grouped(params: Any, batch: Any) -> Any:
    with jax.named_scope("experts"):
        return jax.lax.ragged_dot(batch["x"], jnp.stack([params["w"], 2 * params["w"]]), jnp.array([1, 1])).sum()


@jax.custom_batching.sequential_vmap
def one_by_one(row: Any) -> Any:
    return jnp.sin(row)


def batched(params: Any, batch: Any) -> Any:
    with jax.named_scope("rows"):
        return (one_by_one(batch["x"]) @ params["w"]).sum()


@pytest.mark.slow
def test_what_jax_cannot_differentiate_has_no_gradient_in_the_script(tmp_path: Path) -> None:
    found = reproduction(batched, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, "rows")
    assert [each.name for each in found.gradients] == ["w"]
    assert ran(tmp_path, found).status == 0


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "layer"), [(noisy, "noise"), (grouped, "experts")])
def test_random_numbers_and_groups_can_be_written(tmp_path: Path, loss: Any, layer: str) -> None:
    found = reproduction(loss, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, layer)
    assert ran(tmp_path, found).status == 0


def transformed(params: Any, batch: Any) -> Any:
    with jax.named_scope("spectrum"):
        return jnp.abs(jnp.fft.ifft(jnp.fft.fft(jax.device_put(batch["x"]) @ params["w"]) * 2)).sum()


def test_enumerations_of_jax_can_be_written(tmp_path: Path) -> None:
    found = reproduction(transformed, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, "spectrum")
    assert ran(tmp_path, found).status == 0


def after_narrow(params: Any, batch: Any) -> Any:
    with jax.named_scope("narrow"):
        x = jax.nn.gelu(batch["x"].astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16))
    with jax.named_scope("wide"):
        return (x.astype(jnp.float32) ** 2).mean()


@pytest.mark.slow
def test_what_reads_values_of_a_narrow_type_has_its_tolerance() -> None:
    found = reproduction(after_narrow, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, "wide")
    assert [str(each.array.dtype) for each in found.outputs] == ["float32"]
    assert found.outputs[0].tolerance >= 0.01


def shaped(params: Any, batch: Any) -> Any:
    shape = jax.lax.stop_gradient(jnp.abs(params["w"]) + 1)
    with jax.named_scope("share"):
        share = jax.lax.betainc(shape, shape, jax.nn.sigmoid(batch["x"] @ params["w"]))
    return share.sum()


@pytest.mark.slow
def test_an_operand_by_which_jax_does_not_differentiate_has_no_gradient_in_the_script(tmp_path: Path) -> None:
    found = reproduction(shaped, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 3, 3)}, "share")
    assert len(found.gradients) == len(found.inputs) - 1
    assert ran(tmp_path, found).status == 0


def beside(params: Any, batch: Any) -> Any:
    with jax.named_scope("dense"):
        x = batch["x"] @ params["w"]
    y = jnp.sin(x)
    with jax.named_scope("product"):
        return (x * y).sum()


@pytest.mark.slow
def test_a_gradient_to_which_code_before_the_layer_adds_is_no_expectation_of_the_dumps(tmp_path: Path) -> None:
    found = reproduction(beside, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, "product")
    assert {each.name: each.origin for each in found.gradients} == {"dense": "run", "x": "run"}
    assert ran(tmp_path, found).status == 0


def read_by_two(params: Any, batch: Any) -> Any:
    with jax.named_scope("dense"):
        x = batch["x"] @ params["w"]

    def step(carry: Any, _: Any) -> Any:
        with jax.named_scope("cell"):
            carry = jnp.sin(carry)
        return carry, None

    y, _ = jax.lax.scan(step, x, None, length=2)
    with jax.named_scope("total"):
        total = (y**2).sum()
    with jax.named_scope("product"):
        return (y * 3).sum() * total


@pytest.mark.slow
def test_a_gradient_that_other_layers_return_through_the_code_before_is_none_of_the_layers(tmp_path: Path) -> None:
    found = reproduction(read_by_two, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": evenly(0.0, 1.0, 2, 3)}, "before product")
    assert "run" in {each.origin for each in found.gradients}
    assert ran(tmp_path, found).status == 0


def batched_loop(params: Any, batch: Any) -> Any:
    def row(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[1] < 4.0, lambda c: (c[0] * 0.5, c[1] + 1.0), (x, x.sum()))[0]

    with jax.named_scope("rows"):
        y = jax.vmap(row)(jax.lax.stop_gradient(batch["x"] + 0.1))
        return (jax.lax.optimization_barrier((y, y))[1] @ params["w"]).sum()


def test_loops_that_vmap_batched_can_be_written(tmp_path: Path) -> None:
    x = jnp.array([[0.1, 0.2, 0.1], [1.0, 2.0, 0.5]])
    found = reproduction(batched_loop, {"w": evenly(-1.0, 1.0, 3, 3)}, {"x": x}, "rows")
    assert ran(tmp_path, found).status == 0


def in_two_loops(params: Any, batch: Any) -> Any:
    def cell(carry: Any, kernel: Any) -> Any:
        with jax.named_scope("cell"):
            return jnp.tanh(carry @ kernel), None

    return jax.lax.scan(lambda carry, each: jax.lax.scan(cell, carry, each), batch["x"], params["w"])[0].sum()


def test_a_slice_that_a_loop_in_a_loop_reads_has_its_gradient_in_the_dump(tmp_path: Path) -> None:
    w = evenly(-1.0, 1.0, 2, 3, 3, 3)
    found = reproduction(in_two_loops, {"w": w}, {"x": evenly(0.0, 1.0, 2, 3)}, "cell[1][2]")
    assert [each.origin for each in found.gradients] == ["dump", "dump"]
    assert ran(tmp_path, found).status == 0
