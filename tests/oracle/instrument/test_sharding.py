"""`shard_map` inside a loss: a record per shard, in the order of the mesh, whatever the number of devices."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradscope
from gradscope.training.gradient_noise import gradient_noise
from gradscope.training.recording.compared_arrays import cosine_on_device
from tests.oracle.engine import Probe, assert_close, check, check_compiled, layer, observe
from tests.oracle.isolation.isolating import of_losses
from tests.oracle.terms import assert_sums, terms_of
from tests.support.data import evenly
from tests.support.sampled import sampled

WEIGHTS = evenly(-1.0, 1.0, 3, 3)
INPUTS = evenly(-1.0, 2.0, 8, 3)


def mesh_of(**axes: int) -> Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def dense(weight: Any, x: Any) -> Any:
    return jnp.tanh(x @ weight)


SHARDS = min(len(jax.devices()), 4)


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "check_vma"), sorted({(1, True), (SHARDS, True), (SHARDS, False)}))
def test_a_layer_in_every_shard(shards: int, check_vma: bool) -> None:
    """The weight is replicated, the input split, the output split."""

    def loss(weight: Any, x: Any) -> Any:
        split = PartitionSpec("data")
        sharded = jax.shard_map(
            partial(layer, "dense", dense),
            mesh=mesh_of(data=shards),
            in_specs=(PartitionSpec(), split),
            out_specs=split,
            check_vma=check_vma,
        )
        return (layer("sharded", sharded, weight, x) ** 2).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        rows = jnp.split(x, shards)
        made = [
            probe(f"sharded[{shard}]", probe(f"sharded[{shard}]/dense", dense(weight, one)))
            for shard, one in enumerate(rows)
        ]
        return (probe("sharded", jnp.concatenate(made)) ** 2).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin, stepwise=False)


@pytest.mark.slow
def test_a_sum_over_shards() -> None:
    """What is the same in all shards has in each of them the whole gradient."""

    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            partly = layer("partly", lambda: dense(weight, x).sum(axis=0))
            total = layer("total", jax.lax.psum, partly, "data")
            return layer("after", dense, weight, total[None])

        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}
        return (jax.shard_map(shard, mesh=mesh_of(data=SHARDS), **specs)(weight, x) ** 2).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        parts = [dense(weight, one).sum(axis=0) for one in jnp.split(x, SHARDS)]
        total = probe("total[0]", sum(probe(f"partly[{shard}]", part) for shard, part in enumerate(parts)))
        return (probe("after[0]", dense(weight, total[None])) ** 2).sum()

    seen = check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False, stepwise=False).seen
    for shard in range(SHARDS):
        assert_close(seen[f"total[{shard}]"].gradient, seen["total[0]"].gradient)


@pytest.mark.slow
def test_what_moves_between_shards() -> None:
    iteration = [(shard, (shard + 1) % SHARDS) for shard in range(SHARDS)]

    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            moved = layer("moved", lambda: jax.lax.ppermute(dense(weight, x), "data", iteration))
            return layer("after", dense, weight, moved) * jax.lax.axis_index("data").astype(x.dtype)

        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        return jax.shard_map(shard, mesh=mesh_of(data=SHARDS), **specs)(weight, x).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        made = [dense(weight, one) for one in jnp.split(x, SHARDS)]
        moved = [probe(f"moved[{shard}]", made[shard - 1]) for shard in range(SHARDS)]
        after = [probe(f"after[{shard}]", dense(weight, one)) * shard for shard, one in enumerate(moved)]
        return jnp.concatenate(after).sum()

    check(loss, WEIGHTS, INPUTS, twin=twin, stepwise=False)


@pytest.mark.slow
def test_the_largest_of_all_shards_has_no_derivative_and_needs_none() -> None:
    """The logarithm of a sum over columns that are divided: the maximum keeps it finite, and is no part of it."""
    shards = math.gcd(SHARDS, 2)

    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            logits = layer("logits", dense, weight, x)
            own = layer("own", lambda: jax.lax.stop_gradient(logits).max(axis=1))
            largest = layer("largest", jax.lax.pmax, own, "model")
            return largest + jnp.log(jax.lax.psum(jnp.exp(logits - largest[:, None]).sum(axis=1), "model"))

        specs = {"in_specs": (PartitionSpec(None, "model"), PartitionSpec()), "out_specs": PartitionSpec()}
        wide = jnp.concatenate([weight, -weight[:, :1]], axis=1)
        return jax.shard_map(shard, mesh=mesh_of(model=shards), **specs)(wide, x).sum()

    seen = observe(loss, WEIGHTS, INPUTS).seen
    wide = jnp.concatenate([WEIGHTS, -WEIGHTS[:, :1]], axis=1)
    plain, gradient = jax.value_and_grad(lambda logits: jax.nn.logsumexp(logits, axis=1).sum())(dense(wide, INPUTS))
    for number, part in enumerate(jnp.split(gradient, shards, axis=1)):
        assert_close(seen[f"logits[{number}]"].gradient, part)
        assert seen[f"own[{number}]"].gradient is None
    assert_close(loss(WEIGHTS, INPUTS), plain)


@pytest.mark.slow
def test_a_weight_that_is_split_and_an_input_that_is_not() -> None:
    shards = math.gcd(SHARDS, 2)

    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            return layer("dense", dense, weight, x)

        specs = {"in_specs": (PartitionSpec(None, "model"), PartitionSpec()), "out_specs": PartitionSpec(None, "model")}
        wide = jnp.concatenate([weight, -weight[:, :1]], axis=1)
        return (jax.shard_map(shard, mesh=mesh_of(model=shards), **specs)(wide, x) ** 2).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        wide = jnp.concatenate([weight, -weight[:, :1]], axis=1)
        made = [probe(f"dense[{n}]", dense(part, x)) for n, part in enumerate(jnp.split(wide, shards, axis=1))]
        return sum((part**2).sum() for part in made)

    check(loss, WEIGHTS, INPUTS, twin=twin, stepwise=False)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
def test_loops_and_branches_inside_a_shard(check_vma: bool) -> None:
    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            def block(carry: Any, _: None) -> Any:
                return layer("step", dense, weight, carry), None

            def looped(carry: Any) -> Any:
                return jax.lax.while_loop(
                    lambda state: state[0] < 2,
                    lambda state: (state[0] + 1, layer("loop", lambda: state[1] * 2)),
                    (0, carry),
                )[1]

            x, _ = jax.lax.scan(block, x, None, length=2)
            x = jax.lax.cond(x.sum() > 0, partial(layer, "taken", jnp.sin), partial(layer, "not_taken", jnp.cos), x)
            return x * looped(jax.lax.stop_gradient(x))

        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        return jax.shard_map(shard, mesh=mesh_of(data=SHARDS), check_vma=check_vma, **specs)(weight, x).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        total = jnp.float32(0)
        for shard, rows in enumerate(jnp.split(x, SHARDS)):
            made = rows
            for iteration in range(2):
                made = probe(f"step[{shard}][{iteration}]", dense(weight, made))
            taken = bool(jax.lax.stop_gradient(made).sum() > 0)
            made = probe(f"taken[{shard}]", jnp.sin(made)) if taken else probe(f"not_taken[{shard}]", jnp.cos(made))
            total = total + (made * jax.lax.stop_gradient(made) * 4).sum()
        return total

    check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False, stepwise=False)


@pytest.mark.slow
def test_a_sharded_map_inside_a_scan() -> None:
    def loss(weight: Any, x: Any) -> Any:
        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        sharded = jax.shard_map(partial(layer, "dense", dense), mesh=mesh_of(data=SHARDS), **specs)
        body = lambda carry, _: (layer("block", sharded, weight, carry), None)  # noqa: E731
        return jax.lax.scan(body, x, None, length=2)[0].sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        for iteration in range(2):
            made = [dense(weight, one) for one in jnp.split(x, SHARDS)]
            parts = [probe(f"block[{iteration}][{shard}]/dense", part) for shard, part in enumerate(made)]
            x = probe(f"block[{iteration}]", jnp.concatenate(parts))
        return x.sum()

    check(loss, WEIGHTS, INPUTS, twin=twin, exactly=False, stepwise=False)


@pytest.mark.slow
def test_a_map_over_one_of_two_axes_and_another_within() -> None:
    mesh = mesh_of(data=SHARDS, model=1)

    def loss(weight: Any, x: Any) -> Any:
        split = PartitionSpec("data")
        sharded = jax.shard_map(
            partial(layer, "dense", dense), mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split,
            axis_names={"data"},
        )  # fmt: skip
        return sharded(weight, x).sum()

    def twin(weight: Any, x: Any, probe: Probe) -> Any:
        return sum(probe(f"dense[{n}]", dense(weight, one)).sum() for n, one in enumerate(jnp.split(x, SHARDS)))

    check(loss, WEIGHTS, INPUTS, twin=twin, stepwise=False)


@pytest.mark.slow
def test_a_program_that_runs_in_every_shard() -> None:
    """The loss knows of no mesh: what a training step does that is sharded as a whole."""

    def loss(weight: Any, x: Any) -> Any:
        step = lambda carry, _: (layer("step", dense, weight, carry), None)  # noqa: E731
        x, _ = jax.lax.scan(step, x, None, length=2)
        return jax.lax.cond(x.sum() > 0, partial(layer, "positive", jnp.sin), partial(layer, "other", jnp.cos), x).sum()

    specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}

    @partial(jax.shard_map, mesh=mesh_of(data=SHARDS), **specs)
    def everywhere(weight: Any, x: Any) -> Any:
        observed = observe(loss, weight, x).observed  # traced in here, where types tell of the shards
        return jax.tree_util.tree_map(lambda leaf: leaf[None], (observed.captured, observed.cotangents))

    captured, cotangents = jax.jit(everywhere)(WEIGHTS, INPUTS)
    for shard, x in enumerate(jnp.split(INPUTS, SHARDS)):
        alone = observe(loss, WEIGHTS, x).observed
        for number, cotangent in alone.cotangents.items():
            assert_close(captured.values[number][shard], alone.captured.values[number])
            assert_close(cotangents[number][shard], cotangent)


LOSSES: dict[str, Any] = {
    "layers": lambda w, x: layer("second", jnp.sin, layer("first", jax.jit(dense), w, x)),
    "scan": lambda w, x: jax.lax.scan(lambda carry, _: (layer("step", dense, w, carry), None), x, None, length=2)[0],
    "checkpoint": jax.checkpoint(partial(layer, "block", dense)),
    "branch": lambda w, x: jax.lax.cond(w[0, 0] < 0, partial(layer, "yes", dense), lambda w, x: x * 2, w, x),
    "maximum": lambda w, x: layer("log_softmax", jax.nn.log_softmax, x @ w)[:, 0],
    "while": lambda w, x: (x @ w) * looped(jax.lax.stop_gradient(x)),
    "shard_map": jax.shard_map(
        partial(layer, "dense", dense),
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec("data"),
    ),
}


def looped(x: Any) -> Any:
    return jax.lax.while_loop(lambda x: x.sum() < 10, lambda x: layer("grow", lambda: x + 1), x)


@pytest.mark.slow
@sampled("function", LOSSES.values(), ids=LOSSES.keys())
def test_sharding_that_is_part_of_types(function: Any) -> None:
    """Under a mesh with explicit axes branches, loops and backward rules agree on types only if shardings agree."""
    mesh = jax.make_mesh((SHARDS,), ("data",), axis_types=(AxisType.Explicit,))

    def loss(weight: Any, x: Any) -> Any:
        return function(weight, x).sum()

    alone = observe(loss, WEIGHTS, INPUTS).seen if function is not LOSSES["shard_map"] else None
    with jax.set_mesh(mesh):
        x = jax.device_put(INPUTS, NamedSharding(mesh, PartitionSpec("data")))
        seen = check_compiled(loss, jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec())), x).seen
    for name, tensor in (alone or {}).items():
        if tensor.activation is not None:
            assert_close(seen[name].activation, tensor.activation)
        if tensor.gradient is not None:
            assert_close(seen[name].gradient, tensor.gradient)


def test_statistics_and_gradients_of_examples_need_no_mesh_that_is_set() -> None:
    """The types of the arrays have it, and every program follows them."""

    def loss(weight: Any, x: Any) -> Any:
        return (layer("dense", dense, weight, x) ** 2).mean()

    mesh = jax.make_mesh((SHARDS,), ("data",), axis_types=(AxisType.Explicit,))
    arguments = (
        jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec())),
        jax.device_put(INPUTS, NamedSharding(mesh, PartitionSpec("data"))),
    )
    programs = {
        "statistics": lambda *args: gradscope.value_and_grad(loss)(*args)[1]["activation/dense"].l2,
        "noise": lambda weight, x: gradient_noise(
            lambda x, _: {"w": jax.grad(loss)(weight, x)}, x, groups=4, is_split=[True], group_size=2
        ).gsnr["w"],
    }
    for name, program in programs.items():
        assert_close(jax.jit(program)(*arguments), jax.jit(program)(WEIGHTS, INPUTS), what=name)
    found, alone = (gradscope.capture(loss, *each, per_example=True) for each in (arguments, (WEIGHTS, INPUTS)))
    assert_close(found["example_grad/value"], alone["example_grad/value"])
    cosines = jax.jit(cosine_on_device)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    columns = jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec(None, "data")))
    assert_close(cosines(columns, columns[::-1]), cosines(WEIGHTS, WEIGHTS[::-1]))


@pytest.mark.slow
def test_arrays_on_explicit_axes_of_one_device_are_run_there() -> None:
    """Their type names a mesh without its devices, and no mesh is set."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    split = NamedSharding(mesh, PartitionSpec("data"))

    def loss(weight: Any, x: Any) -> Any:
        return layer("dense", dense, weight, x).sum()

    arguments = jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec())), jax.device_put(INPUTS, split)
    found = gradscope.capture(loss, *arguments)
    assert found.manifest.mesh == {"data": 1}
    assert_close(found["param_grad/value"], jax.grad(loss)(WEIGHTS, INPUTS))


@pytest.mark.slow
def test_collectives_are_listed_with_their_axes_and_layers() -> None:
    """Those of the program, in order, by the functions that the user calls."""

    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            with jax.named_scope("norm"):
                x = x - jax.lax.pmean(x.mean(0, keepdims=True), "data")
            whole = jax.lax.all_gather(dense(weight, x), "data", tiled=True)
            return jax.lax.psum(whole.sum(), ("data", "model"))

        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec(), "check_vma": False}
        return jax.shard_map(shard, mesh=mesh_of(data=SHARDS, model=1), **specs)(weight, x)

    manifest = gradscope.capture(loss, WEIGHTS, INPUTS).manifest
    found = [(each.function, each.axes, each.layer) for each in manifest.collectives]
    assert found == [("pmean", ("data",), "norm"), ("all_gather", ("data",), None), ("psum", ("data", "model"), None)]
    assert (manifest.mesh, manifest.shard_axes) == ({"data": SHARDS, "model": 1}, ("data", "model"))
    assert all(each.source and each.source.startswith("test_sharding.py:") for each in manifest.collectives)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["explicit", "manual"])
def test_a_layer_that_is_fed_has_the_type_of_what_is_not_computed(split: str) -> None:
    """What only the layer reads is not computed, and zeros replace it."""
    mesh = jax.make_mesh((SHARDS,), ("data",), axis_types=(AxisType.Explicit,))
    feed = {f"activation/fed[{shard}]": each for shard, each in enumerate(jnp.split(INPUTS + 1, SHARDS))}
    weight, x, apply = WEIGHTS, INPUTS, two_layers
    if split == "explicit":
        feed = {"activation/fed": INPUTS + 1}
        weight = jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec()))
        x = jax.device_put(INPUTS, NamedSharding(mesh, PartitionSpec("data")))
    else:
        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        apply = jax.shard_map(two_layers, mesh=mesh_of(data=SHARDS), **specs)
    found = gradscope.capture(lambda w, x: (apply(w, x) ** 2).sum(), weight, x, feed=feed)
    loss = lambda w: (dense(w, INPUTS + 1) ** 2).sum()  # noqa: E731
    assert_close(found["param_grad/value"], jax.grad(loss)(WEIGHTS))


def two_layers(weight: Any, x: Any) -> Any:
    return layer("head", dense, weight, layer("fed", dense, weight, x))


@pytest.mark.slow
def test_gradients_of_a_whole_sharded_network() -> None:
    def loss(weight: Any, x: Any) -> Any:
        def shard(weight: Any, x: Any) -> Any:
            x = layer("first", dense, weight, x)
            mean = layer("mean", lambda: jax.lax.pmean(x.mean(axis=0, keepdims=True), "data"))
            return layer("norm", lambda: x - mean)

        specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
        sharded = jax.checkpoint(jax.shard_map(shard, mesh=mesh_of(data=SHARDS), **specs))
        return (sharded(weight, x) ** 2).sum()

    check_compiled(loss, WEIGHTS, INPUTS)


ON_FOUR_DEVICES = """
import sys, jax, pytest
jax.config.update("jax_num_cpu_devices", 4)
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_same_on_four_devices() -> None:
    others = ["-q", "-p", "no:cacheprovider", "-k", "sum_over or moves or one_value", __file__]
    run = subprocess.run([sys.executable, "-c", ON_FOUR_DEVICES, *others], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def split_in_two_ways(weight: Any, x: Any, *, factor: float = 1.0) -> Any:
    """A product whose terms are on several shards, which then all have its value, and a layer behind it."""
    sizes = {"rows": min(2, SHARDS), "columns": max(1, SHARDS // 2)}

    def shard(weight: Any, x: Any) -> Any:
        hidden = jax.lax.psum(layer("dense", dense, weight, x), "columns")
        with jax.named_scope("whole"):
            hidden = factor * hidden**2
        with jax.named_scope("head"):
            return jnp.sin(hidden)

    rows, columns = PartitionSpec("rows"), PartitionSpec("columns")
    mapped = jax.shard_map(
        shard, mesh=mesh_of(**sizes), in_specs=(columns, PartitionSpec("rows", "columns")), out_specs=rows
    )
    return (mapped(weight, x) ** 2).sum()


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, set[str]()), (1.01, {"whole"})])
def test_shards_that_have_one_value_are_run_by_themselves(factor: float, wrong: set[str]) -> None:
    """What is injected in each of them counts once, forwards and backwards."""
    arguments = evenly(-1.0, 1.0, 4, 3), evenly(-1.0, 2.0, 8, 4)
    found = of_losses(split_in_two_ways, partial(split_in_two_ways, factor=factor), *arguments)
    assert {row.name.partition("[")[0] for row in found.different} == wrong
    assert len(found.rows) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
def test_terms_of_what_a_shard_makes_and_of_what_all_shards_are_handed(check_vma: bool) -> None:
    def one_shard(weight: Any, x: Any) -> Any:
        h = layer("first", dense, weight, x)
        return h * jnp.sin(h) @ weight + jax.lax.psum(h.sum(), "data"), h

    def loss(weight: Any, x: Any) -> Any:
        split = PartitionSpec("data")
        sharded = jax.shard_map(
            one_shard,
            mesh=mesh_of(data=SHARDS),
            in_specs=(PartitionSpec(), split),
            out_specs=(split, split),
            check_vma=check_vma,
        )
        with jax.named_scope("rows"):
            made, first = sharded(weight, x)
        return (made**2 + 3.0 * first).sum() + jnp.sin(weight).sum()

    dump = gradscope.capture(loss, WEIGHTS, INPUTS, terms=True)
    assert_sums(dump)
    terms = {key: sorted(parts) for key, parts in terms_of(dump).items()}
    assert terms["param/value"] == ["rows/shard_map.0", "sin.0"]
    for shard in range(SHARDS):
        operations = [f"rows[{shard}]/{name}.0" for name in ("mul", "reduce_sum", "sin")]
        assert terms[f"activation/rows[{shard}]/first"] == [f"rows/shard_map/turn[{shard}].1", *operations]
