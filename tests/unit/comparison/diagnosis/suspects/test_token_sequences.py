"""A norm that reads another sequence of tokens shows which, where no program has an entry for the sequence."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump
from tests.support.sampled import sampled

DRAW = np.random.default_rng(9)
WIDTH, SIDE = 6, 3
IMAGE = DRAW.normal(size=(4, SIDE, SIDE, 5)).astype(np.float32)
SHAPES = {"kernel": (5, WIDTH), "token": (1, 1, WIDTH), "table": (1, SIDE**2 + 2, WIDTH),
          "scale": (WIDTH,), "bias": (WIDTH,), "out": (WIDTH, 3)}  # fmt: skip
WEIGHTS = {name: DRAW.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
OURS, THEIRS = ("embed", "norm", "head"), ("Dense_0", "LayerNorm_0", "Dense_1")


@cache
def _network(fault: str = "", *, names: tuple[str, str, str] = OURS, centred: bool = True, zeros: bool = False) -> Dump:
    def loss(weights: Any, batch: Any) -> Any:
        (x,) = batch.values()
        embed, norm, head = (weights[name] for name in names)
        with jax.named_scope(names[0]):
            x = x @ embed["kernel"]
        x = x.swapaxes(1, 2) if fault == "order" else x
        x = x.transpose(0, 3, 1, 2) if fault == "reshape" else x
        x = x.reshape(len(x), -1, WIDTH) * (WIDTH**0.5 if fault == "factor" else 1)
        first = 1 if fault == "offset" else 0
        token, table = jnp.broadcast_to(embed["token"], (len(x), 1, WIDTH)), embed["table"][:, first:]
        if fault == "before":
            x = x + table[:, : x.shape[1]]
        x = jnp.concatenate([x, token] if fault == "behind" else [token, x], 1)
        x = x if fault in {"none", "before"} else x + table[:, : x.shape[1]]
        x = x * (jnp.arange(WIDTH) > 0) if fault == "dropped" else x
        with jax.named_scope(names[1]):
            x = x - x.mean(-1, keepdims=True) if centred else x
            x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * norm["scale"] + norm["bias"]
        with jax.named_scope(names[2]):
            x = jnp.tanh(x.mean(1)) @ head["out"]
        return jnp.square(x).mean()

    own = WEIGHTS | ({"table": 0 * WEIGHTS["table"]} if zeros else {})
    weights = {
        names[0]: {name: own[name] for name in ("kernel", "token", "table")},
        names[1]: {name: own[name] for name in ("scale", "bias")},
        names[2]: {"out": own["out"]},
    }
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return gs.capture(loss, weights, {f"of_{names[0]}": IMAGE}, origins=False)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
@sampled(
    ("fault", "ref", "cand"),
    [
        ("order", "the axes [1, 2] of `embed` flattened", "the axes [2, 1] of `embed` flattened"),
        ("behind", "`embed/token` before `embed`", "`embed/token` behind `embed`"),
        ("none", "`embed/table`", "no positions"),
        ("offset", "`embed/table`", "`embed/table` from its row 1 on"),
        ("before", "`embed/table`", "`embed/table` of the features alone"),
        ("reshape", "the axes [1, 2] of `embed` flattened", "`embed` reshaped with its channels first"),
        ("factor", "its plain features", "its features times 2.449"),
    ],
)
def test_which_sequence_a_norm_reads_is_told(fault: str, ref: str, cand: str, *, centred: bool) -> None:
    reference = _network(centred=centred)
    sentence = gs.compare(reference, _network(fault, names=THEIRS, centred=centred)).sentence
    assert sentence.startswith("Forward first differs at `norm` ("), sentence
    assert f", which reads a sequence with {ref}, and in the candidate with {cand}." in sentence, sentence
    back = gs.compare(_network(fault, centred=centred), _network(names=THEIRS, centred=centred)).sentence
    assert f", which reads a sequence with {cand}, and in the candidate with {ref}." in back, back


def test_positions_that_are_zero_are_not_told() -> None:
    reference = _network(zeros=True)
    assert "a sequence with" not in gs.compare(reference, _network("none", names=THEIRS, zeros=True)).sentence
    sentence = gs.compare(reference, _network("reshape", names=THEIRS, zeros=True)).sentence
    assert "and in the candidate with `embed` reshaped with its channels first." in sentence, sentence
    assert "positions" not in sentence, sentence


@pytest.mark.parametrize("fault", ["", "dropped"])
def test_no_other_sequence_is_told(fault: str) -> None:
    found = gs.compare(_network(), _network(fault, names=THEIRS))
    assert found.verdict == ("different" if fault else "same")
    assert "a sequence with" not in found.sentence, found.sentence


def test_features_of_many_axes_are_not_flattened_in_every_order() -> None:
    def network(shift: float) -> Dump:
        def loss(weights: Any, batch: Any) -> Any:
            with jax.named_scope("embed"):
                x = (batch["x"] @ weights["kernel"]).reshape(4, *[1] * 14, WIDTH)
            x = x.reshape(4, 1, WIDTH) + shift * weights["table"][:, :1]
            with jax.named_scope("norm"):
                x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weights["scale"]
            return jnp.square(x - 1).mean()

        own = {name: WEIGHTS[name] for name in ("kernel", "table", "scale")}
        with jax.numpy_rank_promotion("allow"):
            return gs.capture(loss, own, {"x": IMAGE[:, 0, 0]}, origins=False)

    assert gs.compare(network(1.0), network(2.0)).verdict == "different"
