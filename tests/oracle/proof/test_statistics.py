"""The fifth proof: every number in the tables of the zoo is NumPy's, computed in float64 from the tensors in the dump.

The tensors are read by `numpy.load`, the numbers by `json`: no code of gradscope is between a file and its check.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

from tests.oracle.proof.commands import Dumped

Row: TypeAlias = "dict[str, Any]"
Tensors: TypeAlias = "Mapping[str, np.ndarray]"

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
QUANTILES = {"p1": 1, "p50": 50, "p99": 99}

#: The fields of a row other than the numbers of its tensor.
FACTS = {
    *("name", "family", "source", "layer", "primitive", "iteration", "alias_of", "absent", "exact_quantiles"),
    *("fwd_gain", "fwd_total", "bwd_gain", "bwd_total", "g/w"),
}

#: Every so many tensors of a dump are checked: all of a small model, some of each kind of a large one.
DUMPS = {
    ("mlp", "--dtype", "bfloat16", "--exact-quantiles"): 1,
    ("transformer, scanned and checkpointed", "--x64", "--self-check"): 1,
    ("resnet18, short", "--self-check"): 3,
}

#: What goes into some layers, by the names of activations.
INPUTS = {
    ("mlp", "--dtype", "bfloat16", "--exact-quantiles"): {
        "relu1": ["dense1"],
        "dense2": ["relu1"],
        "relu2": ["dense2"],
        "dense3": ["relu2"],
        "loss": ["dense3"],
    },
    ("transformer, scanned and checkpointed", "--x64", "--self-check"): {
        "block[0]/attn": ["block[0]/norm1"],
        "block[0]/attn/mix": ["block[0]/attn/softmax", "block[0]/attn/value"],
        "block[1]/attn/scores": ["block[1]/attn/query", "block[1]/attn/key"],
        "block[1]/add2": ["block[1]/add1", "block[1]/mlp/down"],
        "norm": ["block"],
    },
    ("resnet18, short", "--self-check"): {
        "stage1_block1": ["stem/pool"],
        "stage2_block1/proj_conv": ["stage1_block1/relu2"],
        "stage2_block1/add": ["stage2_block1/proj_bn", "stage2_block1/bn2"],
        "stage2_block1/bn1": ["stage2_block1/conv1"],
        "head": ["pool"],
    },
}

statistics = pytest.mark.parametrize("dump", DUMPS, ids=" ".join)
gains = pytest.mark.parametrize("dump", INPUTS, ids=" ".join)


def tensors_of(dump: Dumped) -> dict[str, np.ndarray]:
    """All arrays of a dump under their names, an alias's too; of bfloat16 where NumPy's own format could not say so."""
    with np.load(dump.path) as members:
        arrays = {key: members[key] for key in members if not key.startswith("__")}
    arrays = {key: array.view(ml_dtypes.bfloat16) if array.dtype == "V2" else array for key, array in arrays.items()}
    aliases = {key_of(row): row["alias_of"] for row in dump.command.report["rows"] if "alias_of" in row}
    return arrays | {key: arrays[owner] for key, owner in aliases.items()}


def key_of(row: Row) -> str:
    return f"{row['family']}/{row['name']}"


def sampled_rows(dump: Dumped, every: int) -> list[Row]:
    return [row for row in dump.command.report["rows"] if "absent" not in row][::every]


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def columns_of(array: np.ndarray, family: str) -> Iterator[tuple[str, object]]:
    """Every column of a tensor by its definition, exact counts and float64 numbers; quantiles are left out."""
    yield from (("size", array.size), ("shape", list(array.shape)), ("dtype", str(array.dtype)))
    values, magnitudes = wide(array), np.abs(wide(array))
    nonzero = magnitudes[magnitudes > 0]
    yield from (("min", values.min()), ("max", values.max()), ("zeros", array.size - nonzero.size))
    yield "hash", hashlib.sha256(array.tobytes()).hexdigest()[:32]
    if array.dtype == np.int32:
        return
    yield from (("mean", values.mean()), ("std", values.std()), ("rms", math.sqrt((values**2).mean())))
    yield from (("l2", np.linalg.norm(values)), ("l1", magnitudes.sum()), ("amax", magnitudes.max()))
    yield from ((name, 0) for name in ("nan", "inf", "posinf", "neginf"))
    yield "subnormal", np.count_nonzero(nonzero < float(ml_dtypes.finfo(array.dtype).smallest_normal))
    if nonzero.size:
        yield from (("amin_nz", nonzero.min()), ("dynrange", math.log2(nonzero.max()) - math.log2(nonzero.min())))
        yield from ((f"underflow@{narrow}", rounded_to_zero(nonzero, narrow)) for narrow in NARROW)
    if family == "activation" and array.ndim > 1:
        yield "dead", np.mean(values.reshape(-1, array.shape[-1]).max(axis=0) <= 0)


def rounded_to_zero(nonzero: np.ndarray, narrow: str) -> float:
    return float(np.mean(nonzero.astype(getattr(ml_dtypes, narrow, narrow)).astype(np.float64) == 0))


def assert_numbers(found: Row, expected: Mapping[str, object], largest: float, what: str) -> None:
    """Counts, shapes and names are equal, numbers to the last digits: of a mean, which cancels, those of `largest`."""
    for name, value in expected.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-15 * largest), (what, name)
        else:
            assert found[name] == value, (what, name)


@pytest.mark.slow
@statistics
def test_every_column_is_numpys(dump: tuple[str, ...], dumped: Callable[..., Dumped]) -> None:
    tensors = tensors_of(dumped(*dump))
    for row in sampled_rows(dumped(*dump), DUMPS[dump]):
        array = tensors[key_of(row)]
        expected = dict(columns_of(array, row["family"]))
        assert row.keys() - FACTS - QUANTILES.keys() == expected.keys(), key_of(row)
        assert_numbers(row, expected, float(np.abs(wide(array)).max()), key_of(row))


@statistics
def test_quantiles_are_numpys_exactly_on_request_and_else_to_a_bin_of_the_histogram(
    dump: tuple[str, ...], dumped: Callable[..., Dumped]
) -> None:
    tensors, rounding = tensors_of(dumped(*dump)), 0 if "--exact-quantiles" in dump else 0.045
    rows = [row for row in sampled_rows(dumped(*dump), DUMPS[dump]) if row["dtype"] != "int32"]
    for row in rows:
        magnitudes = np.abs(wide(tensors[key_of(row)]))
        for name, percent in QUANTILES.items():
            exact = float(np.quantile(magnitudes, percent / 100, method="inverted_cdf"))
            assert row[name] == pytest.approx(exact, rel=rounding, abs=0), (key_of(row), name)


@statistics
def test_gradients_are_measured_against_their_parameters(dump: tuple[str, ...], dumped: Callable[..., Dumped]) -> None:
    tensors = tensors_of(dumped(*dump))
    rows = [row for row in dumped(*dump).command.report["rows"] if row["family"] == "param_grad"]
    norms = {row["name"]: np.linalg.norm(wide(tensors[f"param/{row['name']}"])) for row in rows}
    assert {row["name"] for row in rows if "g/w" in row} == {name for name, norm in norms.items() if norm}
    for row in rows:
        if "g/w" in row:
            gradient = np.linalg.norm(wide(tensors[key_of(row)]))
            assert row["g/w"] == pytest.approx(gradient / norms[row["name"]], rel=1e-12), row["name"]


@gains
def test_gains_are_ratios_of_root_mean_squares(dump: tuple[str, ...], dumped: Callable[..., Dumped]) -> None:
    tensors = tensors_of(dumped(*dump))
    rows = {key_of(row): row for row in dumped(*dump).command.report["rows"]}

    def rms(family: str, names: list[str]) -> float:
        elements = np.concatenate([wide(tensors[f"{family}/{name}"]).ravel() for name in names])
        return float(np.sqrt((elements**2).mean()))

    for layer, inputs in INPUTS[dump].items():
        value, gradient = rows[f"activation/{layer}"], rows[f"activation_grad/{layer}"]
        going_in, coming_out = rms("activation", inputs), rms("activation", [layer])
        assert value["fwd_gain"] == pytest.approx(coming_out / going_in, rel=1e-12), layer
        assert value["fwd_total"] == pytest.approx(rms("activation", ["loss"]) / going_in, rel=1e-12), layer
        arriving, leaving = rms("activation_grad", [layer]), rms("activation_grad", inputs)
        assert gradient["bwd_gain"] == pytest.approx(leaving / arriving, rel=1e-12), layer
        assert gradient["bwd_total"] == pytest.approx(leaving / rms("activation_grad", ["loss"]), rel=1e-12), layer
