"""Comparing two dumps: what each kind of difference comes out as."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gradscope.comparison import CompareOptions, Comparison, ComparisonRow, compare
from gradscope.comparison.judging.tolerance_rules import ToleranceRule
from gradscope.dump.manifest.json_text import loads
from gradscope.dump.manifest.manifest import Entry, Layer, Ledger, LedgerLine, Manifest, RunFacts
from gradscope.dump.reader import open_dump
from gradscope.dump.record import Json, Record, SiteFacts
from gradscope.dump.sources.memory_dump import MemoryDump
from gradscope.dump.writer import DumpWriter
from gradscope.errors import DumpError, UsageError
from gradscope.naming import Selection, split_key
from gradscope.stats.tensor_stats import tensor_stats

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]

NUMBERS = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
MODEL: Tensors = {
    "input/x": NUMBERS,
    "activation/first": NUMBERS + 1,
    "activation/second": NUMBERS * 3,
    "activation_grad/first": NUMBERS / 7,
    "activation_grad/second": NUMBERS / 5,
    "param/first/w": NUMBERS - 4,
    "param_grad/first/w": NUMBERS - 8,
}
LAYERS = (
    Layer(path="first", index=0, inputs=("x",), outputs=("first",)),
    Layer(path="second", index=1, inputs=("first",), outputs=("second",)),
)
INDICES = {"first": 0, "second": 1}


def entry(key: str, array: Array, **changes: Any) -> Entry:
    family, name = split_key(key)
    site = SiteFacts(index=INDICES.get(name, 0))
    stats = tensor_stats(array).to_json()
    return replace(
        Entry(family=family, name=name, shape=array.shape, dtype=array.dtype.name, stats=stats, site=site), **changes
    )


def dump(tensors: Tensors = MODEL, *entries: Entry, layers: tuple[Layer, ...] = LAYERS, **fields: Any) -> MemoryDump:
    every = (*(entry(key, array) for key, array in tensors.items()), *entries)
    return MemoryDump(Manifest(entries=every, layers=layers, **fields), tensors)


def stats_only(tensors: Tensors = MODEL, *, hashed: bool = True) -> MemoryDump:
    entries = [entry(key, array) for key, array in tensors.items()]
    if not hashed:
        entries = [replace(each, stats={k: v for k, v in each.stats.items() if k != "hash"}) for each in entries]
    return MemoryDump(Manifest(entries=tuple(entries), tier="full"), {})


def changed(**arrays: Array) -> dict[str, Array]:
    return {**MODEL, **{key.replace("__", "/"): array for key, array in arrays.items()}}


def row(comparison: Comparison, key: str) -> ComparisonRow:
    (found,) = [each for each in comparison.rows if f"{each.family}/{each.name}" == key]
    return found


def off_by(key: str, relative: float) -> Array:
    return (MODEL[key].astype(np.float64) * (1 + relative)).astype(MODEL[key].dtype)


def test_a_dump_is_the_same_as_itself_bit_for_bit() -> None:
    found = compare(dump(), dump())
    assert bool(found) is True
    assert (found.verdict, found.exit_code) == ("same", 0)
    assert found.sentence == "Same bit for bit: 7 tensors."
    assert [each.matched_by for each in found.rows] == ["name"] * 7
    assert all(each.metrics["bit_equal"] and each.needed == 0 for each in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [
        np.bool_,
        np.int8,
        np.uint64,
        np.float16,
        np.float64,
        np.complex64,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.int4,
    ],
    ids=lambda dtype: np.dtype(dtype).name,
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_and_shape_is_the_same_as_itself(dtype: Any, shape: tuple[int, ...]) -> None:
    tensors = {"activation/a": np.ones(shape, dtype), "activation/b": np.zeros(shape, dtype)}
    assert compare(dump(tensors), dump(tensors)).sentence == "Same bit for bit: 2 tensors."


def test_rounding_is_the_same_within_tolerance() -> None:
    found = compare(dump(), dump(changed(activation__second=off_by("activation/second", 1e-6))))
    assert found.verdict == "same"
    assert found.sentence == "Same within tolerance: 7 tensors, largest rel_l2 1.0e-6 at `second`, bit-equal 6."


def test_a_forward_difference_is_named_with_its_growth() -> None:
    found = compare(dump(), dump(changed(activation__second=off_by("activation/second", 0.02))))
    assert (found.verdict, found.exit_code, bool(found)) == ("different", 1, False)
    assert found.sentence == (
        "Forward first differs at `second` (rel_l2 2.0e-2, made here; it is 1.02 times the reference's). "
        "Backward agrees."
    )
    different = row(found, "activation/second")
    assert different.why == "rel_l2 2.0e-2 is over the tolerance 1.0e-4"
    assert different.needed == pytest.approx(0.02, rel=1e-4)
    assert different.metrics["growth"] == pytest.approx(0.02 / 1e-6, rel=1e-4)


def test_the_sentence_states_backward_only() -> None:
    gradients = {key: off_by(key, 0.02) for key in MODEL if "grad" in key}
    found = compare(dump(), dump({**MODEL, **gradients}))
    assert found.first_divergence.backward_only
    assert found.sentence == (
        "Backward only: forward agrees, backward first differs at `second` (rel_l2 2.0e-2; "
        "it is 1.02 times the reference's); "
        "1 parameter gradient differs, of `first/w`."
    )


def test_parameters_are_named_among_what_only_one_program_has() -> None:
    other = {key: array for key, array in MODEL.items() if "first/w" not in key}
    found = compare(dump({**MODEL, "input/more": NUMBERS}), dump({**other, "activation/first": NUMBERS}))
    assert "3 tensors only in the reference, among them `first/w`" in found.sentence


def test_likely_causes_are_named_in_addition_to_the_directions() -> None:
    other = {key: array for key, array in MODEL.items() if key != "param_grad/first/w"}
    other |= {"activation/first": off_by("activation/first", 0.02), "param/first/w": NUMBERS, "input/more": NUMBERS}
    assert compare(dump(), dump(other)).sentence == (
        "The runs start from different parameters (`first/w`; it is less by 4 in the reference). Forward first differs "
        "at `first` (rel_l2 2.0e-2, made here; it is 1.02 times the reference's). Backward agrees; 1 tensor only in "
        "the reference, of `first/w`; 1 tensor only in the candidate."
    )


def test_gradients_have_five_times_the_tolerance() -> None:
    found = compare(dump(), dump({key: off_by(key, 3e-4) for key in MODEL}))
    statuses = {each.family: each.status for each in found.rows}
    assert statuses == {
        "input": "different", "activation": "different", "param": "different",
        "activation_grad": "same", "param_grad": "same",
    }  # fmt: skip


def test_float32_of_reduced_matmul_precision_counts_as_bfloat16() -> None:
    exact = dump(provenance={"matmul_precision": "highest", "backend": "cpu"})
    computed = [key for key in MODEL if not key.startswith(("param/", "input/"))]
    reduced = dump(
        MODEL | {key: off_by(key, 1e-2) for key in computed},
        provenance={"matmul_precision": "bfloat16", "backend": "cpu"},
    )
    found = compare(exact, reduced)
    assert found.verdict == "same"
    assert row(found, "activation/first").tolerance == 2e-2
    assert found.sentence.endswith(
        "Products of float32 have the digits of bfloat16: with `--matmul-precision highest`, smaller differences show."
    )
    assert row(found, "param/first/w").tolerance == 1e-4  # it is read, not computed
    assert found.provenance_differences == ({"field": "matmul_precision", "ref": "highest", "cand": "bfloat16"},)


@pytest.mark.parametrize(("error", "verdict"), [(1e-3, "same"), (6e-3, "different")])
def test_what_a_gpu_computes_by_default_has_the_digits_of_tensorfloat32(error: float, verdict: str) -> None:
    gpu: dict[str, Json] = {"matmul_precision": "default", "backend": "gpu"}
    found = compare(
        dump(provenance=gpu), dump(MODEL | {"activation/second": off_by("activation/second", error)}, provenance=gpu)
    )
    assert found.verdict == verdict
    assert "Products of float32 have the digits of TensorFloat-32: " in found.sentence


def test_nothing_is_said_of_products_where_the_digits_of_float32_agree() -> None:
    gpu: dict[str, Json] = {"matmul_precision": "default", "backend": "gpu"}
    found = compare(
        dump(provenance=gpu), dump(MODEL | {"activation/second": off_by("activation/second", 1e-5)}, provenance=gpu)
    )
    assert "float32" not in found.sentence


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_nor_of_a_model_that_computes_in_fewer_digits(dtype: Any) -> None:
    gpu: dict[str, Json] = {"matmul_precision": "default", "backend": "gpu"}
    ref = {key: each.astype(dtype) for key, each in MODEL.items()}
    key = "activation/second"
    found = compare(dump(ref, provenance=gpu), dump(ref | {key: off_by(key, 3e-3).astype(dtype)}, provenance=gpu))
    assert (found.verdict, found.rows[0].needed) == ("same", 0)
    assert "float32" not in found.sentence


def test_one_tolerance_for_all_takes_the_place_of_the_defaults() -> None:
    other = dump({key: off_by(key, 3e-4) for key in MODEL})
    assert compare(dump(), other, options=CompareOptions(rel_l2=1e-3)).verdict == "same"
    strict = compare(dump(), other, options=CompareOptions(rel_l2=1e-5))
    assert {each.status for each in strict.rows} == {"different"}
    assert max(each.needed or 0 for each in strict.rows) == pytest.approx(3e-4, rel=1e-3)


def test_the_needed_tolerance_passes() -> None:
    other = dump({key: off_by(key, 3e-4) for key in MODEL})
    needed = max(each.needed or 0 for each in compare(dump(), other).rows)
    assert compare(dump(), other, options=CompareOptions(rel_l2=needed)).verdict == "same"


def test_bitwise_distinguishes_minus_zero_from_zero() -> None:
    zero = np.zeros(3, np.float32)
    ref, cand = dump({"activation/a": zero}), dump({"activation/a": -zero})
    assert compare(ref, cand).verdict == "same"
    found = compare(ref, cand, options=CompareOptions(bitwise=True))
    assert (found.verdict, found.rows[0].why, found.rows[0].tolerance) == ("different", "the bytes differ", None)


def test_a_nan_on_one_side_is_never_within_tolerance() -> None:
    broken = NUMBERS.copy()
    broken[1, 1] = np.nan
    ref, cand = dump({"activation/a": NUMBERS}), dump({"activation/a": broken})
    found = compare(ref, cand, options=CompareOptions(rel_l2=1e30))
    assert found.sentence == (
        "Forward first differs at `a` "
        "(1 position finite on one side only, or not finite in two ways; rel_l2 0 elsewhere)."
    )
    assert found.rows[0].needed == math.inf
    assert compare(cand, cand).verdict == "same"


def test_where_nothing_is_finite_on_both_sides_no_metric_shows_agreement() -> None:
    broken = np.full_like(NUMBERS, np.nan)
    ref, cand = dump({"activation/a": NUMBERS}), dump({"activation/a": broken})
    found = compare(ref, cand)
    assert found.rows[0].metrics == {"nonfinite_mismatch": NUMBERS.size, "bit_equal": False}
    assert "rel_l2" not in found.sentence
    same = compare(cand, dump({"activation/a": -broken}))  # a NaN is one whatever its sign
    assert (same.verdict, same.rows[0].metrics["rel_l2"]) == ("same", 0.0)
    lenient = CompareOptions(rules=(ToleranceRule.parse("rel_l2 <= 1 and nonfinite_mismatch <= 100"),))
    assert compare(ref, cand, options=lenient).verdict == "different"


def test_shapes_are_never_broadcast() -> None:
    found = compare(dump({"activation/a": NUMBERS}), dump({"activation/a": NUMBERS.T}))
    assert (
        found.sentence
        == "Forward first differs at `a` (the shape is (3, 4) in the reference and (4, 3) in the candidate)."
    )
    assert found.rows[0].needed == math.inf


@pytest.mark.parametrize("other", [np.int32, np.complex64, np.bool_])
def test_kinds_of_dtype_are_never_mixed(other: Any) -> None:
    found = compare(dump({"activation/a": NUMBERS}), dump({"activation/a": NUMBERS.astype(other)}))
    assert found.rows[0].status == "different"
    assert (
        found.rows[0].why == f"float32 in the reference cannot be compared with {np.dtype(other).name} in the candidate"
    )


def test_two_widths_of_one_kind_are_judged_by_the_coarser() -> None:
    found = compare(dump({"activation/a": NUMBERS}), dump({"activation/a": NUMBERS.astype(ml_dtypes.bfloat16)}))
    assert (found.verdict, found.rows[0].tolerance) == ("same", 2e-2)
    assert found.rows[0].metrics["ulp_max"] == 0
    assert found.rows[0].metrics["bit_equal"] is False


def test_integers_have_no_tolerance() -> None:
    found = compare(dump({"state/step": np.array(10**9)}), dump({"state/step": np.array(10**9 + 1)}))
    assert found.sentence == "The runs start from different state (`step`)."
    assert found.rows[0].tolerance == 0


def test_keys_are_compared_by_their_data() -> None:
    data, other = np.array([[1, 2], [3, 4]], np.uint32), np.array([[1, 2], [3, 5]], np.uint32)
    facts = entry("state/key", data, dtype="key<fry>", shape=(2,))
    ref, cand = (MemoryDump(Manifest(entries=(facts,)), {"state/key": each}) for each in (data, other))
    assert compare(ref, ref).verdict == "same"
    assert compare(ref, cand).rows[0].metrics["max_abs_index"] == [1, 1]


def test_a_name_on_one_side_only_is_a_difference() -> None:
    fewer = {key: array for key, array in MODEL.items() if key != "activation/second"}
    ledger = Ledger(missing=(LedgerLine(name="second", family="activation", reason="filtered"),))
    found = compare(dump(), dump(fewer, ledger=ledger))
    assert found.verdict == "different"
    assert found.sentence == "Forward agrees. Backward agrees; 1 tensor only in the reference."
    assert (row(found, "activation/second").status, row(found, "activation/second").why) == (
        "missing", "not in the candidate (filtered)",
    )  # fmt: skip
    back = compare(dump(fewer), dump())
    assert (back.rows[-1].status, back.rows[-1].why) == ("extra", "")


@pytest.mark.slow
@pytest.mark.parametrize("regex", ["second", "activation/.*", ".*sec.*"])
def test_missing_names_may_be_allowed_by_name_or_key(regex: str) -> None:
    fewer = {key: array for key, array in MODEL.items() if key != "activation/second"}
    options = CompareOptions(allow_missing=(regex,))
    for found in (compare(dump(), dump(fewer), options=options), compare(dump(fewer), dump(), options=options)):
        assert found.verdict == "same"
        assert {each.status for each in found.rows} > {"same"}
        assert row(found, "activation/second").why == "allowed"


def test_an_allowance_covers_full_names_only() -> None:
    fewer = {key: array for key, array in MODEL.items() if key != "activation/second"}
    assert compare(dump(), dump(fewer), options=CompareOptions(allow_missing=("sec",))).verdict == "different"


def test_an_allowance_that_is_no_regex_is_refused() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        compare(dump(), dump(), options=CompareOptions(allow_missing=("(",)))


def test_nothing_in_common_is_not_the_same() -> None:
    found = compare(dump({"activation/a": NUMBERS}), dump({"activation/b": NUMBERS + 1}))
    assert (found.verdict, found.exit_code, bool(found)) == ("nothing compared", 2, False)
    assert found.sentence == "Nothing compared: the dumps have no name in common (reference 1, candidate 1)."


def test_two_empty_dumps_are_not_the_same() -> None:
    assert compare(dump({}), dump({})).sentence == "Nothing compared: there is no name to compare."


def test_allowing_everything_to_be_missing_compares_nothing() -> None:
    options = CompareOptions(allow_missing=(".*",))
    assert compare(dump({"activation/a": NUMBERS}), dump({"activation/b": NUMBERS + 1}), options=options).exit_code == 2


def test_a_selection_restricts_both_sides() -> None:
    other = dump(changed(activation__second=NUMBERS))
    options = CompareOptions(selection=Selection.parse(["param*/*", "first"]))
    found = compare(dump(), other, options=options)
    assert found.verdict == "same"
    assert {f"{each.family}/{each.name}" for each in found.rows} == {
        "activation/first", "activation_grad/first", "param/first/w", "param_grad/first/w",
    }  # fmt: skip


def test_a_selection_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="selects nothing"):
        compare(dump(), dump(), options=CompareOptions(selection=Selection.parse(["frist"])))


def test_no_gradient_on_both_sides_is_the_same() -> None:
    absent = entry("param_grad/frozen", NUMBERS, absent="no gradient: disconnected", stats={})
    found = compare(dump(MODEL, absent), dump(MODEL, absent))
    assert found.verdict == "same"
    assert row(found, "param_grad/frozen").why == "no tensor on either side (no gradient: disconnected)"
    assert compare(dump({}, absent), dump({}, absent)).sentence == "Nothing compared: no name in common has a tensor."


def test_no_gradient_on_one_side_is_a_difference() -> None:
    absent = entry("param_grad/w", NUMBERS, absent="no gradient: disconnected", dtype="float0", stats={})
    without, with_gradient = dump(MODEL, absent), dump({**MODEL, "param_grad/w": NUMBERS})
    for ref, cand in ((without, with_gradient), (with_gradient, without)):
        found = row(compare(ref, cand), "param_grad/w")
        assert found.status == "different"
        assert "has no tensor (no gradient: disconnected)" in found.why


def test_aliases_are_judged_by_their_owner_and_need_no_alias_on_the_other_side() -> None:
    alias = entry("activation/block", NUMBERS, alias_of="activation/second", stats={}, site=SiteFacts(index=1))
    aliased = dump(MODEL, alias)
    owned = dump({**MODEL, "activation/block": MODEL["activation/second"]})
    assert compare(aliased, aliased).verdict == "same"
    assert compare(aliased, owned).verdict == compare(owned, aliased).verdict == "same"
    other = dump(changed(activation__second=off_by("activation/second", 1.0)), alias)
    found = compare(aliased, other)
    assert row(found, "activation/block").metrics == row(found, "activation/second").metrics
    first = found.first_divergence.forward
    assert first is not None
    assert first.name == "second"


def test_a_statistics_dump_is_judged_by_hashes() -> None:
    found = compare(dump(), stats_only())
    assert found.verdict == "same"
    assert {each.why for each in found.rows} == {"judged by its hash: there is no tensor"}
    assert found.rows[0].metrics == {"norm_ratio": 1.0, "bit_equal": True}


@pytest.mark.parametrize("hashed", [True, False])
def test_statistics_prove_a_difference(hashed: bool) -> None:
    other = stats_only(changed(activation__second=off_by("activation/second", 0.02)), hashed=hashed)
    found = row(compare(dump(), other), "activation/second")
    assert found.status == "different"
    assert found.why == "judged by its statistics: there is no tensor, and rel_l2 is at least 2.0e-2, by l2"
    assert found.metrics == pytest.approx({"norm_ratio": 1.02}, rel=1e-6)


def test_without_hash_or_tensor_sameness_is_not_proved_but_reported_as_what_it_is() -> None:
    found = compare(stats_only(hashed=False), stats_only(hashed=False))
    assert found.verdict == "same"
    assert found.sentence.endswith("bit-equal 0, and 7 judged by statistics alone.")
    assert found.rows[0].why.startswith("judged by its statistics")
    bitwise = compare(stats_only(hashed=False), stats_only(hashed=False), options=CompareOptions(bitwise=True))
    assert bitwise.verdict == "different"
    assert {each.why for each in bitwise.rows} == {
        "it is unknown whether its bytes are equal: there is neither a tensor nor a hash"
    }


def test_statistics_of_integers_have_no_tolerance() -> None:
    ref, cand = (stats_only({"state/step": np.array([step])}, hashed=False) for step in (1, 2))
    (found,) = compare(ref, cand).rows
    assert found.status == "different"
    why = "there is no tensor, and they differ in min, which no tolerance covers"
    assert found.why == f"judged by its statistics: {why}"


def test_a_tensor_without_anything_to_compare_is_not_skipped() -> None:
    bare = MemoryDump(Manifest(entries=(entry("activation/a", NUMBERS, stats={}),)), {})
    found = compare(bare, bare)
    assert (found.verdict, found.rows[0].why) == ("different", "there is neither a tensor nor a statistic to compare")


def test_tensors_of_foreign_files_are_computed_in_their_order(tmp_path: Path) -> None:
    for name, factor in (("ref", 1), ("cand", 2)):
        np.savez(tmp_path / f"{name}.npz", zebra=NUMBERS, yak=NUMBERS * factor, ape=NUMBERS * factor)
    with open_dump(tmp_path / "ref.npz") as ref, open_dump(tmp_path / "cand.npz") as cand:
        found = compare(ref, cand)
    assert found.sentence == "Forward first differs at `yak` (rel_l2 1.0; it is 2 times the reference's)."
    assert [each.family for each in found.rows] == ["tensor"] * 3


def write(path: Path, tensors: Tensors) -> Path:
    with DumpWriter(path) as writer:
        for key, array in tensors.items():
            facts = entry(key, array)
            writer.add(
                Record(
                    family=facts.family, name=facts.name, shape=facts.shape, dtype=facts.dtype, array=array,
                    stats=facts.stats, site=facts.site,
                )
            )  # fmt: skip
        writer.commit(RunFacts(layers=LAYERS))
    return path


def test_dumps_in_files_compare_as_in_memory(tmp_path: Path) -> None:
    other = changed(activation__second=off_by("activation/second", 0.02))
    with open_dump(write(tmp_path / "a.npz", MODEL)) as ref, open_dump(write(tmp_path / "b.npz", other)) as cand:
        assert compare(ref, cand) == compare(dump(), dump(other))


def test_damage_is_found_behind_the_first_difference_and_behind_none(tmp_path: Path) -> None:
    sound, path = write(tmp_path / "a.npz", {"activation/a": NUMBERS}), tmp_path / "b.npz"
    with open_dump(sound) as ref:
        stored = ref.manifest.entries[0].stored
    assert stored is not None
    for position in (stored.offset, stored.offset + stored.size_bytes - 1):
        damaged = bytearray(sound.read_bytes())
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with open_dump(sound) as ref, open_dump(path) as cand, pytest.raises(DumpError):
            compare(ref, cand)


def test_provenance_of_a_file_without_one_differs_in_nothing() -> None:
    assert compare(dump(provenance={"seed": 1}), dump()).provenance_differences == ()


def test_names_are_escaped_for_the_terminal() -> None:
    name = "evil\x1b[2J"
    found = compare(dump({f"activation/{name}": NUMBERS}), dump({f"activation/{name}": NUMBERS * 2}))
    assert "\x1b" not in found.sentence


def test_json_has_the_documented_keys_and_is_strict() -> None:
    nan = NUMBERS.copy()
    nan[0, 0] = np.nan
    other = changed(activation__second=nan, param__new=NUMBERS)
    del other["input/x"]
    text: Any = loads(json.dumps(compare(dump(), dump(other)).to_json(), allow_nan=False))
    assert list(text) == [
        "schema", "command", "verdict", "sentence", "first_divergence", "rows", "provenance_differences",
    ]  # fmt: skip
    assert (text["schema"], text["command"], text["verdict"]) == (1, "compare", "different")
    assert text["first_divergence"] == {"forward": "second"}
    by_name = {f"{each['family']}/{each['name']}": each for each in text["rows"]}
    assert by_name["activation/second"]["needed"] == "Infinity"
    assert by_name["activation/first"] == {
        "name": "first", "family": "activation", "status": "same", "index": 0, "matched_by": "name",
        "rel_l2": 0.0, "1-cos": 0.0, "norm_ratio": 1.0, "max_abs": 0.0, "mismatch": 0.0, "max_rel": 0.0, "ulp_max": 0,
        "ulp_share": 0.0, "sign_flip": 0.0, "sqnr_db": "Infinity", "nonfinite_mismatch": 0, "bit_equal": True,
        "tolerance": 1e-4, "needed": 0.0,
    }  # fmt: skip
    assert {"matched_by", "tolerance", "needed"}.isdisjoint(by_name["input/x"])
    assert by_name["input/x"]["status"] == "missing"
    assert by_name["param/new"]["status"] == "extra"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rel_l2": -1.0},
        {"rel_l2": math.inf},
        {"rtol": -1.0},
        {"atol": math.nan},
        {"threads": 0},
        {"bitwise": True, "rel_l2": 0.1},
    ],
)
def test_contradictory_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CompareOptions(**wrong)


def without_tensors(tensors: Tensors) -> MemoryDump:
    return MemoryDump(Manifest(entries=tuple(entry(key, array) for key, array in tensors.items()), layers=LAYERS), {})


def test_statistics_alone_are_the_same_as_far_as_they_tell() -> None:
    found = compare(dump(), without_tensors({key: array * np.float32(1 + 1e-6) for key, array in MODEL.items()}))
    assert found.verdict == "same"
    assert found.sentence.startswith("Same as far as statistics tell: 7 tensors")
    assert "and 7 judged by statistics alone" in found.sentence
    # Of tensors nothing is left open, and a sentence that says so must not be weaker.
    assert compare(dump(), dump(scaled(1 + 1e-6))).sentence.startswith("Same within tolerance: 7 tensors")


def scaled(factor: float) -> Tensors:
    return {key: array * np.float32(factor) for key, array in MODEL.items()}


ADVICE = " A reference made with `gradscope calibrate` would tell whether that is noise."


@pytest.mark.slow
@pytest.mark.parametrize(("excess", "advised"), [(2.0, True), (18.0, True), (22.0, False), (1000.0, False)])
def test_calibration_is_suggested_where_it_would_settle_the_difference(excess: float, advised: bool) -> None:
    key = "activation/second"
    tolerance = next(row.tolerance for row in compare(dump(), dump()).rows if row.name == "second")
    assert tolerance is not None
    changed = {**MODEL, key: MODEL[key] * np.float32(1 + excess * tolerance)}
    assert compare(dump(), dump(changed)).sentence.endswith(ADVICE) is advised


def test_calibration_settles_no_difference_of_names_or_shapes() -> None:
    fewer = {key: array for key, array in MODEL.items() if key != "param_grad/first/w"}
    assert ADVICE not in compare(dump(), dump(fewer)).sentence
    cut = {**MODEL, "activation/second": MODEL["activation/second"][:2]}
    assert ADVICE not in compare(dump(), dump(cut)).sentence
