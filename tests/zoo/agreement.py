"""A foreign model agrees with its own framework: one dump of it, and what it is compared with.

The dump gives variables, inputs and labels; everything it is compared with is computed from those by the framework
alone, with a loss written out in the test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradscope.api.reading import Dump
from gradscope.capturing.dump_model import DumpRequest, dump_model
from gradscope.capturing.execution.arguments import model_arguments
from gradscope.capturing.timings import Timings
from gradscope.dump.sources.memory_dump import MemoryWriter
from gradscope.frameworks.modules.input_spec import parse_input
from gradscope.frameworks.modules.request import LossName, Request
from gradscope.instrument.query.capture_spec import CaptureSpec
from gradscope.tracing.loading.loader import load_model
from gradscope.tracing.loading.module_models import with_array_variables

#: Relative l2 distance within which two float32 programs agree that were compiled apart.
CLOSE = 2e-5


def dump(target: str, *inputs: str, loss: LossName | None = None, train: bool | None = None, seed: int = 0) -> Dump:
    """What `gradscope dump TARGET --input ...` writes."""
    request = Request(inputs=tuple(map(parse_input, inputs)), loss=loss, train=train, seed=seed)
    model = with_array_variables(load_model(target, request))
    writer = MemoryWriter()
    arguments = model_arguments(model, seed=seed)
    return Dump(writer.dump(dump_model(model, arguments, DumpRequest(spec=CaptureSpec()), writer, Timings())))


def source(folder: Path, text: str) -> str:
    """A target: the text as a file `net.py`."""
    (folder / "net.py").write_text(text)
    return "net.py"


def family(seen: Dump, name: str) -> dict[str, np.ndarray]:
    """A family's tensors by name."""
    return {key.removeprefix(f"{name}/"): seen[key] for key in seen if key.startswith(f"{name}/")}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dictionaries, of names with slashes."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *outer, last = path.split("/")
        inside = tree
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = jnp.asarray(value)
    return tree


def by_path(tree: Any) -> dict[str, Any]:
    """A pytree's leaves by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Mean negative log-likelihood, written out."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = jnp.log(jnp.exp(shifted).sum(axis=-1))
    picked = (shifted * jax.nn.one_hot(labels, logits.shape[-1])).sum(axis=-1)
    return (log_sum - picked).mean()


def assert_same_tensors(found: Mapping[str, Any], expected: Mapping[str, Any], close: float = CLOSE) -> None:
    """The same names, and under each the same numbers; a tensor that is nearly zero is measured against all of them."""
    assert found.keys() == expected.keys()
    largest = max(float(np.linalg.norm(np.ravel(each))) for each in expected.values())
    for name, value in expected.items():
        assert found[name].shape == np.shape(value), name
        distance = float(np.linalg.norm(np.ravel(found[name]) - np.ravel(value)))
        scale = max(float(np.linalg.norm(np.ravel(value))), 1e-2 * largest)
        assert distance <= close * scale, f"{name}: {distance / scale:.2e}"


def assert_gradients(seen: Dump, expected: Any, close: float = CLOSE) -> None:
    """The gradients of parameters are those of a pytree; a parameter that has none is one that JAX gives zeros for."""
    found, by_name = family(seen, "param_grad"), by_path(expected)
    assert by_name.keys() == family(seen, "param").keys()
    assert not any(np.any(value) for name, value in by_name.items() if name not in found)
    assert_same_tensors(found, {name: by_name[name] for name in found}, close)


def assert_activations(
    seen: Dump, captured: Mapping[str, Any], idle: Collection[str] = (), close: float = CLOSE
) -> None:
    """Every layer that a framework captured is in the dump under its name, with the values that the framework has.

    Args:
        seen: The dump.
        captured: What each layer returned, a pytree, by the name that it has here.
        idle: Those of them that compute nothing, and so hand on nothing of their own.
        close: As for `assert_same_tensors`.
    """
    found = family(seen, "activation")
    assert not idle - captured.keys()
    assert not found.keys() & idle
    expected = {
        f"{name}: {path}": (name, np.asarray(leaf))
        for name, value in captured.items()
        if name not in idle
        for path, leaf in by_path(value).items()
    }
    nearest = {where: _nearest(found, name, leaf) for where, (name, leaf) in expected.items()}
    assert_same_tensors(nearest, {where: leaf for where, (_, leaf) in expected.items()}, close)


def assert_activation_gradients(seen: Dump, expected: Mapping[str, Any], close: float = CLOSE) -> None:
    """The gradients of what layers returned are in the dump under their names, but those that are zero throughout."""
    found = family(seen, "activation_grad")
    moving = {name: np.asarray(value) for name, value in expected.items() if np.any(value)}
    assert len(moving) > 15
    assert_same_tensors({name: _nearest(found, name, value) for name, value in moving.items()}, moving, close)


def zeros_like_arrays(returned: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Zeros to add to each array that a layer returns, by the layer's name, whose gradients are those of the array."""
    shapes = jax.eval_shape(returned)
    return {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if hasattr(leaf, "shape")}


def _nearest(found: Mapping[str, np.ndarray], name: str, expected: np.ndarray) -> np.ndarray:
    """Of what a layer handed on, in the order of making, the one that is like what it returned at some place."""
    several = itertools.takewhile(found.__contains__, (f"{name}.{number}" for number in itertools.count()))
    handed_on = [found[each] for each in ([name] if name in found else several)]
    alike = [each for each in handed_on if each.shape == expected.shape]
    assert alike, f"{name}: {[each.shape for each in handed_on]}, expected {expected.shape}"
    return min(alike, key=lambda each: float(np.linalg.norm(np.ravel(each) - np.ravel(expected))))


def assert_layers_hold_parameters(seen: Dump, *unlinked: str) -> None:
    """Nothing went unseen, and every parameter but the unlinked ones is used by a layer."""
    assert seen.layers
    assert seen.ledger.unseen() == ()
    used = {name: layer.path for layer in seen.layers for name in layer.params}
    assert set(family(seen, "param")) - used.keys() == set(unlinked)
