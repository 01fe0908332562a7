"""Each rule finds the tensors that it describes, and none that only look similar."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Cause, Entry, Layer, Ledger, LedgerLine, Manifest
from gradscope.dump.record import SiteFacts
from gradscope.stats import RULES, Finding, Thresholds, activation_stats, find, gradient_ratios, tensor_stats


def entry(key: str, values: object, index: int = 0, *, tier: str = "full", **facts: object) -> Entry:
    family, _, name = key.partition("/")
    array = np.array(values, np.float32)
    measure = activation_stats(array, primitive=None) if family == "activation" else tensor_stats(array, tier=tier)  # type: ignore[arg-type]
    return Entry(
        family=family,
        name=name,
        shape=array.shape,
        dtype="float32",
        stats=measure.to_json(),
        site=SiteFacts(index=index, source=f"model.py:{index}", **facts),  # type: ignore[arg-type]
    )


def absent(key: str, reason: str, index: int = 0, *, layer: str | None = None) -> Entry:
    family, _, name = key.partition("/")
    site = SiteFacts(index=index, layer=layer)
    return Entry(family=family, name=name, shape=(2,), dtype="float32", stats={}, site=site, absent=reason)


def found(rule: str, *entries: Entry, thresholds: Thresholds | None = None, **fields: object) -> dict[str, str]:
    """Returns the findings of one rule, by the tensor's name."""
    manifest = Manifest(entries=entries, **fields)  # type: ignore[arg-type]
    return {each.name: each.why for each in find(manifest, thresholds) if each.rule == rule}


def test_a_healthy_dump_has_no_findings() -> None:
    entries = (
        entry("param/w", [1.0, -2.0]),
        entry("param_grad/w", [0.1, 0.2]),
        entry("activation/a", [[1.0, 2.0], [-1.0, 0.5]], 1),
        entry("activation_grad/a", [[0.1, 0.2], [0.0, 0.5]], 1),
    )
    assert find(Manifest(entries=entries, layers=(Layer(path="a", index=1, params=("w",), outputs=("a",)),))) == ()


def test_every_rule_has_a_unique_name_a_sentence_and_thresholds_that_exist() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) == 8
    for rule in RULES:
        assert rule.sentence.endswith(".")
        assert all(hasattr(Thresholds(), name) for name in rule.thresholds)


def test_nonfinite_names_the_first_value_as_the_origin() -> None:
    broken = [[np.nan, np.inf, 1.0]]
    whys = found(
        "nonfinite",
        entry("activation/late", broken, 9),
        entry("activation/early", broken, 4),
        entry("activation_grad/late", broken, 9),
    )
    assert list(whys) == ["early", "late"]
    assert whys["early"].startswith("has 1 NaN and 1 Inf of 3 elements; the origin may be here")
    assert "origin" not in whys["late"]


def test_nonfinite_gradients_of_finite_values_start_at_the_last_layer() -> None:
    whys = found(
        "nonfinite",
        entry("activation/a", [[1.0]], 1),
        entry("activation_grad/a", [[np.inf]], 1),
        entry("activation_grad/b", [[np.inf]], 2),
        entry("param_grad/w", [np.nan], 3),
    )
    assert {name for name, why in whys.items() if "origin" in why} == {"b"}


@pytest.mark.parametrize(("tier", "name"), [("full", "mean |g|"), ("core", "rms g")])
def test_vanishing_is_a_mean_magnitude_below_the_threshold(tier: str, name: str) -> None:
    whys = found("vanishing", entry("param_grad/w", [3e-8, -3e-8], tier=tier), entry("param/w", [1e-9], tier=tier))
    assert whys == {"w": f"has a {name} of 3e-08, below 1e-07"}


def test_vanishing_ignores_exact_zeros_and_tensors_without_finite_elements() -> None:
    assert not found("vanishing", entry("param_grad/w", [0.0, 0.0]), entry("param_grad/v", [np.nan]))


def test_vanishing_is_over_finite_elements() -> None:
    assert found("vanishing", entry("param_grad/w", [9e-8, np.nan, np.nan])) == {
        "w": "has a mean |g| of 9e-08, below 1e-07"
    }


def test_exploding_is_a_gradient_larger_than_its_parameter() -> None:
    whys = found("exploding", entry("param/w", [1.0, 0.0]), entry("param_grad/w", [3.0, 4.0]))
    assert whys == {"w": "has g/w of 5, above 1"}


def test_a_number_has_enough_digits_to_differ_from_its_limit() -> None:
    whys = found("exploding", entry("param/w", [1.0]), entry("param_grad/w", [1.0001]))
    assert whys == {"w": "has g/w of 1.0001, above 1"}


def test_a_parameter_of_zeros_has_no_ratio_to_its_gradient() -> None:
    entries = (entry("param/bias", [0.0]), entry("param_grad/bias", [1.0]))
    assert gradient_ratios(Manifest(entries=entries)) == {}
    assert not found("exploding", *entries)


def test_exploding_is_also_one_huge_element_of_any_gradient() -> None:
    whys = found("exploding", entry("activation_grad/a", [[0.0, -2e4]]), entry("activation/a", [[1e9]]))
    assert whys == {"a": "has a |g| of 2e+04, above 1e+04"}


def test_dead_is_more_than_half_of_the_units() -> None:
    relu = [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    half = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
    whys = found("dead", entry("activation/relu", relu), entry("activation/half", half))
    assert whys == {"relu": "has 75.0% dead units, above 50%"}


def test_log_probabilities_are_not_dead() -> None:
    assert not found("dead", entry("activation/log_softmax", [[-1.0, -2.0], [-3.0, -0.5]]))


def test_zero_gradients_of_a_dead_activation_have_that_cause() -> None:
    layer = Layer(path="block", index=1, params=("w",), outputs=("block",))
    whys = found(
        "zero-grad",
        entry("activation/block", [[0.0, 0.0], [0.0, 0.0]], 1),
        entry("activation_grad/block", [[0.0, 0.0], [0.0, 0.0]], 1),
        entry("param_grad/w", [0.0, 0.0], 1, layer="block"),
        layers=(layer,),
    )
    assert set(whys.values()) == {"is exactly zero: every unit of block is dead"}
    assert set(whys) == {"block", "w"}


def test_zero_gradients_may_have_an_unknown_cause() -> None:
    assert found("zero-grad", entry("param_grad/w", [0.0])) == {"w": "is exactly zero: cause not determined"}


def test_an_empty_gradient_is_not_zero() -> None:
    assert not found("zero-grad", entry("param_grad/w", []))


def test_a_disconnected_parameter_differs_from_one_that_was_filtered_or_cannot_have_a_gradient() -> None:
    entries = (
        entry("param/w", [1.0]),
        absent("param_grad/w", "disconnected"),
        absent("param_grad/v", "filtered"),
        absent("input_grad/labels", "non-differentiable"),
    )
    detail = LedgerLine(name="w", family="param_grad", reason="disconnected", detail="only in the metrics")
    assert found("zero-grad", *entries, ledger=Ledger(missing=(detail,))) == {
        "w": "has no gradient: only in the metrics"
    }
    assert found("unused-param", *entries) == {"w": "does not reach the loss"}
    whys = found("unused-param", *entries, ledger=Ledger(missing=(detail,)))
    assert whys == {"w": "does not reach the loss: only in the metrics"}


def test_a_zero_gradient_has_the_cause_in_the_manifest() -> None:
    cause = Cause(family="param_grad", name="w", why="masked: multiplied by exact zeros in mul at model.py:3")
    whys = found("zero-grad", entry("param_grad/w", [0.0]), causes=(cause,))
    assert whys == {"w": "is exactly zero: masked: multiplied by exact zeros in mul at model.py:3"}


def test_side_outputs_of_a_layer_that_is_reached_are_no_finding() -> None:
    reached = entry("activation_grad/norm.0", [[1.0]], 1, layer="norm")
    side = absent("activation_grad/norm.1", "disconnected", 2, layer="norm")
    metric = absent("activation_grad/accuracy", "disconnected", 3, layer="accuracy")
    assert list(found("zero-grad", reached, side, metric)) == ["accuracy"]


def test_a_parameter_that_no_layer_uses_is_unused_unless_a_gradient_reaches_it() -> None:
    entries = (
        entry("param/forgotten", [1.0]),
        entry("param/direct", [1.0]),
        entry("param_grad/direct", [0.5]),
        entry("param/w", [1.0]),
    )
    layers = (Layer(path="a", index=0, params=("w",)),)
    assert found("unused-param", *entries, layers=layers) == {"forgotten": "is used by no layer"}
    assert not found("unused-param", *entries)


def test_init_compares_neighbouring_leaves_in_execution_order() -> None:
    def leaf(path: str, index: int, parent: str | None = None) -> Layer:
        return Layer(path=path, index=index, parent=parent, outputs=(path,))

    whys = found(
        "init",
        entry("activation/a", [[-1.0, 1.0]], 1),
        entry("activation/loss", 5.0, 4),
        entry("activation/block", [[-900.0, 900.0]], 2),
        entry("activation/block/b", [[-30.0, 30.0]], 2),
        entry("activation/c", [[-5.0, 5.0]], 3),
        layers=(leaf("c", 3), leaf("block", 2), leaf("block/b", 2, "block"), leaf("a", 1), leaf("loss", 4)),
    )
    assert whys == {"block/b": "changes the std from 1 to 30 after a, by more than a factor of 10"}


def test_self_check_findings_name_the_parameters() -> None:
    check: Mapping[str, object] = {"beyond_rounding": ["w", "gone"]}
    whys = found("self-check", entry("param_grad/w", [1.0]), self_check=check)
    assert list(whys) == ["w", "gone"]
    assert not found("self-check", entry("param_grad/w", [1.0]), self_check={"beyond_rounding": []})


def test_findings_come_in_execution_order_and_aliases_once() -> None:
    late, early = entry("activation_grad/late", [[np.nan]], 7), entry("activation_grad/early", [[1e9]], 2)
    alias = Entry(
        family="activation_grad", name="wrapper", shape=(1, 1), dtype="float32", stats=late.stats, site=late.site,
        alias_of="activation_grad/late",
    )  # fmt: skip
    findings = find(Manifest(entries=(alias, late, early)))
    assert [(each.rule, each.name) for each in findings] == [("exploding", "early"), ("nonfinite", "late")]
    assert findings[0] == Finding(
        rule="exploding",
        name="early",
        family="activation_grad",
        why="has a |g| of 1e+09, above 1e+04",
        source="model.py:2",
        iteration=(),
    )


def test_thresholds_can_be_set() -> None:
    gradient = entry("activation_grad/a", [[5.0]])
    assert found("exploding", gradient, thresholds=Thresholds(exploding_magnitude=4.0))
    assert not found("exploding", gradient)
