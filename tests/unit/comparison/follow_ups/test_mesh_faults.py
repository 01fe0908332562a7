"""Which axis, which tensor and which relation a fault has, of dumps whose tensors NumPy makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from gradscope.comparison import CompareOptions
from gradscope.comparison.follow_ups.mesh_collectives import MeshCollectives
from gradscope.comparison.follow_ups.mesh_comparison import mesh_member
from gradscope.comparison.follow_ups.mesh_fault import MeshFault
from gradscope.comparison.follow_ups.mesh_relations import relation_of
from gradscope.comparison.follow_ups.mesh_values import AxisValues
from gradscope.comparison.judging.rows import ComparisonRow
from gradscope.dump.manifest.manifest import Entry, Layer, Manifest
from gradscope.dump.manifest.operation_facts import Collective
from gradscope.dump.record import SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.naming import split_key
from tests.support.dumps import record

_draw = np.random.default_rng(3).normal
VALUE, OTHER, WEIGHT, NOISE = (_draw(size=(4, 6)).astype(np.float32) for _ in range(4))


def dump(tensors: Mapping[str, np.ndarray], mesh: Mapping[str, int], *, loss: float = 1.5) -> MemoryDump:
    """A dump whose tensors are in the order of computation."""
    named = {key: (*split_key(key), each) for key, each in {"param/w": WEIGHT, **tensors}.items()}
    order = [*dict.fromkeys(name for _, name, _ in named.values())]
    records = [
        replace(record(name, each, family=family), site=SiteFacts(index=order.index(name)))
        for family, name, each in named.values()
    ]
    manifest = Manifest(entries=tuple(map(Entry.of, records)), mesh=mesh, shard_axes=tuple(mesh), loss=loss)
    return MemoryDump(manifest, {key: each for key, (_, _, each) in named.items()})


def fault(few: MemoryDump, more: MemoryDump, agreed: Iterable[Mapping[str, int]] = ()) -> MeshFault:
    found = mesh_member(4, few, more, CompareOptions(), [*agreed]).fault
    assert found is not None
    return found


def test_no_axis_is_at_fault_that_had_as_many_devices_in_a_run_that_agreed() -> None:
    few = dump({"param_grad/w": VALUE}, {})
    for axis, other in (("data", "model"), ("model", "data")):
        found = fault(few, dump({"param_grad/w": 2 * VALUE}, {"data": 2, "model": 2}), [{axis: 1, other: 2}])
        assert (found.kind, found.axis, found.factor) == ("factor", axis, 2.0)


def test_a_factor_between_few_devices_and_more_is_by_how_many_more_there_are() -> None:
    few = dump({"param_grad/w": VALUE}, {"data": 2})
    found = fault(few, dump({"param_grad/w": 2 * VALUE}, {"data": 4}, loss=3.0))
    assert (found.kind, found.axis, found.name) == ("factor", "data", "the loss")
    assert "2 times what it is on 2 devices" in found.sentence


def test_a_gradient_that_is_wrong_in_parts_has_the_factor_of_a_parameter() -> None:
    one = {"activation/fc": VALUE, "activation_grad/fc": VALUE + OTHER, "param_grad/w": OTHER}
    other = {"activation/fc": VALUE, "activation_grad/fc": VALUE + OTHER / 2, "param_grad/w": OTHER / 2}
    found = fault(dump(one, {}), dump(other, {"model": 2}))
    assert (found.kind, found.name, found.axis, found.factor) == ("factor", "w", "model", 0.5)


def test_a_mask_that_the_compiler_divides_is_one_all_the_same() -> None:
    kept = _draw(size=(2, 4, 6)) > 0
    one, other = ({"activation/drop": np.where(mask, VALUE, 0).astype(np.float32)} for mask in kept)
    found = fault(dump(one, {}), dump(other, {"data": 2}))
    assert (found.kind, found.name) == ("zeros", "drop")


def test_complex_values_are_related_by_both_parts() -> None:
    """The factor of an imaginary part alone is none, and slices of complex values are put together as others are."""
    value, parts = VALUE + 1j * OTHER, [*np.split(VALUE + 1j * OTHER, 2)]
    few = dump({"activation/fft": value}, {})
    found = fault(few, dump({f"activation/fft[{at}]": 2 * each for at, each in enumerate(parts)}, {"data": 2}))
    assert (found.kind, found.axis, found.factor) == ("factor", "data", 2.0)
    imaginary = [each.real + 2j * each.imag for each in parts]
    found = fault(few, dump({f"activation/fft[{at}]": each for at, each in enumerate(imaginary)}, {"data": 2}))
    assert found.kind == "values"


def _terms(*, summed: np.ndarray, last: np.ndarray, gradient: np.ndarray) -> dict[str, np.ndarray]:
    """A product whose terms two devices have, their sum, and what is computed of it."""
    parts = {"fc[0]": NOISE, "fc[1]": VALUE - NOISE, "sum": summed, "last": last}
    return {f"activation/{name}": each for name, each in parts.items()} | {
        f"activation_grad/{name}": gradient for name in ("fc[0]", "fc[1]", "sum")
    }


def test_terms_that_are_added_up_are_not_at_fault_where_a_later_value_is() -> None:
    wholes = {"fc": VALUE, "sum": VALUE, "last": OTHER}
    one = {f"activation/{name}": each for name, each in wholes.items()}
    few = dump(one | {f"activation_grad/{name}": VALUE for name in ("fc", "sum")}, {})
    found = fault(few, dump(_terms(summed=VALUE, last=OTHER + NOISE, gradient=OTHER), {"model": 2}))
    assert (found.kind, found.name) == ("values", "last")
    right_sum = _terms(summed=VALUE, last=OTHER, gradient=OTHER) | {"activation_grad/sum": VALUE}
    found = fault(few, dump(right_sum, {"model": 2}, loss=1.7))
    assert (found.kind, found.name, found.axis) == ("terms", "fc", "model")


def test_terms_of_a_loss_that_alone_differs_are_not_at_fault() -> None:
    wholes = {f"{family}/{name}": VALUE for family in ("activation", "activation_grad") for name in ("fc", "sum")}
    right = _terms(summed=VALUE, last=OTHER, gradient=VALUE)
    one, other = (np.asarray(each, np.float32) for each in (1.5, 3.5))
    few = dump({**wholes, "activation/last": OTHER, "activation/mean": one}, {})
    found = fault(few, dump({**right, "activation/mean": other}, {"model": 2}, loss=3.5))
    assert (found.kind, found.name, found.axis) == ("not reduced", "the loss", "model")


def test_a_residual_that_each_device_adds_is_in_the_sum_several_times() -> None:
    """A value before it, an input, or the sum of two: the stream of a block need have no entry of its own."""
    one = {"input/x": VALUE, "activation/attn": OTHER, "activation/mlp": NOISE + VALUE + OTHER}
    for more, words in ((VALUE, "`x` 4"), (OTHER, "`attn` 4"), (VALUE + OTHER, "`x` and `attn` 4")):
        found = fault(dump(one, {}), dump({**one, "activation/mlp": one["activation/mlp"] + 3 * more}, {"model": 4}))
        assert (found.kind, found.name, found.axis, found.detail) == ("added again", "mlp", "model", words)
    other = {**one, "activation/mlp": one["activation/mlp"] + 3 * VALUE + OTHER}
    assert fault(dump(one, {}), dump(other, {"model": 4})).kind == "values"


def test_what_nothing_but_equal_values_are_made_of_is_not_at_fault() -> None:
    """The number of a device is another one on each device."""
    one = {"activation/number": VALUE, "activation/embed": OTHER, "activation/fc": NOISE}
    other = {**one, "activation/number": VALUE + 1, "activation/fc": NOISE @ _draw(size=(6, 6)).astype(np.float32)}
    few, more = dump(one, {}), dump(other, {"model": 2}, loss=2.5)
    assert fault(few, more).name == "number"
    read = [("number", ("x",)), ("embed", ("number",)), ("fc", ("embed",))]
    layers = tuple(
        Layer(path=name, index=index, inputs=inputs, outputs=(name,)) for index, (name, inputs) in enumerate(read)
    )
    known = replace(few.manifest, layers=layers, loss_sources=("activation/fc",))
    assert fault(MemoryDump(known, {key: few.array(key) for key in few.keys()}), more).name == "fc"  # noqa: SIM118


def test_a_vector_is_in_terms_only_where_they_make_it() -> None:
    one, other = VALUE[0].astype(float), OTHER[0].astype(float)

    def kind(*several: np.ndarray) -> str | None:
        found = relation_of(AxisValues(axis="model", sliced=None, one=[one, one], several=several, whole=one))
        return None if found is None else found.kind

    assert kind(one - other, other) == kind(one + other, one - other) == "terms"
    assert kind(other, 3 * one) != "terms"


def test_the_number_of_a_device_is_not_at_fault() -> None:
    one = {"activation/axis_index": VALUE, "activation/mul": OTHER, "activation/fc": NOISE}
    few, more = dump(one, {}), dump({name: each @ WEIGHT.T for name, each in one.items()}, {"model": 2}, loss=2.5)
    read = [("axis_index", ()), ("mul", ("axis_index",)), ("fc", ("mul", "x"))]
    layers = tuple(
        Layer(path=name, index=index, inputs=inputs, outputs=(name,), operation=True, primitive=name)
        for index, (name, inputs) in enumerate(read)
    )
    known = replace(few.manifest, layers=layers, loss_sources=("activation/fc",))
    assert fault(MemoryDump(known, {key: few.array(key) for key in few.keys()}), more).name == "fc"  # noqa: SIM118


def test_a_stream_is_found_behind_the_operations_of_its_branch() -> None:
    """What a sum is computed from is looked at before what is near it."""
    branch = {f"activation/op{n}": _draw(size=(4, 6)).astype(np.float32) for n in range(9)}
    one = {"activation/stream": VALUE, **branch, "activation/add": OTHER + VALUE}
    few, more = dump(one, {}), dump({**one, "activation/add": OTHER + 4 * VALUE}, {"model": 4})
    assert fault(few, more).kind == "values"
    added = Layer(path="add", index=10, inputs=("op8", "stream"), outputs=("add",), operation=True)
    known = MemoryDump(replace(few.manifest, layers=(added,)), {key: few.array(key) for key in few.keys()})  # noqa: SIM118
    found = fault(known, more)
    assert (found.kind, found.detail) == ("added again", "`stream` 4")


def test_terms_that_a_sum_reads_are_told_from_such_that_something_else_reads() -> None:
    sums = MeshCollectives(
        collectives=(
            Collective(function="psum", axes=("model",), index=3, layer=None, source=None),
            Collective(function="pmean", axes=("data",), index=5, layer=None, source=None),
        ),
        mesh={"model": 2, "data": 2},
    )

    def layers(between: str) -> list[Layer]:
        read = [(between, "product", "made"), ("psum", "made", "total"), ("pmean", "total", "mean")]
        return [
            Layer(path=name, primitive=name, index=2 + n, inputs=(before,), outputs=(after,), operation=True)
            for n, (name, before, after) in enumerate(read)
        ]

    assert sums.adds_up_at_once("product", "model", layers("add"))
    assert not sums.adds_up_at_once("product", "model", layers("tanh"))
    assert not sums.adds_up_at_once("product", "data", layers("add"))
    assert not sums.adds_up_at_once("product", "model", [])
    row = ComparisonRow(family="activation", name="product", index=2, status="different")
    assert sums.adds_up(row, "model", [])
    assert not sums.adds_up(row, "data", [])
