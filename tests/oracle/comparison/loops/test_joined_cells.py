"""The kernels of a cell for each gate are compared with one of all of them; a constant that it adds is told."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

WIDTH, STATES, STEPS = 3, 4, 4
_draw = np.random.default_rng(8).normal
READ: Final = _draw(size=(2, STEPS, WIDTH)).astype(np.float32)
INPUTS, STATE_KERNELS = (
    {gate: _draw(size=(size, STATES)).astype(np.float32) for gate in "ifgo"} for size in (WIDTH, STATES)
)
BIASES: Final = {gate: 0.3 * _draw(size=STATES).astype(np.float32) for gate in "ifgo"}
OUT: Final = _draw(size=(STATES, 2)).astype(np.float32)


def _run(cell: Any, scope: str, x: Any) -> Any:
    state = carried = jnp.zeros((2, STATES))
    made = []
    for step in range(STEPS):
        with jax.named_scope(f"{scope}[{step}]"):
            state, carried = cell(x[:, step], state, carried)
        made.append(state)
    return jnp.stack(made, 1)


@cache
def _apart(scale: float = 1.0) -> Dump:
    """The cell of an LSTM with a layer for each gate of the input, and of the state; the scale is of its biases."""
    weights = {f"cell/i{gate}/kernel": each for gate, each in INPUTS.items()}
    weights |= {f"cell/h{gate}/kernel": each for gate, each in STATE_KERNELS.items()}
    weights |= {f"cell/h{gate}/bias": each for gate, each in BIASES.items()}
    weights |= {name: each * np.float32(scale) for name, each in weights.items() if name.endswith("bias")}

    def loss(weights: Any, batch: Any) -> Any:
        def cell(read: Any, state: Any, carried: Any) -> Any:
            sums = {}
            for gate in "ifgo":
                with jax.named_scope(f"i{gate}"):
                    own = read @ weights[f"cell/i{gate}/kernel"]
                with jax.named_scope(f"h{gate}"):
                    sums[gate] = own + (state @ weights[f"cell/h{gate}/kernel"] + weights[f"cell/h{gate}/bias"])
            carried = jax.nn.sigmoid(sums["f"]) * carried + jax.nn.sigmoid(sums["i"]) * jnp.tanh(sums["g"])
            return jax.nn.sigmoid(sums["o"]) * jnp.tanh(carried), carried

        made = _run(cell, "cell", batch["x"])
        with jax.named_scope("out"):
            return jnp.square(made @ weights["out"]).mean()

    return gs.capture(loss, {**weights, "out": OUT}, {"x": READ}, origins=False)


@cache
def _joined(fault: str = "", scale: float = 1.0) -> Dump:
    """That of one layer for all, whose gates are in another order, and which adds 1 to the forget gate by itself."""
    rows = (np.concatenate([each[gate] for gate in "igfo"], -1) for each in (INPUTS, STATE_KERNELS))
    own = {gate: scale * each - (gate == "f" and fault != "forget") for gate, each in BIASES.items()}
    kernel, bias = np.concatenate([*rows], 0), np.concatenate([own[gate] for gate in "igfo"]).astype(np.float32)
    kernel[:WIDTH, :STATES] += 0.5 * (fault == "kernel")

    def loss(weights: Any, batch: Any) -> Any:
        def cell(read: Any, state: Any, carried: Any) -> Any:
            with jax.named_scope("linear"):
                sums = jnp.concatenate([read, state], -1) @ weights["lstm/linear/w"] + weights["lstm/linear/b"]
            i, g, f, o = jnp.split(sums, 4, -1)
            i, o = (o, i) if fault == "order" else (i, o)
            forget = jax.nn.sigmoid(f + 1)
            forget = jax.lax.stop_gradient(forget) if fault == "stop" else forget
            carried = forget * carried + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jax.nn.sigmoid(o) * (carried if fault == "output" else jnp.tanh(carried)), carried

        made = _run(cell, "lstm", batch["x"])
        with jax.named_scope("out"):
            return jnp.square(made @ weights["out"]).mean()

    weights = {"lstm/linear/w": kernel, "lstm/linear/b": bias, "out": OUT}
    return gs.capture(loss, weights, {"x": READ}, origins=False)


@cache
def _hoisted(fault: str = "", scale: float = 1.0) -> Dump:
    """That of a program which multiplies the inputs of all steps by one kernel before its loop."""
    weights = {
        "lstm/kernel": np.concatenate([INPUTS[gate] for gate in "ifgo"], -1),
        "lstm/recurrent": np.concatenate([STATE_KERNELS[gate] for gate in "ifgo"], -1),
        "lstm/bias": np.concatenate([BIASES[gate] for gate in "ifgo"]) * np.float32(scale),
    }

    def loss(weights: Any, batch: Any) -> Any:
        with jax.named_scope("lstm"):
            read = batch["x"] @ weights["lstm/kernel"] + weights["lstm/bias"]

        def cell(read: Any, state: Any, carried: Any) -> Any:
            i, f, g, o = jnp.split(read + state @ weights["lstm/recurrent"], 4, -1)
            new = jax.nn.relu(g) if fault == "relu" else jnp.tanh(g)
            carried = jax.nn.sigmoid(f) * carried + jax.nn.sigmoid(i) * new
            return jax.nn.sigmoid(o) * jnp.tanh(carried), carried

        made = _run(cell, "lstm", read)
        with jax.named_scope("out"):
            return jnp.square(made @ weights["out"]).mean()

    return gs.capture(loss, {**weights, "out": OUT}, {"x": READ}, origins=False)


@pytest.fixture(autouse=True)
def _promoting() -> Any:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.slow
def test_a_joined_cell_is_the_same_whose_program_adds_a_constant() -> None:
    for ref, cand, program in ((_apart(), _joined(), "candidate"), (_joined(), _apart(), "reference")):
        found = gs.compare(ref, cand)
        assert found, found.sentence
        assert f" is less by 1 in the {program}, which adds that itself" in found.sentence, found.sentence
        compared = {row.name for row in found.rows if row.family == "param_grad" and row.compared}
        assert {"cell/ii/kernel", "cell/ho/kernel", "cell/hf/bias"} <= compared or "lstm/linear/w" in compared


def test_biases_that_are_zero_but_for_a_constant_are_compared_by_their_gradients() -> None:
    apart, joined, hoisted = _apart(scale=0), _joined(scale=0), _hoisted(scale=0)
    for ref, cand in ((apart, joined), (joined, apart), (hoisted, joined)):
        found = gs.compare(ref, cand)
        assert found, found.sentence
        assert ", which adds that itself" in found.sentence, found.sentence


def test_the_bias_of_gates_in_another_order_is_less_by_what_one_adds() -> None:
    """A cell of the usual order `ifgo` without a constant, and one that adds 1 to a gate in another place."""
    rows = (np.concatenate([each[gate] for gate in "ifgo"], -1) for each in (INPUTS, STATE_KERNELS))
    kernel, bias = np.concatenate([*rows], 0), np.concatenate([BIASES[gate] for gate in "ifgo"])

    def loss(weights: Any, batch: Any) -> Any:
        def cell(read: Any, state: Any, carried: Any) -> Any:
            with jax.named_scope("dense"):
                sums = jnp.concatenate([read, state], -1) @ weights["cell/kernel"] + weights["cell/bias"]
            i, f, g, o = jnp.split(sums, 4, -1)
            carried = jax.nn.sigmoid(f) * carried + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jax.nn.sigmoid(o) * jnp.tanh(carried), carried

        made = _run(cell, "cell", batch["x"])
        with jax.named_scope("out"):
            return jnp.square(made @ weights["out"]).mean()

    usual = gs.capture(loss, {"cell/kernel": kernel, "cell/bias": bias, "out": OUT}, {"x": READ}, origins=False)
    found = gs.compare(usual, _joined())
    assert found, found.sentence
    assert "`cell/bias` is less by 1 in the candidate, which adds that itself" in found.sentence, found.sentence


@sampled(
    ("fault", "told", "never"),
    [
        ("forget", "Forward first differs at `cell[1].0`", "The runs start"),
        ("order", "next at `cell[0].0`", "it is the reference's plus"),
        ("output", "next at `cell[0].1`", "it is the reference's plus"),
        (
            "kernel",
            "parameters (`cell/ii/kernel`, `cell/hf/bias`; `cell/ii/kernel` is less by 0.5",
            "plus",
        ),
        ("stop", "Backward only: forward agrees", "The runs start"),
    ],
)
def test_faults_of_a_joined_cell_are_told_where_they_are(fault: str, told: str, never: str) -> None:
    found = gs.compare(_apart(), _joined(fault))
    assert not found, found.sentence
    assert told in found.sentence, found.sentence
    assert never not in found.sentence, found.sentence


@pytest.mark.slow
def test_the_layer_of_a_gate_is_not_taken_for_a_cell_whose_inputs_are_multiplied_before_the_loop() -> None:
    right, found = gs.compare(_apart(), _hoisted()), gs.compare(_apart(), _hoisted("relu"))
    assert right, right.sentence
    assert not found
    pairs = {row.name: row.counterpart for row in found.rows if row.family == "activation" and row.matched_by}
    assert not any("/" in name for name in pairs), pairs


@pytest.mark.slow
def test_a_constant_that_one_program_adds_may_be_all_that_a_bias_is() -> None:
    """Biases that begin with zeros are -1 for the gate to which the program adds 1."""

    def dump(added: float, shift: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("dense"):
                y = jax.nn.sigmoid(batch["x"] @ weights["w"] + weights["b"] + added)
            with jax.named_scope("out"):
                return jnp.square(y @ weights["out"] - 1).mean()

        weights = {"w": INPUTS["i"], "b": np.full(STATES, -shift, np.float32), "out": OUT}
        return gs.capture(loss, weights, {"x": READ}, origins=False)

    assert gs.compare(dump(0.0, 0.0), dump(1.0, 1.0))
    wrong = gs.compare(dump(0.0, 0.0), dump(0.0, 1.0))
    assert "`b`; it is -1.0e0 in each element" in wrong.sentence, wrong.sentence


@pytest.mark.slow
def test_a_constant_that_a_norm_takes_out_again_is_a_difference() -> None:
    """The mean over the features hides it, and nothing shows that the program adds it."""

    def dump(shift: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("dense"):
                y = batch["x"] @ weights["w"] + weights["b"]
            with jax.named_scope("norm"):
                y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)
            with jax.named_scope("out"):
                return jnp.square(y @ weights["out"] - 1).mean()

        bias = (BIASES["i"] + shift).astype(np.float32)
        return gs.capture(loss, {"w": INPUTS["i"], "b": bias, "out": OUT}, {"x": READ}, origins=False)

    found = gs.compare(dump(0.0), dump(-1.0))
    assert not found, found.sentence
    assert "The runs start from different parameters (`b`; it is less by 1 in the candidate)" in found.sentence
