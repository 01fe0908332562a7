"""Finite differences of functions whose derivatives are known, and the error they admit to."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from gradscope.proof.claims import Claim, Outcome, Status, outcome
from gradscope.proof.differences import finite_difference, one_sided_derivatives
from gradscope.proof.rules.faults.wrong_factors import common_factor, confirmed_factor
from gradscope.proof.solvers.solver_tolerance import Tightening

EPSILON = float(np.finfo(np.float64).eps)

#: A function and its derivative at zero.
SMOOTH: dict[str, tuple[Callable[[float], float], float]] = {
    "a constant": (lambda h: 3.0, 0.0),
    "a line": (lambda h: 2.0 * h + 1e3, 2.0),
    "a parabola": (lambda h: (1.0 + h) ** 2, 2.0),
    "an exponential": (lambda h: math.exp(3.0 * h), 3.0),
    "a fast sine": (lambda h: math.sin(50.0 * h + 1.0), 50.0 * math.cos(1.0)),
    "a small slope on a large value": (lambda h: 1e6 + 1e-3 * math.sin(h), 1e-3),
    "a kink nearby": (lambda h: math.sin(h) + max(h - 1e-5, 0.0), 1.0),
    "a thousand kinks nearby": (lambda h: h + sum(max(h - k * 1e-6, 0.0) for k in range(1, 1000)) * 1e-3, 1.0),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_a_derivative_is_within_its_error_estimate(name: str) -> None:
    function, slope = SMOOTH[name]
    found = finite_difference(function, EPSILON)
    assert abs(found.value - slope) <= 16 * (found.truncation + found.rounding)
    assert found.truncation + found.rounding <= 1e-6 * max(1.0, EPSILON * 1e12 * abs(function(0.0)))


def test_a_function_of_few_digits_has_a_larger_error_estimate() -> None:
    def rounded(h: float) -> float:
        return float(np.float32(math.sin(h + 1.0)))

    found = finite_difference(rounded, float(np.finfo(np.float32).eps))
    assert 1e-7 < found.truncation + found.rounding < 1e-2
    assert abs(found.value - math.cos(1.0)) <= 16 * (found.truncation + found.rounding)


@pytest.mark.parametrize(
    ("function", "differ"),
    [
        (abs, True),
        (lambda h: max(2.0 * h, 3.0 * h), True),
        (lambda h: math.sin(h) + 1e-3 * abs(h), True),
        (lambda h: math.sin(h) + 1e3 * h * h, False),
        (lambda h: 5.0, False),
        (math.exp, False),
    ],
)
def test_a_kink_is_distinguished_from_a_curve(function: Callable[[float], float], differ: bool) -> None:
    assert one_sided_derivatives(function, EPSILON).differ is differ


def claim(function: Callable[[float], float], derivative: float) -> Claim:
    return Claim(loss_at=function, derivative=derivative, scale=abs(derivative), epsilon=EPSILON)


def at_home() -> Claim:
    raise AssertionError("a smooth function is not looked at elsewhere")


def test_a_right_claim_is_correct_and_one_off_by_a_millionth_is_wrong() -> None:
    assert outcome(claim(math.sin, 1.0), at_home).status == "correct"
    wrong = outcome(claim(math.sin, 1.0 + 1e-6), at_home)
    assert wrong.status == "wrong"
    assert wrong.error == pytest.approx(1e-6, rel=1e-2)


def test_a_missing_gradient_is_wrong_and_a_zero_of_zero_is_correct() -> None:
    assert outcome(claim(math.sin, 0.0), at_home).status == "wrong"
    assert outcome(claim(lambda h: 4.0, 0.0), at_home).status == "correct"
    assert outcome(claim(math.sin, math.nan), at_home).status == "wrong"


def test_an_inconclusive_difference_is_not_checked() -> None:
    assert outcome(claim(lambda h: math.nan, 1.0), at_home).status == "not checked"
    few_digits = Claim(loss_at=lambda h: round(100.0 * (1.0 + h)) / 100.0, derivative=1.0, scale=1.0, epsilon=0.01)
    assert outcome(few_digits, at_home).status == "not checked"


def test_differences_that_are_unclear_give_way_to_those_of_solvers_that_run_longer() -> None:
    def held(derivative: float) -> Outcome:
        steps = Claim(loss_at=lambda h: round(100.0 * h) / 100.0, derivative=derivative, scale=1.0, epsilon=0.01)
        return outcome(steps, lambda: steps, {"condition": lambda: claim(lambda h: 1.0 + h, derivative)})

    assert held(1.0).status == "correct"
    assert held(1.0).expected <= 1e-6
    assert held(1.01).status == "not checked"


def test_at_a_kink_any_slope_between_the_one_sided_derivatives_passes_if_it_is_right_nearby() -> None:
    nearby = claim(lambda h: abs(h + 1.0), 1.0)
    for derivative in (-1.0, 0.5, 1.0):
        assert outcome(claim(abs, derivative), lambda: nearby).status == "not smooth here"
    assert outcome(claim(abs, 0.5), lambda: claim(lambda h: abs(h + 1.0), 2.0)).status == "wrong"


def test_where_every_point_is_a_kink_a_claim_must_be_between_the_one_sided_derivatives() -> None:
    assert outcome(claim(abs, 0.3), lambda: claim(abs, 0.3)).status == "not smooth here"
    assert outcome(claim(abs, 1.3), lambda: claim(abs, 1.3)).status == "wrong"


@pytest.mark.parametrize(
    ("derivative", "noise", "expected"),
    [
        (1e-18, 1e-16, "correct"),  # zero but for rounding, of the claim and of the loss
        (1e-7, 1e-16, "wrong"),  # the loss would show it
        (1e-18, 1e-5, "not smooth here"),  # the loss may have one
    ],
)
def test_a_derivative_that_is_zero_but_for_rounding_is_that_where_the_loss_shows_none(
    derivative: float, noise: float, expected: str
) -> None:
    def loss_at(step: float) -> float:
        return 1.0 + noise * math.sin(1e15 * step)

    claim = Claim(loss_at=loss_at, derivative=derivative, scale=abs(derivative), epsilon=EPSILON)
    found = outcome(claim, lambda: claim)
    assert (found.status, found.zero) == (expected, expected == "correct")


@pytest.mark.parametrize(
    ("statuses", "factors", "expected"),
    [
        (("wrong", "wrong"), (2.0, 2.0), 2.0),
        (("wrong", "correct"), (2.0, 2.0), 2.0),  # it counts for little along the second direction
        (("wrong", "correct"), (2.0, 1.0), math.nan),
        (("correct", "correct"), (1.0, 1.0), math.nan),
        (("wrong", "not checked"), (2.0, 2.0), math.nan),
    ],
)
def test_the_factor_of_a_wrong_claim_is_one_along_all_directions(
    statuses: tuple[Status, Status], factors: tuple[float, float], expected: float
) -> None:
    found = [
        Outcome(status=status, error=0.1, expected=1e-2, factor=factor)
        for status, factor in zip(statuses, factors, strict=True)
    ]
    assert common_factor(found) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("further", "expected"), [(2.69048, 2.69048), (2.5, math.nan)])
def test_a_factor_that_two_directions_have_by_chance_is_none(further: float, expected: float) -> None:
    """Of a sum over examples whose gradients have factors of their own, each direction weighs these anew."""

    def along(factor: float) -> Outcome:
        return Outcome(status="wrong", error=0.5, expected=1e-7, factor=factor)

    found = confirmed_factor([along(2.69050), along(2.69046)], lambda: along(further))
    assert found == pytest.approx(expected, abs=1e-4, nan_ok=True)


def with_solvers(errors_of: Callable[[int], tuple[float, float]]) -> Outcome:
    """The outcome of a claim of 1 whose rule and function have errors that depend on how often a solver repeats."""

    def claim(times: int) -> Claim:
        of_rule, of_function = errors_of(times)
        return Claim(loss_at=lambda step: (1 + of_function) * step, derivative=1 + of_rule, scale=1.0, epsilon=EPSILON)

    ways: dict[Tightening, int] = {"repetitions": 4, "many repetitions": 64, "most repetitions": 512}
    return outcome(claim(1), lambda: claim(1), {way: partial(claim, times) for way, times in ways.items()})


@pytest.mark.parametrize(
    ("rule", "status"), [(0.0, "correct"), (3e-4, "wrong"), (1e-3, "wrong"), (1e-2, "wrong"), (1e-1, "wrong")]
)
def test_solvers_that_come_to_their_end_leave_the_error_of_the_rule(rule: float, status: str) -> None:
    """A larger error of a rule is no better hidden by those of a solver than a smaller one."""
    found = with_solvers(lambda times: (1e-2 * 2.0**-times + rule, -1e-2 * 2.0**-times))
    assert found.status == status


def test_a_slow_solver_whose_errors_are_alike_by_chance_is_no_wrong_rule() -> None:
    errors = {1: (5e-4, 4.4e-4), 4: (1.3e-4, 1e-4), 64: (1e-5, 3e-5), 512: (4e-6, -6e-6)}
    assert with_solvers(errors.__getitem__).status == "correct"
    assert with_solvers(lambda times: (errors[times][0] + 2e-2, errors[times][1])).status == "wrong"


def test_a_factor_is_not_that_of_one_direction_where_solvers_hide_the_other() -> None:
    def found(factors: tuple[float, ...], status: Status, expected: float) -> Outcome:
        return Outcome(status=status, error=1e-2, expected=expected, factor=factors[0], longer=factors[1:])

    one = found((1.0087, 1.003, 1.0013), "wrong", 1e-7)
    assert math.isnan(common_factor([one, found((1.035, 1.009, 1.0002), "correct", 3e-2)]))
    slow = found((1.035, 1.014, 1.01001), "correct", 3e-2)
    assert common_factor([found((1.0137, 1.0109, 1.01), "wrong", 1e-7), slow]) == pytest.approx(1.01, abs=1e-5)
