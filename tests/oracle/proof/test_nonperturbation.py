"""The second proof: observing changes nothing.

Operation by operation it changes no bit of the loss or of any gradient. Compiled, more outputs change what the compiler
fuses; how far that moves the rounding is measured by the self-check, which in turn is given programs that do change
something, and has to find them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gradscope
from gradscope.instrument.rewriting import interpreter
from tests.oracle import engine
from tests.oracle.proof.commands import Dumped
from tests.oracle.proof.commands import gradscope as gradscope_command
from tests.oracle.zoo import ZOO, Case
from tests.support.sampled import sampled


def bits_of(tree: Any) -> list[bytes]:
    return [engine.bits(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


@cache
def plain(name: str) -> tuple[Case, Any, list[bytes]]:
    """A model, its arguments, and the bits that `jax.value_and_grad` gives for them, every operation run by itself."""
    case = ZOO[name]
    arguments = case.arguments()
    with jax.disable_jit():
        return case, arguments, bits_of(jax.value_and_grad(case.loss, has_aux=case.has_aux)(*arguments))


#: It has dense layers, a loop and checkpoints; the short ResNet has convolutions, statistics and auxiliary outputs.
SCANNED = "transformer, scanned and checkpointed"


@pytest.mark.slow
def test_operation_by_operation_a_step_that_observes_gives_the_same_bits() -> None:
    case, arguments, expected = plain(SCANNED)
    with jax.disable_jit():
        observed, seen = gradscope.value_and_grad(case.loss, has_aux=case.has_aux, observe="tensors")(*arguments)
    assert bits_of(observed) == expected
    assert len(seen) > 0


@sampled("name", [SCANNED, "resnet18, short"])
def test_operation_by_operation_the_program_that_a_dump_runs_gives_the_same_bits(name: str) -> None:
    """Unlike above the model is traced before: loops are loops and checkpoints are checkpoints, and their rules run."""
    case, (variables, batch), expected = plain(name)
    observation = engine.observe(case.loss, variables, batch, jit=False)
    observed = observation.observed
    gradients = [
        observed.gradients.get(number, np.zeros(leaf.shape, leaf.dtype))
        for number, leaf in enumerate(observation.trace.arguments)
        if leaf.family in {"param", "state"}
    ]
    assert len(observed.cotangents) > 0
    assert bits_of([observed.loss, observed.auxiliary, gradients]) == expected


@sampled("name", ["mlp", SCANNED])
def test_compiled_in_float64_gradients_agree_to_the_last_digits(name: str, dumped: Callable[..., Dumped]) -> None:
    assert self_checked(name, dumped(name, "--x64", "--self-check")) <= 1e-12


def test_compiled_in_float32_gradients_agree_to_rounding(dumped: Callable[..., Dumped]) -> None:
    """How far rounding goes is the model's doing: batch norm over few pixels divides by small differences."""
    assert self_checked("resnet18, short", dumped("resnet18, short", "--self-check")) <= 1e-2


def self_checked(name: str, dump: Dumped) -> float:
    """The largest relative difference that a self-check found, when it and the command found no fault."""
    assert dump.command.status == 0, dump.command.messages
    assert "self-check" not in {finding["rule"] for finding in dump.command.report["findings"]}
    checked = dump.command.report["self_check"]
    assert 0 <= checked["bit_equal"] <= checked["total"] == parameters(name)
    return checked["max_rel_l2"]


def parameters(name: str) -> int:
    variables, _ = ZOO[name].arguments()
    return len(jax.tree_util.tree_leaves(variables.get("params", variables)))


@sampled(("factor", "precision"), [(1.001, ()), (1.000000001, ("--x64",))])
def test_a_tap_that_scales_gradients_is_found(
    factor: float, precision: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = interpreter.tap

    def dishonest(value: Any, *arguments: Any) -> Any:
        return honest(value * factor + (1 - factor) * jax.lax.stop_gradient(value), *arguments)

    monkeypatch.setattr(interpreter, "tap", dishonest)
    command = gradscope_command("dump", "mlp", "-o", tmp_path / "run.npz", "--self-check", "--json", "-q", *precision)
    found = [finding for finding in command.report["findings"] if finding["rule"] == "self-check"]
    assert command.status == 1, command.messages
    assert {finding["name"] for finding in found} == {
        f"dense{number}/{leaf}" for number in (1, 2, 3) for leaf in ("kernel", "bias")
    }
    assert command.report["self_check"]["bit_equal"] == 0
