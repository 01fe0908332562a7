"""What is made of a module's outputs: named leaves, labels that fit them, and four losses compared with NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.errors import ModelError, UsageError
from gradscope.frameworks.modules.input_spec import InputSpec, parse_input
from gradscope.frameworks.modules.losses import labels_spec, loss_value
from gradscope.frameworks.modules.outputs import named_outputs, updated_leaves
from gradscope.frameworks.modules.random_inputs import random_inputs, require_representable
from gradscope.frameworks.modules.request import LossName
from tests.support.data import filled

ONE = filled(1.0, 2, 3)


@dataclasses.dataclass
class Output:
    logits: Any
    hidden: Any = None
    kind: str = "output"


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (ONE, ONE),
        ({"a": ONE, "b": None}, {"a": ONE}),
        (Output(logits=ONE), {"logits": ONE}),
        (Output(logits=ONE, hidden=(ONE, [ONE])), {"logits": ONE, "hidden": (ONE, (ONE,))}),
        (Pair(ONE, {"deep": ONE}), {"first": ONE, "second": {"deep": ONE}}),
        ((), None),
        ("text", None),
    ],
)
def test_outputs_keep_the_names_of_dictionaries_dataclasses_and_named_tuples(value: Any, named: Any) -> None:
    assert jax.tree_util.tree_structure(named_outputs(value)) == jax.tree_util.tree_structure(named)


def test_a_leaf_that_a_call_did_not_touch_is_no_update() -> None:
    before = {"stats": {"mean": ONE, "var": ONE + 1}}
    after = {"stats": {"mean": ONE, "var": ONE + 2}, "seen": ONE}
    assert updated_leaves(after, before).keys() == {"stats/var", "seen"}


@pytest.mark.slow
def test_cross_entropy_is_numpys_and_prefers_the_output_called_logits() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 5, 4)).astype("f4"), rng.integers(0, 4, (2, 5)).astype("i4")
    likelihoods = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(likelihoods, labels[..., None], -1)).mean()
    outputs = {"hidden": jnp.asarray(rng.normal(size=(2, 7))), "logits": jnp.asarray(logits)}
    assert loss_value("cross-entropy", outputs, jnp.asarray(labels)) == pytest.approx(expected, rel=1e-6)
    low = loss_value("cross-entropy", jnp.asarray(logits, jnp.bfloat16), jnp.asarray(labels))
    assert low.dtype == jnp.float32


def test_sum_and_mean_are_of_all_floating_outputs_and_mse_of_one() -> None:
    outputs = {"a": jnp.arange(4.0), "b": (jnp.ones((2, 2)) * 3, jnp.arange(5))}
    assert loss_value("sum", outputs, None) == 18
    assert loss_value("mean", outputs, None) == 18 / 8
    assert loss_value("mse", outputs, jnp.zeros(4)) == 14 / 4


@pytest.mark.parametrize(
    ("loss", "spec"),
    [("cross-entropy", "int32[2]:0..3"), ("mse", "float32[2,3]"), ("sum", None), ("mean", None)],
)
def test_labels_fit_the_output_that_is_judged(loss: LossName, spec: str | None) -> None:
    found = labels_spec(loss, {"a": ONE, "count": jnp.arange(3)})
    assert found == (None if spec is None else parse_input(spec))


@pytest.mark.parametrize(
    ("loss", "outputs"), [("cross-entropy", jnp.ones((8, 1))), ("cross-entropy", jnp.ones(())), ("mse", jnp.arange(3))]
)
def test_an_output_that_a_loss_cannot_judge_is_refused(loss: LossName, outputs: Any) -> None:
    with pytest.raises(ModelError):
        labels_spec(loss, outputs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "int4", "uint8", "int32", "uint32"])
def test_integers_are_random_in_the_full_range_without_its_end(dtype: str) -> None:
    drawn = draw(f"{dtype}[200]")
    assert drawn.dtype == jnp.dtype(dtype)
    assert set(np.asarray(drawn, int)) == {0, 1}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16", "float16", "float32"])
def test_floating_inputs_have_the_requested_moments(dtype: str) -> None:
    drawn = np.asarray(draw(f"{dtype}[4000]:normal(3,0.5)"), float)
    assert (drawn.mean(), drawn.std()) == (pytest.approx(3, abs=0.05), pytest.approx(0.5, abs=0.05))
    flat = np.asarray(draw(f"{dtype}[4000]:-1..3"), float)
    assert (flat.min() >= -1, flat.max() <= 3, flat.mean()) == (True, True, pytest.approx(1, abs=0.1))
    assert set(np.asarray(draw(f"{dtype}[3]:2"), float)) == {2}


@pytest.mark.slow
def test_each_input_has_a_key_of_its_own() -> None:
    drawn = random_inputs(jax.random.key(0), {name: parse_input("float32[4]") for name in "ab"})
    assert not np.array_equal(drawn["a"], drawn["b"])


def test_a_dtype_that_jax_would_narrow_is_refused() -> None:
    with pytest.raises(UsageError, match="an input of float64 needs 64-bit types"):
        require_representable(parse_input("float64[2]"))
    require_representable(parse_input("float32[2]"))


def draw(text: str) -> Any:
    spec: InputSpec = parse_input(text)
    return random_inputs(jax.random.key(0), {"x": spec})["x"]
