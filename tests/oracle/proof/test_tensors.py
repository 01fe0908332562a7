"""The first proof: the tensors in a dump are those that the model computes, for every model of the zoo.

Three independent ways lead to the same tensors, in float64, where nothing but mistakes makes a difference to be seen:
a dump; the model written out with every activation returned and perturbed by hand; `jax.grad` of the untouched loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import gradscope
from gradscope import Dump
from tests.oracle.zoo import QUICK, ZOO, Case, in_float64
from tests.support.explicit import named_params, tensors_of

#: Largest relative l2 error. ResNets amplify rounding: batch norm over two examples of one pixel divides by what may be
#: a small difference.
ROUNDING = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One model's tensors by all three ways."""

    case: Case
    dump: Dump
    written_out: Mapping[str, np.ndarray]
    plain_loss: float
    plain_gradients: Mapping[str, np.ndarray]

    def assert_family(self, family: str, expected: Mapping[str, np.ndarray]) -> None:
        """The dump's tensors of one family are these, and no others."""
        expected = {key: tensor for key, tensor in expected.items() if key.startswith(f"{family}/")}
        assert {key for key in self.dump if key.startswith(f"{family}/")} - self.loops(family) == set(expected)
        for key, tensor in expected.items():
            assert_same(self.dump[key], tensor, key)

    def loops(self, family: str) -> set[str]:
        """Returns the keys that only a scanned model has: the loop, a layer around its iterations."""
        return {f"{family}/block"} if "scanned" in self.case.name else set()


# The unrolled transformer is compared with the scanned one.
@pytest.fixture(scope="module", params=[name for name in QUICK if name != "transformer, unrolled"])
def proof(request: pytest.FixtureRequest) -> Iterator[Proof]:
    case = ZOO[request.param]
    with in_float64():
        variables, batch = case.arguments()
        loss, gradients = plain(case, variables, batch)
        yield Proof(
            case=case,
            dump=gradscope.capture(case.loss, variables, batch),
            written_out=tensors_of(case.explicit, variables, batch),
            plain_loss=loss,
            plain_gradients=gradients,
        )


def plain(case: Case, variables: Any, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients as JAX gives them of the untouched loss."""
    differentiate = jax.value_and_grad(case.loss, argnums=(0, 1), has_aux=case.has_aux, allow_int=True)
    value, (of_variables, of_batch) = jax.jit(differentiate)(variables, batch)
    inputs = {f"input_grad/{name}": np.asarray(gradient) for name, gradient in of_batch.items()}
    real = {key: gradient for key, gradient in inputs.items() if gradient.dtype != jax.dtypes.float0}
    return float(value[0] if case.has_aux else value), named_params(of_variables, "param_grad") | real


def assert_same(found: np.ndarray, expected: np.ndarray, key: str) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), key
    assert np.linalg.norm(found - expected) <= ROUNDING * np.linalg.norm(expected), key


def test_the_loss_is_that_of_the_untouched_function(proof: Proof) -> None:
    assert proof.dump.loss == pytest.approx(proof.plain_loss, rel=ROUNDING)


def test_activations_are_those_of_a_forward_pass_that_returns_them(proof: Proof) -> None:
    proof.assert_family("activation", proof.written_out)


def test_activation_gradients_are_those_of_something_added_there(proof: Proof) -> None:
    proof.assert_family("activation_grad", proof.written_out)


def test_parameter_gradients_are_jax_grads_of_the_untouched_loss(proof: Proof) -> None:
    proof.assert_family("param_grad", proof.plain_gradients)


def test_parameter_gradients_are_those_of_the_model_written_out(proof: Proof) -> None:
    proof.assert_family("param_grad", proof.written_out)


def test_input_gradients_are_jax_grads_of_the_untouched_loss(proof: Proof) -> None:
    proof.assert_family("input_grad", proof.plain_gradients)


def test_no_tensor_is_vacuous(proof: Proof) -> None:
    """Zeros agree with zeros, whoever computed them."""
    assert not [key for key in proof.written_out if not proof.written_out[key].any()]


def test_the_ledger_misses_nothing_but_gradients_of_integers(proof: Proof) -> None:
    missing = {(line.family, line.name): line.reason for line in proof.dump.ledger.missing}
    integers = {key for key in proof.dump if key.startswith("input/") and proof.dump[key].dtype == np.int32}
    assert missing == {("input_grad", key.removeprefix("input/")): "non-differentiable" for key in integers}
