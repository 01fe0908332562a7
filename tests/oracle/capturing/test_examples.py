"""Gradients of each example alone: those of `jax.grad` on a batch of one, and how they combine to the batch's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.capturing.calibration import calibrate
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import Arguments
from gradscope.capturing.records.example_gradients import example_count
from gradscope.capturing.timings import Timings
from gradscope.dump.manifest.manifest import Examples, Manifest
from gradscope.dump.sources.memory_dump import MemoryWriter
from gradscope.errors import MachineError, ModelError, UsageError
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.naming import Selection
from gradscope.tracing.leaves import Leaf
from gradscope.tracing.loading.model import Model
from tests.support.data import evenly, filled

COUNT = 5


def variables() -> dict[str, Any]:
    """A parameter of every sort: in use, of integers, of no elements, one that the loss does not depend on."""
    return {
        "w": evenly(-1.0, 1.0, 3, 2),
        "half": evenly(0.5, 1.5, 2).astype(jnp.bfloat16),
        "table": jnp.arange(3),
        "none": filled(0.0, 0, 2),
        "idle": filled(1.0, 4),
    }


def batch() -> dict[str, Any]:
    """Examples, one of their leaves of keys, beside what they share."""
    x = jnp.sin(jnp.arange(3.0 * COUNT)).reshape(COUNT, 3)
    return {"x": x, "keys": jax.random.split(jax.random.key(2), COUNT), "scale": jnp.float32(2.0)}


def outputs(variables: Any, batch: Any) -> Any:
    with jax.named_scope("layer"):
        mask = (jax.random.key_data(batch["keys"]) % 3).astype(jnp.float32)
        hidden = jnp.tanh(batch["x"] @ variables["w"]) * mask
    half = variables["half"].astype(jnp.float32)[None]
    shared = variables["table"].sum().astype(jnp.float32) + variables["none"].sum()
    return batch["scale"] * (hidden * half).sum(axis=1) + shared


def mean_loss(variables: Any, batch: Any) -> Any:
    out = outputs(variables, batch)
    return (out**2).mean(), {"outputs": out}


def sum_loss(variables: Any, batch: Any) -> Any:
    return (outputs(variables, batch) ** 2).sum()


def coupled_loss(variables: Any, batch: Any) -> Any:
    out = outputs(variables, batch)
    return ((out - out.mean()) ** 2).mean() + (out**3).mean()


def example(number: int) -> dict[str, Any]:
    """The batch of one example alone."""
    return {name: leaf if name == "scale" else leaf[number : number + 1] for name, leaf in batch().items()}


def captured(loss: Any, **options: Any) -> gs.Dump:
    return gs.capture(loss, variables(), batch(), per_example=True, **options)


def manifest_of(dump: gs.Dump) -> Manifest:
    return dump.manifest


def combined(dump: gs.Dump) -> Examples:
    found = manifest_of(dump).examples
    assert found is not None
    return found


@pytest.fixture(scope="module")
def full() -> gs.Dump:
    return captured(mean_loss)


@pytest.mark.parametrize("name", ["w", "half", "none"])
def test_they_are_those_of_jax_grad_on_each_single_example(full: gs.Dump, name: str) -> None:
    found = full[f"example_grad/{name}"]
    alone = jax.jit(jax.grad(lambda chosen, one: mean_loss({**variables(), name: chosen}, one)[0]))
    expected = [np.asarray(alone(variables()[name], example(number))) for number in range(COUNT)]
    assert found.dtype == expected[0].dtype
    assert found.shape == (COUNT, *variables()[name].shape)
    np.testing.assert_allclose(found.astype(np.float64), np.stack(expected).astype(np.float64), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_they_are_those_of_vmapped_gradients(full: gs.Dump) -> None:
    def alone(w: Any, x: Any, key: Any) -> Any:
        one = {"x": x[None], "keys": key[None], "scale": batch()["scale"]}
        return sum_loss({**variables(), "w": w}, one)

    expected = jax.vmap(jax.grad(alone), in_axes=(None, 0, 0))(variables()["w"], batch()["x"], batch()["keys"])
    np.testing.assert_allclose(full["example_grad/w"], expected, rtol=1e-5, atol=1e-6)


def test_of_a_mean_they_have_the_gradient_as_their_mean(full: gs.Dump) -> None:
    np.testing.assert_allclose(full["example_grad/w"].mean(axis=0), full["param_grad/w"], rtol=1e-5)
    found = combined(full)
    assert (found.count, found.combined_by, found.coupled) == (COUNT, "mean", False)
    assert found.rel_l2 < 1e-2
    assert found.sentence.startswith("the mean of the gradients of 5 examples is the batch's gradient (rel_l2 ")


@pytest.mark.slow
def test_of_a_sum_they_have_it_as_their_sum() -> None:
    dump = captured(sum_loss)
    np.testing.assert_allclose(dump["example_grad/w"].sum(axis=0), dump["param_grad/w"], rtol=1e-5)
    assert (combined(dump).combined_by, combined(dump).coupled) == ("sum", False)


@pytest.mark.slow
def test_a_loss_that_couples_examples_is_said_to() -> None:
    messages: list[str] = []
    found = dumped(coupled_loss, messages).examples
    assert found is not None
    assert found.coupled
    assert found.rel_l2 > 0.01
    assert messages == [found.sentence]
    assert messages[0].startswith("the examples are coupled in this loss: the ")
    messages.clear()
    dumped(mean_loss, messages)
    assert messages == []


def dumped(
    loss: Any, messages: list[str], writer: MemoryWriter | None = None, spec: CaptureSpec | None = None
) -> Manifest:
    arguments = Arguments(
        shapes=jax.eval_shape(lambda: (variables(), batch())), make=lambda: (variables(), batch()), batch_size=COUNT
    )
    request = DumpRequest(spec=spec or CaptureSpec(per_example=True), notify=messages.append)
    return dump_model(model_of(loss), arguments, request, writer or MemoryWriter(), Timings())


def model_of(loss: Any) -> Model:
    return Model(name="model", init=lambda _: variables(), batch=lambda _key, _size: batch(), loss=loss)


@pytest.mark.slow
def test_the_ledger_accounts_for_every_parameter(full: gs.Dump) -> None:
    missing = {line.name: line.reason for line in full.ledger.missing if line.family == "example_grad"}
    assert missing == {"table": "non-differentiable", "idle": "disconnected"}
    some = captured(mean_loss, exclude=["*half", "*idle"])
    missing = {line.name: line.reason for line in some.ledger.missing if line.family == "example_grad"}
    assert missing == {"table": "non-differentiable", "half": "filtered", "idle": "filtered"}
    assert "example_grad/half" not in {entry.name for entry in manifest_of(some).entries}


def test_nothing_else_is_changed_by_them(full: gs.Dump) -> None:
    plain = gs.capture(mean_loss, variables(), batch())
    own = [entry for entry in manifest_of(full).entries if entry.family != "example_grad"]
    assert own == list(manifest_of(plain).entries)
    assert full.layers == plain.layers
    assert manifest_of(full).causes == manifest_of(plain).causes
    assert manifest_of(plain).examples is None


@pytest.mark.slow
def test_they_may_be_all_there_is_and_be_statistics_only(full: gs.Dump) -> None:
    only = captured(mean_loss, families=["example_grad"], select=["w"], stats_only=True)
    (entry,) = manifest_of(only).entries
    assert (entry.family, entry.name, entry.shape) == ("example_grad", "w", (COUNT, 3, 2))
    (expected,) = (each for each in manifest_of(full).entries if (each.family, each.name) == ("example_grad", "w"))
    assert entry.stats == expected.stats
    assert combined(only).coupled is False


def test_where_none_is_requested_nothing_is_said_of_them() -> None:
    dump = captured(mean_loss, families=["activation"])
    assert manifest_of(dump).examples is None
    assert {line.reason for line in dump.ledger.missing if line.family == "example_grad"} == {"filtered"}


@pytest.mark.slow
def test_wrt_names_the_parameter() -> None:
    writer = MemoryWriter()
    spec = CaptureSpec(per_example=True, wrt=Selection.parse(["param/w"]))
    found = dumped(mean_loss, [], writer, spec)
    assert [entry.name for entry in found.entries if entry.family == "example_grad"] == ["w"]


@pytest.mark.slow
def test_the_space_on_the_disk_is_checked_before_anything_is_run() -> None:
    class Full(MemoryWriter):
        def require_space(self, size_bytes: int) -> None:
            raise MachineError(str(size_bytes))

    sizes: list[int] = []
    for per_example in (True, False):
        with pytest.raises(MachineError) as refused:
            dumped(mean_loss, [], Full(), CaptureSpec(per_example=per_example))
        sizes.append(int(refused.value.message))
    assert sizes[0] - sizes[1] == COUNT * (6 * 4 + 2 * 2 + 4 * 4)


def test_a_single_example_that_is_not_finite_is_no_failure_of_the_run() -> None:
    def loss(variables: Any, batch: Any) -> Any:
        out = outputs(variables, batch)
        return (out**2).mean() * (jnp.float32(out.size) / jnp.float32(out.size - 1))

    dump = captured(loss)
    assert not np.isfinite(dump["example_grad/w"]).any()
    assert manifest_of(dump).origins == ()
    assert "nonfinite" not in {finding.rule for finding in dump.findings()}
    assert (combined(dump).coupled, combined(dump).rel_l2) == (True, np.inf)


@pytest.mark.slow
def test_where_no_gradient_is_finite_nothing_is_said_of_how_they_combine() -> None:
    dump = captured(lambda variables, batch: mean_loss(variables, batch)[0] / 0.0)
    assert not np.isfinite(dump["param_grad/w"]).any()
    assert manifest_of(dump).examples is None


@pytest.mark.parametrize(
    ("family", "asking"), [("example_grad", "--per-example"), ("term", "--terms"), ("term", "--ops=inputs")]
)
def test_a_family_that_no_option_computes_is_refused(family: str, asking: str) -> None:
    with pytest.raises(UsageError, match=f"the family {family} is only made when it is requested") as refused:
        gs.capture(mean_loss, variables(), batch(), families=["param_grad", family])
    assert asking in refused.value.hint


def test_a_loss_that_does_not_take_a_batch_of_one_fails_by_name() -> None:
    def loss(variables: Any, batch: Any) -> Any:
        return (outputs(variables, batch).reshape(COUNT) ** 2).mean()

    with pytest.raises(ModelError, match=r"^loss of loss on one example: .*reshape"):
        captured(loss)


@pytest.mark.parametrize("options", [{"stop_gradients": ["layer"]}, {"fetch": ["layer"]}])
def test_they_are_those_of_the_loss_as_it_is(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="gradients of each example are those of the loss as it is"):
        captured(mean_loss, **options)


@pytest.mark.parametrize(
    ("shapes", "said", "count"),
    [
        ([(8, 3), (2,)], 8, 8),
        ([(2,), ()], 0, 2),
        ([(4, 3), (4,)], 8, 4),
        ([(8,), (2,)], 0, None),
        ([(3,), (2,)], 8, None),
        ([()], 8, None),
        ([(0, 3)], 0, None),
        ([], 8, None),
    ],
)
def test_how_many_examples_there_are(shapes: list[tuple[int, ...]], said: int, count: int | None) -> None:
    leaves = [Leaf(family="input", name=f"x{at}", shape=shape, dtype=np.dtype("f4")) for at, shape in enumerate(shapes)]
    if count is None:
        with pytest.raises(UsageError, match="the batch has no leading axis of"):
            example_count(leaves, said)
    else:
        assert example_count(leaves, said) == count


@pytest.mark.slow
def test_a_calibrated_reference_has_a_noise_floor_for_them() -> None:
    arguments = Arguments(
        shapes=jax.eval_shape(lambda: (variables(), batch())), make=lambda: (variables(), batch()), batch_size=COUNT
    )
    request = DumpRequest(spec=CaptureSpec(per_example=True, families=frozenset({"example_grad"})))
    found = calibrate(model_of(sum_loss), arguments, {"bfloat16": arguments}, request, Timings())
    assert 0 < found.noise["example_grad/w"]["noise"] < 0.05
    assert found.dump.manifest.examples is not None
