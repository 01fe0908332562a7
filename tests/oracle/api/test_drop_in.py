"""`gs.value_and_grad` takes what `jax.value_and_grad` takes, returns what it returns and refuses what it refuses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.errors import UsageError
from tests.support.data import evenly, filled
from tests.support.sampled import sampled

W = {"w": evenly(-1.0, 1.0, 3)}
X = evenly(0.0, 5 / 6, 2, 3)
NEXT = evenly(1.0, 11 / 6, 2, 3)
MODES = ("stats", "tensors")


def dense(w: Any, x: Any) -> Any:
    with jax.named_scope("dense"):
        return jnp.tanh(x @ w["w"])


def trained(w: Any, x: Any, train: Any) -> Any:
    return (dense(w, x) * (0.5 if train else 1.0)).sum()


def repeated(w: Any, x: Any, times: int) -> Any:
    return sum((dense(w, x) * n).sum() for n in range(1, times))


def applied(w: Any, apply: Callable[[Any, Any], Any], x: Any) -> Any:
    return apply(w, x).sum()


def reduced(w: Any, x: Any, how: str | None) -> Any:
    return dense(w, x).sum() if how is None else getattr(dense(w, x), how)()


def scaled(w: Any, *scales: Any, x: Any) -> Any:
    return (dense(w, x) * sum(scales)).sum()


def product(a: Any, b: Any) -> Any:
    with jax.named_scope("product"):
        return (a * b).sum()


def cubed(w: Any) -> Any:
    return (dense(w, X) ** 3).sum()


def with_aux(w: Any, x: Any) -> Any:
    out = dense(w, x)
    return out.sum(), {"out": out, "count": 2, "name": "dense", "apply": dense, "none": None, "host": np.ones(2)}


def square(z: Any) -> Any:
    return z * z


@dataclass(frozen=True)
class Case:
    """A function, what it is called with, and how it is differentiated."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> Any:
        return jax.value_and_grad(self.function, **self.options)(*self.args, **self.kwargs)

    def observed(self, observe: Any) -> tuple[Any, gs.Seen]:
        return gs.value_and_grad(self.function, observe=observe, **self.options)(*self.args, **self.kwargs)


CASES = {
    "a boolean": Case(trained, (W, X, True)),
    "a boolean by name": Case(trained, (W, X), {"train": False}),
    "a NumPy boolean": Case(trained, (W, X, np.bool_(True))),
    "an integer": Case(repeated, (W, X, 3)),
    "a function": Case(applied, (W, dense, X)),
    "a string": Case(reduced, (W, X, "mean")),
    "None": Case(reduced, (W, X, None)),
    "an array that decides": Case(lambda w, x: dense(w, x).sum() * (1.0 if x[1, 2] > 0 else 0.0), (W, np.asarray(X))),
    "an array of NumPy": Case(
        lambda w, x: dense(w, x).sum() * (2.0 if isinstance(x, np.ndarray) else 1.0), (W, np.asarray(X))
    ),
    "an array that counts": Case(lambda w, x, n: dense(w, x[: int(n)]).sum(), (W, X, jnp.int32(1))),
    "a float": Case(lambda w, rate: cubed(w) * rate if rate > 0 else 0.0, (W, 0.5)),
    "a pytree of arrays and others": Case(
        lambda w, options: reduced(w, options["x"], options["how"]), (W, {"x": X, "how": "sum"})
    ),
    "more positional arguments than names": Case(scaled, (W, 1.0, filled(2.0)), {"x": X}),
    "a name that positional and keyword arguments share": Case(
        lambda a, /, **others: (a * others["a"]).sum(), (X,), {"a": NEXT}
    ),
    "the last argument": Case(product, (X, NEXT), options={"argnums": -1}),
    "the first and the last": Case(product, (X, NEXT), options={"argnums": (0, -1)}),
    "in another order": Case(product, (X, NEXT), options={"argnums": [1, 0]}),
    "a NumPy index": Case(product, (X, NEXT), options={"argnums": np.int32(1)}),
    "an array of positions": Case(product, (X, NEXT), options={"argnums": np.array([1, 0])}),
    "a set of positions": Case(product, (X, NEXT), options={"argnums": {0, 1}}),
    "booleans as positions": Case(product, (X, NEXT), options={"argnums": (True, False)}),
    "a sequence of one position": Case(product, (X, NEXT), options={"argnums": [-1]}),
    "an argument without leaves": Case(lambda x, _: (x * x).sum(), (X, {}), options={"argnums": (0, 1)}),
    "parameters called params": Case(
        lambda params, other: (params * other).sum(), (X, NEXT), options={"argnums": (0, 1)}
    ),
    "collections of Flax": Case(
        lambda variables: (variables["params"] * variables["batch_stats"]).sum(), ({"params": X, "batch_stats": NEXT},)
    ),
    "auxiliary output of any kind": Case(with_aux, (W, X), options={"has_aux": True}),
    "a list of value and auxiliary output": Case(lambda w: [cubed(w), w], (W,), options={"has_aux": True}),
    "holomorphic": Case(square, (1.0 + 2.0j,), options={"holomorphic": True}),
    "complex": Case(lambda z: (z * z.conj()).real, (np.complex64(1 + 2j),)),
    "an integer that is differentiated": Case(
        lambda v: v["n"] * v["x"], ({"n": 3, "x": 2.0},), options={"allow_int": True}
    ),
    "a key that is differentiated": Case(
        lambda v: jax.random.normal(v["key"]) * v["x"], ({"key": jax.random.key(0), "x": 2.0},), {}, {"allow_int": True}
    ),
    "the identity": Case(lambda x: x, (2.0,)),
    "a constant": Case(lambda x: 3.0, (2.0,)),
    "a constant array": Case(lambda x: jnp.float32(3.0), (2.0,)),
    "a constant array, weakly typed": Case(lambda x: jnp.asarray(3.0), (2.0,)),
    "constants as auxiliary output": Case(lambda x: (x * x, [jnp.float32(3.0), 3]), (2.0,), options={"has_aux": True}),
    "nothing": Case(lambda nothing: 1.0, (None,)),
    "bfloat16": Case(lambda w: (w * w).sum(), (np.ones(3, jnp.bfloat16),)),
}

REFUSED = {
    "an integer": Case(square, (3,)),
    "a string": Case(square, ("3",)),
    "a key": Case(lambda key: 1.0, (jax.random.key(0),)),
    "a real number, if holomorphic": Case(square, (3.0,), options={"holomorphic": True}),
    "a real value, if holomorphic": Case(lambda z: z.real, (3j,), options={"holomorphic": True}),
    "an array as the value": Case(lambda x: x, (X,)),
    "an array of one element as the value": Case(lambda x: x[:1], (filled(1.0, 3),)),
    "a complex value": Case(lambda x: x * 1j, (1.0,)),
    "an integer as the value": Case(lambda x: x.sum().astype(int), (X,)),
    "None as the value": Case(lambda x: None, (X,)),
    "a pair without has_aux": Case(lambda x: (x.sum(), x), (X,)),
    "no pair with has_aux": Case(lambda x: x.sum(), (X,), options={"has_aux": True}),
    "a triple with has_aux": Case(lambda x: (x.sum(), 1, 2), (X,), options={"has_aux": True}),
    "too few arguments": Case(square, (1.0,), options={"argnums": 1}),
    "too few arguments from the end": Case(square, (1.0,), options={"argnums": -2}),
    "no position": Case(square, (1.0,), options={"argnums": ()}),
    "several positions, one beyond the last": Case(product, (X, NEXT), options={"argnums": (0, 2)}),
    "a keyword argument as a position": Case(product, (X,), {"b": NEXT}, options={"argnums": 1}),
    "a position that is none": Case(square, (1.0,), options={"argnums": 0.0}),
    "a string of positions": Case(square, (1.0,), options={"argnums": "0"}),
    "a withdrawn option": Case(square, (1.0,), options={"reduce_axes": ("batch",)}),
    "no function": Case(3, (1.0,)),  # type: ignore[arg-type]
    "what the function itself refuses": Case(lambda x: {}["missing"], (1.0,)),
}


def assert_same(found: Any, expected: Any) -> None:
    """The same structure, and leaf by leaf the same bits, dtype and weak type; leaves that are no arrays are equal."""
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    for leaf, other in zip(*map(jax.tree_util.tree_leaves, (found, expected)), strict=True):
        if not isinstance(other, jax.Array | np.ndarray):
            assert leaf == other
            assert type(leaf) is type(other)
            continue
        assert isinstance(leaf, jax.Array | np.ndarray)
        assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype)
        assert getattr(leaf, "weak_type", False) == getattr(other, "weak_type", False)
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes()


#: Those whose tensors are of other kinds than the others'.
ODD = ("an integer that is differentiated", "a key that is differentiated", "holomorphic", "complex", "bfloat16")


@sampled(
    ("name", "observe"),
    [*((name, "stats") for name in CASES), *((name, "tensors") for name in (*ODD, "auxiliary output of any kind"))],
)
def test_it_returns_what_jax_returns_to_the_bit(name: str, observe: Any) -> None:
    case = CASES[name]
    found, seen = case.observed(observe)
    assert_same(found, case.plain())
    assert all(jnp.ndim(seen[key].l2 if observe == "stats" else seen[key]) >= 0 for key in seen)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_it_refuses_what_jax_refuses_with_an_error_of_the_same_type(case: Case) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whichever it is
        case.plain()
    with pytest.raises(theirs.type):
        case.observed("stats")


@pytest.mark.slow
@pytest.mark.parametrize("observe", MODES)
def test_static_arguments_of_jit_are_static_inside(observe: Any) -> None:
    for static in ({"static_argnums": 2}, {"static_argnames": "train"}):
        compiled = jax.jit(gs.value_and_grad(trained, observe=observe), **static)
        plain = jax.jit(jax.value_and_grad(trained), **static)
        for train in (True, False):
            np.testing.assert_allclose(compiled(W, X, train=train)[0][0], plain(W, X, train=train)[0], rtol=1e-6)
    compiled = jax.jit(gs.value_and_grad(applied, observe=observe), static_argnums=1)
    np.testing.assert_allclose(compiled(W, dense, X)[0][0], applied(W, dense, X), rtol=1e-6)


def test_auxiliary_output_goes_through_jit() -> None:
    def loss(w: Any) -> Any:
        return cubed(w), {"square": w["w"] ** 2, "count": 2}

    ours, plain = (jax.jit(each(loss, has_aux=True)) for each in (gs.value_and_grad, jax.value_and_grad))
    found, expected = ours(W)[0], plain(W)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    jax.tree_util.tree_map(partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


def deep(w: Any, x: Any) -> Any:
    """A loss with layers before any parameter, in a scan of checkpointed iterations, in a branch and under `vmap`."""
    with jax.named_scope("features"):
        x = jnp.sin(x)

    @jax.checkpoint
    def step(x: Any, _: None) -> tuple[Any, None]:
        with jax.named_scope("step"):
            return jnp.tanh(x * w["w"][None]), None

    with jax.named_scope("loop"):
        x, _ = jax.lax.scan(step, x, None, length=3)
    x = jax.lax.cond(x.sum() > -100, lambda x: x**2, jnp.cos, x)
    with jax.named_scope("rows"):
        x = jax.vmap(lambda row: row @ w["w"])(x)
    return jax.nn.softplus(x).mean()


#: Second derivatives of a function `loss(w, x)`, by a `value_and_grad` like JAX's.
SECOND = {
    "reverse over reverse": lambda vg, w, x: jax.grad(lambda w: vg(w, x)[1]["w"].sum())(w),
    "reverse over reverse, of another argument": lambda vg, w, x: jax.grad(lambda x: vg(w, x)[1]["w"].sum())(x),
    "forward over reverse": lambda vg, w, x: jax.jvp(lambda w: vg(w, x), (w,), (w,)),
    "forward over reverse, of another argument": lambda vg, w, x: jax.jvp(lambda x: vg(w, x), (x,), (x,)),
    "a Hessian": lambda vg, w, x: jax.jacfwd(lambda w: vg(w, x)[1]["w"])(w),
}


def assert_differentiated_alike(loss: Any, second: Callable[..., Any], observe: Any, run: Callable[[Any], Any]) -> None:
    def observing(*args: Any) -> Any:
        return gs.value_and_grad(loss, observe=observe)(*args)[0]

    found, expected = (run(partial(second, vg))(W, X) for vg in (observing, jax.value_and_grad(loss)))
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    jax.tree_util.tree_map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), found, expected)


@pytest.mark.slow
@sampled(("second", "observe"), [*((name, "stats") for name in SECOND), ("a Hessian", "tensors")])
def test_it_can_be_differentiated_again(second: str, observe: Any) -> None:
    assert_differentiated_alike(deep, SECOND[second], observe, jax.jit)


@pytest.mark.slow
@sampled("second", SECOND.values(), ids=SECOND.keys())
def test_operation_by_operation_too(second: Callable[..., Any]) -> None:
    assert_differentiated_alike(lambda w, x: (dense(w, x) ** 3).sum(), second, "stats", lambda function: function)


@pytest.mark.slow
@sampled("observe", MODES)
def test_what_is_observed_does_not_depend_on_being_differentiated_again(observe: Any) -> None:
    def penalty(w: Any) -> Any:
        (_, grads), seen = gs.value_and_grad(deep, observe=observe)(w, X)
        return (grads["w"] ** 2).sum(), seen

    _, seen = jax.jit(jax.grad(penalty, has_aux=True))(W)
    _, alone = jax.jit(gs.value_and_grad(deep, observe=observe))(W, X)
    assert list(seen) == list(alone)
    for key in seen:
        found, expected = (each[key].l2 if observe == "stats" else each[key] for each in (seen, alone))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("observe", MODES)
@pytest.mark.parametrize("compiled", [False, True])
def test_it_can_be_mapped(observe: Any, compiled: bool) -> None:
    ours = jax.vmap(gs.value_and_grad(trained, observe=observe), in_axes=(None, 0, None))
    plain = jax.vmap(jax.value_and_grad(trained), in_axes=(None, 0, None))
    rows = X[:, None, :]
    (found, seen), expected = (
        (jax.jit(ours, static_argnums=2) if compiled else ours)(W, rows, True),
        plain(W, rows, True),
    )
    jax.tree_util.tree_map(partial(np.testing.assert_allclose, rtol=1e-5), found, expected)
    assert all((seen[key].l2 if observe == "stats" else seen[key]).shape[0] == len(rows) for key in seen)


def test_several_differentiated_arguments_are_distinguished_by_their_names() -> None:
    _, seen = gs.value_and_grad(lambda one, other: (one["w"] * other["w"]).sum(), (0, 1))(W, {"w": W["w"] + 1})
    assert {"param/one/w", "param/other/w", "param_grad/one/w", "param_grad/other/w"} <= set(seen)
    assert float(seen["param/one/w"].mean) != float(seen["param/other/w"].mean)
    _, single = gs.value_and_grad(lambda one, other: (one["w"] * other["w"]).sum())(W, W)
    assert {"param/w", "param_grad/w"} <= set(single)


def test_what_was_not_observed_is_missing_as_from_any_mapping() -> None:
    _, seen = gs.value_and_grad(cubed)(W)
    with pytest.raises(KeyError, match="nothing was observed as activation/dens") as missing:
        seen["activation/dens"]
    assert "activation/dense" in missing.value.hint  # type: ignore[attr-defined]
    assert seen.get("activation/dens") is None


def test_a_complex_value_is_saved_without_a_loss(tmp_path: Path) -> None:
    _, seen = gs.value_and_grad(square, holomorphic=True, observe="tensors")(1.0 + 2.0j)
    assert gs.save(tmp_path / "step.npz", seen).loss is None
    assert gs.load(tmp_path / "step.npz")["param_grad/value"] == 2.0 + 4.0j


def test_the_function_keeps_its_name_and_documentation() -> None:
    ours = gs.value_and_grad(trained)
    assert (ours.__name__, ours.__doc__) == (trained.__name__, trained.__doc__)


def test_a_family_that_a_step_does_not_observe_is_refused() -> None:
    with pytest.raises(UsageError, match="value_and_grad does not observe the family input"):
        gs.value_and_grad(cubed, families=["param", "input"])


def test_positions_may_be_an_array() -> None:
    def product(a: Any, b: Any) -> Any:
        return a * b

    (_, gradients), _ = gs.value_and_grad(product, argnums=np.array([0, 1]))(2.0, 3.0)
    assert gradients == jax.grad(product, argnums=np.array([0, 1]))(2.0, 3.0)


@pytest.mark.parametrize("twice", [(0, 0), (1, -1), (0, 1, 0)])
def test_one_argument_is_not_differentiated_twice(twice: tuple[int, ...]) -> None:
    """JAX 0.10 gives the function None for it, and versions before a gradient of zeros for one of the two."""
    with pytest.raises(TypeError, match="means one of 2 positional arguments twice"):
        gs.value_and_grad(lambda x, y: x * y, argnums=twice)(2.0, 3.0)


def test_what_cannot_be_kept_is_refused_at_once() -> None:
    for wrong in ("tensor", "histograms"):
        with pytest.raises(gs.UsageError, match=f"observe is '{wrong}'"):
            gs.value_and_grad(jnp.sum, observe=wrong)  # type: ignore[call-overload]


def test_observations_of_steps_on_other_arrays_add_up() -> None:
    """Arrays that are not differentiated are part of no program, so the pytrees of steps have one structure."""
    step = gs.value_and_grad(lambda w, x, scale: (dense(w, x) * scale).sum())
    (_, one), (_, other) = (step(W, X, filled(scale)) for scale in (0.5, 2.0))
    added = jax.tree.map(jnp.add, one, other)
    assert float(added.observed.loss) == pytest.approx(float(one.observed.loss) + float(other.observed.loss))


@pytest.mark.parametrize(
    ("needs", "array"),
    [(bool, jnp.int32(1)), (range, jnp.int32(2)), (np.asarray, jnp.ones(2)), (lambda rows: X[rows], X[:, 0] > 0)],
)
def test_a_function_that_needs_the_elements_of_an_array_has_it_as_it_is(
    needs: Callable[[Any], Any], array: Any
) -> None:
    def loss(w: Any, x: Any, array: Any) -> Any:
        needs(array)
        return dense(w, x).sum()

    found, _ = gs.value_and_grad(loss)(W, X, array)
    assert_same(found, jax.value_and_grad(loss)(W, X, array))
    with pytest.raises((TypeError, IndexError)):
        jax.jit(gs.value_and_grad(loss))(W, X, array)


def test_what_was_observed_keeps_no_array_of_the_batch_in_memory() -> None:
    gc.freeze()  # what earlier tests have left is not searched for cycles, which takes seconds
    batch = np.array(X)
    alive = weakref.ref(batch)
    _, seen = gs.value_and_grad(lambda w, x: dense(w, x).sum())(W, batch)
    del batch
    gc.collect()
    gc.unfreeze()
    assert seen["activation/dense"] is not None
    assert alive() is None


@pytest.mark.slow
def test_the_iteration_of_a_while_loop_is_the_last_that_ran(tmp_path: Path) -> None:
    def loss(w: Any, x: Any) -> Any:
        def body(carry: Any) -> Any:
            with jax.named_scope("cell"):
                moved = jnp.tanh(carry[1] @ jax.lax.stop_gradient(w))
            return carry[0] + 1, moved

        return jax.lax.while_loop(lambda carry: carry[0] < 4, body, (0, jax.lax.stop_gradient(x)))[1].sum() + w.sum()

    w, x = 0.5 * np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)
    _, seen = gs.value_and_grad(loss, observe="tensors")(w, x)
    (key,) = (each for each in seen if each.startswith("activation/cell"))
    assert key == "activation/cell[3]"
    gs.save(tmp_path / "seen.npz", seen)
    with gs.load(tmp_path / "seen.npz") as saved:
        assert np.array_equal(saved[key], seen[key])
    # While the step is traced, nobody knows how often the loop will run.
    assert jnp.shape(jax.jit(lambda: gs.value_and_grad(loss, observe="tensors")(w, x)[1]["activation/cell[0]"])()) == (
        2,
        3,
    )
