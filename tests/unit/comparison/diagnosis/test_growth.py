"""Growth: which layer made the error, and which only passed it on."""

from __future__ import annotations

import math

import pytest

from gradscope.comparison.diagnosis.growth import FLAGGED, Error, growths, is_made_here
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Layer

TOLERANCE = 1e-4
CHAIN = (
    Layer(path="block", index=0, inputs=("x",), outputs=("block/relu",)),
    Layer(path="block/dense", index=0, parent="block", inputs=("x",), outputs=("block/dense",)),
    Layer(path="block/relu", index=1, parent="block", inputs=("block/dense",), outputs=("block/relu",)),
    Layer(path="head", index=2, inputs=("block/relu",), outputs=("head",)),
)


def errors(**by_key: float) -> dict[str, Error]:
    return {key: Error(rel_l2=value, tolerance=TOLERANCE) for key, value in by_key.items()}


def test_a_forward_error_is_relative_to_the_inputs_of_the_innermost_layer() -> None:
    found = growths(
        sources_of(CHAIN),
        errors(
            **{"input/x": 1e-6, "activation/block/dense": 1e-2, "activation/block/relu": 2e-2, "activation/head": 1e-2}
        ),
    )
    assert found == pytest.approx({
        "activation/block/dense": 1e4, "activation/block/relu": 2, "activation/head": 0.5,
    })  # fmt: skip
    assert [key for key, growth in found.items() if growth > FLAGGED] == ["activation/block/dense"]


def test_a_backward_error_is_relative_to_the_layers_that_read_the_value() -> None:
    gradients = {"activation_grad/head": 1e-6, "activation_grad/block/relu": 2e-2, "activation_grad/block/dense": 2e-2}
    found = growths(
        sources_of(CHAIN), errors(**gradients, **{"activation/block/relu": 1e-5, "activation/block/dense": 1e-6})
    )
    assert found["activation_grad/block/relu"] == pytest.approx(2e3)
    assert found["activation_grad/block/dense"] == pytest.approx(1)


def test_the_largest_error_of_several_inputs_is_inherited() -> None:
    add = Layer(path="add", index=2, inputs=("left", "right"), outputs=("add",))
    found = growths(
        sources_of([add]), errors(**{"activation/left": 1e-5, "activation/right": 1e-3, "activation/add": 2e-3})
    )
    assert found == pytest.approx({"activation/add": 2})


def test_rounding_is_not_blamed_on_exact_inputs() -> None:
    found = growths(sources_of(CHAIN), errors(**{"input/x": 0.0, "activation/block/dense": 3e-7}))
    assert found["activation/block/dense"] == pytest.approx(0.3)


def test_an_infinite_error_that_was_inherited_did_not_grow() -> None:
    found = growths(sources_of(CHAIN), errors(**{"activation/block/relu": math.inf, "activation/head": math.inf}))
    assert found == {"activation/head": 1}
    assert growths(sources_of(CHAIN), errors(**{"activation/block/relu": math.inf, "activation/head": 1.0})) == {
        "activation/head": 0
    }


def test_without_a_known_input_there_is_no_growth() -> None:
    assert growths(sources_of(CHAIN), errors(**{"activation/head": 1.0, "param/w": 1.0})) == {}


def test_values_without_rounding_have_no_growth() -> None:
    exact = {key: Error(rel_l2=1.0, tolerance=0.0) for key in ("input/x", "activation/block/dense")}
    assert growths(sources_of(CHAIN), exact) == {}


@pytest.mark.parametrize(("epsilon", "made"), [(2**-23, True), (2**-8, False)])
def test_the_rounding_of_a_type_is_not_made_by_a_layer(epsilon: float, made: bool) -> None:
    assert is_made_here(50.0, Error(rel_l2=3e-3, tolerance=2e-2), epsilon) is made
