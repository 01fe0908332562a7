"""What a prompt and a notebook show of the objects: one line, a small table, HTML in which names are only text."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradscope as gs

HOSTILE = "<script>\x1b[31m</script>\n"
X = np.ones((4, 3), np.float32)
#: What is shown of each is tested; all are made of two dumps.
KINDS = (
    "Dump", "Comparison", "ComparisonRow", "Seen", "Seen with tensors", "CoreStatistics", "TensorStats", "Finding",
    "Thresholds", "Manifest", "Ledger",
)  # fmt: skip


def loss(params: Any, x: Any) -> Any:
    with jax.named_scope("<b>layer"):
        return jnp.tanh(x @ params[HOSTILE]).sum()


def dump(scale: float = 1.0) -> gs.Dump:
    return gs.capture(loss, {HOSTILE: jnp.full((3, 2), scale)}, X)


@cache
def seen(**options: Any) -> gs.Seen[Any]:
    return gs.value_and_grad(loss, **options)({HOSTILE: jnp.ones((3, 2))}, X)[1]


@cache
def objects() -> dict[str, Any]:
    one = dump()
    comparison = gs.compare(one, dump(2.0))
    return {
        "Dump": one,
        "Comparison": comparison,
        "ComparisonRow": comparison.rows[0],
        "Seen": seen(),
        "Seen with tensors": seen(observe="tensors"),
        "CoreStatistics": seen()["activation/<b>layer"],
        "TensorStats": one.stats("activation/<b>layer"),
        "Finding": one.findings(gs.Thresholds(vanishing=1e3))[0],
        "Thresholds": gs.Thresholds(),
        "Manifest": one.manifest,
        "Ledger": one.ledger,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_repr_is_one_short_line_and_str_no_more_than_a_screen(kind: str) -> None:
    shown = objects()[kind]
    assert kind.partition(" ")[0] in repr(shown)
    assert "\n" not in repr(shown)
    assert len(repr(shown)) < 400
    assert len(str(shown).splitlines()) <= 40
    assert "\x1b" not in repr(shown) + str(shown)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"Thresholds"}))
def test_html_has_names_as_text(kind: str) -> None:
    html = objects()[kind]._repr_html_()
    assert html.startswith("<div>")
    assert "<script" not in html
    assert "<b>" not in html
    assert "\x1b" not in html


def test_a_dump_shows_its_families_and_a_comparison_its_counts() -> None:
    rows = dict(line.split(maxsplit=1) for line in str(dump()).splitlines()[2:])
    assert rows["param"].split() == ["1", "6", "0"]
    rows = dict(line.split(maxsplit=1) for line in str(objects()["Comparison"]).splitlines()[2:])
    assert rows["param"].split() == ["0", "1", "0", "0"]


def test_seen_shows_numbers_once_the_step_has_run_and_names_before() -> None:
    assert "7.96" in next(line for line in str(seen()).splitlines() if line.startswith("activation/"))
    texts: list[str] = []

    def traced(w: Any) -> Any:
        inside = gs.value_and_grad(lambda w: (w**2).sum())(w)[1]
        texts.extend([repr(inside), str(inside), repr(inside["param/value"])])
        return w

    jax.jit(traced)(jnp.ones(3))
    assert "param/value" in texts[1]
    assert all("Traced" not in each for each in texts)


def test_statistics_of_a_step_are_attributes_that_an_editor_knows() -> None:
    columns = {"mean", "std", "rms", "l2", "min", "max", "amax", "finite", "zeros", "nan", "inf"}
    assert columns <= set(dir(gs.CoreStatistics))
    statistics, tensor = seen()["activation/<b>layer"], np.asarray(seen(observe="tensors")["activation/<b>layer"])
    assert float(statistics.l2) == pytest.approx(np.linalg.norm(tensor), rel=1e-6)
    assert float(statistics.finite) == tensor.size


def test_a_dump_and_what_a_step_observed_are_mappings() -> None:
    one = dump()
    assert one.get("param/nothing") is None
    assert one == one  # noqa: PLR0124 - a mapping would compare arrays, which have no truth value
    assert one != dump()
    assert getattr(one, "_ipython_key_completions_")() == list(one)  # noqa: B009 - the hook has a private name
    for mapping in (one, seen()):
        with pytest.raises(gs.MissingKeyError) as missing:
            mapping["activation/<b>layr"]
        assert isinstance(missing.value, KeyError)
        assert "activation/<b>layer" in (missing.value.hint or "")
