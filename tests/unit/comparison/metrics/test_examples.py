"""The error of per-example gradients, against float64 sums over planted noise and bias, in every layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison import CompareOptions, Comparison, ToleranceRule, compare
from gradscope.comparison.layout.recipe_steps import Transpose
from gradscope.comparison.metrics.examples import example_errors as examplemeasuring
from gradscope.comparison.metrics.examples.example_spread import ExampleError
from gradscope.comparison.pairing.by_rules import MapRule
from gradscope.dump.reader import open_dump
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.naming.selecting.patterns import Pattern
from gradscope.naming.wording import percent
from gradscope.presentation import ComparisonReport, to_markdown, to_text
from tests.support.dumps import dump_of, record, write
from tests.support.report_samples import PIPE
from tests.support.sampled import sampled

Array = np.ndarray[Any, Any]

COUNT = 32
RANDOM = np.random.default_rng(0)
#: Two parameters' gradients, of 32 examples.
GRADIENTS: dict[str, Array] = {
    "example_grad/kernel": RANDOM.standard_normal((COUNT, 5, 3)) + 1.0,
    "example_grad/bias": RANDOM.standard_normal((COUNT, 4)) * 3.0,
}
NOISE = {key: RANDOM.standard_normal(each.shape) for key, each in GRADIENTS.items()}


def moved(*, noise: float = 0.0, shift: float = 0.0) -> dict[str, Array]:
    """The gradients with noise that is another in each example, and a shift that is the same in all."""
    return {key: each + noise * NOISE[key] + shift for key, each in GRADIENTS.items()}


def metrics_of(ref: Array, cand: Array) -> dict[str, float]:
    """The definitions, in float64 and all at once."""
    wide = np.complex128 if np.iscomplexobj(ref) else np.float64
    g, d = ref.astype(wide), cand.astype(wide) - ref.astype(wide)
    count, axes = len(g), tuple(range(1, g.ndim))
    sigma = math.sqrt((np.abs(g - g.mean(axis=0)) ** 2).sum() / (count - 1))
    e = math.sqrt((np.abs(d) ** 2).sum(axis=axes).mean())
    s = math.sqrt((np.abs(d - d.mean(axis=0)) ** 2).sum() / (count - 1))
    b = math.sqrt(max(0.0, (np.abs(d.mean(axis=0)) ** 2).sum() - s * s / count))
    return {"spread": e / sigma, "random": s / sigma, "bias": b / sigma}


def found(cand: Mapping[str, Array], ref: Mapping[str, Array] = GRADIENTS, **options: Any) -> Comparison:
    return compare(dump_of(ref), dump_of(cand), options=CompareOptions(**options))


def measured(comparison: Comparison, name: str = "kernel") -> dict[str, Any]:
    (row,) = [row for row in comparison.rows if row.name == name]
    return {metric: row.metrics[metric] for metric in ("spread", "random", "bias") if metric in row.metrics}


def narrowed(tensors: Mapping[str, Array], dtype: Any) -> dict[str, Array]:
    return {key: each.astype(dtype) for key, each in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "elements"), [(1, 1), (4, 9), (7, 1), (1 << 16, 45), (1 << 16, 1 << 19)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16, np.complex64])
def test_the_metrics_are_their_definitions(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, columns: int, elements: int
) -> None:
    monkeypatch.setattr(examplemeasuring, "_COLUMNS", columns)
    monkeypatch.setattr(examplemeasuring, "_ELEMENTS", elements)
    ref, cand = narrowed(GRADIENTS, dtype), narrowed(moved(noise=0.1, shift=0.03), dtype)
    comparison = found(cand, ref)
    for name in ("kernel", "bias"):
        key = f"example_grad/{name}"
        assert measured(comparison, name) == pytest.approx(metrics_of(ref[key], cand[key]), rel=1e-12)
    both = [np.concatenate([side[key].reshape(COUNT, -1) for key in ref], axis=1) for side in (ref, cand)]
    assert comparison.examples is not None
    assert comparison.examples.columns() == pytest.approx(metrics_of(both[0], both[1]), rel=1e-12)


def test_a_file_is_read_in_the_same_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examplemeasuring, "_COLUMNS", 4)
    monkeypatch.setattr(examplemeasuring, "_ELEMENTS", 50)
    paths = [
        write(tmp_path / f"{name}.npz", [record("w", each["example_grad/kernel"], family="example_grad")])
        for name, each in (("ref", GRADIENTS), ("cand", moved(noise=0.1)))
    ]
    with open_dump(paths[0]) as ref, open_dump(paths[1]) as cand:
        expected = metrics_of(GRADIENTS["example_grad/kernel"], moved(noise=0.1)["example_grad/kernel"])
        assert measured(compare(ref, cand), "w") == pytest.approx(expected, rel=1e-12)


def test_a_shift_of_all_examples_is_bias() -> None:
    comparison = found(moved(shift=0.05))
    each = measured(comparison)
    assert each["bias"] == pytest.approx(each["spread"], rel=1e-12)
    assert each["random"] < 1e-12
    assert comparison.examples is not None
    assert comparison.examples.systematic


def test_noise_in_each_example_is_random() -> None:
    comparison = found(moved(noise=0.05))
    each = measured(comparison)
    assert each["random"] == pytest.approx(each["spread"], rel=0.05)
    assert each["bias"] < 0.3 * each["random"]
    assert comparison.examples is not None
    assert not comparison.examples.systematic


def test_a_bias_below_the_noise_of_an_example_is_found_in_many() -> None:
    comparison = found(moved(noise=0.05, shift=0.04))
    assert comparison.examples is not None
    assert comparison.examples.bias < comparison.examples.random
    assert comparison.examples.systematic


@pytest.mark.slow
@sampled("heavy", [False, True])
@pytest.mark.parametrize("size", [1, 100])
def test_chance_is_seldom_taken_for_bias_and_bias_for_chance(size: int, heavy: bool) -> None:
    random = np.random.default_rng(0)
    scale = np.exp(random.standard_normal((200, 12, 1))) if heavy else 1.0
    chance = random.standard_normal((200, 12, size)) * scale
    gradients = {f"example_grad/{run}": each for run, each in enumerate(random.standard_normal(chance.shape))}

    def biased(shift: float) -> int:
        moved = {key: each + chance[run] + shift for run, (key, each) in enumerate(gradients.items())}
        errors = [row.examples for row in found(moved, gradients).rows]
        return sum(error is not None and error.systematic for error in errors)

    assert biased(0.0) <= 2
    assert biased(10.0) >= 150


def test_two_examples_do_not_distinguish_bias_from_chance() -> None:
    error = found({"example_grad/w": np.eye(2) + 1}, {"example_grad/w": np.eye(2)}).examples
    assert error is not None
    assert error.standard_errors is None
    assert error.sentence.endswith("% bias, which 2 examples do not tell from chance.")
    assert "standard_errors" not in error.to_json()


def test_error_is_the_root_of_its_parts() -> None:
    error = found(moved(noise=0.1, shift=0.2)).examples
    assert error is not None
    assert error.spread == pytest.approx(math.hypot(error.random, error.bias), rel=1e-12)


def test_equal_gradients_have_no_error_and_their_part_in_the_spread() -> None:
    cand = {**GRADIENTS, "example_grad/bias": moved(noise=0.1)["example_grad/bias"]}
    comparison = found(cand)
    assert measured(comparison) == {"spread": 0.0, "random": 0.0, "bias": 0.0}
    both = [np.concatenate([side[key].reshape(COUNT, -1) for key in GRADIENTS], axis=1) for side in (GRADIENTS, cand)]
    assert comparison.examples is not None
    assert comparison.examples.columns() == pytest.approx(metrics_of(both[0], both[1]), rel=1e-12)
    assert found(GRADIENTS).examples is None


@pytest.mark.parametrize(
    ("ref", "cand", "metrics"),
    [
        (np.ones((4, 3)), np.ones((4, 3)) * 2, {"spread": math.inf, "random": 0.0, "bias": math.inf}),
        (np.ones((4, 0)), np.ones((4, 0)), {"spread": 0.0, "random": 0.0, "bias": 0.0}),
        (np.ones((1, 3)), np.zeros((1, 3)), {}),
        (np.ones((0, 3)), np.ones((0, 3)), {}),
        (np.ones(()), np.zeros(()), {}),
    ],
    ids=["without spread", "of nothing", "one example", "no example", "no axis of examples"],
)
def test_where_there_is_nothing_to_divide_by(ref: Array, cand: Array, metrics: dict[str, float]) -> None:
    assert measured(found({"example_grad/w": cand}, {"example_grad/w": ref}), "w") == metrics


def test_an_element_counts_where_it_is_finite_in_every_example_of_both() -> None:
    ref, cand = (side["example_grad/kernel"].copy() for side in (GRADIENTS, moved(noise=0.1)))
    ref[3, 0, 0], cand[5, 1, 1], cand[6, 2, 2] = np.nan, np.inf, -np.inf
    finite = np.isfinite(ref).all(axis=0) & np.isfinite(cand).all(axis=0)
    comparison = found({"example_grad/kernel": cand}, {"example_grad/kernel": ref})
    assert measured(comparison) == pytest.approx(metrics_of(ref[:, finite], cand[:, finite]), rel=1e-12)


def test_an_element_whose_square_is_beyond_float64_does_not_count() -> None:
    ref, cand = (side["example_grad/kernel"].copy() for side in (GRADIENTS, moved(noise=0.1)))
    ref[3, 0, 0], cand[5, 1, 1], cand[:, 2, 2] = 1e200, -1e300, 1e200
    small = np.abs(ref).max(axis=0) + np.abs(cand).max(axis=0) < 1e9
    comparison = found({"example_grad/kernel": cand}, {"example_grad/kernel": ref})
    assert measured(comparison) == pytest.approx(metrics_of(ref[:, small], cand[:, small]), rel=1e-12)


def test_other_gradients_and_statistics_alone_have_no_such_metrics() -> None:
    tensors = {"param_grad/kernel": GRADIENTS["example_grad/kernel"]}
    assert measured(found({"param_grad/kernel": np.zeros((COUNT, 5, 3))}, tensors)) == {}
    bare = MemoryDump(dump_of(GRADIENTS).manifest, {})
    assert measured(compare(dump_of(GRADIENTS), bare)) == {}


def test_tolerances_may_use_them() -> None:
    rules = (ToleranceRule.parse("example_grad/.*=bias < 0.02 and random < 0.2"),)
    assert found(moved(noise=0.1), rules=rules).verdict == "same"
    assert found(moved(noise=0.1, shift=0.1), rules=rules).verdict == "different"


def test_a_transposed_parameter_has_transposed_gradients_of_each_example() -> None:
    """Also where there are as many examples as rows, and a gradient shows its layout no better than noise does."""
    kernel, square = RANDOM.standard_normal((5, 3)), RANDOM.standard_normal((5, 5, 3))
    other = square + 0.1 * RANDOM.standard_normal(square.shape)
    ref = {"param/dense/kernel": kernel, "example_grad/dense/kernel": square}
    cand = {"param/dense.weight": kernel.T, "example_grad/dense.weight": other.transpose(0, 2, 1)}
    row = next(row for row in found(cand, ref).rows if row.family == "example_grad")
    assert (row.matched_by, row.made_by) == ("path", "transpose [1, 0]")
    assert row.metrics["spread"] == pytest.approx(metrics_of(square, other)["spread"], rel=1e-12)
    silent = {**cand, "example_grad/dense.weight": np.zeros((5, 3, 5))}
    row = next(row for row in found(silent, ref).rows if row.family == "example_grad")
    assert row.made_by == "transpose [1, 0]"


def test_dissimilar_names_are_paired_by_values_in_their_layout() -> None:
    ref = {"example_grad/a": GRADIENTS["example_grad/kernel"]}
    cand = {"example_grad/z": np.ascontiguousarray(GRADIENTS["example_grad/kernel"].transpose(0, 2, 1))}
    (row,) = found(cand, ref).rows
    assert (row.matched_by, row.made_by, row.status) == ("fingerprint", "transpose [1, 0]", "same")


def test_a_stack_of_layers_is_unstacked_after_the_axis_of_examples() -> None:
    layers = [RANDOM.standard_normal((COUNT, 3, 2)) for _ in range(2)]
    ref = {f"example_grad/layers_{number}/w": each for number, each in enumerate(layers)}
    comparison = found({"example_grad/layers/w": np.stack(layers, axis=1)}, ref)
    assert [(row.made_by, row.status) for row in comparison.rows] == [("unstack 0", "same")] * 2


def test_a_rule_of_a_map_is_about_the_parameter() -> None:
    rule = MapRule(candidate=Pattern.parse("re:out"), reference=("kernel",), steps=(Transpose((1, 0)),))
    ref = {"param/kernel": np.eye(5, 3), "example_grad/kernel": GRADIENTS["example_grad/kernel"]}
    cand = {"param/out": np.eye(3, 5), "example_grad/out": GRADIENTS["example_grad/kernel"].transpose(0, 2, 1)}
    assert found(cand, ref, map_rules=(rule,)).verdict == "same"


def test_the_verdict_states_whether_it_is_noise_or_bias() -> None:
    noisy = ExampleError(
        count=3, batch_variance=1e4, random_variance=0.64, products=(0.64, 0, 0, 0, 0.64, 0.1, 0, 0.1, 0.64)
    )
    assert noisy.sentence == (
        "Per example the error is 0.81 % of the batch's own spread: 0.8 % random, 0.15 % bias, "
        "which 3 examples do not tell from chance."
    )
    biased = replace(noisy, products=(64.5, 64, 64, 64, 64.5, 63.9, 64, 63.9, 64.5))
    assert biased.sentence == (
        "Per example the error is 8 % of the batch's own spread: 0.8 % random, 8 % systematic bias."
    )
    flat = replace(noisy, batch_variance=0.0)
    assert flat.sentence == "Per example there is an error, and the batch has no spread of its own to compare it with."


def test_it_follows_the_verdict_in_every_format() -> None:
    comparison = found(moved(shift=0.05))
    assert comparison.examples is not None
    sentence = comparison.examples.sentence
    lines = to_text(ComparisonReport(comparison=comparison), PIPE).plain.splitlines()
    assert lines[1] == f"examples   {sentence}"
    assert sentence in to_markdown(ComparisonReport(comparison=comparison))
    document: Any = comparison.to_json()
    assert document["examples"] == {
        "count": COUNT,
        **comparison.examples.columns(),
        "standard_errors": comparison.examples.standard_errors,
        "systematic": True,
        "sentence": sentence,
    }
    assert "examples" not in found(GRADIENTS).to_json()


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (5e-8, "5.0e-6 %"), (0.0005, "0.05 %"), (0.116, "12 %"), (1.3, "130 %")]
)
def test_a_share_in_two_digits(share: float, text: str) -> None:
    assert percent(share) == text
