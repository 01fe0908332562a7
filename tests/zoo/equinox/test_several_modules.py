"""Several Equinox modules in a dictionary or a tuple are parameters together, named by their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradscope as gs

pytest.importorskip("equinox", reason="equinox is not installed: pip install 'gradscope-jax[equinox]'")
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gradscope.frameworks.detect import own_format_of, split_variables


def _modules() -> tuple[eqx.nn.MLP, eqx.nn.MLP]:
    first, second = jax.random.split(jax.random.key(0))
    return eqx.nn.MLP(4, 3, 8, 1, key=first), eqx.nn.MLP(3, 2, 8, 1, key=second)


@pytest.mark.parametrize("places", [("encoder", "head"), (0, 1)])
def test_modules_in_a_container_are_named_by_their_places(places: tuple[Any, Any]) -> None:
    modules = _modules()
    held = modules if places == (0, 1) else dict(zip(places, modules, strict=True))
    x = jnp.linspace(-1.0, 1.0, 20).reshape(5, 4)

    def loss(held: Any, x: Any) -> Any:
        return jnp.square(jax.vmap(lambda each: held[places[1]](held[places[0]](each)))(x)).mean()

    dump = gs.capture(loss, held, x)
    params = {key for key in dump if key.startswith("param/")}
    assert params == {f"param/{at}/layers/{n}/{leaf}" for at in places for n in (0, 1) for leaf in ("weight", "bias")}
    gradients = eqx.filter_grad(loss)(held, x)
    for at in places:
        expected = gradients[at].layers[0].weight
        np.testing.assert_allclose(dump[f"param_grad/{at}/layers/0/weight"], expected, rtol=1e-4, atol=1e-9)
        assert f"activation/{at}/layers/1" in {*dump}


def test_modules_in_a_container_are_read_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "both.eqx"
    eqx.tree_serialise_leaves(file, _modules())
    assert own_format_of(_modules(), file) is not None


def test_what_has_more_than_modules_or_arrays_alone_is_a_pytree_as_it_is() -> None:
    first, second = _modules()
    linear = first.layers[0]
    assert split_variables({"a": first, "scale": jnp.ones(())}) is None
    assert split_variables({"a": linear, "b": linear}) is None
    assert split_variables([]) is None
    assert split_variables([first, second]) is not None
