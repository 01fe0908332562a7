"""The rules of alarms on series that NumPy makes: planted faults at their step with the right tensor, and none else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from gradscope.dump.record import AS_DATA, STOPPED
from gradscope.history.alarms.alarm_rules import RULES
from gradscope.history.alarms.alarm_watch import AlarmWatch
from gradscope.history.history_rows import Alarm
from tests.support.sampled import sampled

LAYERS = ("first", "second", "third", "fourth", "fifth", "head")
SIZE = 200
STEPS = 600
EVERY = 5

Stats = dict[str, dict[str, Any]]


class Training:
    """A sound run: a loss that falls with noise, gradients that shrink with it, and statistics of every fifth step."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def numbers(self, step: int) -> dict[str, float]:
        level = 2 / (1 + step / 100) + 0.5
        return {
            "loss": level * float(self._rng.lognormal(0, 0.1)),
            "grad_norm": level * float(self._rng.lognormal(0, 0.25)),
            "update_norm": 0.01 * float(self._rng.lognormal(0, 0.1)),
            "param_norm": 12.0,
        }

    def stats(self, step: int) -> Stats:
        found: Stats = {}
        noise, zeros = self._rng.lognormal(0, 0.1, (len(LAYERS), 5)), self._rng.integers(0, SIZE // 10, len(LAYERS))
        for depth, layer in enumerate(LAYERS):
            typical = {"param": 5 + 0.001 * step, "param_grad": 0.3, "update": 0.005, "activation": 30,
                       "activation_grad": 0.1 * 1.5**depth}  # fmt: skip
            for (family, level), factor in zip(typical.items(), noise[depth].tolist(), strict=True):
                l2 = level * factor
                found[f"{family}/{layer}"] = {"l2": l2, "rms": l2 / SIZE**0.5, "zeros": 0, "nan": 0, "inf": 0}
            found[f"update/{layer}"]["ratio"] = found[f"update/{layer}"]["l2"] / found[f"param/{layer}"]["l2"]
            found[f"param_grad/{layer}"]["zeros"] = int(zeros[depth])
        return found


def watched(training: Training, fault: Any = None, *, steps: int = STEPS, every: int = EVERY) -> list[Alarm]:
    """The alarms of a run that a fault changes: `fault(step, numbers, stats, unchanged)`."""
    sizes = {f"{family}/{layer}": SIZE for family in ("param_grad", "activation_grad") for layer in LAYERS}
    watch, found, held = AlarmWatch(sizes), [], dict[str, Any]()
    for step in range(steps):
        numbers, stats = training.numbers(step), training.stats(step) if fault or step % every == 0 else {}
        unchanged: dict[str, bool] = dict.fromkeys(LAYERS, False)
        if fault is not None:
            fault(step, numbers, stats, unchanged)
        held = {f"param/{layer}": stats[f"param/{layer}"] for layer, each in unchanged.items() if each} | held
        held = {key: each for key, each in held.items() if unchanged[key.removeprefix("param/")]}
        stats.update(held)
        found += (watch.named(alarm, stats) for alarm in watch.step(step, numbers))
        if step % every == 0:
            found += watch.recorded(step, stats, unchanged)
        watch = again(watch, sizes, step)
    return found


def again(watch: AlarmWatch, sizes: Mapping[str, int], step: int) -> AlarmWatch:
    """Now and then the watch of a run that was saved and resumed."""
    if step % 97:
        return watch
    resumed = AlarmWatch(sizes)
    resumed.restore(json.loads(json.dumps(watch.to_json())))
    return resumed


def scaled(stats: Stats, key: str, factor: float) -> None:
    for column in ("l2", "rms", "ratio"):
        if column in stats[key]:
            stats[key][column] *= factor


@pytest.mark.parametrize("seed", range(10))
def test_a_sound_run_raises_no_alarm(seed: int) -> None:
    assert watched(Training(seed), steps=1000, every=20) == []


@sampled(
    ("rule", "column", "family", "at"),
    [
        ("loss-spike", "loss", "activation", 64),
        ("grad-spike", "grad_norm", "param_grad", 64),
        ("grad-spike", "grad_norm", "param_grad", 301),
        ("update-spike", "update_norm", "update", 65),
        ("update-spike", "update_norm", "update", 599),
    ],
)
def test_a_spike_is_found_at_its_step_with_the_tensor_that_deviates(
    rule: str, column: str, family: str, at: int
) -> None:
    layer = LAYERS[at % len(LAYERS)]

    def fault(step: int, numbers: dict[str, float], stats: Stats, _: Any) -> None:
        if step == at:
            numbers[column] *= 20
            scaled(stats, f"{family}/{layer}", 20)
            scaled(stats, "param/head", 1.5)

    (alarm,) = watched(Training(at), fault)
    assert (alarm.step, alarm.rule, alarm.key) == (at, rule, f"{family}/{layer}")
    assert alarm.value is not None
    assert alarm.limit is not None
    assert alarm.value > alarm.limit


def test_a_wrong_batch_is_named_and_no_parameter_that_drifts() -> None:
    watch = AlarmWatch({})
    for step in range(80):
        grown = 1 + 0.01 * step
        stats = {"input/y": {"l2": 3.0 if step < 79 else 900.0}, "param/head": {"l2": grown}}
        alarms = watch.step(step, {"loss": 1 + 0.1 * (step % 7) if step < 79 else 9e4})
        found = [watch.named(alarm, stats) for alarm in alarms]
        watch.recorded(step, stats, {})
    assert [(alarm.rule, alarm.key) for alarm in found] == [("loss-spike", "input/y")]


def test_no_tensor_is_named_where_none_deviates() -> None:
    """A wrong target that is not observed: parameters drift and activations have noise, as ever."""
    watch, noise = AlarmWatch({}), np.random.default_rng(0)
    named: list[str | None] = []
    for step in range(80):
        stats: Stats = {f"param/{layer}": {"l2": 5 * 1.02**step} for layer in LAYERS}
        stats |= {f"activation/{layer}": {"l2": float(noise.lognormal(0, 0.1))} for layer in LAYERS}
        alarms = watch.step(step, {"loss": 1 + 0.1 * (step % 7) if step < 79 else 9e4, "grad_norm": 1.0})
        named += [watch.named(alarm, stats).key for alarm in alarms]
        watch.recorded(step, stats, {})
    assert named == [None]


def test_spikes_are_silent_before_there_is_something_to_compare_with() -> None:
    def fault(step: int, numbers: dict[str, float], stats: Stats, _: Any) -> None:
        if step == 63:
            numbers["loss"] *= 100

    assert watched(Training(1), fault) == []


def test_skewed_losses_as_of_small_batches_are_no_spikes() -> None:
    for seed in range(5):
        losses = np.random.default_rng(seed).lognormal(-5, 0.6, 2000)
        watch = AlarmWatch({})
        assert [alarm for step, loss in enumerate(losses) for alarm in watch.step(step, {"loss": loss})] == []


def test_losses_with_a_heavy_tail_are_no_spikes_and_two_spikes_do_not_hide_a_third() -> None:
    heavy = np.abs(np.random.default_rng(0).standard_t(1.5, (10_000, 64))).mean(-1)
    watch = AlarmWatch({})
    found = [alarm for step, loss in enumerate(heavy) for alarm in watch.step(step, {"loss": loss})]
    assert len(found) <= 2, [alarm.why for alarm in found]

    light = np.random.default_rng(0).normal(2.5, 0.1, 300)
    light[[150, 190, 230]] *= 4
    watch = AlarmWatch({})
    found = [alarm.step for step, loss in enumerate(light) for alarm in watch.step(step, {"loss": loss})]
    assert found == [150, 190, 230]


def test_the_limit_is_that_of_the_last_128_steps_in_values_and_in_logarithms() -> None:
    values = np.random.default_rng(0).normal(5, 1, 300)
    last = values[-128:]
    logarithms = np.sort(np.log(last))
    tail = (logarithms[-3] - logarithms.mean()) / logarithms.std()
    power = logarithms.mean() + 5 * logarithms.std() * max(1, tail / 1.8) ** 2
    limit = max(last.mean() + 6 * last.std(), np.exp(power))
    for value, found in ((limit * 0.999, 0), (limit * 1.001, 1)):
        watch = AlarmWatch({})
        assert [alarm for step, each in enumerate(values) for alarm in watch.step(step, {"loss": each})] == []
        alarms = watch.step(300, {"loss": value})
        assert len(alarms) == found
        assert all(alarm.limit == pytest.approx(limit) for alarm in alarms)


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_a_spike_in_a_descent_may_be_lower_than_where_the_descent_began(noise: float) -> None:
    losses = 5 * np.exp(-np.arange(180) / 50) * np.random.default_rng(0).lognormal(0, noise, 180)
    for factor, found in ((1.0, []), (5.0, [150])):
        watch = AlarmWatch({})
        steps = enumerate(np.where(np.arange(180) == 150, factor, 1) * losses)
        assert [alarm.step for step, loss in steps for alarm in watch.step(step, {"loss": loss})] == found
    assert 5 * losses[150] < losses[:128].max()


def test_noise_that_grows_beside_a_loss_that_falls_is_no_spike() -> None:
    at = np.arange(128)
    for seed in range(20):
        noise = np.random.default_rng(seed).lognormal(0, 1, 128) ** (0.02 + 0.28 * at / 128)
        losses = 3 * np.exp(-at / 40) * noise
        for factor, found in ((1, []), (6, [100])):
            watch, steps = AlarmWatch({}), enumerate(np.where(at == 100, factor, 1) * losses)
            assert [alarm.step for step, loss in steps for alarm in watch.step(step, {"loss": loss})] == found


def test_the_end_of_a_descent_is_no_spike() -> None:
    losses = np.maximum(np.exp(-np.arange(400) / 40), 0.05) * np.random.default_rng(0).normal(1, 0.01, 400)
    watch = AlarmWatch({})
    assert [alarm for step, loss in enumerate(losses) for alarm in watch.step(step, {"loss": loss})] == []


@pytest.mark.parametrize("column", ["grad_norm", "update_norm"])
def test_a_norm_that_hardly_varies_is_no_spike_where_it_grows_by_a_third(column: str) -> None:
    norms = np.random.default_rng(0).normal(1, 0.02, 300)
    for factor, found in ((1.4, 0), (1.6, 1)):
        watch = AlarmWatch({})
        assert [alarm for step, each in enumerate(norms) for alarm in watch.step(step, {column: each})] == []
        assert len(watch.step(300, {column: factor})) == found


def test_a_level_that_stays_high_is_one_alarm() -> None:
    def fault(step: int, numbers: dict[str, float], stats: Stats, _: Any) -> None:
        if step >= 200:
            numbers["loss"] *= 50

    (alarm,) = watched(Training(2), fault)
    assert (alarm.step, alarm.rule) == (200, "loss-spike")


def test_the_forward_most_of_tensors_that_deviate_alike_is_named() -> None:
    def fault(step: int, numbers: dict[str, float], stats: Stats, _: Any) -> None:
        if step == 300:
            numbers["grad_norm"] *= 1000
            for layer in LAYERS[2:]:
                scaled(stats, f"param_grad/{layer}", 1e3)

    (alarm,) = watched(Training(3), fault)
    assert alarm.key == "param_grad/third"


def test_a_loss_that_is_not_finite_is_an_alarm_whatever_came_before() -> None:
    def fault(step: int, numbers: dict[str, float], stats: Stats, _: Any) -> None:
        if step == 3:
            numbers["loss"] = float("nan")
            stats["param_grad/second"]["nan"] = 4

    (alarm,) = watched(Training(4), fault)
    assert (alarm.step, alarm.rule, alarm.key) == (3, "nonfinite", "param_grad/second")


def stuck(step: int, numbers: Any, stats: Stats, unchanged: dict[str, bool]) -> None:
    unchanged["fourth"] = step >= 100


def dying(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
    stats["param_grad/second"]["zeros"] = min(SIZE, max(0, step - 200))


def too_large(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
    if step >= 100:
        scaled(stats, "update/third", 300)


def too_small(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
    if step >= 100:
        scaled(stats, "update/fifth", 1e-6)


def steepening(sign: int) -> Any:
    def fault(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
        for depth, layer in enumerate(LAYERS):
            scaled(stats, f"activation_grad/{layer}", 10 ** (sign * (len(LAYERS) - 1 - depth) * min(step / 300, 1)))

    return fault


@sampled(
    ("fault", "rule", "key", "earliest", "latest"),
    [
        (stuck, "stuck", "param/fourth", 130, 130),
        (dying, "dying", "param_grad/second", 305, 320),
        (too_large, "update-ratio", "update/third", 145, 145),
        (too_small, "update-ratio", "update/fifth", 145, 145),
        (steepening(-1), "vanishing", "activation_grad/first", 100, 300),
        (steepening(1), "exploding", "activation_grad/first", 200, 330),
    ],
)
def test_what_tensors_do_over_time_is_found_once(fault: Any, rule: str, key: str, earliest: int, latest: int) -> None:
    (alarm,) = watched(Training(5), fault)
    assert (alarm.rule, alarm.key) == (rule, key)
    assert earliest <= alarm.step <= latest


@pytest.mark.parametrize("reads", ["last", "loss"])
def test_gradients_of_the_loss_behind_the_last_weights_are_not_those_of_a_layer(reads: str) -> None:
    sizes = {"param_grad/first/w": SIZE, "param_grad/last/w": SIZE, "param_grad/loss/w": SIZE}
    returned = {"first/w": ["activation_grad/first"], f"{reads}/w": [f"activation_grad/{reads}"]}
    watch, found = AlarmWatch(sizes, returned=returned), []
    for step in range(40):
        fitted = 10.0 ** (-step / 8)
        levels = {"first": fitted, "second": fitted, "third": fitted, "last": fitted, "loss": 1.0, "loss#2": 1.0}
        stats: Stats = {f"activation_grad/{name}": {"l2": each, "rms": each} for name, each in levels.items()}
        found += watch.recorded(step, stats, {})
    assert [alarm.rule for alarm in found] == ([] if reads == "last" else ["vanishing"])


@pytest.mark.parametrize("loss", [0.0, 0.3], ids=["solved", "not solved"])
def test_where_the_loss_is_zero_and_all_gradients_are_no_unit_has_died_and_nothing_is_stuck(loss: float) -> None:
    def all_margins_are_kept(step: int, numbers: Any, stats: Stats, unchanged: dict[str, bool]) -> None:
        if step >= 100 and step % 100 < 90:
            numbers |= {"loss": loss, "grad_norm": 0.0, "update_norm": 0.0}
            unchanged |= dict.fromkeys(unchanged, True)
            for layer in LAYERS:
                stats[f"param_grad/{layer}"] |= {"l2": 0.0, "rms": 0.0, "zeros": SIZE}
                stats[f"update/{layer}"] |= {"l2": 0.0, "rms": 0.0, "ratio": 0.0}

    rules = {alarm.rule for alarm in watched(Training(5), all_margins_are_kept) if not alarm.rule.endswith("-spike")}
    assert rules == (set() if loss == 0 else {"dying", "stuck"})


@pytest.mark.parametrize("second", [-0.5, 0.4], ids=["cancels", "is masked"])
def test_the_bias_of_a_head_of_which_the_loss_takes_differences_alone_is_not_stuck(second: float) -> None:
    sizes = {"param_grad/head/w": 8, "param_grad/head/b": 1, "activation_grad/head": 4, "activation_grad/head#2": 4}
    returned = {"head/b": ["activation_grad/head", "activation_grad/head#2"]}
    watch, found = AlarmWatch(sizes, returned=returned), []
    for step in range(8):
        stats: Stats = {
            "param/head/w": {"l2": 2.0 + step},
            "param/head/b": {"l2": 0.0},
            "activation_grad/head": {"mean": 0.5, "rms": 0.6, "l2": 1.2},
            "activation_grad/head#2": {"mean": second, "rms": 0.6, "l2": 1.2},
            "param_grad/head/w": {"l2": 1.0, "zeros": 0},
            "param_grad/head/b": {"l2": 0.0, "zeros": 1},
        }
        found += watch.recorded(step, stats, {"head/w": False, "head/b": True})
    assert [alarm.key for alarm in found] == ([] if second == -0.5 else ["param/head/b"])


def test_a_gradient_of_one_element_dies_without_a_share() -> None:
    watch, found = AlarmWatch({"param_grad/b": 1}), []
    for step in range(8):
        zero = {"l2": 0.0, "zeros": 1} if step > 3 else {"l2": 1.0, "zeros": 0}
        found += watch.recorded(step, {"param/b": {"l2": 1.0 + step}, "param_grad/b": zero}, {"b": False})
    assert [(each.rule, each.why) for each in found] == [("dying", "is zero, and was not")]


@pytest.mark.parametrize("sent", [SIZE // 20, SIZE // 5], ids=["few", "many"])
def test_units_are_not_dead_where_the_loss_sends_few_gradients_back(sent: int) -> None:
    def most_margins_are_kept(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
        if step >= 200:
            stats["param_grad/second/w"]["zeros"] = 3 * SIZE // 4
            stats["activation_grad/last"]["zeros"] = SIZE - sent

    sizes = dict.fromkeys(["param_grad/second/w", "param_grad/last/w", "activation_grad/last"], SIZE)
    watch, found = AlarmWatch(sizes), []
    for step in range(0, 400, EVERY):
        stats: Stats = {key: {"l2": 0.3, "rms": 0.3 / SIZE**0.5, "zeros": 0} for key in sizes}
        most_margins_are_kept(step, {}, stats, {})
        found += watch.recorded(step, stats, {})
        watch = again(watch, sizes, step)
    assert [alarm.key for alarm in found] == ([] if sent < SIZE / 8 else ["param_grad/second/w"])


def test_units_that_come_alive_together_were_not_dead() -> None:
    def about_half(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
        if step >= 200:
            alive = 400 <= step < 450
            stats["param_grad/second"]["zeros"] = 0 if alive else SIZE // 2 + (1 if step % 40 else -1)

    (first,) = watched(Training(5), about_half)
    assert (first.rule, first.key) == ("dying", "param_grad/second")
    assert 200 <= first.step < 240


@pytest.mark.parametrize(
    ("shares", "dies"),
    [
        # A table of positions, of groups of one length; the head of a task that few batches have.
        ([0.75, 0.5, 0.0, 0.75, 0.25, 0.5, 0.75, 0.75, 0.75, 0.75, 0.75], False),
        ([1.0, 0.15, 0.78, 0.65, 0.05, 0.65, 0.82, 0.6, 0.82], False),
        ([0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], False),
        # Units of a perceptron, of which few come back; a layer behind that begins at zero.
        ([0.09, 0.31, 0.5, 0.53, 0.41, 0.56, 0.57, 0.6], True),
        ([1.0, 0.1, 0.2, 0.3, 0.56, 0.6, 0.6], True),
        # A kernel of which a fifth of the inputs, dark pixels, are zero for all examples, and two fifths of the units.
        ([0.19, 0.29, 0.42, 0.45, 0.49, 0.51, 0.52, 0.52, 0.53], False),
    ],
)
def test_a_gradient_that_is_zero_where_examples_are_missing_is_not_that_of_dead_units(
    shares: list[float], dies: bool
) -> None:
    watch, found = AlarmWatch({"param_grad/second": SIZE}), []
    for step, share in enumerate(shares):
        stats: Stats = {"param_grad/second": {"l2": 0.3, "rms": 0.3, "zeros": round(share * SIZE)}}
        found += watch.recorded(EVERY * step, stats, {})
        watch = again(watch, {"param_grad/second": SIZE}, EVERY * step)
    assert [alarm.rule for alarm in found] == ["dying"] * dies


@pytest.mark.parametrize(("dead", "keys"), [(2, []), (6, ["param_grad/second/kernel"])])
def test_the_bias_of_a_layer_says_how_many_of_its_units_are_dead(dead: int, keys: list[str]) -> None:
    sizes = {"param_grad/second/bias": 8, "param_grad/second/kernel": 80}
    watch, found = AlarmWatch(sizes), []
    for step in range(8):
        zeros = dict(zip(sizes, (dead, 44 + 6 * dead), strict=True)) if step > 2 else dict.fromkeys(sizes, 0)
        found += watch.recorded(EVERY * step, {key: {"l2": 0.3, "zeros": each} for key, each in zeros.items()}, {})
    assert [alarm.key for alarm in found] == keys


@pytest.mark.parametrize(("level", "rules"), [(1e-7, []), (1e-3, ["dying"])])
def test_gradients_that_round_to_zero_behind_a_perfect_fit_are_not_those_of_dead_units(
    level: float, rules: list[str]
) -> None:
    sizes = {"param_grad/head/bias": 10, "param_grad/first/bias": 10}
    watch, found = AlarmWatch(sizes), []
    for step in range(8):
        zeros, l2 = (7, level) if step > 2 else (0, 1.0)
        stats: Stats = {key: {"l2": l2, "zeros": zeros if "head" in key else 0} for key in sizes}
        found += watch.recorded(EVERY * step, stats, {})
        watch = again(watch, sizes, EVERY * step)
    assert [alarm.rule for alarm in found] == rules


def test_where_parameters_are_not_finite_nothing_else_is_an_alarm() -> None:
    def overflows(step: int, numbers: Any, stats: Stats, unchanged: dict[str, bool]) -> None:
        if step >= 3:  # as where a rectifier behind passes nothing of them
            numbers["loss"] = float("nan")
            stats["param/second"]["nan"] = SIZE
            stats["param_grad/first"] |= {"l2": 0.0, "rms": 0.0, "zeros": SIZE}
            unchanged |= dict.fromkeys(unchanged, True)

    (alarm,) = watched(Training(5), overflows)
    assert (alarm.step, alarm.rule) == (3, "nonfinite")


@pytest.mark.parametrize("norm", [np.inf, np.nan], ids=["infinite", "no number"])
def test_a_norm_may_be_infinite_where_no_element_is(norm: float) -> None:
    (alarm,) = AlarmWatch({}).step(0, {"loss": 1e22, "grad_norm": norm, "update_norm": norm})
    assert (alarm.rule, "or the sum of their squares" in alarm.why) == ("nonfinite", bool(np.isinf(norm)))
    assert alarm.why.startswith(f"the norm of the gradients is {norm}")


def test_a_norm_that_stays_without_a_number_is_one_alarm_though_the_loss_is_known_in_between() -> None:
    watch, found = AlarmWatch({}), list[Alarm]()
    for step in range(41):
        of_recorded = {"grad_norm": float("nan") if step != 30 else 1.0} if step % 10 == 0 else {}
        found += watch.step(step, {"loss": 1.0, **of_recorded})
        state, watch = watch.to_json(), AlarmWatch({})
        watch.restore(state)
    assert [(alarm.step, alarm.rule) for alarm in found] == [(0, "nonfinite"), (40, "nonfinite")]


@pytest.mark.parametrize(
    ("left_out", "update", "found"),
    [((20, 30), 0.0, []), ((20, 30), 1e-3, [20]), ((20, 70), 0.0, [55])],
    ids=["a loss scale comes down", "the update is made", "none is ever made again"],
)
def test_a_step_that_makes_no_update_of_what_is_not_finite_is_sound(
    left_out: tuple[int, int], update: float, found: list[int]
) -> None:
    watch, alarms = AlarmWatch({}), list[Alarm]()
    for step in range(100):
        recorded = {"grad_norm": 1.0, "update_norm": 0.01} if step % 5 == 0 else {}
        if recorded and left_out[0] <= step <= left_out[1]:
            recorded = {"grad_norm": float("nan"), "update_norm": update}
        alarms += watch.step(step, {"loss": 1.0, **recorded})
        watch = again(watch, {}, step)
    assert [(alarm.step, alarm.rule) for alarm in alarms] == [(step, "nonfinite") for step in found]


@pytest.mark.parametrize(("update", "found"), [(0.0, [32]), (1e-3, [0]), (None, [0])])
def test_so_are_steps_behind_it_that_are_not_recorded(update: float | None, found: list[int]) -> None:
    watch, alarms = AlarmWatch({}), list[Alarm]()
    for step in range(60):
        of_recorded = (
            {"grad_norm": float("nan"), "update_norm": update} if step % 10 == 0 and update is not None else {}
        )
        alarms += watch.step(step, {"loss": float("nan"), **of_recorded})
        watch = again(watch, {}, step)
    assert [(alarm.step, alarm.rule) for alarm in alarms] == [(step, "nonfinite") for step in found]


def test_what_sound_schedules_do_is_no_alarm() -> None:
    def warm_up_and_decay(step: int, numbers: Any, stats: Stats, unchanged: dict[str, bool]) -> None:
        rate = 0.0 if step == 0 else min(1.0, (STEPS - step) / 50) ** 8
        unchanged |= dict.fromkeys(unchanged, rate == 0)
        for layer in LAYERS:
            scaled(stats, f"update/{layer}", rate)
        numbers["update_norm"] *= rate
        # A bias that grows from zero by equal steps.
        stats["update/head"]["ratio"] = 1 / step if step else None

    assert watched(Training(6), warm_up_and_decay, every=1) == []


def test_updates_as_large_as_a_parameter_about_zero_are_no_alarm() -> None:
    def noise(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
        scaled(stats, "param/third", 0.01)
        scaled(stats, "update/third", 3)
        stats["update/third"]["ratio"] = 0.3

    assert watched(Training(7), noise) == []


CURVATURES = np.geomspace(0.01, 1.0, 20)


def descended(rate: float, *, momentum: float = 0.0, zeros: bool = False, every: int = 10) -> list[Alarm]:
    """The alarms of gradient descent on a quadratic loss, which is stable up to a learning rate of 2."""
    rng, watch, found = np.random.default_rng(0), AlarmWatch({}), list[Alarm]()
    best, trace = rng.normal(0, 1, 20), np.zeros(20)
    params = np.zeros(20) if zeros else rng.normal(0, 1, 20)
    for step in range(120):
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = CURVATURES * (params - best)
            trace = momentum * trace + gradient
            numbers = {"loss": float(0.5 * (CURVATURES * (params - best) ** 2).sum()), "learning_rate": rate,
                       "grad_norm": float(np.linalg.norm(gradient)),
                       "update_norm": float(rate * np.linalg.norm(trace))}  # fmt: skip
            numbers |= {"param_norm": float(np.linalg.norm(params))} if step % every == 0 else {}
            params = params - rate * trace
        found += watch.step(step, numbers)
        watch = again(watch, {}, step)
        if not np.isfinite(numbers["grad_norm"] + numbers["loss"]):
            break  # the run ends
    return [alarm for alarm in found if alarm.rule == "diverging"]


@pytest.mark.parametrize("zeros", [False, True])
def test_a_learning_rate_that_is_far_too_large_is_named(zeros: bool) -> None:
    for rate in (4.0, 20.0, 200.0, 2000.0):
        (alarm,) = descended(rate, zeros=zeros)
        assert alarm.step <= 12
        assert alarm.why.endswith(f"the learning rate, {rate:g}, is too large")
        assert len(descended(rate, momentum=0.9, zeros=zeros)) == 1


def test_a_learning_rate_is_blamed_with_the_numbers_that_say_so() -> None:
    rng = np.random.default_rng(0)
    best, params = rng.normal(0, 1, 20), rng.normal(0, 1, 20)
    gradient = CURVATURES * (params - best)
    share, first = 200 * np.linalg.norm(gradient) / np.linalg.norm(params), 0.5 * gradient @ (params - best)
    (alarm,) = descended(200.0)
    begin = f"the update of step 0 is {share:.2g} times the parameters, and the loss grew from {first:.4g} to "
    assert alarm.why.startswith(begin)
    assert alarm.limit == pytest.approx(10 * first)


@pytest.mark.parametrize("zeros", [False, True])
def test_a_learning_rate_at_which_a_run_converges_is_not(zeros: bool) -> None:
    for rate in (1e-3, 0.1, 1.0, 1.99):
        assert descended(rate, zeros=zeros) == []
        assert descended(rate, momentum=0.5, zeros=zeros, every=1) == []


def diverging(losses: list[float], share: float, slope: float = 10.0) -> list[int]:
    """The steps at which losses raise the alarm where each update is a share of the parameters."""
    watch = AlarmWatch({})
    numbers = [{"loss": loss, "grad_norm": slope * loss, "update_norm": share, "param_norm": 1.0} for loss in losses]
    found = [alarm for step, each in enumerate(numbers) for alarm in watch.step(step, each)]
    return [alarm.step for alarm in found if alarm.rule == "diverging"]


def test_a_loss_that_goes_up_and_down_around_zero_does_not_diverge() -> None:
    swings = [-0.02 - 1.6 * float(np.sin(step / 6)) for step in range(120)]
    assert diverging(swings, 0.9) == []
    assert diverging([*swings[:20], *[50.0] * 10], 0.9) == [24]


def test_a_loss_that_grows_is_not_due_to_updates_that_are_small_or_soon_over() -> None:
    grows = [1.0, *[50.0] * 20]
    assert (diverging(grows, 0.4), diverging(grows, 0.2)) == ([5], [])
    catapult = [1.0, 50.0, 300.0, 80.0, 11.0, *[0.5] * 20]
    assert diverging(catapult, 0.9) == []
    assert diverging([1.0, *[9.0] * 20], 5.0) == []  # large but working, and noise of a loss that has become tiny
    assert diverging([1.0, *[1e-9] * 40, *[1e-3] * 40], 5.0) == []
    assert diverging([1.0, 2000.0, 1.0], 2.0) == [1]
    assert (diverging([1.0, float("nan")], 20.0), diverging([1.0, float("nan")], 2.0)) == ([1], [])
    assert (diverging([1.0, 20.0, float("nan")], 0.4), diverging([1.0, 20.0, float("nan")], 0.2)) == ([2], [])


NO_END = " by way of -9e+05: a term of the loss has no lower bound; look at its sign"


@pytest.mark.parametrize(
    ("falls", "words"),
    [
        ([-2.3, -2.5, -3.0, -7.5, -197.0, -9e5], NO_END),
        ([2.3, 1.5, 0.4, -0.9, -1.2, -1.3], ": the learning rate is too large"),
    ],
)
def test_a_loss_that_falls_without_end_has_no_lower_bound(falls: list[float], words: str) -> None:
    watch, found = AlarmWatch({}), list[Alarm]()
    for step, loss in enumerate([*falls, float("nan")]):
        found += watch.step(step, {"loss": loss, "grad_norm": abs(loss), "update_norm": 20.0, "param_norm": 1.0})
    why = next(each.why for each in found if each.rule == "diverging")
    assert why.endswith(f" to nan{words}")


def test_a_loss_that_rises_and_stays_high_after_large_updates_is_a_rate_that_is_too_large() -> None:
    rng = np.random.default_rng(0)
    stays = [2.7, *[6.0] * 10, *(2.3 + 0.05 * rng.normal(size=289)).tolist()]
    assert (diverging(stays, 0.2), diverging(stays, 0.05)) == ([127], [])
    assert diverging(stays[:127], 0.2) == []
    assert diverging([2.7, *stays[11:]], 0.9) == []  # it never rose: there may be nothing to learn
    assert diverging([2.7, *[6.0] * 10, *np.geomspace(2.6, 1.0, 289).tolist()], 0.2) == []
    watch, found = AlarmWatch({}), list[Alarm]()
    for step, loss in enumerate(stays):
        rate = min(step, 50) / 50  # a warm-up
        numbers = {"loss": loss, "grad_norm": 1.0, "update_norm": 0.25 * rate, "param_norm": 1.0, "learning_rate": rate}
        found += watch.step(step, numbers)
        watch = again(watch, {}, step)
    (alarm,) = [each for each in found if each.rule == "diverging"]
    assert alarm.why.startswith(
        "the update of step 50 is 25% of the parameters, and the loss, 2.7 at first, rose to twice that or more, and "
        "came down to 2."
    )
    assert alarm.why.endswith(" only: the learning rate, 1, is too large")


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_a_regression_from_zero_with_hardly_a_signal_has_no_rate_that_is_too_large(rate: float) -> None:
    rng, watch, found, weights = np.random.default_rng(0), AlarmWatch({}), list[Alarm](), np.zeros(20)
    for step in range(200):
        x, y = rng.normal(size=(256, 20)), rng.random(256) < 0.5
        logits = x @ weights
        gradient = x.T @ (1 / (1 + np.exp(-logits)) - y) / 256
        numbers = {"loss": float(np.mean(np.logaddexp(0, logits) - y * logits)),
                   "update_norm": float(rate * np.linalg.norm(gradient)),
                   "param_norm": float(np.linalg.norm(weights))}  # fmt: skip
        found += watch.step(step, numbers)
        weights = weights - rate * gradient
    assert [alarm.rule for alarm in found if alarm.rule == "diverging"] == []


def maximised(depth: int, steps: int = 300) -> list[dict[str, float]]:
    """The numbers of a linear network that leaves its target by the signs of its gradients, nearly as Adam does."""
    weights, found = np.full(depth, 0.5), []
    for _ in range(steps):
        error = 1 - weights.prod()
        gradients = 2 * error * weights.prod() / weights
        weights = weights - 0.03 * np.sign(gradients)
        found.append({"loss": -(error**2), "grad_norm": float(np.linalg.norm(gradients))})
    return found


def unbounded(rows: list[dict[str, float]]) -> list[int]:
    watch = AlarmWatch({})
    return [alarm.step for step, row in enumerate(rows) for alarm in watch.step(step, row) if alarm.rule == "unbounded"]


def test_a_term_of_the_wrong_sign_is_found_once() -> None:
    (step,) = unbounded(maximised(5))
    assert step < 256
    apart = [row if step % 5 == 0 else {"loss": row["loss"]} for step, row in enumerate(maximised(5, 1500))]
    assert len(unbounded(apart)) == 1  # as of a probe, which knows the gradient of some steps


def test_a_loss_that_is_meant_to_be_negative_is_bounded() -> None:
    steps = np.arange(1500)
    actor = [{"loss": -0.01 - 0.1 * step, "grad_norm": 0.01 + 0.1 * step} for step in steps]  # -Q, whose scale grows
    likelihood = [{"loss": 3000 - 13000 * (1 - np.exp(-step / 500)), "grad_norm": 1e5 + step * 1e5} for step in steps]
    critic = [
        {"loss": 0.001 - 5 * np.sin(step / 6) ** 2, "grad_norm": 0.5 + 5 * np.sin(step / 6) ** 2} for step in steps
    ]
    from_zero = [{"loss": -(max(step - 9.0, 0.0) ** 6), "grad_norm": 1.0} for step in steps]
    for series in (actor, likelihood, critic, from_zero):
        assert unbounded([{name: float(value) for name, value in row.items()} for row in series]) == []


@pytest.mark.parametrize("rate", [1e-4, 3e-3])
def test_parameters_that_begin_at_zero_are_no_learning_rate_that_is_too_large(rate: float) -> None:
    """Logistic regression by Adam on noisy labels: its first updates are all that the parameters are."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(4096, 20))
    labels = (inputs @ rng.normal(size=20) > 0) ^ (rng.random(4096) < 0.25)
    weight, mean, square, found, watch = np.zeros(20), np.zeros(20), np.zeros(20), list[Alarm](), AlarmWatch({})
    for step in range(300):
        at = rng.integers(0, 4096, 128)
        logits = inputs[at] @ weight
        gradient = inputs[at].T @ (1 / (1 + np.exp(-logits)) - labels[at]) / 128
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        scale = np.sqrt(square / (1 - 0.999 ** (step + 1)))
        update = rate * mean / (1 - 0.9 ** (step + 1)) / scale
        norms = [float(np.linalg.norm(each)) for each in (gradient, update, weight)]
        loss = float(np.mean(np.logaddexp(0, logits) - labels[at] * logits))
        numbers = zip(("grad_norm", "update_norm", "param_norm"), norms, strict=True)
        found += watch.step(step, {"loss": loss, **dict(numbers)})
        weight = weight - update
    assert [each for each in found if each.rule == "diverging"] == []


def test_a_parameter_that_comes_down_to_zero_is_no_learning_rate_that_is_too_large() -> None:
    """The square root of a parameter that has a constant gradient is not finite at last."""
    watch, found, param = AlarmWatch({}), list[Alarm](), 1.0
    for step in range(12):
        numbers = {"loss": param**0.5 if param >= 0 else float("nan"), "update_norm": 0.099, "param_norm": abs(param)}
        found += watch.step(step, numbers)
        param -= 0.099
    assert [alarm.rule for alarm in found] == ["nonfinite"]


def test_a_run_that_an_older_version_saved_is_gone_on_with() -> None:
    saved = AlarmWatch({}).to_json()
    del saved["divergence"], saved["descent"]
    watch = AlarmWatch({})
    watch.restore(saved)
    assert watch.step(0, {"loss": 1.0}) == []


def test_a_bias_that_has_grown_from_zero_has_the_size_of_its_updates() -> None:
    """As in a network that learns by SGD at a learning rate of 0.3, whose biases noise moves."""

    def noise(step: int, numbers: Any, stats: Stats, unchanged: Any) -> None:
        scaled(stats, "param/third", 0.0 if step == 0 else 0.3)
        stats["update/third"]["ratio"] = 0.25 if step else None

    assert watched(Training(8), noise) == []


def without_change(unreached: dict[str, str], rate: float | None = 0.1, **l2: float) -> list[str]:
    """The reasons of the alarms of a parameter that stays as it is, while another one is trained."""
    watch, found = AlarmWatch({}, unreached), list[str]()
    for step in range(25):
        stats: Stats = {"param/a": {"l2": 1.0, "rms": 1.0}, "param/b": {"l2": 1.0, "rms": 1.0}}
        stats |= {"update/b": {"l2": 0.01, "ratio": 0.01}}
        stats |= {f"{family}/a": {"l2": each, "ratio": each} for family, each in l2.items()}
        found += [alarm.why for alarm in watch.recorded(step, stats, {"a": True, "b": False}, rate)]
    return found


def test_a_parameter_that_stays_has_the_reason_beside_it() -> None:
    (cut,) = without_change({"a": "stop_gradient at net.py:3"}, update=0.0)
    assert cut == "did not change at 3 recorded steps in a row: no gradient reaches it (stop_gradient at net.py:3)"
    (zero,) = without_change({}, param_grad=0.0, update=0.0)
    assert zero.endswith(" in a row: its gradient is exactly zero")
    (rate,) = without_change({}, 0.0, param_grad=1.0, update=0.0)
    assert rate.endswith(": the learning rate is 0")
    (rounded,) = without_change({}, param_grad=1.0, update=3e-9)
    assert rounded.endswith(": 3e-09, the norm of its update, is lost in its rounding")


def probed(parameters: Mapping[str, Mapping[str, float | None]], steps: int = 25, every: int = 1) -> list[Alarm]:
    """The alarms of a loop that states no new parameters: by parameter its start, growth, gradient and update."""
    watch, found = AlarmWatch({}), list[Alarm]()
    for step in range(0, steps, every):
        stats: Stats = {}
        for name, each in parameters.items():
            stats[f"param/{name}"] = column_of((each["start"] or 0.0) + (each["growth"] or 0.0) * step)
            stats[f"param_grad/{name}"] = column_of(each["gradient"] or 0.0)
            if (update := each["update"]) is not None:
                stats[f"update/{name}"] = {**column_of(update), "ratio": abs(update) if each["start"] else None}
        found += watch.recorded(step, stats, {})
        watch = again(watch, {}, step)
    return found


def column_of(value: float) -> dict[str, Any]:
    return {"l2": abs(value), "rms": abs(value), "mean": value, "std": 0.0, "amax": abs(value), "zeros": 0}


def parameter(
    growth: float = 0.001, gradient: float = 0.3, update: float | None = -0.001, start: float = 1.0
) -> dict[str, float | None]:
    return {"start": start, "growth": growth, "gradient": gradient, "update": update}


@pytest.mark.parametrize("update", [0.0, None], ids=["the update is zero", "updates are not recorded"])
def test_parameters_that_the_optimizer_freezes_are_neither_stuck_nor_too_small(update: float | None) -> None:
    moving = parameter(update=None if update is None else -0.001)
    assert probed({"trunk": parameter(growth=0, update=update), "head": moving}) == []


def test_a_loop_that_states_no_new_parameters_is_stuck_where_their_statistics_stay() -> None:
    (zero,) = probed({"a": parameter(growth=0, gradient=0.0, update=None), "b": parameter(update=None)})
    assert (zero.rule, zero.key, zero.step) == ("stuck", "param/a", 3)
    assert zero.why.endswith(" in a row: its gradient is exactly zero")
    (forgotten,) = probed({"a": parameter(growth=0, update=-0.2), "b": parameter()})
    assert (forgotten.rule, forgotten.key) == ("stuck", "param/a")
    assert forgotten.why.endswith(": 0.2, the norm of its update, is not applied")
    (either,) = probed({"a": parameter(growth=0, update=-0.001), "b": parameter()})
    assert either.why.endswith(": 0.001, the norm of its update, is not applied, or lost in its rounding")
    # A bias is zero at first, and nothing is lost beside that.
    (both,) = probed({"a": parameter(growth=0, update=-0.2), "c": parameter(0, update=-0.2, start=0), "b": parameter()})
    assert both.why.endswith(" in a row, and c too: 0.2, the norm of its update, is not applied")


def test_where_all_stay_a_loop_may_add_up_gradients_and_is_stuck_later() -> None:
    both = dict.fromkeys("ab", parameter(growth=0, update=-0.001))
    assert [(each.rule, each.step) for each in probed(both)] == [("stuck", 22)]
    unknown = dict.fromkeys("ab", parameter(growth=0, update=None))
    assert probed(unknown, steps=90) == []
    assert [(each.rule, each.step) for each in probed(unknown, steps=160, every=10)] == [("stuck", 120)]


@pytest.mark.parametrize("states", [True, False], ids=["new parameters are stated", "statistics tell"])
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize(("period", "slots"), [(25, True), (90, True), (15, False)])
def test_an_optimizer_that_is_asked_once_in_many_steps_is_not_stuck(
    period: int, every: int, *, slots: bool, states: bool
) -> None:
    """As a loop that adds up gradients by itself, and makes updates of zeros in between."""

    def told(*, ends: int = 1000) -> list[int]:
        watch, found = AlarmWatch({}), list[Alarm]()
        for step in range(0, 400, every):
            moves, asked = step % period == period - 1 and step < ends, (step + 1) // period
            stats: Stats = {}
            for name in "ab":
                stats[f"param/{name}"] = column_of(1.0 + min(step, ends) // period)
                stats[f"param_grad/{name}"] = column_of(0.3 + 0.001 * step)
                stats[f"update/{name}"] = {**column_of(0.1 * moves), "ratio": 0.1 * moves}
                # A rate of 0 goes on with the moments that it makes of the gradients.
                stats |= {f"slot/mu/{name}": column_of(0.2 + 0.1 * (asked if step < ends else step))} if slots else {}
            found += watch.recorded(step, stats, dict.fromkeys("ab", not moves) if states else {})
            watch = again(watch, {}, step)
        return [alarm.step for alarm in found if alarm.rule == "stuck"]

    assert told() == []
    (stuck,) = told(ends=2 * period)
    assert 4 * period <= stuck <= 4 * period + 3 * every + 20


def test_a_gradient_that_is_rounding_moves_nothing_and_is_not_stuck() -> None:
    bias = parameter(growth=0, gradient=1e-9, update=1e-12)
    assert [each.rule for each in probed({"bias": bias, "b": parameter()})] == []
    assert [each.rule for each in probed({"key/bias": bias, "key/kernel": parameter()})] == []


@pytest.mark.parametrize("others", [1.0, 1e-4], ids=["converged", "one group of several"])
def test_a_run_that_has_converged_is_not_stuck(others: float) -> None:
    watch, found = AlarmWatch({}), list[Alarm]()
    for step in range(150):
        left = 0.8**step
        stats = {"param/w": column_of(1 - left if step < 80 else 1.0), "param/b": column_of(1.0 + step)}
        stats |= {"param_grad/w": column_of(left + 1e-9), "param_grad/b": column_of(left if others == 1.0 else others)}
        stats |= {f"update/{name}": {**column_of(-1e-9), "ratio": 1e-6} for name in "wb"}
        found += watch.recorded(step, stats, {})
        watch = again(watch, {}, step)
    assert [alarm.key for alarm in found] == ([] if others == 1.0 else ["param/w"])


@pytest.mark.parametrize("flat", [False, True], ids=["layers", "no layers in the names"])
def test_the_first_parameters_of_a_network_whose_gradients_vanish_are_stuck_as_well(*, flat: bool) -> None:
    """As twelve sigmoid layers under `sgd(0.1)`: no element of the first two weights ever changes."""
    watch, found = AlarmWatch({}), list[Alarm]()
    # A bias that the normalisation behind it takes out again has a gradient of rounding alone.
    bias, beside = ("before", "activation_grad/before") if flat else ("last/before", "param_grad/last/w")
    unchanged = {bias: True}
    for step in range(25):
        stats: Stats = {f"param/{bias}": column_of(1.0), f"param_grad/{bias}": column_of(1e-8), beside: column_of(1.0)}
        for at in range(12):
            gradient = 14.0 ** (at - 11)
            weight, layer = (f"w{at}", f"w{at}") if flat else (f"fc{at}/w", f"fc{at}")
            unchanged[weight] = gradient < 1e-7
            stats |= {f"param/{weight}": column_of(1.0), f"param_grad/{weight}": column_of(gradient)}
            stats |= {f"activation_grad/{layer}": column_of(gradient / 9), f"update/{weight}": column_of(gradient / 10)}
        found += watch.recorded(step, stats, unchanged, 0.1)
    (alarm,) = found
    assert (alarm.rule, alarm.key) == ("stuck", "param/w0" if flat else "param/fc0/w")
    assert sum(unchanged.values()) == 6
    assert ", and 4 others too: " in alarm.why


@pytest.mark.parametrize("states", [True, False], ids=["new parameters are stated", "statistics tell"])
@pytest.mark.parametrize("update", [0.0, -0.2, None], ids=["zero between", "made and not applied", "not recorded"])
@pytest.mark.parametrize("every", [1, 2, 10])
def test_a_parameter_that_is_updated_once_in_several_steps_is_not_stuck(
    every: int, update: float | None, *, states: bool
) -> None:
    """As the generator of a critic that moves at each step."""
    watch, found = AlarmWatch({}), list[Alarm]()
    for step in range(0, 120, every):
        stats: Stats = {"param/critic": column_of(1 + 0.01 * step), "param/generator": column_of(1 + step // 5)}
        stats |= {"param_grad/critic": column_of(0.3), "param_grad/generator": column_of(0.3)}
        if update is not None:
            made = update if step % 5 < 4 else -0.2
            stats |= {"update/critic": {**column_of(-0.01), "ratio": 0.01},
                      "update/generator": {**column_of(made), "ratio": abs(made) / 10}}  # fmt: skip
        found += watch.recorded(step, stats, {"critic": False, "generator": step % 5 < 4} if states else {})
        watch = again(watch, {}, step)
    assert found == []


@pytest.mark.parametrize("noise", [1.0, 1e-6], ids=["new batches", "a gradient that hardly changes"])
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("between", [1, 40], ids=["asked at each step", "asked once in several"])
def test_an_optimizer_that_is_made_anew_at_each_step_is_named_and_one_that_is_kept_is_not(
    between: int, every: int, noise: float
) -> None:
    def told(*, anew: bool, b1: float = 0.9, b2: float = 0.999) -> list[tuple[str, str | None, int]]:
        rng, watch, found = np.random.default_rng(0), AlarmWatch({}), list[Alarm]()
        gradients = {name: rng.normal(size=40) for name in "abc"}
        mu, nu = ({name: np.zeros(40) for name in "abc"} for _ in range(2))
        for step in range(100):
            stats: Stats = {}
            for name, base in gradients.items():
                gradient = (base + noise * rng.normal(size=40)) * rng.uniform(0.5, 2.0) ** noise
                if anew or step % between == 0:
                    mu[name] = (1 - b1) * gradient + (0.0 if anew else b1) * mu[name]
                    nu[name] = (1 - b2) * gradient**2 + (0.0 if anew else b2) * nu[name]
                stats[f"param_grad/{name}"] = {"rms": float(np.sqrt((gradient**2).mean()))}
                for slot, each in (("mu", mu[name]), ("nu", nu[name])):
                    stats[f"slot/{slot}/{name}"] = {"mean": float(each.mean()), "rms": float(np.sqrt((each**2).mean()))}
            if step % every == 0:
                found += watch.recorded(step, stats, {})
            watch = again(watch, {}, step)
        return [(alarm.rule, alarm.key, alarm.step) for alarm in found]

    assert told(anew=True) == [("reset", "slot/mu/a", 2 * every)]
    assert told(anew=False) == []
    assert told(anew=False, b1=0.0, b2=0.0) == []  # which keeps nothing on purpose
    for b1, b2 in ((0.9, 0.99), (0.0, 0.999)):
        assert told(anew=True, b1=b1, b2=b2) == [("reset", "slot/mu/a", 2 * every)]


@pytest.mark.parametrize(
    ("update", "mean", "square", "told"),
    [
        (0.1, 0.0, 0.0, [("reset", "slot/mu/a", 20)]),
        *((0.0, 0.0, 0.0, []), (0.1, 1.0, 0.001, []), (0.1, 0.0, 1.0, [])),
    ],
    ids=["kept as init made it", "not asked yet", "that before the step", "without means, as RMSProp"],
)
def test_an_optimizer_whose_state_is_always_that_of_init_is_named(
    update: float, mean: float, square: float, told: list[tuple[str, str, int]]
) -> None:
    watch, found = AlarmWatch({}), list[Alarm]()
    for step in range(0, 60, 10):
        stats: Stats = {}
        for name in "ab":
            stats[f"param_grad/{name}"] = column_of(0.3)
            stats[f"update/{name}"] = {**column_of(update), "ratio": update}
            for slot, value in (("mu", mean), ("nu", square)):
                stats[f"slot/{slot}/{name}"] = column_of(value * step)
        found += watch.recorded(step, stats, {})
        watch = again(watch, {}, step)
    assert [(alarm.rule, alarm.key, alarm.step) for alarm in found if alarm.rule == "reset"] == told


def test_the_update_of_a_dual_variable_may_be_its_gradient() -> None:
    watch, found = AlarmWatch({}, affine={"multiplier"}), list[Alarm]()
    for step in range(5):
        stats: Stats = {}
        for name, update in (("multiplier", 0.3), ("weight", -0.01)):
            stats |= {f"param/{name}": column_of(1 + step * update), f"param_grad/{name}": column_of(0.3)}
            stats[f"update/{name}"] = column_of(update)
        found += watch.recorded(step, stats, {})
    assert found == []


def test_updates_that_are_the_gradients_themselves_are_named() -> None:
    raw = parameter(gradient=0.02, update=0.02)
    (alarm,) = probed({"a": raw, "b": parameter(), "c": raw})
    assert (alarm.rule, alarm.key, alarm.step) == ("raw-gradient", "update/a", 2)
    assert ", and update/c too, which raises the loss" in alarm.why
    # Of a loop that scales what it records, and of gradient descent with rate 1.
    assert probed({"a": raw, "c": raw}) == []
    assert probed({"a": parameter(gradient=0.02, update=-0.02), "b": parameter()}) == []


def test_of_parameters_that_stay_the_last_before_the_cut_is_named_and_each_cause_has_an_alarm() -> None:
    cut: dict[str, str] = dict.fromkeys(("b", "c"), "stop_gradient at net.py:3")
    watch, found = AlarmWatch({}, cut), list[Alarm]()
    stats: Stats = {}
    for name in ("c", "b", "a", "e", "d", "f"):  # in the order of the step, which is not that of the names
        stats[f"param/{name}"] = {"l2": 1.0, "rms": 1.0}
        stats[f"param_grad/{name}"] = {"l2": 0.0 if name in "bcd" else 1.0, "rms": 1.0}
        stats[f"update/{name}"] = {"l2": 3e-9 if name in "ae" else 0.0, "ratio": 0.01}
    for step in range(25):
        found += watch.recorded(step, stats, {**dict.fromkeys("abcde", True), "f": False}, 0.1)
    told = {alarm.key: alarm.why for alarm in found}
    row = "did not change at 3 recorded steps in a row"
    assert told == {
        "param/b": f"{row}, and c too: no gradient reaches it (stop_gradient at net.py:3)",
        "param/a": f"{row}, and e too: 3e-09, the norm of its update, is lost in its rounding",
        "param/d": f"{row}: its gradient is exactly zero",
    }


def test_a_learning_rate_that_is_too_small_from_the_start_is_named_and_the_end_of_a_schedule_is_not() -> None:
    def small(step: int, numbers: Any, stats: Stats, _: Any, begin: int = 0) -> None:
        for layer in LAYERS:
            scaled(stats, f"update/{layer}", 1e-6 if step >= begin else 1)
        scaled(stats, "param/head", 1e-6)  # it begins at zero
        scaled(stats, "update/head", 1e6)

    (alarm,) = watched(Training(2), small)
    assert (alarm.rule, alarm.step) == ("update-ratio", 45)
    assert alarm.why.endswith(
        "; none that does not begin at zero was ever changed by more: the learning rate is too small, or a "
        "clip leaves too little of the gradients"
    )
    assert watched(Training(2), partial(small, begin=300)) == []


@pytest.mark.parametrize("slot", ["acc_grads", "grad_acc"])
def test_steps_between_the_updates_of_accumulated_gradients_are_not_stuck(slot: str) -> None:
    def accumulated(step: int, _: Any, stats: Stats, unchanged: dict[str, bool], still: tuple[str, ...] = ()) -> None:
        stats[f"slot/{slot}/first"] = {"l2": 1.0}
        for layer in LAYERS:
            unchanged[layer] = step % 20 > 0 or layer in still
            scaled(stats, f"update/{layer}", 1.0 if step % 20 == 0 else 0.0)

    assert watched(Training(1), accumulated) == []
    found = watched(Training(1), partial(accumulated, still=("third",)))
    assert [(alarm.rule, alarm.key, alarm.step) for alarm in found] == [("stuck", "param/third", 60)]


@pytest.mark.parametrize("still", [(), ("second",)])
def test_an_optimizer_may_accumulate_while_another_one_moves(still: tuple[str, ...]) -> None:
    def accumulated(step: int, _: Any, stats: Stats, unchanged: dict[str, bool]) -> None:
        for layer in LAYERS[:2]:
            stats[f"slot/acc_grads/{layer}"] = {"l2": 1.0}
            unchanged[layer] = step % 25 > 0 or (layer in still and step > 0)
            scaled(stats, f"update/{layer}", 0.0 if unchanged[layer] else 1.0)

    found = watched(Training(1), accumulated)
    assert [(alarm.rule, alarm.key, alarm.step) for alarm in found] == [("stuck", "param/second", 75)] * len(still)


def test_where_every_parameter_stays_the_end_of_a_schedule_is_named() -> None:
    def ended(step: int, numbers: Any, stats: Stats, unchanged: dict[str, bool]) -> None:
        if step >= 300:
            unchanged |= dict.fromkeys(LAYERS, True)
            for layer in LAYERS:
                scaled(stats, f"update/{layer}", 0.0)

    (why,) = [alarm.why for alarm in watched(Training(0), ended) if alarm.rule == "stuck"]
    assert "or the learning rate be 0, as behind the end of a schedule" in why


@pytest.mark.parametrize("end", [STOPPED, AS_DATA])
def test_a_target_network_is_not_stuck_and_its_updates_are_not_too_small(end: str) -> None:
    assert without_change({"a": f"stop_gradient at net.py:3{end}"}, update=0.0) == []


def test_every_rule_is_tested_here() -> None:
    tested = {
        "nonfinite", "diverging", "unbounded", "loss-spike", "grad-spike", "update-spike", "stuck", "dying",
        "raw-gradient", "update-ratio", "vanishing", "exploding", "reset",
    }  # fmt: skip
    assert {rule.name for rule in RULES} == tested


@pytest.mark.parametrize("wrong", [float("nan"), 50.0])
def test_of_two_wrong_steps_in_a_row_the_second_is_an_alarm_where_the_first_was_skipped(wrong: float) -> None:
    values = np.random.default_rng(0).normal(1.0, 0.01, 80)

    def raised(*, skips: bool) -> list[int]:
        watch, found = AlarmWatch({}), list[int]()
        for number, value in enumerate([*values, wrong, wrong]):
            alarms = watch.step(number, {"loss": float(value)})
            found += [alarm.step for alarm in alarms]
            if alarms and skips:
                watch.skipped()
        return found

    assert (raised(skips=False), raised(skips=True)) == ([80], [80, 81])


def test_updates_that_an_optimizer_makes_of_finite_gradients_say_so() -> None:
    whys = [
        alarm.why
        for norm in (1.0, math.nan)
        for alarm in AlarmWatch({}).step(0, {"loss": 1.0, "grad_norm": norm, "update_norm": math.inf})
    ]
    assert [("so that the optimizer made it" in why, why.partition(" is ")[0]) for why in whys] == [
        (True, "the norm of the updates"),
        (False, "the norm of the gradients"),
    ]


def test_updates_beyond_float32_of_gradients_near_it_are_no_division_by_a_moment_of_zero() -> None:
    (alarm,) = AlarmWatch({}).step(0, {"loss": 3e10, "grad_norm": 2e37, "update_norm": math.inf})
    assert "as a learning rate makes it of gradients as large as these, with a norm of 2.0e37" in alarm.why
    assert "moment" not in alarm.why
