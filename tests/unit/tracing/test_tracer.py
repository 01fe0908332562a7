"""The tracer: what is known of a loss before it runs, and what it says of one that is none."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradscope.errors import ModelError
from gradscope.tracing.tracer import trace_loss
from tests.support.data import filled

W = {"dense": {"kernel": filled(1.0, 3, 2), "bias": filled(0.0, 2)}}
X = filled(1.0, 4, 3)


def loss(variables: Any, x: Any) -> Any:
    return (x @ variables["dense"]["kernel"] + variables["dense"]["bias"][None]).sum()


def test_arguments_are_known_by_family_and_path() -> None:
    batch = {"image": X, "label": jnp.zeros(4, jnp.int32)}
    trace = trace_loss(lambda variables, batch: loss(variables, batch["image"]), W, batch)
    assert [(leaf.family, leaf.name, leaf.differentiated) for leaf in trace.arguments] == [
        ("param", "dense/bias", True),
        ("param", "dense/kernel", True),
        ("input", "image", True),
        ("input", "label", False),
    ]


def test_of_flaxs_collections_only_the_parameters_are_differentiated() -> None:
    variables = {"params": W, "batch_stats": {"norm": {"mean": jnp.zeros(2)}}}
    trace = trace_loss(lambda variables, x: loss(variables["params"], x), variables, X)
    found = [(leaf.family, leaf.name, leaf.differentiated) for leaf in trace.arguments]
    assert found == [
        ("state", "batch_stats/norm/mean", False),
        ("param", "dense/bias", True),
        ("param", "dense/kernel", True),
        ("input", "value", True),
    ]


class TrainState(NamedTuple):
    step: Any
    params: Any
    opt_state: Any


@pytest.mark.parametrize("collections", [False, True])
def test_of_a_training_state_only_the_parameters_are_differentiated(*, collections: bool) -> None:
    params = {"params": W, "batch_stats": {"mean": jnp.zeros(2)}} if collections else W
    state = TrainState(jnp.int32(0), params, ({"mu": W},))
    trace = trace_loss(lambda s, x: loss(s.params["params"] if collections else s.params, x), state, X)
    assert [(leaf.family, leaf.name, leaf.differentiated) for leaf in trace.arguments] == [
        ("state", "step", False),
        *([("state", "batch_stats/mean", False)] if collections else []),
        ("param", "dense/bias", True),
        ("param", "dense/kernel", True),
        ("state", "opt_state/0/mu/dense/bias", False),
        ("state", "opt_state/0/mu/dense/kernel", False),
        ("input", "value", True),
    ]


def test_auxiliary_outputs_are_known_by_path() -> None:
    trace = trace_loss(lambda variables, x: (loss(variables, x), {"accuracy": x.mean(), "none": None}), W, X)
    assert [(leaf.family, leaf.name, leaf.shape) for leaf in trace.auxiliary] == [("aux", "accuracy", ())]


def test_shapes_are_enough() -> None:
    shapes = jax.eval_shape(lambda: (W, X))
    assert trace_loss(loss, *shapes).fingerprint == trace_loss(loss, W, X).fingerprint


def test_the_fingerprint_distinguishes_programs() -> None:
    def scoped(variables: Any, x: Any) -> Any:
        with jax.named_scope("scope"):
            return loss(variables, x)

    programs = {
        "one": loss,
        "another constant": lambda variables, x: loss(variables, x) * 2,
        "and another": lambda variables, x: loss(variables, x) * 3,
        "other shapes": lambda variables, x: loss(variables, x[:2]),
        "under a scope": scoped,
        "one way": lambda variables, x: loss(variables, jnp.sin(x) + jnp.sin(jnp.sin(x))),
        "another way": lambda variables, x: loss(variables, x + jnp.sin(jnp.sin(jnp.sin(x)))),
    }
    assert len({trace_loss(program, W, X).fingerprint for program in programs.values()}) == len(programs)
    assert trace_loss(loss, W, X).fingerprint == trace_loss(jax.tree_util.Partial(loss), W, X).fingerprint


NOT_LOSSES = {
    "a vector": (lambda w, x: x.sum(axis=1), "has shape (4,)"),
    "an integer": (lambda w, x: (x > 0).sum(), "int32"),
    "a complex number": (lambda w, x: x.sum().astype(jnp.complex64), "complex64"),
    "nothing": (lambda w, x: None, "NoneType"),
    "a dictionary": (lambda w, x: {"loss": x.sum()}, "dict"),
    "three values": (lambda w, x: (x.sum(), x, x), "tuple"),
}


@pytest.mark.parametrize(("function", "message"), NOT_LOSSES.values(), ids=NOT_LOSSES.keys())
def test_what_is_no_loss_is_reported(function: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        trace_loss(function, W, X)
    assert message in str(caught.value)
    assert caught.value.hint


def test_tracing_runs_nothing() -> None:
    def run(x: Any) -> Any:
        raise AssertionError("ran")

    def hosted(variables: Any, x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return loss(variables, x) * jax.pure_callback(run, shape, jax.lax.stop_gradient(x))

    trace_loss(hosted, W, X)


def test_numpy_arrays_and_python_numbers_are_arguments_like_any_other() -> None:
    batch = {"x": np.ones((4, 3), np.float32), "scale": 2.0}
    trace = trace_loss(lambda variables, batch: loss(variables, batch["x"]) * batch["scale"], W, batch)
    found = [(leaf.name, leaf.shape) for leaf in trace.arguments if leaf.family == "input"]
    assert found == [("scale", ()), ("x", (4, 3))]


PROGRAM = """
import jax, jax.numpy as jnp
from gradscope.tracing.tracer import trace_loss

relu = jax.custom_jvp(lambda x: jnp.maximum(x, 0))
relu.defjvp(lambda primals, tangents: (relu(*primals), tangents[0]))
step = jax.checkpoint(lambda carry, w: (jax.jit(relu)(carry @ w), None))
trace = trace_loss(lambda w, x: jax.lax.scan(step, x, w)[0].sum(), jnp.ones((2, 3, 3)), jnp.ones((4, 3)))
print(trace.fingerprint)
"""


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(PROGRAM, {})
    other = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert other.stdout == capsys.readouterr().out


def test_a_loss_that_returns_nothing_is_told_to_return() -> None:
    with pytest.raises(ModelError) as caught:
        trace_loss(lambda w, x: None, W, X)
    assert caught.value.hint == "end it with 'return' and the loss"


def _vector(variables: Any, x: Any, *, scale: float) -> Any:
    return scale * loss(variables, x) * jnp.ones(3)


def test_a_loss_that_is_none_is_named_with_its_place() -> None:
    line = _vector.__code__.co_firstlineno
    for refused in (functools.partial(_vector, scale=2.0), functools.wraps(_vector)(lambda *args: jnp.ones(3))):
        with pytest.raises(ModelError) as caught:
            trace_loss(refused, W, X)
        assert caught.value.message == f"the loss at test_tracer.py:{line} must be a scalar, and has shape (3,)"


def test_a_loss_of_a_library_has_no_place_to_look_at() -> None:
    with pytest.raises(ModelError) as caught:
        trace_loss(jnp.multiply, jnp.ones(3), jnp.ones(3))
    assert caught.value.message == "the loss must be a scalar, and has shape (3,)"
