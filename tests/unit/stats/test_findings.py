"""Each rule finds the fault that it is about and none that looks like it; consequences are told with their cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gradscope.dump.manifest.manifest import Cause, Entry, Layer, Ledger, LedgerLine, Manifest
from gradscope.dump.manifest.operation_facts import OF_GIVEN_VALUES, Origin
from gradscope.dump.manifest.operation_facts.saturation import BoundedName, Saturation
from gradscope.dump.record import SiteFacts
from gradscope.stats import (
    RULES,
    Finding,
    Thresholds,
    activation_stats,
    find,
    gradient_ratios,
    tensor_stats,
    unscaled_inputs,
)

RANDOM = np.random.default_rng(0)


def entry(key: str, values: object, index: int = 0, *, dtype: str = "float32", **facts: object) -> Entry:
    family, _, name = key.partition("/")
    array = np.array(values, dtype)
    primitive = facts.get("primitive")
    measure = activation_stats(array, primitive=primitive) if family == "activation" else tensor_stats(array)  # type: ignore[arg-type]
    return Entry(
        family=family,
        name=name,
        shape=array.shape,
        dtype=dtype,
        stats=measure.to_json(),
        site=SiteFacts(index=index, source=f"model.py:{index}", **facts),  # type: ignore[arg-type]
    )


def absent(key: str, reason: str, index: int = 0, *, layer: str | None = None) -> Entry:
    family, _, name = key.partition("/")
    site = SiteFacts(index=index, layer=layer)
    return Entry(family=family, name=name, shape=(2,), dtype="float32", stats={}, site=site, absent=reason)  # type: ignore[arg-type]


def found(*entries: Entry, thresholds: Thresholds | None = None, **fields: object) -> list[tuple[str, str]]:
    """Returns rule and name of each finding."""
    manifest = Manifest(entries=entries, **fields)  # type: ignore[arg-type]
    return [(each.rule, each.name) for each in find(manifest, thresholds)]


def chain(
    gradients: Sequence[float],
    outputs: Sequence[float] | None = None,
    gains: Sequence[float] | None = None,
    of_kernels: Sequence[float] | None = None,
) -> Manifest:
    """Returns a chain of layers with kernels, with given norms of gradients, outputs, gains and kernels' gradients."""
    entries: list[Entry] = []
    layers: list[Layer] = []
    outputs = [1.0] * len(gradients) if outputs is None else outputs
    for n, (gradient, output) in enumerate(zip(gradients, outputs, strict=True)):
        name = f"dense{n}"
        values = RANDOM.standard_normal((8, 4))
        entries += [
            entry(f"param/{name}/kernel", RANDOM.standard_normal((4, 4)), 2 * n),
            entry(
                f"param_grad/{name}/kernel",
                RANDOM.standard_normal((4, 4)) * (of_kernels[n] if of_kernels else 1.0),
                2 * n,
            ),
            entry(
                f"activation/{name}",
                output * values / np.sqrt(np.mean(values**2)),
                2 * n,
                dtype="float64",
                primitive="dot_general",
            ),
            entry(
                f"activation_grad/{name}",
                gradient * values / np.linalg.norm(values),
                2 * n,
                dtype="float64",
                primitive="dot_general",
            ),
        ]
        gain = output / outputs[n - 1] if n else output
        rms = {"in": output / (gains[n] if gains else gain), "out": output}
        layers.append(Layer(path=name, index=2 * n, params=(f"{name}/kernel",), outputs=(name,), rms=rms))
    return Manifest(entries=tuple(entries), layers=tuple(layers))


def rules(manifest: Manifest) -> list[tuple[str, str]]:
    return [(each.rule, each.name) for each in find(manifest)]


def test_every_rule_has_a_unique_name_words_and_thresholds_that_exist() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) == 13
    for rule in RULES:
        assert rule.sentence.endswith(".")
        assert rule.remedy.endswith(".")
        assert rule.formula
        assert all(hasattr(Thresholds(), name) for name in rule.thresholds)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_gradient_that_shrinks_by_the_layer_vanishes_whatever_its_scale(scale: float) -> None:
    assert rules(chain([scale * 0.2 ** (9 - n) for n in range(10)])) == [("vanishing", "dense0")]
    assert rules(chain([scale * 5.0 ** (9 - n) for n in range(10)])) == [("exploding", "dense0")]
    assert rules(chain([scale] * 10)) == []


@pytest.mark.parametrize("factor", [0.2, 5.0], ids=["vanishing", "exploding"])
def test_what_to_do_about_the_steps_of_a_recurrence_is_another_matter(factor: float) -> None:
    """They have one kernel; the blocks of a loop have one each, stacked."""
    blocks = chain([factor ** (9 - n) for n in range(10)])
    assert "from layer to layer" in find(blocks)[0].why
    assert not find(blocks)[0].repair
    kernels = [each for each in blocks.entries if each.name == "dense0/kernel"]
    rest = tuple(each for each in blocks.entries if not each.name.endswith("/kernel"))
    renamed = {each.path: f"cell[{n}]" for n, each in enumerate(blocks.layers)}
    for shape, steps in (((4, 4), True), ((10, 4, 4), False)):
        one = tuple(replace(each, name="cell/kernel", shape=shape) for each in kernels)
        entries = (*one, *(replace(each, name=renamed[each.name]) for each in rest))
        layers = tuple(
            replace(each, path=renamed[each.path], params=("cell/kernel",), outputs=(renamed[each.path],))
            for each in blocks.layers
        )
        (only,) = find(Manifest(entries=entries, layers=layers))
        assert only.name == "cell[0]"
        assert ("from step to step of a recurrence" in only.why) is steps
        assert ("recurrent kernel" in only.repair) is steps


def test_a_trend_beyond_the_range_of_float64_is_told() -> None:
    (only,) = find(chain([10.0 ** (300 - 60 * n) for n in range(11)]))
    assert (only.rule, only.name) == ("exploding", "dense0")
    assert "1e+60 from layer to layer on its way back: 1e+600 times" in only.why


def test_weights_whose_signal_has_no_square_in_float64_are_named() -> None:
    network = chain([1.0] * 6)
    rms = {"in": 1.0, "out": 1e200}
    layers = tuple(replace(each, rms=rms) if each.path == "dense2" else each for each in network.layers)
    behind = tuple(replace(each, rms={"in": 1e200, "out": 1e200}) if each.index > 4 else each for each in layers)
    (only,) = find(replace(network, layers=behind))
    assert (only.rule, only.name) == ("init", "dense2")
    assert "multiply the signal by 1e+200" in only.why


def test_a_jump_at_one_layer_is_no_trend_and_neither_are_few_layers() -> None:
    assert rules(chain([1e-5] * 5 + [1.0] * 5)) == []
    assert rules(chain([1e-5, 1e-3, 1e-1, 1.0])) == []


@pytest.mark.parametrize(
    ("gradients", "of_kernels", "found"),
    [
        ([1e-20] * 2 + [1.0], [1e-20] * 3, [("vanishing", "dense1")]),
        ([1e-20] * 2 + [1.0], [1e-20, 1e-9, 1e-20], []),  # which Adam uses
        ([1e-18, 1e-9, 1.0], [1e-20] * 3, []),  # by some in each
        ([1.0, 1e-20, 1.0], [1.0, 1e-20, 1.0], []),  # a branch that is closed
        ([1e-20] * 3, [1e-20] * 3, []),  # such is the loss
    ],
)
def test_a_gradient_that_is_lost_at_once_is_found_where_no_kernel_before_learns(
    gradients: Sequence[float], of_kernels: Sequence[float], found: list[tuple[str, str]]
) -> None:
    assert rules(chain(gradients, of_kernels=of_kernels)) == found


def test_the_limit_of_a_trend_is_a_threshold() -> None:
    mild = chain([0.5 ** (9 - n) for n in range(10)])
    assert rules(mild) == []
    assert [each.rule for each in find(mild, Thresholds(vanishing=0.1))] == ["vanishing"]


def test_weights_out_of_proportion_are_named_where_the_layers_behind_change_with_them() -> None:
    behind = chain([1.0] * 6, [1.0, 1.0, 50.0, 50.0, 50.0, 50.0])
    assert rules(behind) == [("init", "dense2")]
    normalised = chain([1.0] * 6, [1.0, 1.0, 50.0, 1.0, 1.0, 1.0], gains=[1.0, 1.0, 50.0, 1.0, 1.0, 1.0])
    assert rules(normalised) == []
    assert rules(chain([1.0] * 6, [1.0, 1.0, 0.01, 0.01, 0.01, 0.01])) == [("init", "dense2")]


def test_a_few_layers_that_all_multiply_the_signal_are_named_at_the_initialisation_alone() -> None:
    large = chain([1.0] * 4, [4.0, 16.0, 64.0, 64.0])
    assert rules(large) == [("init", "dense0")]
    assert rules(chain([1.0] * 4, [2.0, 4.0, 8.0, 40.0])) == []
    moved = entry("param/dense0/bias", np.arange(64.0), 0)  # of another deviation than any kernel
    assert rules(replace(large, entries=(*large.entries, moved))) == []


def test_a_kernel_of_equal_weights_is_named_and_one_of_a_normalisation_is_none() -> None:
    network = chain([1.0] * 3)
    equal = entry("param/dense1/kernel", np.full((4, 4), 0.3), 2)
    entries = tuple(equal if each.family == "param" and each.name == equal.name else each for each in network.entries)
    assert rules(replace(network, entries=entries)) == [("init", "dense1/kernel")]
    drawn = entry("param/dense1/sigma", RANDOM.standard_normal((4, 4)), 2)
    layers = tuple(
        replace(each, params=(*each.params, "dense1/sigma")) if each.path == "dense1" else each
        for each in network.layers
    )
    assert rules(replace(network, entries=(*entries, drawn), layers=layers)) == []
    scale = Layer(path="norm", index=9, params=("scale",), outputs=("norm",), rms={"in": 0.01, "out": 1.0})
    norm = (entry("param/scale", np.ones((3, 4)), 9), entry("activation/norm", RANDOM.standard_normal((8, 3, 4)), 9))
    assert rules(replace(network, entries=(*network.entries, *norm), layers=(*network.layers, scale))) == []


def test_a_matrix_that_multiplies_signals_element_by_element_is_no_kernel() -> None:
    network = chain([1.0] * 3)
    shares = entry("param/dense1/shares", np.full((2, 4), 0.5), 2)
    read = [replace(each, params=(*each.params, "dense1/shares")) for each in network.layers]
    mixing = replace(network, entries=(*network.entries, shares), layers=tuple(read))
    assert rules(mixing) == [("init", "dense1/shares")]
    stated = tuple(replace(each, elementwise=("dense1/shares",)) for each in read)
    assert rules(replace(mixing, layers=stated)) == []


def test_a_matrix_without_elements_is_no_kernel() -> None:
    network = chain([1.0] * 3)
    empty = (entry("param/none/w", np.zeros((4, 0)), 9), entry("activation/none", np.zeros((8, 0)), 9))
    layer = Layer(path="none", index=9, params=("none/w",), outputs=("none",))
    assert rules(replace(network, entries=(*network.entries, *empty), layers=(*network.layers, layer))) == []


def test_the_gain_of_a_normalisation_that_stays_zero_is_the_cause_of_what_it_silences() -> None:
    network = chain([1.0] * 3)
    norm = Layer(path="norm", index=1, params=("norm/scale", "norm/bias"), outputs=("norm",), rms={"in": 1.0, "out": 0})
    silent = (
        *(
            entry(f"{family}/norm/{name}", [0.0] * 4, 1)
            for family in ("param", "param_grad")
            for name in ("scale", "bias")
        ),
        entry("activation/norm", np.zeros((16, 4)), 1, primitive="add"),
        entry("activation/relu", np.zeros((16, 32)), 2, primitive="max"),
    )
    stuck = replace(network, entries=(*network.entries, *silent), layers=(*network.layers, norm))
    assert rules(stuck) == [("init", "norm/scale")]
    moving = entry("param_grad/norm/scale", [1.0] * 4, 1)
    entries = tuple(
        moving if (each.family, each.name) == ("param_grad", "norm/scale") else each for each in stuck.entries
    )
    assert rules(replace(stuck, entries=entries)) == [("dead", "relu")]


def test_nonfinite_is_one_finding_at_the_origin_with_all_tensors_counted() -> None:
    broken = [[np.nan, np.inf, 1.0]]
    manifest = Manifest(
        entries=(
            entry("activation/late", broken, 9),
            entry("activation/early", broken, 4),
            entry("activation_grad/late", broken, 9),
            entry("param_grad/w", [np.nan], 3),
        )
    )
    (only,) = find(manifest)
    assert (only.rule, only.name, only.tensors) == ("nonfinite", "early", 4)
    assert only.why == "has 1 NaN and 1 Inf of 3 elements: it is the first captured value that is not finite"
    origin = Origin(direction="forward", name="early/log", why="made the first Inf: log of 0", source="net.py:7")
    (known,) = find(replace(manifest, origins=(origin,)))
    assert known == Finding(
        rule="nonfinite", name="early", family="activation", why="made the first Inf: log of 0",
        source="net.py:7", iteration=(), tensors=4,
    )  # fmt: skip


@pytest.mark.parametrize("family", ["input", "param", "state"])
def test_what_a_run_is_given_is_not_repaired_where_it_is_used(family: str) -> None:
    entries = (entry(f"{family}/w", [np.nan, 1.0], 1), entry("activation/a", [[np.nan]], 2))
    (only,) = find(Manifest(entries=(*entries, entry("param_grad/w", [np.nan], 3))))
    assert only.why.endswith("it was not finite before anything was computed")
    assert only.repair == OF_GIVEN_VALUES


@pytest.mark.parametrize(("value", "is_origin"), [(np.nan, True), (np.inf, False)])
@pytest.mark.parametrize(
    ("part", "layers"),
    [
        ("block/out", ()),
        ("out", (Layer(path="block", index=4), Layer(path="out", index=4, parent="block"))),
    ],
)
def test_a_nan_that_began_in_a_layer_around_the_first_broken_one_is_told_by_its_origin(
    part: str, layers: tuple[Layer, ...], value: float, is_origin: bool
) -> None:
    entries = (
        entry(f"activation/{part}", [[value, 1.0]], 4, layer=part),
        entry("activation/block", [[np.nan, 1.0]], 6),
        entry("param_grad/w", [np.nan], 3),
    )
    why = "made NaN in the forward pass: every entry of the row is masked"
    origin = Origin(direction="forward", name="block/sub", layer="block", why=why, source="net.py:7")
    (only,) = find(Manifest(entries=entries, layers=layers, origins=(origin,)))
    assert (only.name, only.why.startswith("made NaN")) == (("block", True) if is_origin else (part, False))


def test_nonfinite_gradients_of_finite_values_start_at_the_last_layer() -> None:
    entries = (
        entry("activation/a", [[1.0]], 1),
        entry("activation_grad/a", [[np.inf]], 1),
        entry("activation_grad/b", [[np.inf]], 2),
        entry("param_grad/w", [np.nan], 3),
    )
    assert found(*entries) == [("nonfinite", "b")]


def test_a_nan_of_the_loss_alone_is_not_said_to_be_made_in_a_gradient() -> None:
    entries = (
        entry("input/x", [[1.0]], 0),
        entry("input_grad/x", [[np.nan]], 0),
        entry("activation/head", [[1.0]], 1),
        entry("param_grad/w", [1.0], 1),
    )
    origin = Origin(name="mul", direction="forward", why="made the first NaN: 0 times infinity", source="model.py:7")
    (only,) = find(Manifest(entries=entries, loss=float("nan"), origins=(origin,)))
    assert only.statement == (
        "activation/head is the last value before a loss of nan, where every value of the forward pass is finite: mul "
        "made the first NaN: 0 times infinity (model.py:7); 1 more tensor is affected"
    )


def test_a_loop_is_named_once_with_the_iteration_that_made_a_nan() -> None:
    why = "made the first NaN: log of -1, in iteration 1 of the while, of which the dump has the last"
    entries = (entry("activation/body[4].1", [[np.nan]], 1, iteration=(4,)), entry("param_grad/w", [np.nan], 1))
    for name, told in (("while", why), ("block/while", f"{why}, in block"), ("block/log", f"{why}, in block/log")):
        origin = Origin(name=name, direction="forward", why=why, source="model.py:7")
        (only,) = find(Manifest(entries=entries, loss=float("nan"), origins=(origin,)))
        assert (only.name, only.why) == ("body[4].1", told)


def test_an_output_that_is_nan_is_not_said_to_be_finite() -> None:
    entries = (entry("activation/head", [[1.0]], 1), entry("param_grad/w", [1.0], 1), entry("aux/entropy", np.nan))
    (only,) = find(Manifest(entries=entries, loss=float("nan")))
    assert "where every activation of the dump is finite" in only.statement


def test_a_nan_that_reaches_neither_the_loss_nor_a_parameter_is_no_finding() -> None:
    entries = (entry("activation/mask", [[-np.inf, 1.0]], 1), entry("param_grad/w", [1.0], 0), entry("aux/m", np.nan))
    assert found(*entries, loss=1.0) == []
    assert found(*entries, loss=float("nan")) == [("nonfinite", "mask")]


def test_float16_overflows_and_underflows() -> None:
    full = (entry("activation/a", [[np.inf, 1.0]], 1, dtype="float16"), entry("param_grad/w", [np.nan], 0))
    assert found(*full) == [("overflow", "a")]
    assert found(entry("activation/a", [[60000.0, 1.0]], 1, dtype="float16")) == [("overflow", "a")]
    assert found(entry("activation/a", [[6.0, 1.0]], 1, dtype="float16")) == []
    low = entry("activation_grad/a", [[1e-6, 2e-6, 0.5]], 1, dtype="float16")
    assert found(low) == [("underflow", "a")]
    assert found(low, thresholds=Thresholds(underflow=0.7)) == []


def rectified(dead: int, examples: int = 16, units: int = 32) -> np.ndarray:
    values = np.abs(RANDOM.standard_normal((examples, units)))
    values[: examples // 2, -1] = 0
    values[:, :dead] = 0
    return values


@pytest.mark.parametrize(("dead", "examples", "rule"), [(30, 16, "dead"), (20, 16, ""), (30, 1, ""), (32, 16, "dead")])
def test_dead_units_are_more_than_chance_of_enough_examples(dead: int, examples: int, rule: str) -> None:
    relu = entry("activation/relu", rectified(dead, examples), primitive="max")
    assert found(relu) == ([(rule, "relu")] if rule else [])


def test_a_zero_branch_and_log_probabilities_are_not_dead() -> None:
    assert found(entry("activation/branch", np.zeros((16, 32)), primitive="dot_general")) == []
    assert found(entry("activation/log_softmax", -np.abs(RANDOM.standard_normal((16, 32))), primitive="sub")) == []


@pytest.mark.parametrize(("masked", "kernel", "rule"), [(True, 0, ""), (False, 30, "dead"), (False, 0, "")])
def test_units_are_dead_where_no_gradient_of_theirs_comes_back_and_not_where_examples_are_masked(
    masked: bool, kernel: int, rule: str
) -> None:
    values, gradient = -1 - RANDOM.random((16, 32)), np.ones((16, 32))
    values[0, 30:] = 1
    gradient[(slice(None, 15) if masked else slice(None)), (slice(None) if masked else slice(30))] = 0
    learned = np.ones((8, 32))
    learned[:, :kernel] = 0
    entries = (
        entry("param/gate/kernel", RANDOM.standard_normal((8, 32))),
        entry("param_grad/gate/kernel", learned),
        entry("activation/gate", values, 1, layer="gate", primitive="add"),
        entry("activation_grad/gate", gradient, 1, layer="gate", primitive="add"),
    )
    layer = Layer(path="gate", index=1, params=("gate/kernel",), outputs=("gate",))
    assert found(*entries, layers=(layer,)) == ([(rule, "gate")] if rule else [])


@pytest.mark.parametrize("units", [32, 256])
def test_one_example_says_nothing_of_a_unit(units: int) -> None:
    assert found(entry("activation/relu", np.zeros((1, units)), primitive="max")) == []
    assert found(entry("activation/relu", np.zeros((8, units)), primitive="max")) == [("dead", "relu")]


def test_a_product_of_zeros_is_dead_only_where_a_gradient_is_lost_at_a_rectifier() -> None:
    product = entry("activation/scaled", np.zeros((8, 4)), 1, primitive="mul")
    gradient = entry("param_grad/w", [0.0], 0)
    masked = Cause(family="param_grad", name="w", why="masked: multiplied by exact zeros in mul at model.py:1")
    assert found(product, gradient, causes=(masked,)) == [("zero-grad", "w")]
    dead = replace(masked, why="dead units: the output of relu at model.py:1 is constant wherever the loss depends")
    assert found(product, gradient, causes=(dead,)) == [("dead", "scaled")]


def test_a_rectified_value_that_its_layer_gives_another_shape_is_dead_where_its_gradient_is_lost() -> None:
    density = entry("activation/density", np.zeros((8, 4)), 1, primitive="squeeze")
    gradient = entry("param_grad/w", [0.0], 0)
    lost = Cause(family="param_grad", name="w", why="dead units: the output of relu at model.py:1 is constant wherever")
    assert found(density, gradient, causes=(lost,)) == [("dead", "density")]
    elsewhere = replace(lost, why=lost.why.replace("model.py:1", "model.py:9"))
    assert found(density, gradient, causes=(elsewhere,)) == [("zero-grad", "w")]


@pytest.mark.parametrize(
    ("rectified", "place", "words"),
    [
        (False, "relu at f.py:9", "not positive at all 24 positions, and relu at f.py:9 lets nothing of them pass"),
        (True, "relu at model.py:1 in conv", "zero at all 24 positions"),
        (True, "relu at f.py:9", "zero at all 24 positions, and its gradient ends behind it, at relu at f.py:9"),
    ],
)
def test_dead_units_and_the_reason_of_their_zero_gradient_name_one_rectifier_or_say_why_not(
    rectified: bool, place: str, words: str
) -> None:
    values = np.zeros((8, 3, 4)) if rectified else -1 - np.arange(96.0).reshape(8, 3, 4)
    site = {"primitive": "max" if rectified else "add", "layer": "conv"}
    value = entry("activation/conv", values, 1, **site)
    gradient = entry("activation_grad/conv", np.zeros((8, 3, 4)), 1, **site)
    why = f"dead units: the output of {place} is constant wherever the loss depends on it"
    causes = (Cause(family="activation_grad", name="conv", why=why),)
    (only,) = find(Manifest(entries=(value, gradient), causes=causes))
    assert only.statement == f"activation/conv has 100.0% dead units: 4 of 4 are {words} (model.py:1)"
    assert replace(only, tensors=3).statement == f"{only.statement}; 2 more tensors are affected"


def test_the_rectifier_of_a_layer_behind_dead_units_is_not_that_which_lets_nothing_of_them_pass() -> None:
    values, none = -1 - np.arange(96.0).reshape(24, 4), np.zeros((24, 4))
    entries = (
        entry("activation/conv", values, 1, primitive="add"),
        entry("activation_grad/conv", none, 1, primitive="add"),
        entry("activation_grad/dense", none, 2, primitive="add"),
    )
    why = "dead units: the output of relu at model.py:9 is constant wherever the loss depends on it"
    causes = tuple(Cause(family="activation_grad", name=name, why=why) for name in ("conv", "dense"))
    (only,) = find(Manifest(entries=entries, causes=causes))
    assert only.why.endswith("4 of 4 are not positive at all 24 examples, and a rectifier lets nothing of them pass")


def test_all_that_follows_from_a_dead_layer_is_reported_with_it() -> None:
    why = "dead units: the output of relu at model.py:1 in relu is constant wherever the loss depends on it"
    entries = (
        entry("activation/relu", np.zeros((16, 32)), 1, primitive="max"),
        entry("activation_grad/before", np.zeros((16, 32)), 0),
        entry("param_grad/w", [0.0, 0.0], 0),
    )
    causes = tuple(Cause(family=each.family, name=each.name, why=why) for each in entries[1:])
    (only,) = find(Manifest(entries=entries, causes=causes))
    assert (only.rule, only.name, only.tensors, only.explains) == ("dead", "relu", 3, ("zero-grad",))


def test_saturation_is_inside_the_model_and_a_final_one_is_an_answer() -> None:
    network = chain([1.0] * 3)
    gate = np.sign(RANDOM.standard_normal((8, 4)))
    inner = entry("activation/tanh", gate, 1, primitive="tanh")
    final = entry("activation/tanh", gate, 9, primitive="tanh")
    assert rules(replace(network, entries=(*network.entries, inner))) == [("saturated", "tanh")]
    assert rules(replace(network, entries=(*network.entries, final))) == []


@pytest.mark.parametrize(
    ("read", "sources", "expected"),
    [
        ("dense0", (), "tanh"),
        ("scaled", (), ""),  # which is made of the batch alone
        ("dense2", (), ""),  # which runs later: it is an input of that name
        ("scaled", ("activation/dense0",), "tanh"),
        ("dense0", ("input/x",), ""),
    ],
)
def test_at_the_initialisation_less_is_usual_of_a_tanh_behind_a_kernel_alone(
    read: str, sources: tuple[str, ...], expected: str
) -> None:
    network = chain([1.0] * 3)
    at_limits = np.arange(32.0).reshape(8, 4) % 4 != 0
    values = np.where(at_limits, np.sign(np.arange(32.0).reshape(8, 4) % 2 - 0.5), 0.0)
    inner = (
        entry("input/x", RANDOM.standard_normal((8, 4)), 1),
        entry("activation/scaled", RANDOM.standard_normal((8, 4)), 1, layer="scaled", primitive="mul"),
        entry("activation/tanh", values, 1, layer="tanh", primitive="tanh"),
    )
    layers = (
        Layer(path="scaled", index=1, inputs=("x",), outputs=("scaled",)),
        Layer(path="tanh", index=1, inputs=(read,), outputs=("tanh",), sources=sources),
    )
    manifest = replace(network, entries=(*network.entries, *inner), layers=(*network.layers, *layers))
    assert rules(manifest) == ([("saturated", expected)] if expected else [])


class Walked(tuple[Layer, ...]):
    """Layers that count how often they are walked through."""

    times = 0

    def __iter__(self) -> Iterator[Layer]:
        Walked.times += 1
        return super().__iter__()


@pytest.mark.parametrize(
    ("primitive", "values"), [("tanh", np.sign(RANDOM.standard_normal((8, 4)))), ("max", np.zeros((8, 4)))]
)
def test_layers_are_walked_through_as_often_for_many_values_as_for_few(primitive: str, values: np.ndarray) -> None:
    times: list[int] = []
    for number in (3, 30):
        network = chain([1.0] * 3)
        names = [f"value{at}" for at in range(number)]
        inner = [entry(f"activation/{name}", values, 1, layer=name, primitive=primitive) for name in names]
        layers = (Layer(path=name, index=1, inputs=("dense0",), outputs=(name,), rms={"in": 0.0}) for name in names)
        saturations = tuple(Saturation(function="tanh", index=1, saturated=1.0, layer=name) for name in names)
        entries, walked = (*network.entries, *inner), Walked((*network.layers, *layers))
        Walked.times = 0
        assert find(replace(network, entries=entries, layers=walked, saturations=saturations))
        times.append(Walked.times)
    assert times[0] == times[1]


def test_a_softmax_on_single_elements_is_saturated_and_an_even_one_is_not() -> None:
    network = chain([1.0] * 3)
    single = np.full((8, 5), 1e-4)
    single[np.arange(8), np.arange(8) % 5] = 1 - 4e-4
    for weights, expected in ((single, [("saturated", "softmax")]), (np.full((8, 5), 0.2) + 1e-3 * single, [])):
        softmax = entry("activation/softmax", weights / weights.sum(-1, keepdims=True), 1, primitive="div")
        assert rules(replace(network, entries=(*network.entries, softmax))) == expected


def inner(function: BoundedName, saturated: float, **facts: object) -> Saturation:
    fields: dict[str, object] = {"index": 3, "layer": "attn", "source": "model.py:7", **facts}
    return Saturation(function=function, saturated=saturated, **fields)  # type: ignore[arg-type]


def test_a_function_inside_a_layer_is_reported_by_what_the_layer_returns() -> None:
    output = entry("activation/attn/out", RANDOM.standard_normal((8, 4)), 4, layer="attn/out", primitive="dot_general")
    alias = replace(output, name="attn", alias_of="activation/attn/out")
    layers = (Layer(path="attn", index=1, outputs=("attn/out",)),)
    manifest = Manifest(entries=(output, alias), layers=layers, saturations=(inner("sigmoid", 0.95),))
    (only,) = find(manifest)
    assert (only.rule, only.name, only.source) == ("saturated", "attn", "model.py:7")
    assert only.why.startswith("computes a sigmoid that is saturated: 95.0% of its elements within 0.01 of a limit")
    assert find(replace(manifest, saturations=(inner("sigmoid", 0.85),))) == ()
    assert find(replace(manifest, saturations=(inner("sigmoid", 0.85),)), Thresholds(saturated=0.8)) != ()
    assert find(replace(manifest, entries=())) == ()


def test_a_function_outside_all_layers_is_reported_by_what_it_receives() -> None:
    query = entry("activation/query", RANDOM.standard_normal((8, 4)), 1, primitive="dot_general")
    scores = inner("softmax", 0.7, layer=None, inputs=("query",))
    (only,) = find(Manifest(entries=(query,), saturations=(scores,)))
    assert (only.name, only.why[:33]) == ("query", "goes into a softmax that is satur")
    assert "70.0% of its weight on one element" in only.why
    moved = entry("param/norm/bias", [0.1, -0.2, 0.3, 0.7])
    for share, rules in ((0.7, []), (0.92, []), (0.99, ["saturated"])):  # training may choose a position, as to copy
        later = Manifest(entries=(query, moved), saturations=(replace(scores, saturated=share),))
        assert [each.rule for each in find(later)] == rules
    cause = Cause(
        family="param_grad", name="query", why="masked: in each row the mask leaves one entry, in exp at model.py:7"
    )
    assert find(Manifest(entries=(query,), saturations=(scores,), causes=(cause,))) == ()


@pytest.mark.parametrize(("behind", "is_finding"), [(1.0, False), (50.0, True)])
def test_a_large_input_that_a_normalisation_scales_further_on_is_a_fact(behind: float, is_finding: bool) -> None:
    large = RANDOM.standard_normal((8, 4))
    entries = (
        entry("input/x", 100 * large),
        entry("param/patch/w", RANDOM.standard_normal((4, 4)), 1),
        entry("activation/patch", 60 * large, 1, layer="patch", primitive="dot_general"),
        entry("param/head/w", RANDOM.standard_normal((4, 4)), 2),
        entry("activation/head", behind * large, 2, layer="head", primitive="dot_general"),
    )
    layers = (
        Layer(path="patch", index=1, params=("patch/w",), inputs=("x",), outputs=("patch",), rms={"in": 100.0}),
        Layer(path="head", index=2, params=("head/w",), outputs=("head",), rms={"in": 1.0}),
    )
    manifest = Manifest(entries=entries, layers=layers)
    assert [each.rule for each in find(manifest)] == ["exploding"] * is_finding
    told = [each.partition(" (mean")[0] for each in unscaled_inputs(manifest)]
    assert told == ([] if is_finding else [f"input/x has an rms of {100 * np.sqrt(np.square(large).mean()):.3g}"])


@pytest.mark.parametrize(("used", "is_saturated"), [(2, False), (16, True), (12, True), (0, True)])
def test_rows_at_a_limit_that_a_mask_drops_are_not_saturated(used: int, is_saturated: bool) -> None:
    values = np.full((16, 4), -1.0)
    values[:2] = -1.0 if used > 2 else 0.5
    gradients = np.zeros((16, 4))
    gradients[:used] = 1.0
    entries = (
        entry("activation/act", values, 1, primitive="tanh"),
        entry("activation_grad/act", gradients, 1),
        entry("param/out/kernel", RANDOM.standard_normal((4, 4)), 2),
        entry("activation/out", RANDOM.standard_normal((16, 4)), 2, primitive="dot_general"),
    )
    layers = (Layer(path="out", index=2, params=("out/kernel",), inputs=("act",), outputs=("out",)),)
    rules = [each.rule for each in find(Manifest(entries=entries, layers=layers), Thresholds(saturated=0.85))]
    assert ("saturated" in rules) is is_saturated
    without = find(Manifest(entries=(entries[0], *entries[2:]), layers=layers), Thresholds(saturated=0.85))
    assert "saturated" in [each.rule for each in without]  # nothing says that a mask is why


def test_of_saturated_values_and_functions_the_first_is_reported_and_the_others_are_counted() -> None:
    squashed = entry("activation/act", np.ones((8, 4)), 5, primitive="tanh")
    outputs = [entry(f"activation/{name}", RANDOM.standard_normal((8, 4)), n) for name, n in (("attn", 3), ("head", 9))]
    kernel = entry("param/head/kernel", RANDOM.standard_normal((4, 4)), 9)
    layers = (
        Layer(path="attn", index=2, outputs=("attn",)),
        Layer(path="head", index=9, params=("head/kernel",), outputs=("head",)),
    )
    entries = (*outputs, squashed, kernel)
    (only,) = find(Manifest(entries=entries, layers=layers, saturations=(inner("tanh", 1.0),)))
    assert (only.name, only.tensors) == ("attn", 2)


def test_a_softmax_to_which_a_mask_leaves_one_entry_is_not_saturated() -> None:
    network = chain([1.0] * 3)
    single = entry("activation/softmax", np.eye(8, 5)[:, ::-1] + np.eye(8, 5, -5), 1, primitive="div")
    gradient = entry("param_grad/query", [0.0], 0)
    why = "masked: in each row the mask leaves one entry, whose weight is 1 whatever its score, in exp at model.py:1"
    cause = Cause(family="param_grad", name="query", why=why)
    entries = (*network.entries, single, gradient)
    assert rules(replace(network, entries=entries, causes=(cause,))) == [("zero-grad", "query")]
    elsewhere = replace(cause, why=why.replace("py:1", "py:2"))
    assert ("saturated", "softmax") in rules(replace(network, entries=entries, causes=(elsewhere,)))


def test_a_lost_gradient_is_one_finding_at_the_value_closest_to_its_loss() -> None:
    why = "masked: multiplied by exact zeros in mul at model.py:30"
    entries = (
        entry("activation_grad/a", [[0.0]], 1),
        entry("activation_grad/b", [[0.0]], 2),
        entry("param_grad/w", [0.0], 0),
        entry("param_grad/v", [0.0], 0),
    )
    causes = tuple(Cause(family=each.family, name=each.name, why=why) for each in entries)
    (only,) = find(Manifest(entries=entries, causes=causes))
    assert (only.rule, only.name, only.tensors) == ("zero-grad", "b", 4)
    assert only.why == f"is exactly zero, and that of 2 parameters with it (w, v): {why}"
    assert only.source == "model.py:30"
    # Of the three others the sentence counts two.
    assert only.statement == f"activation_grad/b {only.why}; 1 more tensor is affected"
    elsewhere = tuple(replace(each, why="its cause is not determined") for each in causes)
    (only,) = find(Manifest(entries=entries, causes=elsewhere))
    assert only.statement == f"activation_grad/b {only.why} (model.py:2); 1 more tensor is affected"
    (only,) = find(Manifest(entries=entries[2:], causes=causes))
    assert (only.tensors, only.statement.count("affected")) == (2, 0)


@pytest.mark.parametrize(("activation", "of"), [("f:30", " of encoder/in"), ("encoder/in", "")])
def test_a_lost_gradient_names_the_part_that_the_parameters_are_in(activation: str, of: str) -> None:
    why = "masked: multiplied by exact zeros in mul at model.py:30"
    names = ("encoder/in/kernel", "encoder/in/bias")
    entries = (
        entry(f"activation_grad/{activation}", [[0.0]], 1), *(entry(f"param_grad/{name}", [0.0], 0) for name in names)
    )  # fmt: skip
    causes = tuple(Cause(family=each.family, name=each.name, why=why) for each in entries)
    (only,) = find(Manifest(entries=entries, causes=causes))
    assert only.why == f"is exactly zero, and that of 2 parameters{of} with it ({', '.join(names)}): {why}"


def test_of_many_parameters_that_lose_their_gradient_three_are_named() -> None:
    why = "masked: multiplied by exact zeros in mul at model.py:30"
    lost = [entry(f"param_grad/{name}", [0.0], at) for at, name in enumerate("abcde")]
    causes = tuple(Cause(family="param_grad", name=each.name, why=why) for each in lost)
    (only,) = find(Manifest(entries=(*lost, entry("param_grad/head", [1.0], 9)), causes=causes))
    assert only.why == f"is exactly zero, in 5 parameters (a, b, c and 2 more): {why}"


def test_zeros_by_construction_are_no_fault() -> None:
    zero = entry("param_grad/key/bias", [0.0, 0.0], 1, layer="key")
    cause = Cause(family="param_grad", name="key/bias", why="the loss is invariant")
    assert found(zero, causes=(cause,)) == [("zero-grad", "key/bias")]
    learning = entry("param_grad/head/bias", [1.0], 2, layer="head")
    assert found(zero, learning, causes=(replace(cause, rounding=True),)) == []
    assert found(zero, causes=(replace(cause, rounding=True),)) == [("zero-grad", "key/bias")]  # nothing else learns
    cancels = replace(cause, why="cancellation: the terms sum to exactly zero")
    assert found(zero, entry("param_grad/key/kernel", [[1.0]], 1, layer="key"), causes=(cancels,)) == []
    assert found(zero, causes=(replace(cause, why="branch not taken: cond at model.py:3"),)) == []
    taken_out = replace(cause, why="zero by construction: the loss does not change with it; sub at m.py:3 takes it out")
    assert found(zero, entry("param_grad/key/kernel", [[1.0]], 1, layer="key"), causes=(taken_out,)) == []
    assert found(zero, causes=(taken_out,)) == [("zero-grad", "key/bias")]
    assert found(entry("param_grad/w", [])) == []


def test_a_branch_that_starts_at_zero_is_no_fault() -> None:
    entries = (
        entry("param_grad/body", [0.0], 1),
        entry("param/head", [[0.0]], 5),
        entry("param_grad/head", [[1.0]], 5),
    )
    cause = Cause(
        family="param_grad", name="body", why="masked: multiplied by exact zeros in dot_general at model.py:5"
    )
    assert found(*entries, causes=(cause,)) == []
    assert found(entries[0], causes=(cause,)) == [("zero-grad", "body")]


def test_a_gradient_that_a_parameter_of_zeros_with_a_gradient_switches_off_is_no_fault() -> None:
    body, head = entry("param_grad/body", [0.0], 7), entry("param/head", [[0.0]], 1)
    why = "masked: multiplied by exact zeros in dot_general at model.py:99: param/head is 0"
    cause = Cause(family="param_grad", name="body", why=why)
    assert found(body, head, entry("param_grad/head", [[1.0]], 1), causes=(cause,)) == []
    assert ("zero-grad", "body") in found(body, head, entry("param_grad/head", [[0.0]], 1), causes=(cause,))


def test_a_kernel_of_zeros_whose_product_multiplies_a_signal_is_the_cause_and_a_gate_is_none() -> None:
    def network(primitive: str) -> Manifest:
        manifest = chain([1.0, 1.0])
        zeros = (
            entry("param/dense1/kernel", np.zeros((4, 4)), 2),
            entry("activation_grad/dense0", np.zeros((8, 4)), 0),
            entry("param_grad/dense0/kernel", np.zeros((4, 4)), 0),
        )
        names = {(each.family, each.name) for each in zeros}
        kept = [each for each in manifest.entries if (each.family, each.name) not in names]
        why = f"masked: multiplied by exact zeros in {primitive} at model.py:9: the product of param/dense1/kernel is 0"
        causes = tuple(Cause(family=each.family, name=each.name, why=why) for each in zeros[1:])
        return replace(manifest, entries=(*kept, *zeros), causes=causes)

    (only,) = find(network("dot_general"))
    assert (only.rule, only.family, only.name, only.tensors) == ("init", "param", "dense1/kernel", 3)
    assert "dense0, which that multiplies, gets no gradient" in only.why
    assert find(network("mul")) == ()
    shared = network("dot_general")
    again = replace(shared.layers[1], path="dense1#2", index=5)
    assert "alike" not in find(replace(shared, layers=(*shared.layers, again)))[0].why


def test_unused_parameters_are_reported_once_by_part_and_cut_ones_are_zero_gradients() -> None:
    entries = (
        entry("param/used/w", [1.0]),
        entry("param_grad/used/w", [1.0]),
        *(entry(f"param/spare/{name}/w", [1.0]) for name in "ab"),
        *(absent(f"param_grad/spare/{name}/w", "disconnected") for name in "ab"),
        entry("param/cut", [1.0]),
        absent("param_grad/cut", "disconnected"),
        absent("param_grad/filtered", "filtered"),
        absent("activation_grad/metric", "disconnected"),
    )
    lines = (
        LedgerLine(name="cut", family="param_grad", reason="disconnected", detail="stop_gradient at model.py:3"),
        LedgerLine(name="metric", family="activation_grad", reason="disconnected", detail="disconnected: only aux"),
    )
    ledger = Ledger(missing=lines)
    assert found(*entries, ledger=ledger) == [("zero-grad", "cut"), ("unused-param", "spare/a/w")]
    cut, spare = find(Manifest(entries=entries, ledger=ledger))
    assert (cut.tensors, spare.tensors) == (1, 2)
    assert cut.statement == "param_grad/cut is absent: every path to the loss passes stop_gradient at model.py:3"


def test_what_no_block_uses_is_reported_once_for_all_blocks() -> None:
    names = [f"blocks/{n}/{part}" for n in range(3) for part in ("ln1/scale", "ln2/scale", "fc/w")]
    entries = [entry(f"param/{name}", [1.0]) for name in (*names, "blocks/3/w")]
    unused = [each.name for each in entries if not each.name.endswith("fc/w")]
    lines = tuple(
        LedgerLine(
            name=name, family="param_grad", reason="disconnected",
            detail="disconnected: the loss does not depend on it, nothing uses it",
        )
        for name in unused
    )  # fmt: skip
    gradients = [
        absent(f"param_grad/{name}", "disconnected") if name in unused else entry(f"param_grad/{name}", [1.0])
        for name in (each.name for each in entries)
    ]
    blocks, last = find(Manifest(entries=(*entries, *gradients), ledger=Ledger(missing=lines)))
    assert (blocks.name, blocks.tensors) == ("blocks/0/ln1/scale", 6)
    assert blocks.why == "does not reach the loss, nor does the rest of blocks/0..2/ln1, ln2, nothing uses it"
    assert (last.name, last.why) == ("blocks/3/w", "does not reach the loss, nothing uses it")


def test_what_ends_at_one_place_is_reported_once() -> None:
    ends = {"position/w": 8, "token/w": 8, "proj/bias": 8, "proj/w": 8, "other/w": 9}
    entries = [entry(f"param/{name}", [1.0]) for name in (*ends, "used")]
    why = "disconnected: the loss does not depend on it, its last use is add at model.py:{}"
    lines = tuple(
        LedgerLine(name=name, family="param_grad", reason="disconnected", detail=why.format(line))
        for name, line in ends.items()
    )
    gradients = [*(absent(f"param_grad/{name}", "disconnected") for name in ends), entry("param_grad/used", [1.0])]
    first, other = find(Manifest(entries=(*entries, *gradients), ledger=Ledger(missing=lines)))
    rest = "nor does the rest of position, token, proj, its last use is add at model.py:8"
    assert (first.name, first.tensors, first.why) == ("position/w", 4, f"does not reach the loss, {rest}")
    assert (other.name, other.tensors) == ("other/w", 1)


def test_a_loss_that_depends_on_no_parameter_is_one_finding() -> None:
    entries = [entry(f"param/{n}/{part}", [1.0], n) for n in range(3) for part in "bw"]
    gradients = [absent(f"param_grad/{each.name}", "disconnected") for each in entries]
    why = "disconnected: the loss does not depend on it, its last use is add at model.py:{}"
    lines = tuple(
        LedgerLine(name=each.name, family="param_grad", reason="disconnected", detail=why.format(each.site.index))
        for each in entries
    )
    (only,) = find(Manifest(entries=(*entries, *gradients), ledger=Ledger(missing=lines)))
    assert (only.rule, only.name, only.tensors) == ("unused-param", "2/b", 6)
    last = "its last use is add at model.py:2"
    assert only.why == f"does not reach the loss, {last}, and no other parameter does: nothing is learned"


def test_unused_parts_of_blocks_whose_names_have_a_sign_are_listed() -> None:
    names = ("1/#/w", "1/2/w")
    gradients = [absent(f"param_grad/{name}", "disconnected") for name in names]
    used = [entry(f"param/{name[:-1]}used", [1.0]) for name in names]
    unused = [entry(f"param/{name}", [1.0]) for name in names]
    assert found(*used, *unused, *gradients) == [("unused-param", name) for name in names]


def test_a_mask_of_each_block_is_reported_once_for_all_blocks() -> None:
    gradients = [entry(f"param_grad/b{n}/w", [0.0], n) for n in range(3)]
    why = "masked: multiplied by exact zeros in mul at model.py:9: param/b{}/gate is 0"
    causes = tuple(Cause(family="param_grad", name=each.name, why=why.format(n)) for n, each in enumerate(gradients))
    (only,) = find(Manifest(entries=tuple(gradients), causes=causes))
    assert only.tensors == 3


def test_parameters_that_a_stop_gradient_keeps_constant_are_no_fault() -> None:
    gradient = absent("param_grad/base/w", "disconnected")
    line = LedgerLine(
        name="base/w", family="param_grad", reason="disconnected",
        detail="stop_gradient at model.py:3, applied to the argument itself",
    )  # fmt: skip
    entries = (entry("param/base/w", [1.0]), gradient)
    assert found(*entries, ledger=Ledger(missing=(line,))) == []
    cut = replace(line, detail="stop_gradient at model.py:3")
    assert found(*entries, ledger=Ledger(missing=(cut,))) == [("zero-grad", "base/w")]


def test_self_check_findings_name_the_parameters() -> None:
    check: Mapping[str, object] = {"beyond_rounding": ["w", "gone"]}
    gradient = entry("param_grad/w", [1.0])
    assert found(gradient, self_check=check) == [("self-check", "w"), ("self-check", "gone")]
    assert not found(gradient, self_check={"beyond_rounding": []})


def test_a_parameter_of_zeros_has_no_ratio_to_its_gradient() -> None:
    entries = (entry("param/bias", [0.0]), entry("param_grad/bias", [1.0]))
    assert gradient_ratios(Manifest(entries=entries)) == {}
