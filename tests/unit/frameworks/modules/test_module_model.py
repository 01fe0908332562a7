"""A module as a model, whatever its framework: inputs and labels drawn, called, judged, and what it updated told."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.errors import UsageError
from gradscope.frameworks.modules.calling import CallShape
from gradscope.frameworks.modules.input_spec import InputSpec, parse_input
from gradscope.frameworks.modules.module_model import ModuleModel
from gradscope.frameworks.modules.request import LossName, Request


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Of a framework made up for these tests: a matrix, and a count of calls."""

    framework: str = "Nothing"
    module: str = "Matrix"
    supplied: tuple[str, ...] = ()
    inputs: tuple[InputSpec, ...] = ()

    @property
    def signature(self) -> inspect.Signature:
        def call(x: Any, scale: Any = None, *, train: bool = False) -> None: ...

        return inspect.signature(call)

    def init(self, key: Any, call: CallShape, inputs: Mapping[str, Any]) -> dict[str, Any]:
        (x,), _ = call.arguments(inputs)
        matrix = jax.random.normal(key, (x.shape[-1], 3))
        return {"params": {"matrix": matrix}, "counts": {"calls": jnp.int32(0), "never": jnp.int32(0)}}

    def apply(
        self, variables: Mapping[str, Any], call: CallShape, inputs: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        (x,), keyword = call.arguments(inputs)
        counts = variables["counts"]
        updated = {**counts, "calls": counts["calls"] + jnp.int32(1)} if keyword["train"] else counts
        return {"logits": x @ variables["params"]["matrix"], "note": "no array"}, {"counts": updated}


@dataclass(frozen=True, kw_only=True)
class Pairwise(Adapter):
    """One that cannot do with one input."""

    @property
    def signature(self) -> inspect.Signature:
        return inspect.signature(lambda x, y: None)


def model(*inputs: str, loss: LossName | None = None, **options: Any) -> ModuleModel:
    train = options.pop("train", True)
    request = Request(inputs=tuple(map(parse_input, inputs)), loss=loss, **options)
    return ModuleModel.of(Adapter(), request, train=train)


def run(made: ModuleModel) -> tuple[Any, Any, Any, Any]:
    variables, batch = made.init(jax.random.key(0)), made.batch(jax.random.key(1), 4)
    return variables, batch, *made.loss(variables, batch)


@pytest.mark.slow
def test_a_batch_holds_the_inputs_and_labels_that_fit_the_output() -> None:
    made = model("float32[6,5]", loss="cross-entropy")
    batch = made.batch(jax.random.key(1), 4)
    assert {name: (leaf.shape, leaf.dtype.name) for name, leaf in batch.items()} == {
        "x": ((4, 5), "float32"), "labels": ((4,), "int32")
    }  # fmt: skip
    assert int(batch["labels"].max()) < 3
    assert inspect.signature(made.batch).parameters["size"].default == 6
    assert set(model("float32[6,5]", loss="sum").batch(jax.random.key(1), 4)) == {"x"}


@pytest.mark.slow
def test_the_loss_is_of_the_outputs_and_returns_updates_and_outputs_too() -> None:
    variables, batch, value, aux = run(model("float32[6,5]", loss="cross-entropy"))
    logits = np.asarray(batch["x"], "f8") @ np.asarray(variables["params"]["matrix"], "f8")
    likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert float(value) == pytest.approx(-np.log(likelihoods[range(4), batch["labels"]]).mean(), rel=1e-5)
    assert aux.keys() == {"counts/calls", "output"}
    assert aux["output"].keys() == {"logits"}
    assert run(model("float32[6,5]", train=False))[3].keys() == {"output"}


def test_a_run_is_decided_by_its_keys() -> None:
    one, other = (jax.tree_util.tree_leaves(run(model("float32[6,5]"))) for _ in range(2))
    assert all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


def test_the_requested_batch_size_is_that_of_the_inputs() -> None:
    made = model("float32[6,5]", batch_size=2)
    assert made.inputs["x"].shape == (2, 5)


def test_data_that_do_not_fit_are_named_as_in_the_file_with_what_labels_are_called() -> None:
    data = {name: parse_input("float32[7,5]") for name in ("image", "answer", "scale", "extra")}
    with pytest.raises(UsageError, match=r"and received image=float32\[7,5\], answer=float32\[7,5\]") as refused:
        ModuleModel.of(Adapter(), Request(data=data), train=True)
    assert refused.value.hint is not None
    assert "labels are called labels, label, targets, target or y, and of several outputs labels/" in refused.value.hint


def test_data_describes_inputs_under_its_own_names_and_brings_the_labels() -> None:
    data = {name: parse_input(text) for name, text in {"image": "float64[7,5]", "y": "int64[7]"}.items()}
    made = ModuleModel.of(Adapter(), Request(data=data, loss="cross-entropy"), train=True)
    assert (made.call.positional, made.label_name) == (("image",), "y")
    assert made.inputs["image"].dtype == "float32"
    assert set(made.batch(jax.random.key(1), 4)) == {"image", "y"}
    by_name = {"scale": parse_input("float32[]"), "image": parse_input("float32[7,5]")}
    made = ModuleModel.of(Adapter(), Request(data=by_name), train=True)
    assert (made.call.positional, made.call.named, made.label_name) == (("image",), ("scale",), "labels")


@pytest.mark.parametrize(
    ("names", "inputs", "label"),
    [
        (("0", "1"), ("0",), "1"),
        (("0/0", "0/1", "1"), ("0/0", "0/1"), "1"),
        (("0",), ("0",), "labels"),
        (("a", "1"), ("a", "1"), "labels"),
    ],
)
def test_a_pair_is_inputs_and_labels(names: tuple[str, ...], inputs: tuple[str, ...], label: str) -> None:
    data = {name: parse_input("float32[7,5]") for name in names}
    made = ModuleModel.of(Adapter(), Request(data=data), train=True)
    assert (made.call.positional, made.label_name) == (inputs, label)


def test_a_pair_is_two_inputs_of_a_module_that_needs_two() -> None:
    data = {name: parse_input("float32[7,5]") for name in ("0", "1")}
    made = ModuleModel.of(Pairwise(), Request(data=data), train=True)
    assert (made.call.positional, made.label_name) == (("0", "1"), "labels")


def test_choices_are_reported() -> None:
    assert model("float32[6,5]", loss="sum").choices == (
        "Matrix is a module of Nothing, training, train=True",
        "its inputs are x float32[6, 5]",
        "its loss is sum",
    )


def test_inputs_that_need_more_bits_than_jax_has_are_refused() -> None:
    with pytest.raises(UsageError, match="an input of int64 needs 64-bit types"):
        model("float32[6,5]", "int64[6]")


@pytest.mark.slow
@pytest.mark.parametrize("values", ["0..2", "2"])
def test_drawn_labels_are_those_that_are_described(values: str) -> None:
    made = model("float32[64,5]", f"labels=int32[64]:{values}", loss="cross-entropy")
    labels = made.batch(jax.random.key(1), 32)["labels"]
    assert labels.shape == (32,)
    assert set(np.asarray(labels).tolist()) == ({0, 1} if values == "0..2" else {2})


@pytest.mark.parametrize(
    ("labels", "loss", "said"),
    [
        ("labels=int32[6]:0..4", "cross-entropy", "cross-entropy needs integers from 0 to 2"),
        ("labels=float32[6]", "cross-entropy", "cross-entropy needs integers from 0 to 2"),
        ("labels=int32[6,2]:0..3", "cross-entropy", "cross-entropy of this output needs int32[6]"),
        ("labels/other=int32[6]", "cross-entropy", "the loss has no labels labels/other, it has labels"),
        ("labels=float32[6]", "sum", "the loss has no labels labels, it has none"),
    ],
)
def test_described_labels_that_do_not_fit_are_refused(labels: str, loss: LossName, said: str) -> None:
    made = model("float32[6,5]", labels, loss=loss)
    with pytest.raises(UsageError) as refused:
        made.batch(jax.random.key(1), 6)
    assert said in refused.value.message


def test_what_the_loss_counts_is_known_once_it_is_traced() -> None:
    made = model("float32[6,5]", loss="cross-entropy")
    assert made.counted == []
    run(made)
    assert made.counted == ["cross-entropy of logits"]
