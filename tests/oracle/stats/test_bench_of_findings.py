"""A part of the bench of findings: faults that were planted are found first, and nothing is in healthy models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "scripts"))

from findings_bench import (  # noqa: E402
    choices,
    faults_paths,
    faults_values,
    healthy_plain,
    held_out_faults,
    held_out_healthy,
    inner_functions,
    margins,
    recent_models,
    stopped_parts,
)
from findings_bench.cases import Fault, Healthy, findings_of  # noqa: E402

FAULTS = {
    each.name: each
    for each in (
        *faults_values.FAULTS,
        *faults_paths.FAULTS,
        *inner_functions.FAULTS,
        *choices.FAULTS,
        *margins.FAULTS,
        *stopped_parts.FAULTS,
        *held_out_faults.FAULTS,
    )
}
HEALTHY = {
    each.name: each
    for each in (
        *healthy_plain.HEALTHY,
        *inner_functions.HEALTHY,
        *choices.HEALTHY,
        *margins.HEALTHY,
        *recent_models.HEALTHY,
        *stopped_parts.HEALTHY,
        *held_out_healthy.HEALTHY,
    )
}


@pytest.fixture(autouse=True)
def _as_users_run_it() -> Iterator[None]:
    """The models add vectors to matrices, and mix dtypes, as users' models do."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["init-large-one", "sigmoid-stack", "dead-most", "saturated-tanh", "half-underflow",
     "mask-features", "h-softmax-masked", "unscoped-softmax",
     "inner-gates", "codes-of-large-unscoped",
     "unscaled-added-mask", "softmax-twice-unscoped", "positions",
     "dead-before-margin", "stop-gate", "stop-encoder"],
)  # fmt: skip
def test_a_planted_fault_is_the_first_finding(name: str) -> None:
    findings = findings_of(FAULTS[name].run().manifest())
    assert FAULTS[name].is_found(findings), findings


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["mlp, batch 4, bfloat16", "attention masked by -inf",
     "closed gates of texts that are mostly padding",
     "variational autoencoder", "auxiliary NaN and an unused average", "couplings, zero-initialised",
     "frozen trunk", "GELU units of large operands", "target critic of a trained policy", "discriminator's step",
     "cold codes by noise that is drawn", "hard codes, straight through", "gates of the concrete distribution",
     "a divergence whose bits are free", "triplets whose margin is kept", "classes apart by a margin",
     "critic with a penalty"],
)  # fmt: skip
def test_nothing_is_found_in_a_healthy_model(name: str) -> None:
    assert findings_of(HEALTHY[name].run().manifest()) == ()


def test_the_bench_has_the_cases_that_its_page_promises() -> None:
    cases: tuple[Healthy | Fault, ...] = (*FAULTS.values(), *HEALTHY.values())
    assert len(FAULTS) >= 40
    assert len({case.name for case in cases}) == len(cases)
