"""A parameter that one program alone shares between layers, or cuts off in one of them, is told by its gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs
from gradscope.api.reading import Dump

TIED = "`embed/kernel` and `head/kernel`"
TERM = f"the gradient of `embed/kernel` is a term of the reference's: {TIED} are one parameter in the reference alone"


@cache
def _dump(
    *, tied: bool = True, names: str = "", turned: bool = False, cut: str = "", other: bool = False, heads: int = 0
) -> Dump:
    """A table of tokens, a block, and a head that has the same table, or one of equal values.

    Args:
        tied: Whether the table is one parameter.
        names: What the names of the parameters begin with.
        turned: Whether the head has its table transposed.
        cut: The layer that uses a copy which is not trained.
        other: Whether the head has other values than the table.
        heads: How many heads the channels of the tables are divided into; 0 where they are one axis.
    """
    rng = np.random.default_rng(0)
    table, kernel, more = (rng.normal(size=size).astype(np.float32) / 3 for size in ((20, 8), (8, 8), (20, 8)))
    tokens = rng.integers(0, 20, (4, 6))
    params = {f"{names}embed": {"kernel": table}, "block": kernel}
    if not tied:
        own = more if other else table.copy()
        params[f"{names}head"] = {"kernel": own.T if turned else own}

    if heads:
        params = jax.tree.map(lambda each: each.reshape(20, heads, -1) if len(each) == 20 else each, params)

    def loss(params: Any, tokens: Any) -> Any:
        params = jax.tree.map(lambda each: each.reshape(len(each), -1), params)
        embed = params[f"{names}embed"]["kernel"]
        head = embed if tied else params[f"{names}head"]["kernel"]
        if turned:
            head = head.T
        with jax.named_scope("embed"):
            read = (jax.lax.stop_gradient(embed) if cut == "embed" else embed)[tokens]
        with jax.named_scope("block"):
            read = read + jnp.tanh(read @ params["block"])
        with jax.named_scope("head"):
            logits = read @ (jax.lax.stop_gradient(head) if cut == "head" else head).T
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1).mean()

    return gs.capture(loss, params, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_a_table_that_a_port_has_twice_is_told(turned: bool) -> None:
    found = gs.compare(_dump(), _dump(tied=False, turned=turned))
    assert found.verdict == "different"
    assert TERM in found.sentence, found.sentence


def test_a_table_with_an_axis_of_heads_is_told() -> None:
    assert TERM in gs.compare(_dump(), _dump(tied=False, heads=2)).sentence
    assert TERM in gs.compare(_dump(heads=2), _dump(tied=False)).sentence


@pytest.mark.slow
def test_a_table_that_a_port_shares_is_told_also_under_other_names() -> None:
    found = gs.compare(_dump(tied=False), _dump(names="new_"))
    told = f"is the sum of the reference's of {TIED}, which are one parameter in the candidate alone"
    assert told in found.sentence, found.sentence


@pytest.mark.parametrize("layer", ["embed", "head"])
def test_the_use_that_is_cut_off_is_told_in_both_directions(layer: str) -> None:
    whole, cut = _dump(), _dump(cut=layer)
    assert f"lacks what `{layer}` contributes to the reference's" in gs.compare(whole, cut).sentence
    assert f"has what `{layer}` contributes beside the reference's" in gs.compare(cut, whole).sentence


@pytest.mark.slow
def test_tables_of_other_values_and_a_factor_are_no_shared_parameter() -> None:
    for one, other in ((_dump(), _dump(tied=False, other=True)), (_dump(tied=False), _dump(tied=False, other=True))):
        assert "one parameter" not in gs.compare(one, other).sentence
    assert gs.compare(_dump(tied=False), _dump(tied=False, names="new_", turned=True)).verdict == "same"
