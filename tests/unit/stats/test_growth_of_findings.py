"""Findings take time linear in a manifest, also where all of its entries are the bad case of one rule.

Each case is a manifest of so many entries or causes as it is asked for. What is counted are the instructions of Python,
and of those only the growth: four times as many where there is four times as much, and not sixteen times.
"""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import pytest

from gradscope.dump.manifest.manifest import Cause, Entry, Layer, Ledger, LedgerLine, Manifest
from gradscope.dump.manifest.operation_facts import Origin, StepFunction
from gradscope.dump.manifest.operation_facts.saturation import Saturation
from gradscope.dump.record import Json, SiteFacts
from gradscope.stats import find
from gradscope.stats.findings.rules.window_medians import window_medians
from tests.support.sampled import sampled
from tests.support.work import steps

ONES: Mapping[str, Json] = {"size": 64, "zeros": 0, "min": 1.0, "max": 1.0, "mean": 1.0, "rms": 1.0, "amax": 1.0}
ZEROS: Mapping[str, Json] = {"size": 64, "zeros": 64, "min": 0.0, "max": 0.0, "mean": 0.0, "rms": 0.0, "amax": 0.0}
SPREAD: Mapping[str, Json] = {**ONES, "min": -3.0, "mean": 0.0, "std": 1.0, "l2": 8.0, "amax": 3.0}


def entry(
    key: str, stats: Mapping[str, Json], index: int = 0, *, shape: tuple[int, ...] = (16, 4), **site: object
) -> Entry:
    family, _, name = key.partition("/")
    place = {"source": f"model.py:{index}", **site}
    facts = SiteFacts(index=index, **place)  # type: ignore[arg-type]
    return Entry(family=family, name=name, shape=shape, dtype="float32", stats=stats, site=facts)


def zero_gradient(name: str, why: str, index: int = 0, *, family: str = "param_grad") -> tuple[Entry, Cause]:
    return entry(f"{family}/{name}", ZEROS, index), Cause(family=family, name=name, why=why)


def kept_margins(count: int) -> Manifest:
    dead = [entry(f"activation/a{n}", {**ZEROS, "dead": 1.0}, n, primitive="max") for n in range(count)]
    whys = (f"satisfied: the output of max at model.py:{n} is 0, and a term of the loss" for n in range(count))
    return Manifest(entries=(*dead,), causes=tuple(Cause(family="activation_grad", name="b", why=why) for why in whys))


def products_of_zeros(count: int) -> Manifest:
    dead = [entry(f"activation/a{n}", {**ZEROS, "dead": 1.0}, n, primitive="mul") for n in range(count)]
    whys = (f"satisfied: the output of max at other.py:{n} is 0, and a term of the loss" for n in range(count))
    return Manifest(entries=(*dead,), causes=tuple(Cause(family="activation_grad", name="b", why=why) for why in whys))


def dead_units_of_one_layer(count: int) -> Manifest:
    names = tuple(f"a{n}" for n in range(count))
    stats = {**ZEROS, "dead": 1.0}
    dead = [entry(f"activation/{name}", stats, n, primitive="add", layer="all") for n, name in enumerate(names)]
    lost = [zero_gradient(name, "dead units: all", family="activation_grad") for name in names]
    changing = [Entry(**{**_fields(each), "stats": {**stats, "max": 1.0}}) for each in dead]
    layer = Layer(path="all", index=0, inputs=tuple(f"x{n}" for n in range(count)), outputs=names)
    entries, causes = zip(*lost, strict=True)
    return Manifest(entries=(*changing, *entries), causes=causes, layers=(layer,))


def _fields(each: Entry) -> dict[str, object]:
    return {name: getattr(each, name) for name in ("family", "name", "shape", "dtype", "site")}


def masked_softmaxes(count: int) -> Manifest:
    shares = {**ONES, "min": 0.0, "mean": 0.25, "rms": 0.5, "zeros": 48, "max": 0.999}
    softmaxes = [entry(f"activation/a{n}", shares, n, primitive="div") for n in range(count)]
    why = "masked: in each row the mask leaves one entry, whose weight is 1 whatever its score, in exp at model.py:"
    causes = [Cause(family="activation_grad", name="b", why=f"{why}{n}") for n in range(count)]
    inner = [Saturation(function="softmax", index=n, saturated=1.0, source=f"model.py:{n}") for n in range(count)]
    kernel, layer = _last_layer(count)
    return Manifest(entries=(*softmaxes, *kernel), causes=tuple(causes), layers=layer, saturations=tuple(inner))


def _last_layer(index: int) -> tuple[tuple[Entry, Entry], tuple[Layer]]:
    entries = entry("param/last/w", SPREAD, index, shape=(4, 4)), entry("activation/last", SPREAD, index)
    return entries, (Layer(path="last", index=index, params=("last/w",), outputs=("last",)),)


def functions_in_one_layer(count: int) -> Manifest:
    inner = [Saturation(function="tanh", index=n, saturated=1.0, layer="all") for n in range(count)]
    layer = Layer(path="all", index=0, outputs=tuple(f"hidden{n}" for n in range(count)))
    return Manifest(entries=(entry("activation/a", ONES),), layers=(layer,), saturations=tuple(inner))


def star_of_operands(count: int) -> Manifest:
    tanh = {**SPREAD, "saturated": 0.7}
    values = [entry(f"activation/a{n}", tanh, n, primitive="tanh", layer="all") for n in range(count)]
    kernel, layer = _last_layer(count)
    names = tuple(f"a{n}" for n in range(count))
    star = (Layer(path="first", index=0, sources=("param/last/w",), outputs=names),
            Layer(path="all", index=count + 1, inputs=names, outputs=tuple(f"b{n}" for n in range(count))))  # fmt: skip
    return Manifest(entries=(*values, *kernel), layers=(*layer, *star))


def branches_at_start(count: int) -> Manifest:
    params = [entry(f"param/p{n}", ZEROS, n, shape=(4,)) for n in range(count)]
    moving = [entry(f"param_grad/p{n}", ONES, n, shape=(4,)) for n in range(count)]
    why = "masked: multiplied by exact zeros in mul at other.py:"
    lost = [zero_gradient(f"{'abc'[n % 3]}{_letters(n)}", f"{why}{n}", n) for n in range(count)]
    return Manifest(entries=(*params, *moving, *(each for each, _ in lost)), causes=tuple(cause for _, cause in lost))


def waiting_kernels(count: int) -> Manifest:
    starting = branches_at_start(count)
    why = "masked: multiplied by exact zeros in mul at other.py:1: param/q is 0"
    kernels = [entry(f"param/k{n}/w", ZEROS, n, shape=(4, 4)) for n in range(count)]
    lost = [zero_gradient(f"k{n}/w", why, n) for n in range(count)]
    values = [entry(f"activation/k{n}", ONES, n) for n in range(count)]
    layers = [Layer(path=f"k{n}", index=n, params=(f"k{n}/w",), outputs=(f"k{n}",)) for n in range(count)]
    entries = (*starting.entries, *kernels, *values, *(each for each, _ in lost))
    return Manifest(entries=entries, causes=tuple(cause for _, cause in lost), layers=tuple(layers))


def _letters(number: int) -> str:
    """Returns a name without digits, which keeps alike reasons apart."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def cancelled_in_one_layer(count: int) -> Manifest:
    why = "cancellation: the gradient's terms sum to exactly zero in"
    lost = [zero_gradient(_letters(n), f"{why} {_letters(n)}", n) for n in range(count)]
    return Manifest(entries=tuple(each for each, _ in lost), causes=tuple(cause for _, cause in lost))


def derivatives_alone(count: int) -> Manifest:
    params = [entry(f"param/p{n}/bias", ONES, n, shape=(4,)) for n in range(count)]
    lost = [zero_gradient(f"p{n}/bias", "disconnected: the loss does not depend on it", n) for n in range(count)]
    layers = [Layer(path=f"l{n}", index=n, params=(f"p{n}/bias",)) for n in range(count)]
    entries = (*params, *(each for each, _ in lost))
    return Manifest(entries=entries, causes=tuple(cause for _, cause in lost), layers=tuple(layers))


def queries_without_keys(count: int) -> Manifest:
    kernels = [entry(f"param/k{n}/w", ZEROS, n, shape=(4, 4)) for n in range(count)]
    moving = [entry(f"param_grad/k{n}/w", ONES, n, shape=(4, 4)) for n in range(count)]
    values = [entry(f"activation/k{n}", ONES, n) for n in range(count)]
    why = "masked: multiplied by exact zeros in dot_general at other.py:1: the product of param/"
    lost = [zero_gradient(f"q{n}", f"{why}k{n}/w is 0", n, family="activation_grad") for n in range(count)]
    layers = [Layer(path=f"k{n}", index=n, params=(f"k{n}/w",), outputs=(f"k{n}",)) for n in range(count)]
    entries = (*kernels, *moving, *values, *(each for each, _ in lost))
    return Manifest(entries=entries, causes=tuple(cause for _, cause in lost), layers=tuple(layers))


def equal_kernels_of_one_layer(count: int) -> Manifest:
    kernels = [entry(f"param/all/k{n}", {**ONES, "std": 0.0}, n, shape=(4, 4)) for n in range(count)]
    layer = Layer(path="all", index=0, params=tuple(each.name for each in kernels), outputs=("all",))
    return Manifest(entries=(*kernels, entry("activation/all", ONES)), layers=(layer,))


def biases_beside_kernels(count: int) -> Manifest:
    uniform = {**ONES, "std": 1.0, "amax": 1.7}
    kernels = [entry(f"param/k{n}", {**uniform, "std": 1.0 + n}, n, shape=(4, 4)) for n in range(count)]
    biases = [entry(f"param/b{n}", {**uniform, "rms": 1.0 + count - 1}, n, shape=(4,)) for n in range(count)]
    near = [Entry(**{**_fields(each), "stats": {**each.stats, "std": float(count)}}) for each in biases]
    shares = {**ONES, "min": 0.0, "mean": 0.25, "rms": 0.5, "zeros": 48, "max": 0.999}
    inner = Saturation(function="softmax", index=0, saturated=0.7)
    return Manifest(entries=(*kernels, *near, entry("activation/a", shares)), saturations=(inner,))


def large_gains(count: int) -> Manifest:
    """Returns layers that multiply what they receive by about 100, each with a sum behind that reads it."""
    entries: list[Entry] = []
    layers: list[Layer] = []
    for n in range(count):
        entries += [entry(f"param/k{n}/w", SPREAD, 2 * n, shape=(4, 4)), entry(f"activation/k{n}", SPREAD, 2 * n,
                                                                              primitive="dot_general")]  # fmt: skip
        rms = {"in": 1.0 + n % 7, "out": 100.0} if n < count // 2 else {"in": 0.5 + n % 3, "out": 200.0}
        layers += [Layer(path=f"k{n}", index=2 * n, params=(f"k{n}/w",), outputs=(f"k{n}",), rms=rms),
                   Layer(path=f"sum{n}", index=2 * n + 1, params=(f"k{n}/w",), inputs=(f"k{n}",))]  # fmt: skip
    return Manifest(entries=tuple(entries), layers=tuple(layers))


def origins_of_one_fault(count: int) -> Manifest:
    broken = [entry(f"activation_grad/a{n}", {**ONES, "nan": 3}, n) for n in range(count)]
    narrow = "is beyond the largest float16"
    origins = [Origin(direction="backward", name=f"a{n}", why=("divides by 0", narrow)[n % 2]) for n in range(count)]
    return Manifest(entries=tuple(broken), origins=tuple(origins), loss=float("nan"))


def gradients_lost_in_many_places(count: int) -> Manifest:
    lost = [zero_gradient(_letters(n), f"a reason {_letters(n)}", n) for n in range(count)]
    steps = [StepFunction(family="param", name=f"s{n % 7}", primitive="round", beside=("reduce_max",),
                          source=f"model.py:{n}") for n in range(count)]  # fmt: skip
    moving = [entry(f"param_grad/s{n}", ONES) for n in range(7)]
    causes = tuple(cause for _, cause in lost)
    return Manifest(entries=(*(each for each, _ in lost), *moving), causes=causes, step_functions=tuple(steps))


def softmaxes_of_softmaxes(count: int) -> Manifest:
    inner = [Saturation(function="softmax", index=n, saturated=0.0, again=True, names=(f"a{n}",)) for n in range(count)]
    lost = [zero_gradient(f"p{_letters(n)}", f"a reason {_letters(n)}", n) for n in range(count)]
    values = [entry(f"activation/a{n}", ONES, n) for n in range(count)]
    causes = tuple(cause for _, cause in lost)
    return Manifest(entries=(*values, *(each for each, _ in lost)), causes=causes, saturations=tuple(inner))


def one_deep_name(count: int) -> Manifest:
    names = ["/".join(["a"] * count), "/".join(["b[1]"] * count)]
    layer = Layer(path=names[1], index=0, params=(names[0],), outputs=(names[1],))
    why = "disconnected: the loss does not depend on it"
    line = LedgerLine(name=names[0], family="param_grad", reason="disconnected", detail=why)
    gradient = Entry(family="param_grad", name=names[0], shape=(4, 4), dtype="float32", stats={},
                     site=SiteFacts(index=0), absent="disconnected")  # fmt: skip
    entries = (entry(f"param/{names[0]}", ONES, shape=(4, 4)), gradient, entry(f"activation/{names[1]}", ONES))
    return Manifest(entries=entries, layers=(layer,), ledger=Ledger(missing=(line,)))


CASES: tuple[Callable[[int], Manifest], ...] = (
    kept_margins,
    products_of_zeros,
    dead_units_of_one_layer,
    masked_softmaxes,
    functions_in_one_layer,
    star_of_operands,
    branches_at_start,
    waiting_kernels,
    cancelled_in_one_layer,
    derivatives_alone,
    queries_without_keys,
    equal_kernels_of_one_layer,
    biases_beside_kernels,
    large_gains,
    origins_of_one_fault,
    gradients_lost_in_many_places,
    softmaxes_of_softmaxes,
)


@sampled("case", CASES, ids=lambda case: case.__name__)
def test_work_grows_with_the_manifest(case: Callable[[int], Manifest]) -> None:
    small, large = case(60), case(240)
    # Sorting and bisection add a little to four times the work.
    assert steps(lambda: find(large)) < 5 * steps(lambda: find(small))


def _peak(manifest: Manifest) -> int:
    """The most bytes at a time that findings take."""
    tracemalloc.start()
    try:
        find(manifest)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_grows_with_a_name() -> None:
    assert _peak(one_deep_name(4000)) < 5 * _peak(one_deep_name(1000))


def _windows(series: list[float], size: int) -> Iterator[list[float]]:
    for end in range(1, len(series) + 1):
        yield series[max(end - size, 0) : end]


@pytest.mark.parametrize("size", [1, 2, 5, 30])
def test_the_medians_of_windows_are_those_of_each_window(size: int) -> None:
    series = [random.Random(size).choice([0.5, 1.0, 2.0, 7.0]) + n % 5 for n in range(23)]
    first, *rest = window_medians(series, size)
    assert math.isnan(first)
    assert rest == [median(window) for window in _windows(series, size)]
