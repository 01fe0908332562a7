"""Dumps made by hand for the tests of reports: small networks whose numbers are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradscope.comparison import Comparison, ComparisonRow
from gradscope.dump.manifest.manifest import Entry, Layer, Ledger, LedgerLine, Manifest
from gradscope.dump.record import Json, Reason, SiteFacts
from gradscope.presentation import DumpReport, Query, Screen, dump_report, to_text
from gradscope.stats import find, tensor_stats

TERMINAL = Screen(width=80)
PIPE = Screen()

#: What a name from an untrusted file may try, and what it tries.
HOSTILE_NAMES = {
    "terminal escape": "conv\x1b[2J\x1b]0;pwned\x07",
    "markup": "blocks[0].attn[/0][bold red]",
    "bidi override": "safe\u202egnp.exe",
    "newline": "two\nlines",
    "markdown": "a|b`c*d_e<b>#1@you",
    "csv": 'comma,"quote"',
    "lone surrogate": "half\ud800",
    "wide": "層/活性化",
    "very long": "scope/" * 50 + "leaf",
    "only separators": "//",
    "brackets": "params[b]",
}


def entry(
    family: str,
    name: str,
    *,
    index: int = 0,
    shape: tuple[int, ...] = (2, 4),
    dtype: str = "float32",
    stats: Mapping[str, Json] | None = None,
    source: str | None = None,
    iteration: tuple[int, ...] = (),
    alias_of: str | None = None,
    absent: Reason | None = None,
) -> Entry:
    """An entry; without statistics of its own it has those of a tensor of ones."""
    empty = alias_of is not None or absent is not None
    columns = tensor_stats(np.ones(shape, np.float32)).to_json() if stats is None and not empty else stats or {}
    return Entry(
        family=family,
        name=name,
        shape=shape,
        dtype=dtype,
        stats=columns,
        site=SiteFacts(index=index, source=source, iteration=iteration),
        alias_of=alias_of,
        absent=absent,
    )


def numbers(shape: tuple[int, ...], **columns: Json) -> dict[str, Json]:
    """Statistics with the given columns; counts that are not given are zero."""
    return {"size": math.prod(shape), "shape": list(shape), "zeros": 0, "nan": 0, "inf": 0, **columns}


def stats_of(values: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, Json]:
    """The real statistics of some values."""
    return tensor_stats(np.asarray(values)).to_json()


def report_of(manifest: Manifest, *, query: Query | None = None, fold: bool = True) -> DumpReport:
    """The report of a manifest, as `gradscope show` makes it."""
    return dump_report("show", "run.npz", manifest, find(manifest), query=query, fold=fold)


def text_of(manifest: Manifest, screen: Screen = TERMINAL, *, query: Query | None = None, fold: bool = True) -> str:
    """The report as plain text."""
    return to_text(report_of(manifest, query=query, fold=fold), screen).plain


def small_network() -> Manifest:
    """A stem and two blocks: a dead rectifier, a layer with NaN, an unused parameter, integer labels."""
    image, stem, narrow = (8, 32, 32, 3), (8, 16, 16, 16), (8, 8, 8, 32)
    layers = [
        _layer("stem", stem, 1, 0.61, 2.1e-3, alias="stem/relu"),
        _layer("stem/conv", stem, 1, 1.02, 2.0e-3, mean=-0.004),
        _layer("stem/relu", stem, 2, 0.61, 2.1e-3, zeros=16_102, dead=0.0625),
        _layer("block1", narrow, 3, 0.0, 0.0, alias="block1/relu"),
        _layer("block1/conv", narrow, 3, 1.31, 8.4e-4, dtype="bfloat16"),
        _layer("block1/relu", narrow, 4, 0.22, 9.1e-5, zeros=15_360, dead=0.875, min=0),
        _layer("block2/conv", narrow, 5, 12.7, 5.5e-9, nan=3),
        _layer("loss", (), 6, 2.31, 1.0),
    ]
    parameters = [
        _parameter("stem/conv/kernel", (3, 3, 3, 16), 1, 5.61, 0.413),
        _parameter("stem/conv/bias", (16,), 1, 0.0, 0.0021),
        _parameter("block1/conv/kernel", (3, 3, 16, 32), 3, 11.9, 1.02e-3),
    ]
    return Manifest(
        entries=(
            entry("input", "image", shape=image, stats=numbers(image, mean=0.01, std=0.99, min=-4.1, max=3.9, rms=1.0)),
            entry("input_grad", "image", shape=image, stats=numbers(image, rms=3.2e-5, amax=4.4e-4, l1=0.3)),
            entry("input", "label", shape=(8,), dtype="int32", stats={"size": 8, "min": 0, "max": 9, "zeros": 1}),
            entry("input_grad", "label", shape=(8,), dtype="float0", absent="non-differentiable"),
            *(each for pair in parameters for each in pair),
            entry("param", "spare/kernel", shape=(4, 4), stats=numbers((4, 4), mean=0.1, std=0.5, l2=2.0, amax=1.0)),
            entry("param_grad", "spare/kernel", shape=(4, 4), absent="disconnected"),
            *(each for pair, _ in layers for each in pair),
        ),
        layers=tuple(layer for _, layer in layers),
        ledger=Ledger(
            captured=24,
            missing=(
                LedgerLine(name="label", family="input_grad", reason="non-differentiable", detail="int32"),
                LedgerLine(name="spare/kernel", family="param_grad", reason="disconnected"),
            ),
        ),
        loss=2.30714,
        provenance={"versions": {"jax": "0.10.2"}, "backend": "cpu", "seed": 0},
        self_check={"total": 3, "bit_equal": 2, "max_rel_l2": 3.2e-7},
        timings={"compile": 1.29, "run": 0.031},
    )


def scanned_network(iterations: int = 3) -> Manifest:
    """A decoder whose blocks are the iterations of a loop."""
    shape, order = (4, 128, 512), range(iterations)
    blocks = [(at, part) for at in order for part in ("attention/query", "attention/out", "mlp")]
    made = [("embed", None, 1.0), *((f"block[{at}]/{part}", at, 1.0 + at) for at, part in blocks)]
    entries: list[Entry] = []
    for index, (name, at, scale) in enumerate(made):
        for family, rms in (("activation", scale), ("activation_grad", scale * 1e-3)):
            stats = numbers(shape, std=rms, rms=rms, l1=rms * math.prod(shape))
            iteration = () if at is None else (at,)
            entries.append(entry(family, name, index=index, shape=shape, stats=stats, iteration=iteration))
    layers = tuple(Layer(path=name, index=index) for index, (name, _, _) in enumerate(made))
    return Manifest(entries=tuple(entries), layers=layers, loss=5.0)


def compared(family: str, name: str, rel_l2: float, *, index: int = 0, tolerance: float = 1e-4) -> ComparisonRow:
    """A row of a comparison, judged by its `rel_l2`."""
    passes = rel_l2 <= tolerance
    return ComparisonRow(
        name=name,
        family=family,
        status="same" if passes else "different",
        index=index,
        matched_by="name",
        metrics={
            "rel_l2": rel_l2, "norm_ratio": 1 + rel_l2, "max_abs": 3 * rel_l2, "mismatch": 0.25 if rel_l2 else 0.0,
            "nonfinite_mismatch": 0, "bit_equal": rel_l2 == 0,
        },
        tolerance=tolerance,
        needed=rel_l2,
        why="" if passes else "over the tolerance",
    )  # fmt: skip


def different_runs() -> Comparison:
    """Two runs that part in the second block, and whose parameters are not all the same."""
    return Comparison(
        rows=(
            compared("input", "image", 0.0),
            compared("param", "stem/conv/kernel", 0.0, index=1),
            ComparisonRow(name="head/bias", family="param", status="missing", index=9, why="not in the candidate"),
            compared("activation", "stem", 3.1e-7, index=1),
            compared("activation", "block1/conv", 2.4e-3, index=2),
            compared("activation", "block1/bn", 1.1e-3, index=3),
            compared("activation", "block1/relu", 9.7e-4, index=4),
            compared("activation", "block1", 9.7e-4, index=4),
            compared("activation_grad", "block1", 3.1e-2, index=4, tolerance=5e-4),
        ),
        provenance_differences=(
            {"field": "versions.jax", "ref": "0.10.2", "cand": "0.12.0"},
            {"field": "seed", "ref": 0},
        ),
    )


def same_runs() -> Comparison:
    """Two runs that differ by rounding."""
    return Comparison(rows=(compared("activation", "stem", 3.1e-7), compared("param", "stem/kernel", 0.0)))


def one_tensor() -> Manifest:
    """A rectifier's output, [0, 0, 0, 0.3, 0.7, 1.5, 1.8, 40, NaN], and the composite layer that hands it on."""
    # Bins are sixteenths of an octave; 2^-2, 2^-1, 2^0 and 2^5 begin at these.
    quarter, half, one, large = ((1023 + exponent) * 16 for exponent in (-2, -1, 0, 5))
    counts = [0] * (large + 4 - quarter + 1)
    for bin_number in (quarter + 3, half + 6, one + 8, one + 12, large + 4):
        counts[bin_number - quarter] += 1
    stats = numbers(
        (9,), dtype="float32", mean=5.5375, std=13.04, rms=14.16, l2=40.07, l1=44.3, min=0.0, max=40.0, amax=40.0,
        amin_nz=0.3, zeros=3, nan=1, posinf=0, neginf=0, subnormal=0,
        histogram={"first": quarter + 3, "counts": list(counts[3:])},
    )  # fmt: skip
    return Manifest(
        entries=(
            entry("activation", "relu", shape=(9,), stats=stats, source="net.py:12"),
            entry("activation", "block", shape=(9,), alias_of="activation/relu", source="net.py:12"),
        )
    )


def _layer(
    name: str,
    shape: tuple[int, ...],
    index: int,
    rms: float,
    gradient: float,
    *,
    dtype: str = "float32",
    alias: str | None = None,
    mean: float = 0.25,
    **columns: Json,
) -> tuple[tuple[Entry, Entry], Layer]:
    size = math.prod(shape)
    source = f"net.py:{10 + index}"
    value = numbers(shape, mean=mean, std=rms, rms=rms, **{"dead": 0.0, "min": 0, **columns})
    slope = numbers(shape, rms=gradient, amax=5 * gradient, l1=gradient * size)
    pair = (
        entry("activation", name, index=index, shape=shape, dtype=dtype, stats=value, source=source),
        entry("activation_grad", name, index=index, shape=shape, dtype=dtype, stats=slope, source=source),
    )
    if alias is not None:
        pair = tuple(
            entry(each.family, name, index=index + 1, shape=shape, source=source, alias_of=f"{each.family}/{alias}")
            for each in pair
        )
    inward = {"in": 1.0, "out": rms, "grad_in": gradient * 1.1, "grad_out": gradient} if gradient else {}
    return pair, Layer(path=name, index=index, source=source, rms=inward)


def _parameter(name: str, shape: tuple[int, ...], index: int, norm: float, gradient: float) -> tuple[Entry, Entry]:
    size = math.prod(shape)
    spread = norm / math.sqrt(size)
    value = numbers(shape, mean=0.0, std=spread, l2=norm, amax=3 * spread)
    slope = numbers(shape, l2=gradient, rms=gradient / math.sqrt(size), amax=gradient / 2, l1=gradient)
    return (
        entry("param", name, index=index, shape=shape, stats=value, source="net.py:3"),
        entry("param_grad", name, index=index, shape=shape, stats=slope, source="net.py:3"),
    )
