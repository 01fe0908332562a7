"""`compare` compares two dumps, whose tensors are matched and judged one by one, or two training runs, step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsFloat, cast, overload

from gradscope.api.reading import Dump
from gradscope.api.training_run import Run
from gradscope.comparison import CompareOptions, Comparison, ToleranceRule
from gradscope.comparison import compare as compare_sources
from gradscope.comparison.diagnosis.runs.run_divergence import RunDivergence, compare_runs
from gradscope.comparison.pairing.map_file import read_map
from gradscope.errors import UsageError
from gradscope.naming import Selection, as_tuple
from gradscope.typed_arguments import typed


@overload
def compare(
    ref: Run,
    cand: Run,
    *,
    tol: float | str | Sequence[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    bitwise: bool = False,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    allow_missing: str | Sequence[str] = (),
) -> RunDivergence: ...


@overload
def compare(
    ref: Dump,
    cand: Dump,
    *,
    tol: float | str | Sequence[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    bitwise: bool = False,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    allow_missing: str | Sequence[str] = (),
    map_file: str | os.PathLike[str] | None = None,
    cand_dtype: str | None = None,
) -> Comparison: ...


@typed("ref", "cand")
def compare(
    ref: Dump | Run,
    cand: Dump | Run,
    *,
    tol: float | str | Sequence[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    bitwise: bool = False,
    select: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    allow_missing: str | Sequence[str] = (),
    map_file: str | os.PathLike[str] | None = None,
    cand_dtype: str | None = None,
) -> Comparison | RunDivergence:
    """Matches two dumps tensor by tensor and judges them; the result's truth value is the verdict.

    Of two training runs it finds the first recorded step that differs, and the first tensor in it, by the statistics in
    their histories; these have no elements, so that `rtol`, `atol`, `map_file` and `cand_dtype` are of dumps.

    Args:
        ref: The reference: a dump, or a run.
        cand: The candidate, likewise.
        tol: One tolerance for every tensor on `rel_l2`, the norm of the difference as a share of the reference's; or
            rules, `"param_grad/.*=rel_l2 < 1e-3 and max_abs < 1"`, of which the first that matches a tensor counts;
            None for the defaults by dtype and family.
        rtol: Relative part of numpy's rule, a share of the reference's element. Where it or `atol` is passed, tensors
            without a `tol` are judged by that rule.
        atol: Its absolute part, in the unit of the tensor.
        bitwise: Whether only equal bytes are the same.
        select: Patterns of names that take part; all where empty. Here and below, a string is a list of one.
        exclude: Patterns of names that do not.
        allow_missing: Regular expressions of names that may be on one side only.
        map_file: Rules that map the candidate's tensors to those of the reference, in the language of
            `gradscope.comparison.pairing.map_file`; None to match only by names, order and values.
        cand_dtype: The dtype that the candidate was computed in, `"bfloat16"`, where its dump does not show it.

    Returns:
        The comparison: its `verdict` and `sentence`, `first_divergence`, and one row for each tensor with the metrics
        that were measured. Of runs their `first_step` that differs, and `rows` of that step in its order.

    Raises:
        UsageError: A pattern selects nothing or is not one, a tolerance is negative or not one, a dump is compared with
            a run or with anything else, or an argument is of dumps.
        DumpError: One of the dumps or histories, or the map file, is damaged.

    Example:
        >>> import jax.numpy as jnp
        >>> import gradscope as gs
        >>> loss = lambda params, x: ((x @ params["w"]) ** 2).mean()
        >>> one, other = (gs.capture(loss, {"w": jnp.full(3, scale)}, jnp.ones((4, 3))) for scale in (1.0, 1.5))
        >>> bool(gs.compare(one, one)), bool(gs.compare(one, other)), bool(gs.compare(one, other, tol=1.5))
        (True, False, True)
        >>> gs.compare(one, other, select="param/w").rows[0].status
        'different'
    """
    options = CompareOptions(
        selection=Selection.parse(select, exclude),
        map_rules=() if map_file is None else read_map(Path(map_file)),
        allow_missing=as_tuple(allow_missing),
        rules=_rules(tol),
        rel_l2=_number(tol),
        bitwise=bitwise,
        rtol=rtol,
        atol=atol,
        cand_dtype=cand_dtype,
    )
    for each in cast("tuple[object, ...]", (ref, cand)):
        if not isinstance(each, Dump | Run):
            raise UsageError(
                f"compare takes dumps and runs, not {_kind(each)}",
                hint="gs.load(path) opens a file or the folder of a run, gs.capture(...) makes a dump",
            )
    if isinstance(ref, Dump) and isinstance(cand, Dump):
        return compare_sources(ref.source, cand.source, options=options)
    if isinstance(ref, Dump) or isinstance(cand, Dump):
        raise UsageError("a training run is compared with a dump", hint="pass two runs, or run.at(step) for a dump")
    of_dumps = {"rtol": rtol, "atol": atol, "map_file": map_file, "cand_dtype": cand_dtype}
    wrong = next((name for name, value in of_dumps.items() if value is not None), None)
    if wrong is not None:
        raise UsageError(f"{wrong} is of dumps, and these are training runs", hint="leave it out")
    return compare_runs(ref.history, cand.history, options)


def _kind(value: object) -> str:
    return f"the path {value}" if isinstance(value, str | os.PathLike) else f"a {type(value).__name__}"


def _rules(tol: float | str | Sequence[str] | None) -> tuple[ToleranceRule, ...]:
    return tuple(map(ToleranceRule.parse, as_tuple(cast("Any", tol)))) if _number(tol) is None else ()


def _number(tol: float | str | Sequence[str] | None) -> float | None:
    """Returns a tolerance that is one number, also one of NumPy or JAX."""
    return float(tol) if isinstance(tol, SupportsFloat) else None
