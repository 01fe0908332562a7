"""Every repair that is suggested for a NaN or an infinity, applied to the program that it is suggested for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gradscope as gs
from gradscope.capturing.explain.nonfinite.causes import repairs
from tests.support.data import evenly
from tests.support.sampled import sampled

W = jax.device_put(np.array([0.7, 1.2, 0.4], np.float32))
X = jax.device_put(np.array([[1.0, 2.0, 3.0], [1.0, 0.0, -2.0]], np.float32))
EPS = 1e-6
TABLE = evenly(0.0, 11.0, 4, 3)
IDS = jax.device_put(np.array([0, 2, 7], np.int32))
MASKED = jax.device_put(np.array([[True, False, True], [False, False, False]]))


class Case(NamedTuple):
    """A `Case` is a program that fails, the repair that must be suggested, and the program after applying it."""

    repair: str
    broken: Callable[[Any, Any], Any]
    repaired: Callable[[Any, Any], Any]
    weights: Any = W


def probabilities(w: Any, x: Any) -> Any:
    p = jnp.where(x > 0, x * w, 0.0)
    return p / p.sum(-1, keepdims=True)


def one_hot(x: Any) -> Any:
    return jax.nn.one_hot(x[:, 1].astype(jnp.int32), 3)


def entropy(log: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        p = probabilities(w, x)
        h = -jnp.where(x > 0, p * log(p), 0.0).sum(-1)
        return (h / jnp.log2((x > 0).astype(jnp.float32).sum(-1) + 1.0)).mean()

    return loss


def naive_softmax(shift: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        scores = 100 * x * w
        e = jnp.exp(scores - shift(scores))
        return (e / e.sum(-1, keepdims=True))[:, 0].sum()

    return loss


def half_softmax(
    shift: Callable[[Any], Any], dtype: Any = jnp.float16, *, mask: bool = True
) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        scores = (w - 8).astype(dtype)
        e = jnp.exp(scores - shift(scores))
        e = jnp.where(w > 0.5, e, 0) if mask else e
        return (e / e.sum(-1, keepdims=True))[0].astype(jnp.float32) + 0 * x.sum()

    return loss


def half_quotient(epsilon: float, dtype: Any = jnp.float16) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        h = (w / 512).astype(dtype)
        return (h[0] / (h + epsilon)).sum().astype(jnp.float32) + x.sum()

    return loss


def half_norm(epsilon: float, dtype: Any = jnp.float16) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        h = w.astype(dtype)
        return (h / jnp.sqrt((h * h).mean() + epsilon)).sum().astype(jnp.float32) + x.sum()

    return loss


def half_rsqrt(dtype: Any) -> Callable[[Any, Any], Any]:
    """Of a number whose derivative is 34,000, in 66,000 of which JAX computes it."""
    return lambda w, x: jax.lax.rsqrt((w * 0 + 6e-4).astype(dtype)).astype(jnp.float32).sum() + x.sum()


def half_log(epsilon: float) -> Callable[[Any, Any], Any]:
    return lambda w, x: jnp.log(jnp.maximum(w, epsilon)).astype(jnp.float32).sum() + x.sum()


def half_root(epsilon: float) -> Callable[[Any, Any], Any]:
    return lambda w, x: jnp.sqrt(w + epsilon).astype(jnp.float32).sum() + x.sum()


def attention(fill: float, softmax: Callable[..., Any] = jax.nn.softmax) -> Callable[[Any, Any], Any]:
    return lambda w, x: (softmax(jnp.where(MASKED, x * w, fill)) * x).sum()


def by_hand(scores: Any) -> Any:
    e = jnp.exp(scores)
    return e / e.sum(-1, keepdims=True)


def normalised(inside: float) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        y = x[:1] * w
        return ((y - y.mean(0)) / jnp.sqrt(y.var(0) + inside)).sum() + y.sum()

    return loss


def share_of_class(shares: Any) -> Any:
    return jnp.take_along_axis(shares, jnp.arange(len(shares))[:, None] % 3, axis=1)


def narrow(dtype: Any, scale: float) -> Callable[[Any, Any], Any]:
    return lambda w, x: (x @ w.astype(dtype).astype(jnp.float32)).sum() * scale


def half(scale: float, dtype: Any = jnp.float16) -> Callable[[Any, Any], Any]:
    return lambda w, x: ((w * scale).astype(dtype) ** 2).sum().astype(jnp.float32)


def cholesky(jitter: float) -> Callable[[Any, Any], Any]:
    def loss(w: Any, x: Any) -> Any:
        return jnp.linalg.cholesky(jnp.outer(w, w) * 0 + jitter * jnp.eye(3) + 0 * x.sum()).sum() + w.sum()

    return loss


CASES = {
    "log at 0": Case(
        repairs.ADD_EPSILON, lambda w, x: jnp.log(w * jnp.abs(x[1])).sum(),
        lambda w, x: jnp.log(w * jnp.abs(x[1]) + EPS).sum(),
    ),
    "log of a softmax": Case(
        repairs.LOG_SOFTMAX, lambda w, x: jnp.log(jax.nn.softmax(200 * x * w)).sum(),
        lambda w, x: jax.nn.log_softmax(200 * x * w).sum(),
    ),
    "log of each example's share": Case(
        repairs.LOG_SOFTMAX, lambda w, x: jnp.log(share_of_class(jax.nn.softmax(200 * x * w))).sum(),
        lambda w, x: share_of_class(jax.nn.log_softmax(200 * x * w)).sum(),
    ),
    "log of each example's share by a product with one_hot": Case(
        repairs.LOG_SOFTMAX, lambda w, x: jnp.log((jax.nn.softmax(200 * x * w) * one_hot(x)).sum(-1)).sum(),
        lambda w, x: (jax.nn.log_softmax(200 * x * w) * one_hot(x)).sum(),
    ),
    "log of each example's share by einsum": Case(
        repairs.LOG_SOFTMAX,
        lambda w, x: jnp.log(jnp.einsum("bc,bc->b", jax.nn.softmax(200 * x * w), one_hot(x))).sum(),
        lambda w, x: jnp.einsum("bc,bc->b", jax.nn.log_softmax(200 * x * w), one_hot(x)).sum(),
    ),
    "log of the share of one class": Case(
        repairs.LOG_SOFTMAX, lambda w, x: jnp.log(jax.nn.softmax(200 * x * w)[:, 1]).sum(),
        lambda w, x: jax.nn.log_softmax(200 * x * w)[:, 1].sum(),
    ),
    "log of a sigmoid": Case(
        repairs.LOG_SIGMOID, lambda w, x: jnp.log(jax.nn.sigmoid(200 * x * w)).sum(),
        lambda w, x: jax.nn.log_sigmoid(200 * x * w).sum(),
    ),
    "division by 0": Case(
        repairs.ADD_EPSILON, lambda w, x: (w / x[1]).sum(), lambda w, x: (w / (x[1] + EPS)).sum()
    ),
    "sqrt at 0": Case(
        repairs.ADD_EPSILON, lambda w, x: jnp.sqrt(w * jnp.abs(x[1])).sum(),
        lambda w, x: jnp.sqrt(jnp.maximum(w * jnp.abs(x[1]), EPS)).sum(),
    ),
    "power at 0": Case(
        repairs.ADD_EPSILON, lambda w, x: ((w * jnp.abs(x[1])) ** 0.5).sum(),
        lambda w, x: ((w * jnp.abs(x[1]) + EPS) ** 0.5).sum(),
    ),
    "log1p at -1": Case(
        repairs.ADD_EPSILON, lambda w, x: jnp.log1p(w / w * -jnp.abs(x[0, 0])).sum(),
        lambda w, x: jnp.log1p(w / w * -jnp.abs(x[0, 0]) + EPS).sum(),
    ),
    "log of a negative number": Case(
        repairs.CLIP_NEGATIVE, lambda w, x: jnp.log(w * x[1] + 0.1).sum(),
        lambda w, x: jnp.log(jnp.maximum(w * x[1] + 0.1, EPS)).sum(),
    ),
    "a variance below 0": Case(
        repairs.CLIP_NEGATIVE, lambda w, x: jnp.sqrt((w**2).mean() - (w.mean() + 1) ** 2 + 0 * x.sum()),
        lambda w, x: jnp.sqrt(jnp.maximum((w**2).mean() - (w.mean() + 1) ** 2 + 0 * x.sum(), EPS)),
    ),
    "arccos beyond 1": Case(
        repairs.CLIP_INSIDE, lambda w, x: jnp.arccos(w).sum() + x.sum(),
        lambda w, x: jnp.arccos(jnp.clip(w, -1 + EPS, 1 - EPS)).sum() + x.sum(),
    ),
    "arccos at 1": Case(
        repairs.CLIP_INSIDE, lambda w, x: jnp.arccos(w / w).sum() + x.sum(),
        lambda w, x: jnp.arccos(jnp.clip(w / w, -1 + EPS, 1 - EPS)).sum() + x.sum(),
    ),
    "arctanh at 1": Case(
        repairs.CLIP_INSIDE, lambda w, x: jnp.arctanh(w / w).sum() + x.sum(),
        lambda w, x: jnp.arctanh(jnp.clip(w / w, -1 + EPS, 1 - EPS)).sum() + x.sum(),
    ),
    "softmax by hand": Case(
        repairs.SHIFT, naive_softmax(lambda s: 0.0), naive_softmax(lambda s: s.max(-1, keepdims=True))
    ),
    "softmax by hand far below 0": Case(
        repairs.SHIFT, naive_softmax(lambda s: 50 + s.max(-1, keepdims=True)),
        naive_softmax(lambda s: s.max(-1, keepdims=True)),
    ),
    "division by a number whose square is 0": Case(
        repairs.ADD_EPSILON, lambda w, x: (x[0] / (1e-20 * w)).sum() * 1e-19,
        lambda w, x: (x[0] / (1e-20 * w + EPS)).sum() * 1e-19,
    ),
    "division by a number whose square's reciprocal is beyond float16": Case(
        repairs.ADD_EPSILON, half_quotient(0.0), half_quotient(0.01)
    ),
    "the same in float32": Case(repairs.WIDER, half_quotient(0.0), half_quotient(0.0, jnp.float32)),
    "derivative that is computed of numbers beyond float16": Case(
        repairs.WIDER, half_rsqrt(jnp.float16), half_rsqrt(jnp.float32)
    ),
    "softmax by hand in float16": Case(
        repairs.SHIFT, half_softmax(lambda s: 0.0, mask=False), half_softmax(jnp.max, mask=False)
    ),
    "masked softmax by hand in float16": Case(repairs.SHIFT, half_softmax(lambda s: 0.0), half_softmax(jnp.max)),
    "softplus by hand": Case(
        repairs.SHIFT, lambda w, x: jnp.log(1 + jnp.exp(200 * w * x)).sum(),
        lambda w, x: jax.nn.softplus(200 * w * x).sum(),
    ),
    "sinh": Case(
        repairs.CLIP_OVERFLOW, lambda w, x: jnp.sinh(200 * w * x).sum(),
        lambda w, x: jnp.sinh(jnp.clip(200 * w * x, -40, 40)).sum(),
    ),
    "a standard deviation of 0": Case(repairs.UNDER_ROOT, normalised(0.0), normalised(EPS)),
    "an epsilon that float16 rounds to 0": Case(
        repairs.LARGER_EPSILON, half_norm(1e-8), half_norm(1e-3), np.zeros(3, np.float16)
    ),
    "an epsilon that float16 rounds to 0, in float32": Case(
        repairs.WIDER, half_norm(1e-8), half_norm(1e-8, jnp.float32), np.zeros(3, np.float16)
    ),
    "a bound that float16 rounds to 0": Case(
        repairs.LARGER_EPSILON, half_log(1e-8), half_log(1e-3), np.zeros(3, np.float16)
    ),
    "an epsilon that float16 rounds to 0, under a root": Case(
        repairs.LARGER_EPSILON, half_root(1e-8), half_root(1e-3), np.zeros(3, np.float16)
    ),
    "a where of a root": Case(
        repairs.WHERE_TWICE, lambda w, x: jnp.where(x > 0, jnp.sqrt(x * w), 0.0)[:, :2].sum(),
        lambda w, x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x * w, 1.0)), 0.0)[:, :2].sum(),
    ),
    "a where of a root of negative numbers": Case(
        repairs.WHERE_TWICE, lambda w, x: jnp.where(x > 0, jnp.sqrt(x * w - 0.01), 0.0).sum(),
        lambda w, x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x * w - 0.01, 1.0)), 0.0).sum(),
    ),
    "a where of a quotient": Case(
        repairs.WHERE_TWICE, lambda w, x: jnp.where(x != 0, 1 / (x * w), 0.0).sum(),
        lambda w, x: jnp.where(x != 0, 1 / jnp.where(x != 0, x * w, 1.0), 0.0).sum(),
    ),
    "a where of a quotient by rows": Case(
        repairs.WHERE_TWICE, lambda w, x: jnp.where(x[:, 1:2] != 0, x / (x[:, 1:2] * w[:1]), 0.0).sum(),
        lambda w, x: jnp.where(x[:, 1:2] != 0, x / jnp.where(x[:, 1:2] != 0, x[:, 1:2] * w[:1], 1.0), 0.0).sum(),
    ),
    "a pole": Case(
        repairs.LEAVE_POLE, lambda w, x: jax.scipy.special.gammaln(jnp.abs(x) * w).sum(),
        lambda w, x: jax.scipy.special.gammaln(jnp.maximum(jnp.abs(x) * w, EPS)).sum(),
    ),
    "the derivative of x log y": Case(
        repairs.ADD_EPSILON, lambda w, x: jax.scipy.special.xlogy(x * w, jnp.abs(x) * w).sum(),
        lambda w, x: jax.scipy.special.xlogy(x * w, jnp.abs(x) * w + EPS).sum(),
    ),
    "the inverse of a singular matrix": Case(
        repairs.REGULAR, lambda w, x: jnp.linalg.inv(jnp.outer(w / w, w / w)).sum() + x.sum(),
        lambda w, x: jnp.linalg.inv(jnp.outer(w / w, w / w) + 1e-3 * jnp.eye(3)).sum() + x.sum(),
    ),
    "an entropy": Case(
        repairs.X_LOG_X, entropy(jnp.log), entropy(lambda p: jnp.log(jnp.where(p > 0, p, 1.0)))
    ),
    "an entropy in bits": Case(
        repairs.X_LOG_X, entropy(jnp.log2), entropy(lambda p: jnp.log2(jnp.where(p > 0, p, 1.0)))
    ),
    "a norm at 0": Case(
        repairs.NORM, lambda w, x: jnp.sqrt(((w * 0) ** 2).sum()) + x.sum(),
        lambda w, x: jnp.sqrt(((w * 0) ** 2).sum() + EPS) + x.sum(),
    ),
    "a row that is masked throughout": Case(repairs.FINITE_MASK, attention(-jnp.inf), attention(-1e9)),
    "the same by hand": Case(
        repairs.FINITE_MASK, attention(-jnp.inf, by_hand), attention(-1e9, jax.nn.softmax)
    ),
    "a mask by multiplication": Case(
        repairs.MASK_FIRST, lambda w, x: (jnp.where(x > 0, x * w, -jnp.inf) * jnp.maximum(x, 0.0)).sum(),
        lambda w, x: (jnp.where(x > 0, x * w, 0.0) * jnp.maximum(x, 0.0)).sum(),
    ),
    "an index beyond a table": Case(
        repairs.VALID_INDEX, lambda w, x: jnp.tanh(jnp.take(w, IDS, axis=0)).sum() + x.sum(),
        lambda w, x: jnp.tanh(jnp.take(w, jnp.clip(IDS, 0, 3), axis=0)).sum() + x.sum(), TABLE,
    ),
    "a negative base": Case(
        repairs.BASE_POSITIVE, lambda w, x: ((w * x[1]) ** 0.5).sum(),
        lambda w, x: (jnp.maximum(w * x[1], EPS) ** 0.5).sum(),
    ),
    "a singular matrix": Case(repairs.JITTER, cholesky(0.0), cholesky(1e-3)),
    "float8": Case(
        repairs.SCALE_LOSS, narrow(jnp.float8_e4m3fn, 1024.0), narrow(jnp.float8_e4m3fn, 1.0)
    ),
    "float8 in float32": Case(
        repairs.WIDER, narrow(jnp.float8_e4m3fn, 1024.0), narrow(jnp.float32, 1024.0)
    ),
    "float8_e5m2": Case(repairs.SCALE_LOSS, narrow(jnp.float8_e5m2, 1e6), narrow(jnp.float8_e5m2, 1.0)),
    "float16 backward": Case(repairs.SCALE_LOSS, narrow(jnp.float16, 1e6), narrow(jnp.float16, 1.0)),
    "float16 forward": Case(repairs.SCALE_OPERANDS, half(300.0), half(1.0)),
    "float16 in float32": Case(repairs.WIDER, half(300.0), half(300.0, jnp.float32)),
}  # fmt: skip


def finite(value: Any, gradients: Any) -> bool:
    """Whether a loss and its gradients are finite."""
    return bool(np.isfinite(value) and np.isfinite(np.asarray(gradients, np.float32)).all())


@sampled("case", CASES.values(), ids=CASES)
def test_a_repair_repairs_what_it_is_suggested_for(case: Case) -> None:
    with np.errstate(all="ignore"), jax.numpy_rank_promotion("allow"):
        captured = gs.capture(case.broken, case.weights, X)
        assert not finite(captured.loss, captured["param_grad/value"])
        (origin,) = captured.origins
        assert case.repair in origin.repair, origin
        assert finite(*jax.value_and_grad(case.repaired)(case.weights, X))


def test_every_repair_is_applied_here() -> None:
    stated = {value for name, value in vars(repairs).items() if name.isupper() and isinstance(value, str)}
    assert stated == {case.repair for case in CASES.values()}
