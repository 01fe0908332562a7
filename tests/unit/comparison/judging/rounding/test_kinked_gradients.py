"""An error that a kink makes is inherited: what creeps from there is no fault, and what jumps is one."""

from __future__ import annotations

import itertools
import math

import pytest

from gradscope.comparison.judging.rounding.kinked_gradients import kinked_tolerances
from gradscope.comparison.judging.rounding.kinks import KinkedShare
from gradscope.dump.manifest.layer_graph import sources_of
from gradscope.dump.manifest.manifest import Layer

TOLERANCE = 5e-4


def _raised(
    errors: list[float], shares: dict[int, KinkedShare], value_errors: float = 0.0, factor: int | None = None
) -> dict[int, float]:
    """Returns the tolerances that a chain of gradients gets, the first of which is the nearest to the loss."""
    names = [f"layer{number}" for number in range(len(errors))]
    layers = [
        Layer(path=name, index=len(names) - number, inputs=(behind,), outputs=(name,), params=(f"{name}/kernel",))
        for number, (name, behind) in enumerate(itertools.pairwise(names))
    ]
    found = {f"activation_grad/{name}": error for name, error in zip(names, errors, strict=True)}
    found |= {f"activation/{name}": value_errors for name in names}
    by_key = {f"activation_grad/layer{number}": share for number, share in shares.items()}
    raised = kinked_tolerances(
        sources_of(layers),
        found,
        dict.fromkeys(found, TOLERANCE),
        lambda key: by_key.get(key, KinkedShare()),
        lambda key, _: key == f"activation_grad/layer{factor}",
    )
    return {int(key.removeprefix("activation_grad/layer")): limit for key, limit in raised.items()}


def test_what_is_computed_from_a_gradient_at_a_kink_may_have_four_times_its_error() -> None:
    raised = _raised([1e-5, 3e-3, 3.3e-3, 3.6e-3], {1: KinkedShare(count=1, size=9, made=3e-3)})
    assert raised == {
        1: pytest.approx(math.hypot(3e-3, TOLERANCE)),
        2: pytest.approx(12e-3),
        3: pytest.approx(math.hypot(4 * 3e-3, TOLERANCE)),
    }


def test_a_rectifier_that_computed_the_value_makes_the_error_behind_it() -> None:
    raised = _raised([1e-5, 3e-3, 3e-3], {0: KinkedShare(count=1, size=9, passed=2e-3)})
    assert raised[1] == pytest.approx(4 * math.hypot(1e-5, 2e-3))
    assert raised[2] == pytest.approx(math.hypot(4 * 2e-3, TOLERANCE))


def test_an_error_that_jumps_is_a_fault_and_so_is_what_inherits_it() -> None:
    raised = _raised([1e-5, 3e-3, 3e-2, 3e-2], {1: KinkedShare(count=1, size=9, made=3e-3)})
    assert raised.keys() == {1, 2}
    assert raised[2] < 3e-2


def test_errors_creep_up_to_four_times_what_kinks_make() -> None:
    errors = [1e-5, *(3e-3 * 1.5**number for number in range(12))]
    raised = _raised(errors, {1: KinkedShare(count=1, size=9, made=3e-3)})
    limit = math.hypot(4 * 3e-3, TOLERANCE)
    assert max(raised.values()) == pytest.approx(limit)
    assert [errors[number] <= raised[number] for number in sorted(raised)].count(False) == 1


def test_no_kink_or_values_that_differ_leave_the_default() -> None:
    assert not _raised([1e-5, 3e-3, 3e-3], {})
    assert not _raised([1e-5, 3e-3, 3e-3], {1: KinkedShare(count=1, size=9, made=3e-3)}, value_errors=1e-2)


def test_a_factor_that_nothing_before_has_is_no_kink() -> None:
    shares = {1: KinkedShare(count=1, size=9, made=3e-3)}
    assert _raised([1e-5, 3e-3, 3.3e-3, 3.6e-3], shares, factor=2).keys() == {1}
