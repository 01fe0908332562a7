"""JAX's flags for debugging, and its wide types, change nothing of what a run gives: also where they would stop it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.tracing.debug_flags import debug_flags_off
from tests.support.data import drawn, filled

optax = pytest.importorskip("optax", reason="training needs optax: pip install 'gradscope-jax[train]'")

PARAMS: Final = {"w": drawn(0, 4, 3), "frozen": filled(0.1, 3), "unreached": filled(1.0, 3, 3)}
X: Final = drawn(1, 8, 4)
OF_GROUPS: Final = {"w": "trained", "frozen": "frozen", "unreached": "trained"}


@pytest.fixture
def debugged() -> Any:
    with ExitStack() as flags:
        for flag in (jax.debug_nans(True), jax.debug_infs(True)):
            flags.enter_context(flag)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("debugged")
def test_a_nan_is_captured_and_explained() -> None:
    dump = gs.capture(lambda p, x: jnp.sqrt(x @ (p["w"] * 0)).sum(), {"w": PARAMS["w"]}, X)
    assert [each.primitive for each in dump.origins] == ["sqrt"]
    with pytest.raises(FloatingPointError):
        jnp.log(jnp.zeros(())).block_until_ready()  # the flags are again what they were


@pytest.mark.usefixtures("debugged")
def test_a_step_that_a_flag_stops_names_the_line_of_the_nan(tmp_path: Path) -> None:
    def loss(w: Any) -> Any:
        def row(total: Any, x: Any) -> Any:
            return total + jnp.log(x @ w).sum(), None

        return jnp.sqrt(-1 - jnp.square(w)).sum() + jax.lax.scan(row, 0.0, X)[0]

    with gs.Probe(tmp_path / "run", every=1) as probe, pytest.raises(FloatingPointError, match="sqrt") as raised:
        probe.jit(probe.value_and_grad(loss))(PARAMS["w"])
    line = loss.__code__.co_firstlineno + 4
    (note,) = (each for each in raised.value.__notes__ if each.startswith("File "))  # JAX adds one of its own
    assert note.startswith(f'File "{__file__}", line {line}, in ')


@pytest.mark.slow
@pytest.mark.usefixtures("debugged")
def test_a_probe_stops_no_step_for_what_it_computes_itself(tmp_path: Path) -> None:
    tx = optax.partition({"trained": optax.sgd(0.1), "frozen": optax.set_to_zero()}, OF_GROUPS)

    def run(differentiate: Any, compiled: Any, probe: gs.Probe | None) -> dict[str, np.ndarray]:
        def train_step(params: Any, state: Any) -> Any:
            def loss(p: Any) -> Any:
                return jnp.square(X @ p["w"] + p["frozen"][None]).mean() + 0.0 * p["unreached"].sum()

            value, grads = differentiate(loss)(params)
            updates, state = tx.update(grads, state, params)
            if probe is not None:
                probe.record(updates=updates)
            return optax.apply_updates(params, updates), state, value

        step, params, state = compiled(train_step), PARAMS, tx.init(PARAMS)
        for _ in range(5):
            params, state, _ = step(params, state)
        return jax.tree.map(np.asarray, params)

    probe = gs.Probe(tmp_path / "run", every=2)
    with probe:
        watched = run(probe.value_and_grad, probe.jit, probe)
    plain = run(jax.value_and_grad, jax.jit, None)
    assert all(np.array_equal(watched[name], plain[name]) for name in plain)
    with gs.load(tmp_path / "run") as history:
        cosines = {name: history.series(f"update/{name}", "cosine") for name in PARAMS}
    assert cosines["w"] == pytest.approx(-1.0)
    assert all(np.isnan(cosines[name]).all() for name in ("frozen", "unreached"))


def test_arrays_may_be_moved_where_a_flag_forbids_it() -> None:
    with jax.transfer_guard("disallow"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed"):
            jax.jit(jnp.sin)(np.ones(3, np.float32))
        with debug_flags_off():
            assert np.array_equal(jax.jit(jnp.sin)(np.zeros(3, np.float32)), np.zeros(3))


def test_numbers_are_captured_where_a_flag_forbids_to_move_them() -> None:
    with jax.transfer_guard("disallow"):
        dump = gs.capture(lambda p, x: (jnp.sin(x @ p["w"]) * p["scale"]).sum(), {"w": PARAMS["w"], "scale": 2.0}, X)
        assert jax.config.jax_transfer_guard_host_to_device == "disallow"
    assert dump["param_grad/scale"].shape == ()
