"""Programs with references (`jax.new_ref`) have the values and gradients of JAX, and none of their flow is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.ref
import numpy as np
import pytest
from jax import lax

import gradscope as gs
from gradscope.errors import ModelError
from tests.support.data import evenly
from tests.support.sampled import sampled

W = evenly(-1.0, 1.5, 4, 4)
X = evenly(-0.9, 1.1, 3, 4)
ROWS = np.array([0, 2])


def read_and_written(w: Any, x: Any) -> Any:
    ref = jax.new_ref(jnp.zeros((3, 4)))
    with jax.named_scope("dense"):
        ref[...] = x @ w
    ref[0] = ref[0] * 2.0
    return jnp.square(ref[...]).sum()


def indices(w: Any, x: Any) -> Any:
    ref, i = jax.new_ref(x @ w), jnp.argmax(x[:, 0])
    ref[i, 1:3] = jnp.sin(ref[0, 1:3])
    ref[ROWS] = ref[ROWS] * 3.0
    jax.ref.addupdate(ref, (slice(None), 1), x[:, 0])
    strided = ref[::2, i]
    return jnp.square(jax.ref.freeze(ref)).sum() + strided.sum()


def a_loop(w: Any, x: Any) -> Any:
    ref = jax.new_ref(jnp.zeros(4))

    def body(i: Any, count: Any) -> Any:
        ref[...] += jnp.tanh(x[i] @ w)
        return count + 1

    lax.fori_loop(0, 3, body, 0)
    return jnp.square(ref[...]).sum()


def a_loop_of_unknown_length(w: Any, x: Any) -> Any:
    ref = jax.new_ref(jnp.ones(4))

    def body(count: Any) -> Any:
        ref[...] = ref[...] * 2.0
        return count + 1

    count = lax.while_loop(lambda count: (count < 2) & (ref[0] < 100.0), body, 0)
    return (ref[...] * (x[0] @ w)).sum() * count


def a_branch(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x @ w)

    def doubled() -> Any:
        ref[0] = ref[0] * 2.0
        return 3.0

    return jnp.square(ref[...]).sum() * lax.cond(x[0, 0] < 100.0, doubled, lambda: 1.0)


def calls(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x @ w)

    @jax.jit
    def written(row: Any) -> Any:
        ref[1] = row
        return ref[...].sum()

    return written(jnp.sin(x[0] @ w)) + jnp.square(ref[...]).sum()


def inside_of_vmap(w: Any, x: Any) -> Any:
    def of_row(row: Any) -> Any:
        ref = jax.new_ref(jnp.zeros(()))

        def body(i: Any, carry: Any) -> Any:
            ref[...] += row[i] ** 2
            return carry

        lax.fori_loop(0, 4, body, 0)
        return ref[...]

    return jax.vmap(of_row)(x @ w).sum()


def additions_to_one_place(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x @ w)
    jax.ref.addupdate(ref, jnp.array([1, 1, 2]), jnp.sin(x))
    return jnp.square(ref[...]).sum()


def arrays_behind_and_between_ranges(w: Any, x: Any) -> Any:
    ref, i = jax.new_ref((x @ w).reshape(3, 2, 2)), jnp.array([[2, 0]])
    ref[:, np.array([1, 0])] = jnp.sin(ref[:, np.array([0, 1])])
    jax.ref.addupdate(ref, (i, slice(0, 2), i // 2), jnp.ones((1, 2, 2)) * x[0, 0])
    return jnp.sin(ref[i, :, 1]).sum() + jnp.square(ref[1:, i // 2]).sum()


def one_index_for_each_example(w: Any, x: Any) -> Any:
    def of_row(row: Any, i: Any) -> Any:
        ref = jax.new_ref(jnp.stack([row, row**2]))
        ref[:, i] = ref[:, i + 1] * 3.0
        return ref[:, i]

    return jnp.square(jax.vmap(of_row)(x @ w, jnp.arange(3))).sum()


def a_loop_over_a_reference(w: Any, x: Any) -> Any:
    ref = jax.new_ref(x)

    def body(total: Any, row: Any) -> Any:
        row[...] = jnp.tanh(row[...] @ w)
        return total + row[0], row[1]

    total, second = lax.scan(body, 0.0, ref)
    return total + jnp.square(ref[...]).sum() + second.sum()


LOSSES = [
    read_and_written, indices, a_loop, a_branch, calls, inside_of_vmap, additions_to_one_place,
    arrays_behind_and_between_ranges, one_index_for_each_example, a_loop_over_a_reference,
]  # fmt: skip


@sampled(
    ("loss", "ops"), [*((loss, True) for loss in LOSSES), (read_and_written, False), (a_loop, False), (calls, False)]
)
def test_values_and_gradients_are_those_of_jax(loss: Callable[[Any, Any], Any], ops: bool) -> None:
    dump = gs.capture(loss, W, X, ops=ops)
    value, (by_w, by_x) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(W, X)
    assert dump.manifest.loss == pytest.approx(float(value), rel=1e-6)
    np.testing.assert_allclose(dump["param_grad/value"], by_w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dump["input_grad/value"], by_x, rtol=1e-5, atol=1e-6)


def test_layers_around_references_keep_their_names() -> None:
    dump = gs.capture(read_and_written, W, X)
    assert {"activation/dense", "activation_grad/dense"} <= set(dump)


def test_what_jax_does_not_differentiate_itself_has_the_gradient_of_its_values() -> None:
    """JAX 0.10 raises for references in a `while`, and in what it checkpoints."""
    twin = lambda w, x: 8.0 * (x[0] @ w).sum()  # noqa: E731
    np.testing.assert_allclose(
        gs.capture(a_loop_of_unknown_length, W, X)["param_grad/value"], jax.grad(twin)(W, X), rtol=1e-6
    )

    def checkpointed(w: Any, x: Any) -> Any:
        ref = jax.new_ref(x @ w)

        @jax.checkpoint
        def cubed(scale: Any) -> Any:
            ref[0] = ref[0] ** 3
            return ref[...].sum() * scale

        return cubed(2.0) + ref[0].sum()

    twin = lambda w, x: 3.0 * ((x @ w)[0] ** 3).sum() + 2.0 * (x @ w)[1:].sum()  # noqa: E731
    np.testing.assert_allclose(gs.capture(checkpointed, W, X)["param_grad/value"], jax.grad(twin)(W, X), rtol=1e-5)


def test_a_reference_from_outside_and_one_in_a_rule_are_refused() -> None:
    ref = jax.new_ref(jnp.ones((4, 4)))
    with pytest.raises(ModelError, match="made outside it"):
        gs.capture(lambda w, x: (x @ (w + ref[...])).sum(), W, X)

    @jax.custom_vjp
    def stashed(x: Any, kept: Any) -> Any:
        return x

    def backward(kept: Any, g: Any) -> Any:
        kept[...] = g
        return g, None

    stashed.defvjp(lambda x, kept: (x, kept), backward)
    with pytest.raises(ModelError, match="custom_vjp_call, where its values cannot be followed"):
        gs.capture(lambda w, x: stashed(x @ w, jax.new_ref(jnp.zeros((3, 4)))).sum(), W, X)
